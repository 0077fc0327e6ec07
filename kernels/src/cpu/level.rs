//! Which instructions the machine has, and how a kernel gets to run with them.

use super::amx;
use super::integers::Integers;
use super::lanes::{Lanes, Portable};
use super::pairs::Pairs;
use super::stored::{Factor, One, Two};
#[cfg(target_arch = "x86_64")]
use super::x86::{Avx2, Avx512};

/// A set of instructions that this machine has: a value can only come from the detection below.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Level {
    width: Width,
    /// Whether it multiplies pairs of bf16.
    has_pairs: bool,
    /// Whether it multiplies tiles of them, see [`amx`].
    has_amx: bool,
}

/// Lanes of narrow vectors of pairs.
pub(super) const NARROW: usize = 8;

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
        let of = |width| Self { width, has_pairs: false, has_amx: false };
        let mut levels = vec![of(Width::Portable)];
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
            let avx2 = avx2 && is_x86_feature_detected!("f16c");
            if avx2 {
                levels.push(of(Width::Avx2));
            }
            if avx2 && is_x86_feature_detected!("avx512f") {
                levels.push(of(Width::Avx512));
                let pairs = is_x86_feature_detected!("avx512bf16") && is_x86_feature_detected!("avx512bw");
                // Processors with the first have the last, but for Cooper Lake.
                let pairs = pairs && is_x86_feature_detected!("avx512vl");
                let pairs = pairs && is_x86_feature_detected!("avx512vnni");
                if pairs && is_x86_feature_detected!("avx512vbmi") {
                    let pairs = Self { has_pairs: true, ..of(Width::Avx512) };
                    levels.push(pairs);
                    levels.extend(amx::are_there().then_some(Self { has_amx: true, ..pairs }));
                }
            }
        }
        levels
    }

    /// The best that this machine has.
    pub(super) fn best() -> Self {
        Self::available().pop().expect("the portable level is always there")
    }

    /// Its name: of its widest vectors, or of its products of bf16.
    fn name(self) -> &'static str {
        match self.width {
            Width::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Width::Avx2 => "AVX2",
            #[cfg(target_arch = "x86_64")]
            Width::Avx512 => match (self.has_pairs, self.has_amx) {
                (_, true) => "AMX-BF16",
                (true, false) => "AVX512-BF16",
                (false, false) => "AVX-512",
            },
        }
    }

    /// Lanes of a vector.
    pub(super) fn lanes(self) -> usize {
        match self.width {
            Width::Portable => Portable::N,
            #[cfg(target_arch = "x86_64")]
            Width::Avx2 => Avx2::N,
            #[cfg(target_arch = "x86_64")]
            Width::Avx512 => Avx512::N,
        }
    }

    /// Whether the machine has vectors that this program knows.
    pub(super) fn has_vectors(self) -> bool {
        self.width != Width::Portable
    }

    /// Whether it multiplies whole numbers: portably in tests alone, as their reference.
    pub(super) fn has_integers(self) -> bool {
        cfg!(test) || self.has_vectors()
    }

    /// Lanes of a vector for products in whole numbers.
    pub(super) fn integer_lanes(self) -> usize {
        if self.has_pairs { self.lanes() } else { NARROW }
    }

    /// Whether products of bf16 numbers are made of pairs, see [`dispatch_pairs`].
    pub(super) fn has_pairs(self) -> bool {
        self.has_pairs
    }

    /// Whether products of pairs are made in tile registers.
    pub(super) fn has_amx(self) -> bool {
        self.has_amx
    }

    /// This thread's tile registers, where it has such.
    ///
    /// # Safety
    /// The thread has no others.
    pub(super) unsafe fn registers(self) -> Option<amx::Registers> {
        // SAFETY: a level only has them where they were found to be there; the caller's promise.
        self.has_amx.then(|| unsafe { amx::Registers::new() })
    }

    /// The reference of products of pairs, on every machine.
    #[cfg(test)]
    pub(super) fn with_slow_pairs() -> Self {
        Self { width: Width::Portable, has_pairs: true, has_amx: false }
    }
}

/// The instructions that products and attention use on this machine: "portable", "AVX2",
/// "AVX-512", "AVX512-BF16" (with AVX512-VBMI and AVX512-VNNI) or "AMX-BF16", each with those
/// before it.
pub fn instructions() -> &'static str {
    Level::best().name()
}

/// A piece of work on pairs of bf16.
pub(super) trait PairKernel {
    /// Does the work. Implementations are `#[inline(always)]`.
    ///
    /// # Safety
    /// The machine has the instructions of `V`, those for pairs included.
    unsafe fn run<V: Pairs>(self);
}

/// A piece of work in whole numbers.
pub(super) trait IntegerKernel {
    /// Does the work. Implementations are `#[inline(always)]`.
    ///
    /// # Safety
    /// The machine has the instructions of `V`, those for whole numbers included.
    unsafe fn run<V: Integers>(self);
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
    match level.width {
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

/// The same of a level that has vectors: there is no portable version of such work.
pub(super) fn dispatch_vectors(level: Level, kernel: impl Kernel) {
    match level.width {
        Width::Portable => unreachable!("no vectors"),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a level only exists where its instructions were detected.
        Width::Avx2 => unsafe { with_avx2(kernel) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a level only exists where its instructions were detected.
        Width::Avx512 => unsafe { with_avx512(kernel) },
    }
}

/// A piece of work on lanes of either kind: numbers of f32, or pairs of bf16.
pub(super) trait EitherKernel {
    /// Does the work. Implementations are `#[inline(always)]`.
    ///
    /// # Safety
    /// The machine has the instructions of `V`, those for pairs included where lanes hold pairs.
    unsafe fn run<V: Lanes, F: Factor<V>>(self);
}

/// Such work on numbers, and on pairs.
struct OnNumbers<K>(K);
struct OnPairs<K>(K);

impl<K: EitherKernel> Kernel for OnNumbers<K> {
    #[inline(always)]
    unsafe fn run<V: Lanes>(self) {
        // SAFETY: the caller's promise.
        unsafe { self.0.run::<V, One>() }
    }
}

impl<K: EitherKernel> PairKernel for OnPairs<K> {
    #[inline(always)]
    unsafe fn run<V: Pairs>(self) {
        // SAFETY: the caller's promise.
        unsafe { self.0.run::<V, Two>() }
    }
}

/// Runs `kernel` on pairs, or on numbers of f32, with the instructions of `level`.
pub(super) fn dispatch_either(level: Level, paired: bool, kernel: impl EitherKernel) {
    if paired { dispatch_pairs(level, OnPairs(kernel)) } else { dispatch(level, OnNumbers(kernel)) }
}

/// Runs `kernel` with the instructions of `level`, which has pairs.
pub(super) fn dispatch_pairs(level: Level, kernel: impl PairKernel) {
    match level.width {
        #[cfg(test)]
        // SAFETY: the portable version needs no special instructions.
        Width::Portable if level.has_pairs => unsafe { kernel.run::<Portable>() },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a level only has pairs where these instructions were detected.
        Width::Avx512 if level.has_pairs => unsafe { with_avx512_bf16(kernel) },
        width => unreachable!("{width:?} multiplies no pairs"),
    }
}

/// The same with vectors of [`NARROW`] lanes.
pub(super) fn dispatch_narrow_pairs(level: Level, kernel: impl PairKernel) {
    match level.width {
        #[cfg(test)]
        // SAFETY: the portable version needs no special instructions.
        Width::Portable if level.has_pairs => unsafe { kernel.run::<Portable>() },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a level only has pairs where these instructions were detected.
        Width::Avx512 if level.has_pairs => unsafe { with_narrow_pairs(kernel) },
        width => unreachable!("{width:?} multiplies no pairs"),
    }
}

/// Runs `kernel` with the instructions of `level`, which has such for whole numbers.
pub(super) fn dispatch_integers(level: Level, kernel: impl IntegerKernel) {
    match level.width {
        #[cfg(test)]
        // SAFETY: the portable version needs no special instructions.
        Width::Portable => unsafe { kernel.run::<Portable>() },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a level only has pairs where these instructions were detected.
        Width::Avx512 if level.has_pairs => unsafe { with_avx512_vnni(kernel) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: these levels only exist where AVX2 was detected.
        Width::Avx2 | Width::Avx512 => unsafe { with_avx2_integers(kernel) },
        #[cfg(not(test))]
        Width::Portable => unreachable!("no products in whole numbers"),
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512vnni,avx512bw,avx512vl,avx512f,avx2,fma,f16c")]
unsafe fn with_avx512_vnni(kernel: impl IntegerKernel) {
    // SAFETY: this function has the instructions enabled, and its caller promises that the machine
    // has them.
    unsafe { kernel.run::<Avx512>() }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn with_avx2_integers(kernel: impl IntegerKernel) {
    // SAFETY: this function has the instructions enabled, and its caller promises that the machine
    // has them.
    unsafe { kernel.run::<Avx2>() }
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

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512bf16,avx512vbmi,avx512bw,avx512vl,avx512f,avx2,fma,f16c")]
unsafe fn with_avx512_bf16(kernel: impl PairKernel) {
    // SAFETY: this function has the instructions enabled, and its caller promises that the machine
    // has them.
    unsafe { kernel.run::<Avx512>() }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512bf16,avx512vbmi,avx512bw,avx512vl,avx512f,avx2,fma,f16c")]
unsafe fn with_narrow_pairs(kernel: impl PairKernel) {
    // SAFETY: this function has the instructions enabled, and its caller promises that the machine
    // has them.
    unsafe { kernel.run::<Avx2>() }
}
