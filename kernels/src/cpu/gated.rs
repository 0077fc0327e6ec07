//! The gated activations, in one pass over their inputs. All are `g · σ(t) · v`, where t depends on
//! the gate g and v on its partner; σ(t) = 1 / (1 + 2^(−t · log₂ e)).

use std::f32::consts::FRAC_1_SQRT_2;

use candle_core::cpu::erf::erf_f32;

use super::fresh::{Fresh, written_in_pieces};
use super::lanes::{Lanes, WIDEST};
use super::layer::VALUES_AT_ONCE;
use super::level::{Kernel, Level, dispatch};
use super::strip::LOG2_E;
use crate::gate::{CLAMPED_FACTOR, GELU_BOUND, GELU_CUBE, GELU_FACTOR, Gate};

/// See [`crate::gated`]; both of one length.
pub(crate) fn gated(gate: &[f32], up: &[f32], by: Gate) -> Vec<f32> {
    assert_eq!(gate.len(), up.len(), "gate and up");
    let level = Level::best();
    let write = |from: usize, out: &mut Fresh| {
        let there = from..from + out.len();
        write_gated(level, [&gate[there.clone()], &up[there]], by, out);
    };
    // SAFETY: `write_gated` writes all of its result.
    unsafe { written_in_pieces(gate.len(), VALUES_AT_ONCE, write) }
}

/// The same of a gate and its partners, written over all of `out`, which is of their length.
pub(super) fn write_gated(level: Level, [gate, up]: [&[f32]; 2], by: Gate, out: &mut Fresh) {
    match by {
        Gate::Silu => dispatch(level, Gated { gate, up, out, activation: Silu }),
        Gate::GeluTanh => dispatch(level, Gated { gate, up, out, activation: GeluTanh }),
        Gate::ClampedSilu { limit } => dispatch(level, Gated { gate, up, out, activation: ClampedSilu { limit } }),
    }
}

/// GELU in its tanh form, without a partner.
pub(crate) fn gelu_tanh(x: &[f32]) -> Vec<f32> {
    let (level, ones) = (Level::best(), vec![1.0; VALUES_AT_ONCE.min(x.len())]);
    let write = |from: usize, out: &mut Fresh| {
        let (gate, up) = (&x[from..from + out.len()], &ones[..out.len()]);
        dispatch(level, Gated { gate, up, out, activation: GeluTanh });
    };
    // SAFETY: the kernel writes as many numbers as it is given.
    unsafe { written_in_pieces(x.len(), VALUES_AT_ONCE, write) }
}

/// GELU in its exact form, without a partner.
pub(crate) fn gelu_exact(x: &[f32]) -> Vec<f32> {
    let write = |from: usize, out: &mut Fresh| {
        for (out, &x) in out.iter_mut().zip(&x[from..]) {
            out.write(0.5 * x * (1.0 + erf_f32(x * FRAC_1_SQRT_2)));
        }
    };
    // SAFETY: `x` has as many numbers as the result.
    unsafe { written_in_pieces(x.len(), VALUES_AT_ONCE, write) }
}

trait Activation: Copy + Send + Sync {
    /// −t · log₂ e.
    ///
    /// # Safety
    /// The machine has the instructions of `V`.
    unsafe fn exponent<V: Lanes>(self, gate: V) -> V;

    /// Gate and partner as they are multiplied.
    ///
    /// # Safety
    /// The machine has the instructions of `V`.
    #[inline(always)]
    unsafe fn factors<V: Lanes>(self, gate: V, up: V) -> [V; 2] {
        [gate, up]
    }
}

#[derive(Clone, Copy)]
struct Silu;

impl Activation for Silu {
    #[inline(always)]
    unsafe fn exponent<V: Lanes>(self, gate: V) -> V {
        // SAFETY: the caller's promise.
        gate.mul(unsafe { V::splat(-LOG2_E) })
    }
}

#[derive(Clone, Copy)]
struct GeluTanh;

impl Activation for GeluTanh {
    #[inline(always)]
    unsafe fn exponent<V: Lanes>(self, gate: V) -> V {
        const FACTOR: f32 = -LOG2_E * GELU_FACTOR as f32;
        // SAFETY: the caller's promise.
        unsafe {
            // From the bound on the power is infinite, and its exponent must not be.
            let gate = V::splat(-GELU_BOUND as f32).max(gate);
            let square = gate.mul(gate);
            square.mul_add(V::splat(FACTOR * GELU_CUBE as f32), V::splat(FACTOR)).mul(gate)
        }
    }
}

#[derive(Clone, Copy)]
struct ClampedSilu {
    limit: f32,
}

impl Activation for ClampedSilu {
    #[inline(always)]
    unsafe fn exponent<V: Lanes>(self, gate: V) -> V {
        const FACTOR: f32 = -LOG2_E * CLAMPED_FACTOR as f32;
        // The exponent of the clamped gate: its factor is negative.
        // SAFETY: the caller's promise.
        unsafe { V::splat(FACTOR * self.limit).max(gate.mul(V::splat(FACTOR))) }
    }

    #[inline(always)]
    unsafe fn factors<V: Lanes>(self, gate: V, up: V) -> [V; 2] {
        // SAFETY: the caller's promise.
        unsafe {
            // The larger of a bound and a NaN is the NaN, so that it comes through.
            let (bound, turned) = (V::splat(-self.limit), V::splat(-1.0));
            let gate = bound.max(gate.mul(turned)).mul(turned);
            let up = bound.max(bound.max(up.mul(turned)).mul(turned));
            [gate, up.add(V::splat(1.0))]
        }
    }
}

struct Gated<'a, A> {
    gate: &'a [f32],
    up: &'a [f32],
    out: &'a mut Fresh,
    activation: A,
}

impl<A: Activation> Kernel for Gated<'_, A> {
    #[inline(always)]
    unsafe fn run<V: Lanes>(self) {
        let Self { gate, up, out, activation } = self;
        assert!(gate.len() == out.len() && up.len() == out.len(), "gate and up");
        let whole = out.len() / V::N * V::N;
        // The last step may be short; it goes through buffers, so that every value is computed the
        // same way.
        let (mut last, mut partners, rest) = ([0.0; WIDEST], [0.0; WIDEST], out.len() - whole);
        last[..rest].copy_from_slice(&gate[whole..]);
        partners[..rest].copy_from_slice(&up[whole..]);
        // SAFETY: the caller promises the instructions; from `at` on there are N values of each,
        // and the buffers hold WIDEST ≥ N.
        unsafe {
            for at in (0..whole).step_by(V::N) {
                let gate = V::load(gate.as_ptr().add(at));
                of(activation, gate, V::load(up.as_ptr().add(at))).store(out.as_mut_ptr().cast::<f32>().add(at));
            }
            of(activation, V::load(last.as_ptr()), V::load(partners.as_ptr())).store(last.as_mut_ptr());
        }
        out[whole..].write_copy_of_slice(&last[..rest]);
    }
}

/// g · σ(t) · v.
///
/// # Safety
/// The machine has the instructions of `V`.
#[inline(always)]
unsafe fn of<V: Lanes>(activation: impl Activation, gate: V, up: V) -> V {
    // SAFETY: the caller's promise.
    unsafe {
        let power = activation.exponent(gate).exp2();
        let [gate, up] = activation.factors(gate, up);
        gate.div(V::splat(1.0).add(power)).mul(up)
    }
}
