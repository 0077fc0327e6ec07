//! Sums, norms and rounding, in one pass over their inputs.

use half::bf16;
use rayon::prelude::*;

use super::lanes::Lanes;
use super::level::{Kernel, Level, dispatch};
use super::stored::rounded;
use super::strip::WIDEST;

/// Values that a thread takes at a time.
pub(super) const VALUES_AT_ONCE: usize = 1 << 14;

/// `a + b`, both of one length.
pub(crate) fn add(a: &[f32], b: &[f32]) -> Vec<f32> {
    assert_eq!(a.len(), b.len(), "both sides");
    let mut out = a.to_vec();
    let pieces = out.par_chunks_mut(VALUES_AT_ONCE).zip(b.par_chunks(VALUES_AT_ONCE));
    pieces.for_each(|(out, b)| out.iter_mut().zip(b).for_each(|(out, b)| *out += b));
    out
}

/// `x / √(mean(x²) + eps) · weight` for each row of `weight.len()` values.
pub(crate) fn rms_norm(x: &[f32], weight: &[f32], eps: f32) -> Vec<f32> {
    let level = Level::best();
    let mut out = vec![0.0; x.len()];
    let values = (VALUES_AT_ONCE / weight.len()).max(1) * weight.len(); // whole rows
    let pieces = out.par_chunks_mut(values).zip(x.par_chunks(values));
    pieces.for_each(|(out, x)| dispatch(level, RmsNorm { x, weight, eps, out }));
    out
}

/// `(x − mean) / √(variance + eps) · weight + bias` for each row of `weight.len()` values.
pub(crate) fn layer_norm(x: &[f32], weight: &[f32], bias: &[f32], eps: f32) -> Vec<f32> {
    assert_eq!(weight.len(), bias.len(), "weight and bias");
    let level = Level::best();
    let mut out = vec![0.0; x.len()];
    let values = (VALUES_AT_ONCE / weight.len()).max(1) * weight.len(); // whole rows
    let pieces = out.par_chunks_mut(values).zip(x.par_chunks(values));
    pieces.for_each(|(out, x)| dispatch(level, LayerNorm { x, weight, bias, eps, out }));
    out
}

/// Each number rounded to bf16.
pub(crate) fn to_bf16(x: &[f32]) -> Vec<bf16> {
    let level = Level::best();
    let mut out = vec![bf16::ZERO; x.len()];
    let pieces = out.par_chunks_mut(VALUES_AT_ONCE).zip(x.par_chunks(VALUES_AT_ONCE));
    pieces.for_each(|(to, from)| dispatch(level, ToBf16 { from, to }));
    out
}

struct ToBf16<'a> {
    from: &'a [f32],
    to: &'a mut [bf16],
}

impl Kernel for ToBf16<'_> {
    #[inline(always)]
    unsafe fn run<V: Lanes>(self) {
        for (to, from) in self.to.iter_mut().zip(self.from) {
            *to = rounded(*from);
        }
    }
}

struct LayerNorm<'a> {
    /// `[rows, dim]`.
    x: &'a [f32],
    /// `[dim]`.
    weight: &'a [f32],
    /// `[dim]`.
    bias: &'a [f32],
    eps: f32,
    /// `[rows, dim]`.
    out: &'a mut [f32],
}

impl Kernel for LayerNorm<'_> {
    #[inline(always)]
    unsafe fn run<V: Lanes>(self) {
        let dim = self.weight.len();
        for (x, out) in self.x.chunks_exact(dim).zip(self.out.chunks_exact_mut(dim)) {
            let mean = sum(x, |value| value) / dim as f32;
            let variance = sum(x, |value| (value - mean) * (value - mean)) / dim as f32;
            let factor = 1.0 / (variance + self.eps).sqrt();
            for (((out, value), weight), bias) in out.iter_mut().zip(x).zip(self.weight).zip(self.bias) {
                *out = (value - mean) * factor * weight + bias;
            }
        }
    }
}

/// The sum of `of` each value, in as many parts as the widest vector has lanes.
#[inline(always)]
fn sum(x: &[f32], of: impl Fn(f32) -> f32) -> f32 {
    let mut sums = [0f32; WIDEST];
    for values in x.chunks(WIDEST) {
        for (sum, value) in sums.iter_mut().zip(values) {
            *sum += of(*value);
        }
    }
    sums.iter().sum()
}

struct RmsNorm<'a> {
    /// `[rows, dim]`.
    x: &'a [f32],
    /// `[dim]`.
    weight: &'a [f32],
    eps: f32,
    /// `[rows, dim]`.
    out: &'a mut [f32],
}

impl Kernel for RmsNorm<'_> {
    #[inline(always)]
    unsafe fn run<V: Lanes>(self) {
        let dim = self.weight.len();
        let whole = dim / WIDEST * WIDEST;
        for (x, out) in self.x.chunks_exact(dim).zip(self.out.chunks_exact_mut(dim)) {
            let mut sums = [0f32; WIDEST];
            // SAFETY: the caller promises the instructions; N divides WIDEST, and a row has `whole`
            // values.
            unsafe {
                for part in (0..WIDEST).step_by(V::N) {
                    let mut sum = V::splat(0.0);
                    for at in (part..whole).step_by(WIDEST) {
                        let values = V::load(x.as_ptr().add(at));
                        sum = sum.add(values.mul(values));
                    }
                    sum.store(sums.as_mut_ptr().add(part));
                }
            }
            for (sum, value) in sums.iter_mut().zip(&x[whole..]) {
                *sum += value * value;
            }
            let factor = 1.0 / (sums.iter().sum::<f32>() / dim as f32 + self.eps).sqrt();
            for ((out, value), weight) in out.iter_mut().zip(x).zip(self.weight) {
                *out = value * factor * weight;
            }
        }
    }
}
