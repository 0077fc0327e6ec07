//! Which instructions the machine has, and how a kernel gets to run with them.

use super::lanes::{Lanes, Portable};
#[cfg(target_arch = "x86_64")]
use super::x86::{Avx2, Avx512};

/// A set of instructions that this machine has: a value can only come from the detection below.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Level(Width);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Width {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Level {
    /// All that this machine has, the best one last.
    pub(super) fn available() -> Vec<Self> {
        let mut levels = vec![Self(Width::Portable)];
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
            let avx2 = avx2 && is_x86_feature_detected!("f16c");
            if avx2 {
                levels.push(Self(Width::Avx2));
            }
            if avx2 && is_x86_feature_detected!("avx512f") {
                levels.push(Self(Width::Avx512));
            }
        }
        levels
    }

    /// The best that this machine has.
    pub(super) fn best() -> Self {
        Self::available().pop().expect("the portable level is always there")
    }
}

/// A piece of work written for any width.
pub(super) trait Kernel {
    /// Does the work. Implementations are `#[inline(always)]`, so that they are compiled once for
    /// each level.
    ///
    /// # Safety
    /// The machine has the instructions of `V`.
    unsafe fn run<V: Lanes>(self);
}

/// Runs `kernel` with the instructions of `level`.
pub(super) fn dispatch(level: Level, kernel: impl Kernel) {
    match level.0 {
        // SAFETY: the portable version needs no special instructions.
        Width::Portable => unsafe { kernel.run::<Portable>() },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a level only exists where its instructions were detected.
        Width::Avx2 => unsafe { with_avx2(kernel) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a level only exists where its instructions were detected.
        Width::Avx512 => unsafe { with_avx512(kernel) },
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn with_avx2(kernel: impl Kernel) {
    // SAFETY: this function has the instructions enabled, and its caller promises that the machine
    // has them.
    unsafe { kernel.run::<Avx2>() }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx2,fma,f16c")]
unsafe fn with_avx512(kernel: impl Kernel) {
    // SAFETY: this function has the instructions enabled, and its caller promises that the machine
    // has them.
    unsafe { kernel.run::<Avx512>() }
}
