//! Sums, norms and rounding, in one pass over their inputs.

use half::bf16;

use super::fresh::{Fresh, written_in_pieces};
use super::lanes::{Lanes, WIDEST};
use super::level::{Kernel, Level, dispatch};
use super::stored::rounded;

/// Values that a thread takes at a time.
pub(super) const VALUES_AT_ONCE: usize = 1 << 14;

/// `a + b`, both of one length.
pub(crate) fn add(a: &[f32], b: &[f32]) -> Vec<f32> {
    assert_eq!(a.len(), b.len(), "both sides");
    let write = |from: usize, out: &mut Fresh| {
        let sums = a[from..].iter().zip(&b[from..]).map(|(a, b)| a + b);
        out.iter_mut().zip(sums).for_each(|(out, sum)| _ = out.write(sum));
    };
    // SAFETY: both sides have as many numbers as the result.
    unsafe { written_in_pieces(a.len(), VALUES_AT_ONCE, write) }
}

/// `x / √(mean(x²) + eps) · weight` for each row of `weight.len()` values.
pub(crate) fn rms_norm(x: &[f32], weight: &[f32], eps: f32) -> Vec<f32> {
    let level = Level::best();
    let values = (VALUES_AT_ONCE / weight.len()).max(1) * weight.len(); // whole rows
    let write = |from: usize, out: &mut Fresh| {
        dispatch(level, RmsNorm { x: &x[from..from + out.len()], weight, eps, out });
    };
    // SAFETY: the kernel writes every row that it is given, and `x` has whole rows.
    unsafe { written_in_pieces(whole_rows(x, weight), values, write) }
}

/// `(x − mean) / √(variance + eps) · weight + bias` for each row of `weight.len()` values.
pub(crate) fn layer_norm(x: &[f32], weight: &[f32], bias: &[f32], eps: f32) -> Vec<f32> {
    assert_eq!(weight.len(), bias.len(), "weight and bias");
    let level = Level::best();
    let values = (VALUES_AT_ONCE / weight.len()).max(1) * weight.len(); // whole rows
    let write = |from: usize, out: &mut Fresh| {
        dispatch(level, LayerNorm { x: &x[from..from + out.len()], weight, bias, eps, out });
    };
    // SAFETY: the kernel writes every row that it is given, and `x` has whole rows.
    unsafe { written_in_pieces(whole_rows(x, weight), values, write) }
}

/// Count of the numbers of `x`, which are whole rows.
fn whole_rows(x: &[f32], weight: &[f32]) -> usize {
    assert!(x.len().is_multiple_of(weight.len()), "whole rows");
    x.len()
}

/// Each number rounded to bf16.
pub(crate) fn to_bf16(x: &[f32]) -> Vec<bf16> {
    let level = Level::best();
    let write = |from: usize, to: &mut Fresh<bf16>| dispatch(level, ToBf16 { from: &x[from..], to });
    // SAFETY: the kernel writes a number for each that it is given, and there are as many.
    unsafe { written_in_pieces(x.len(), VALUES_AT_ONCE, write) }
}

struct ToBf16<'a> {
    from: &'a [f32],
    to: &'a mut Fresh<bf16>,
}

impl Kernel for ToBf16<'_> {
    #[inline(always)]
    unsafe fn run<V: Lanes>(self) {
        for (to, from) in self.to.iter_mut().zip(self.from) {
            to.write(rounded(*from));
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
    out: &'a mut Fresh,
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
                out.write((value - mean) * factor * weight + bias);
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
    out: &'a mut Fresh,
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
                out.write(value * factor * weight);
            }
        }
    }
}
