//! Products of pairs of bf16 in the tile registers of AMX (AMX-BF16, Intel's Sapphire Rapids and
//! later): an instruction multiplies sixteen rows of sixteen pairs by sixteen pairs of sixteen
//! columns and adds the products to as many sums in f32. Subnormal numbers count as 0. Rust's own
//! functions for it are not stable, so these are assembly.

use std::marker::PhantomData;

/// Rows of a tile, its columns, and pairs of a row of the left factor.
pub(super) const SIDE: usize = 16;
/// Rows, and columns, of the largest block of sums.
pub(super) const BLOCK: usize = 2 * SIDE;

/// A matrix in memory: where it is, and the numbers from a row to the next.
pub(super) type Rows<T> = (T, usize);

/// The factors of a block: `[rows, depth]` pairs, and `[depth, BLOCK]` pairs.
#[cfg_attr(not(all(target_arch = "x86_64", target_os = "linux")), allow(dead_code))]
pub(super) struct Factors {
    pub(super) a: Rows<*const f32>,
    pub(super) b: Rows<*const f32>,
    /// Pairs that are summed: whole tiles.
    pub(super) depth: usize,
}

/// A thread's tile registers, all of sixteen rows of 64 bytes, until this is dropped.
pub(super) struct Registers {
    /// They are this thread's.
    thread: PhantomData<*const ()>,
}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod machine {
    use std::arch::asm;
    use std::arch::x86_64::__cpuid_count;
    use std::marker::PhantomData;
    use std::sync::OnceLock;

    use super::{Factors, Registers, Rows, SIDE};

    /// Number of the tiles' content among the states of a thread (Intel's manual, volume 1,
    /// 13.1), for which Linux wants to be asked.
    const TILE_DATA: libc::c_ulong = 18;
    const ARCH_REQ_XCOMP_PERM: libc::c_ulong = 0x1023;

    /// What LDTILECFG reads.
    #[repr(C, align(64))]
    struct Configuration {
        palette: u8,
        start_row: u8,
        unused: [u8; 14],
        row_bytes: [u16; 16],
        rows: [u8; 16],
    }

    /// Whether the processor has the instructions, and Linux lets this process use them.
    pub(in super::super) fn are_there() -> bool {
        static ARE_THERE: OnceLock<bool> = OnceLock::new();
        *ARE_THERE.get_or_init(|| {
            const BF16_AND_TILES: u32 = 1 << 22 | 1 << 24;
            let features = __cpuid_count(7, 0).edx;
            // SAFETY: the call only asks for a permission.
            let asked = || unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) };
            features & BF16_AND_TILES == BF16_AND_TILES && asked() == 0
        })
    }

    impl Registers {
        /// # Safety
        /// [`are_there`] says so, and the thread has no others.
        pub(in super::super) unsafe fn new() -> Self {
            let (mut row_bytes, mut rows) = ([0; 16], [0; 16]);
            row_bytes[..8].fill(64);
            rows[..8].fill(SIDE as u8);
            let configuration = Configuration { palette: 1, start_row: 0, unused: [0; 14], row_bytes, rows };
            // SAFETY: the caller's promise; the memory is as the instruction wants it.
            unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const configuration, options(nostack, readonly)) };
            Self { thread: PhantomData }
        }

        /// Writes `a · b` to `out`, or adds it there: two tiles of columns beside each other, and
        /// one tile of rows, or two if it is `tall`.
        ///
        /// # Safety
        /// `a` and `out` are valid for [`super::BLOCK`] rows if it is `tall`, else for [`SIDE`],
        /// and `b` for `depth` rows. `out` and `b` have BLOCK columns, `a` has `depth`: whole
        /// tiles.
        #[inline(always)]
        pub(in super::super) unsafe fn multiply(
            &self,
            tall: bool,
            out: Rows<*mut f32>,
            factors: Factors,
            accumulate: bool,
        ) {
            debug_assert!(factors.depth.is_multiple_of(SIDE) && factors.depth > 0, "whole tiles");
            // SAFETY: the caller's promises. `self` proves the instructions and the sizes of the
            // registers, which nothing else uses.
            unsafe {
                match tall {
                    true => of_two(out, factors, accumulate),
                    false => of_one(out, factors, accumulate),
                }
            }
        }
    }

    /// [`Registers::multiply`] of two tiles of rows.
    ///
    /// # Safety
    /// As there; this thread has [`Registers`].
    #[inline(always)]
    unsafe fn of_two((out, out_step): Rows<*mut f32>, factors: Factors, accumulate: bool) {
        let Factors { a: (a, a_step), b: (b, b_step), depth } = factors;
        // SAFETY: the caller's promises.
        unsafe {
            asm!(
                "test {add:e}, {add:e}",
                "jz 3f",
                "tileloadd tmm0, [{out} + {out_step}]",
                "tileloadd tmm1, [{out} + {out_step} + 64]",
                "tileloadd tmm2, [{low} + {out_step}]",
                "tileloadd tmm3, [{low} + {out_step} + 64]",
                "jmp 2f",
                "3:",
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "2:",
                "tileloadd tmm6, [{b} + {b_step}]",
                "tileloadd tmm4, [{a} + {a_step}]",
                "tileloadd tmm7, [{b} + {b_step} + 64]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tileloadd tmm5, [{a_low} + {a_step}]",
                "add {a}, 64",
                "add {a_low}, 64",
                "add {b}, {b_tile}",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "dec {tiles}",
                "jnz 2b",
                "tilestored [{out} + {out_step}], tmm0",
                "tilestored [{out} + {out_step} + 64], tmm1",
                "tilestored [{low} + {out_step}], tmm2",
                "tilestored [{low} + {out_step} + 64], tmm3",
                add = in(reg) u32::from(accumulate),
                out = in(reg) out,
                low = in(reg) out.wrapping_add(SIDE * out_step),
                out_step = in(reg) 4 * out_step,
                a = inout(reg) a => _,
                a_low = inout(reg) a.wrapping_add(SIDE * a_step) => _,
                a_step = in(reg) 4 * a_step,
                b = inout(reg) b => _,
                b_step = in(reg) 4 * b_step,
                b_tile = in(reg) 4 * SIDE * b_step,
                tiles = inout(reg) depth / SIDE => _,
                out("tmm0") _,
                out("tmm1") _,
                out("tmm2") _,
                out("tmm3") _,
                out("tmm4") _,
                out("tmm5") _,
                out("tmm6") _,
                out("tmm7") _,
                options(nostack),
            );
        }
    }

    /// [`Registers::multiply`] of one tile of rows.
    ///
    /// # Safety
    /// As there; this thread has [`Registers`].
    #[inline(always)]
    unsafe fn of_one((out, out_step): Rows<*mut f32>, factors: Factors, accumulate: bool) {
        let Factors { a: (a, a_step), b: (b, b_step), depth } = factors;
        // SAFETY: the caller's promises.
        unsafe {
            asm!(
                "test {add:e}, {add:e}",
                "jz 3f",
                "tileloadd tmm0, [{out} + {out_step}]",
                "tileloadd tmm1, [{out} + {out_step} + 64]",
                "jmp 2f",
                "3:",
                "tilezero tmm0",
                "tilezero tmm1",
                "2:",
                "tileloadd tmm6, [{b} + {b_step}]",
                "tileloadd tmm4, [{a} + {a_step}]",
                "tileloadd tmm7, [{b} + {b_step} + 64]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "add {a}, 64",
                "add {b}, {b_tile}",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "dec {tiles}",
                "jnz 2b",
                "tilestored [{out} + {out_step}], tmm0",
                "tilestored [{out} + {out_step} + 64], tmm1",
                add = in(reg) u32::from(accumulate),
                out = in(reg) out,
                out_step = in(reg) 4 * out_step,
                a = inout(reg) a => _,
                a_step = in(reg) 4 * a_step,
                b = inout(reg) b => _,
                b_step = in(reg) 4 * b_step,
                b_tile = in(reg) 4 * SIDE * b_step,
                tiles = inout(reg) depth / SIDE => _,
                out("tmm0") _,
                out("tmm1") _,
                out("tmm4") _,
                out("tmm6") _,
                out("tmm7") _,
                options(nostack),
            );
        }
    }

    impl Drop for Registers {
        fn drop(&mut self) {
            // SAFETY: `self` proves the instructions; nothing reads these registers any more.
            unsafe { asm!("tilerelease", options(nostack, nomem)) }
        }
    }
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
mod machine {
    use super::{Factors, Registers, Rows};

    /// No other machine has them.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    pub(in super::super) fn are_there() -> bool {
        false
    }

    impl Registers {
        /// # Safety
        /// Not to be called.
        pub(in super::super) unsafe fn new() -> Self {
            unreachable!("this machine has no AMX")
        }

        /// # Safety
        /// Not to be called.
        pub(in super::super) unsafe fn multiply(&self, _: bool, _: Rows<*mut f32>, _: Factors, _: bool) {
            unreachable!("this machine has no AMX")
        }
    }
}

pub(super) use machine::are_there;
