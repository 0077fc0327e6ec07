//! The gates of feed-forward layers, and the numbers in their formulas.

use std::f64::consts::{FRAC_2_SQRT_PI, SQRT_2};

/// GELU's tanh form in terms of σ: ½ · (1 + tanh(y)) = σ(2y), and this is 2 · √(2/π).
pub(crate) const GELU_FACTOR: f64 = FRAC_2_SQRT_PI * SQRT_2;

/// Factor of the cube in GELU's tanh form.
pub(crate) const GELU_CUBE: f64 = 0.044715;

/// From here on, on both sides, the tanh of GELU's tanh form is ±1, in f64 too.
pub(crate) const GELU_BOUND: f64 = 20.0;

/// Factor of the gate in the σ of [`Gate::ClampedSilu`].
pub(crate) const CLAMPED_FACTOR: f64 = 1.702;

/// How a gate `g` and its partner `u` become one number. σ(x) = 1 / (1 + e^(−x)).
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Gate {
    /// `g · σ(g) · u`: SiLU, as Llama's layers have it.
    Silu,
    /// `½ · g · (1 + tanh(√(2/π) · (g + 0.044715 · g³))) · u`, which Gemma's layers have: GELU in
    /// its tanh form (Hendrycks & Gimpel 2016, "Gaussian Error Linear Units", section 2).
    GeluTanh,
    /// `g · σ(1.702 · g) · (u + 1)` of `g` where it is at most `limit`, and of `u` within `±limit`;
    /// beyond, the limit takes their place. Of gpt-oss' experts (OpenAI 2025, "gpt-oss-120b &
    /// gpt-oss-20b Model Card").
    ClampedSilu {
        /// Largest gate and largest magnitude of its partner, above 0; gpt-oss has 7.
        limit: f32,
    },
}
