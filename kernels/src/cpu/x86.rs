//! [`Lanes`](super::lanes::Lanes) in the vectors of x86 machines.

/// The methods that are one instruction.
macro_rules! one_instruction {
    ($set1:ident, $loadu:ident, $storeu:ident, $fma:ident, $($name:ident: $of_two:ident),*) => {
        #[inline(always)]
        unsafe fn splat(value: f32) -> Self {
            // SAFETY: the caller promises the instructions.
            Self(unsafe { $set1(value) })
        }

        #[inline(always)]
        unsafe fn load(from: *const f32) -> Self {
            // SAFETY: the caller promises the instructions and `N` readable values.
            Self(unsafe { $loadu(from) })
        }

        #[inline(always)]
        unsafe fn widen_f16(value: f16) -> f32 {
            // SAFETY: the caller promises the instructions.
            // By hand: a compiler that knows that one lane counts takes any register, such as a
            // sum's, and then the conversion waits for the sum.
            unsafe {
                let wide: f32;
                asm!("vmovd {wide}, {bits:e}", "vcvtph2ps {wide}, {wide}", bits = in(reg) u32::from(value.to_bits()),
                     wide = lateout(xmm_reg) wide, options(pure, nomem, nostack, preserves_flags));
                wide
            }
        }

        #[inline(always)]
        unsafe fn store(self, to: *mut f32) {
            // SAFETY: `self` proves the instructions; the caller promises `N` writable values.
            unsafe { $storeu(to, self.0) }
        }

        $(
            #[inline(always)]
            fn $name(self, other: Self) -> Self {
                // SAFETY: `self` proves the instructions.
                Self(unsafe { $of_two(self.0, other.0) })
            }
        )*

        #[inline(always)]
        fn mul_add(self, a: Self, b: Self) -> Self {
            // SAFETY: `self` proves the instructions.
            Self(unsafe { $fma(self.0, a.0, b.0) })
        }
    };
}

mod avx2;
mod avx512;
mod integers;
mod narrow_pairs;

pub(super) use self::avx2::Avx2;
pub(super) use self::avx512::Avx512;
