//! The element-wise operations of a layer, in one pass over their inputs.

use rayon::prelude::*;

use super::lanes::Lanes;
use super::level::{Kernel, Level, dispatch};
use super::strip::{LOG2_E, WIDEST};

/// Values that a thread takes at a time.
const VALUES_AT_ONCE: usize = 1 << 14;

/// `a + b`, both of one length.
pub(crate) fn add(a: &[f32], b: &[f32]) -> Vec<f32> {
    assert_eq!(a.len(), b.len(), "both sides");
    let mut out = a.to_vec();
    let pieces = out.par_chunks_mut(VALUES_AT_ONCE).zip(b.par_chunks(VALUES_AT_ONCE));
    pieces.for_each(|(out, b)| out.iter_mut().zip(b).for_each(|(out, b)| *out += b));
    out
}

/// `silu(gate) · up`, both of one length.
pub(crate) fn silu_mul(gate: &[f32], up: &[f32]) -> Vec<f32> {
    assert_eq!(gate.len(), up.len(), "gate and up");
    let level = Level::best();
    let mut out = vec![0.0; gate.len()];
    let pieces = out.par_chunks_mut(VALUES_AT_ONCE).zip(gate.par_chunks(VALUES_AT_ONCE));
    let pieces = pieces.zip(up.par_chunks(VALUES_AT_ONCE));
    pieces.for_each(|((out, gate), up)| dispatch(level, SiluMul { gate, up, out }));
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

struct SiluMul<'a> {
    gate: &'a [f32],
    up: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for SiluMul<'_> {
    #[inline(always)]
    unsafe fn run<V: Lanes>(self) {
        let steps = self.out.chunks_mut(V::N).zip(self.gate.chunks(V::N)).zip(self.up.chunks(V::N));
        for ((out, gate), up) in steps {
            // The last step may be short; it goes through a buffer, so that every value is computed
            // the same way.
            let mut power = [0.0; WIDEST];
            power[..gate.len()].copy_from_slice(gate);
            // SAFETY: the caller promises the instructions; the buffer holds WIDEST ≥ N values.
            unsafe {
                let exponent = V::load(power.as_ptr()).mul(V::splat(-LOG2_E));
                exponent.exp2().store(power.as_mut_ptr());
            }
            for (((out, gate), up), power) in out.iter_mut().zip(gate).zip(up).zip(power) {
                *out = gate / (1.0 + power) * up;
            }
        }
    }
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
        for (x, out) in self.x.chunks_exact(dim).zip(self.out.chunks_exact_mut(dim)) {
            let mut sums = [0f32; WIDEST];
            for values in x.chunks(WIDEST) {
                for (sum, value) in sums.iter_mut().zip(values) {
                    *sum += value * value;
                }
            }
            let factor = 1.0 / (sums.iter().sum::<f32>() / dim as f32 + self.eps).sqrt();
            for ((out, value), weight) in out.iter_mut().zip(x).zip(self.weight) {
                *out = value * factor * weight;
            }
        }
    }
}
