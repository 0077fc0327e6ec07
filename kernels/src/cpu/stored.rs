//! The types in which numbers are stored, each widened to f32 on its way into a register.

use half::{bf16, f16};

use super::lanes::Lanes;

/// A stored number.
pub(super) trait Stored: Copy + Send + Sync {
    /// As many numbers as a vector has, widened.
    ///
    /// # Safety
    /// The machine has the instructions of `V`; `from` is valid for `V::N` reads.
    unsafe fn load<V: Lanes>(from: *const Self) -> V;

    /// One number, widened.
    fn widen(self) -> f32;
}

impl Stored for f32 {
    #[inline(always)]
    unsafe fn load<V: Lanes>(from: *const Self) -> V {
        // SAFETY: the caller's promises.
        unsafe { V::load(from) }
    }

    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }
}

impl Stored for bf16 {
    #[inline(always)]
    unsafe fn load<V: Lanes>(from: *const Self) -> V {
        // SAFETY: the caller's promises.
        unsafe { V::load_bf16(from) }
    }

    #[inline(always)]
    fn widen(self) -> f32 {
        self.to_f32()
    }
}

impl Stored for f16 {
    #[inline(always)]
    unsafe fn load<V: Lanes>(from: *const Self) -> V {
        // SAFETY: the caller's promises.
        unsafe { V::load_f16(from) }
    }

    #[inline(always)]
    fn widen(self) -> f32 {
        self.to_f32()
    }
}
