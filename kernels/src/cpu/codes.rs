//! Kinds of packed blocks as codes without a sign, for products in whole numbers. Their layouts are
//! those of `blocks.rs` and `super_blocks.rs`, where they are unpacked to f32.

use super::block::UNEVEN;
use super::blocks::{E2M1_TWICE, power};
use super::integers::Integers;

/// A kind of block, in runs of 32 codes: a number is scale · (code − zero), or scale · code +
/// offset.
pub(super) trait Codes {
    const BYTES: usize;
    /// Runs of a block: one, or a multiple of those of every vector.
    const RUNS: usize;
    /// The code of 0.
    const ZERO: u8 = 0;
    /// Whether there are offsets.
    const OFFSETS: bool = false;
    /// Whether both halves of a run have scales and offsets of their own.
    const HALVES: bool = false;

    /// The first half of the codes of a vector's runs and the second half, from a run of a block
    /// on, or of neighbouring blocks of one run each.
    ///
    /// # Safety
    /// The machine has the instructions of `V`; these blocks are there.
    unsafe fn codes<V: Integers>(block: *const u8, run: usize) -> [V::Bytes; 2];

    /// Their scales and offsets, of both halves.
    ///
    /// # Safety
    /// As [`codes`](Self::codes).
    unsafe fn scales<V: Integers>(block: *const u8, run: usize) -> [[V; 2]; 2];
}

/// An address for each run, so many bytes apart.
#[inline(always)]
fn each(first: *const u8, step: usize) -> [*const u8; 4] {
    std::array::from_fn(|run| first.wrapping_add(run * step))
}

/// A number of 16 bits at the address of each run of a vector, the first one in the lowest bits.
///
/// # Safety
/// The addresses are valid for 2 reads.
#[inline(always)]
unsafe fn halves<V: Integers>(from: [*const u8; 4]) -> u64 {
    let mut all = 0;
    for (run, from) in from.iter().enumerate().take(V::RUNS) {
        // SAFETY: the caller's promise.
        all |= u64::from(u16::from_le_bytes(unsafe { from.cast::<[u8; 2]>().read() })) << (16 * run);
    }
    all
}

/// A number of each run of a vector, by what `read` makes of its address.
#[inline(always)]
fn floats<V: Integers>(from: [*const u8; 4], read: impl Fn(*const u8) -> f32) -> [f32; 4] {
    std::array::from_fn(|run| if run < V::RUNS { read(from[run]) } else { 0.0 })
}

/// An f32.
///
/// # Safety
/// The address is valid for 4 reads.
#[inline(always)]
unsafe fn f32_at(from: *const u8) -> f32 {
    // SAFETY: the caller's promise.
    f32::from_le_bytes(unsafe { from.cast::<[u8; 4]>().read() })
}

/// Eight bytes, the first one in the lowest bits.
///
/// # Safety
/// The address is valid for 8 reads.
#[inline(always)]
unsafe fn eight_at(from: *const u8) -> u64 {
    // SAFETY: the caller's promise.
    u64::from_le_bytes(unsafe { from.cast::<[u8; 8]>().read() })
}

/// The same numbers for both halves of a run.
#[inline(always)]
fn alike<V: Copy>(scale: V, offset: V) -> [[V; 2]; 2] {
    [[scale, offset]; 2]
}

/// Codes of four bits: those in the low bits of 16 bytes, then those in the high bits.
///
/// # Safety
/// The machine has the instructions of `V`; the addresses are valid for 16 reads.
#[inline(always)]
unsafe fn nibbles<V: Integers>(from: [*const u8; 4]) -> [V::Bytes; 2] {
    // SAFETY: the caller's promises.
    let bytes = unsafe { V::load_runs(from) };
    [V::part(bytes, 0, 15), V::part(bytes, 4, 15)]
}

/// The same, and a fifth bit for each in four more bytes.
///
/// # Safety
/// As [`nibbles`]; the addresses of `fifth` are valid for 4 reads.
#[inline(always)]
unsafe fn nibbles_and_bits<V: Integers>(from: [*const u8; 4], fifth: *const u8, step: usize) -> [V::Bytes; 2] {
    // SAFETY: the caller's promises.
    unsafe {
        let [first, second] = nibbles::<V>(from);
        let of_first = V::with_bits(first, halves::<V>(each(fifth, step)), 16);
        [of_first, V::with_bits(second, halves::<V>(each(fifth.wrapping_add(2), step)), 16)]
    }
}

/// Codes of four bits by their numbers in a table.
///
/// # Safety
/// As [`nibbles`].
#[inline(always)]
unsafe fn translated<V: Integers>(from: [*const u8; 4], table: &[u8; 16]) -> [V::Bytes; 2] {
    // SAFETY: the caller's promises.
    let [first, second] = unsafe { nibbles::<V>(from) };
    [V::translated(first, table), V::translated(second, table)]
}

/// Codes of eight bits with a sign, 128 more each.
///
/// # Safety
/// As [`nibbles`], for 32 reads.
#[inline(always)]
unsafe fn bytes<V: Integers>(from: [*const u8; 4]) -> [V::Bytes; 2] {
    // SAFETY: the caller's promises.
    unsafe {
        let second = from.map(|from| from.wrapping_add(16));
        [V::more_by_128(V::load_runs(from)), V::more_by_128(V::load_runs(second))]
    }
}

/// The numbers of a table, `more` each.
const fn raised(table: [i8; 16], more: i16) -> [u8; 16] {
    let (mut codes, mut i) = ([0; 16], 0);
    while i < 16 {
        codes[i] = (table[i] as i16 + more) as u8;
        i += 1;
    }
    codes
}

static OF_UNEVEN: [u8; 16] = raised(UNEVEN, 128);
static OF_E2M1: [u8; 16] = raised(E2M1_TWICE, 12);

/// Implements [`Codes`]: the constants, then the codes and what has scales and offsets.
macro_rules! codes {
    ($name:ident, $bytes:literal, $runs:literal, { $($constant:ident: $kind:ty = $value:expr),* },
     |$block:ident, $run:pat_param| $codes:expr, $scales:expr) => {
        pub(super) struct $name;
        impl Codes for $name {
            const BYTES: usize = $bytes;
            const RUNS: usize = $runs;
            $(const $constant: $kind = $value;)*

            #[inline(always)]
            unsafe fn codes<V: Integers>($block: *const u8, $run: usize) -> [V::Bytes; 2] {
                // SAFETY: the caller's promises.
                unsafe { $codes }
            }

            #[inline(always)]
            unsafe fn scales<V: Integers>($block: *const u8, $run: usize) -> [[V; 2]; 2] {
                // SAFETY: the caller's promises.
                unsafe { $scales }
            }
        }
    };
}

/// A scale in f16, and an offset after it.
///
/// # Safety
/// The machine has the instructions of `V`; these blocks are there.
#[inline(always)]
unsafe fn f16_scales<V: Integers>(block: *const u8, step: usize, offsets: bool) -> [[V; 2]; 2] {
    // SAFETY: the caller's promises.
    unsafe {
        let scales = V::spread_f16(halves::<V>(each(block, step)));
        let offset = if offsets { V::spread_f16(halves::<V>(each(block.wrapping_add(2), step))) } else { scales };
        alike(scales, offset)
    }
}

codes!(Q4_0, 18, 1, { ZERO: u8 = 8 },
    |block, _| nibbles::<V>(each(block.add(2), 18)), f16_scales(block, 18, false));
codes!(Q4_1, 20, 1, { OFFSETS: bool = true },
    |block, _| nibbles::<V>(each(block.add(4), 20)), f16_scales(block, 20, true));
codes!(Q5_0, 22, 1, { ZERO: u8 = 16 },
    |block, _| nibbles_and_bits::<V>(each(block.add(6), 22), block.add(2), 22), f16_scales(block, 22, false));
codes!(Q5_1, 24, 1, { OFFSETS: bool = true },
    |block, _| nibbles_and_bits::<V>(each(block.add(8), 24), block.add(4), 24), f16_scales(block, 24, true));
codes!(Q8_0, 34, 1, { ZERO: u8 = 128 },
    |block, _| bytes::<V>(each(block.add(2), 34)), f16_scales(block, 34, false));
codes!(Iq4Nl, 18, 1, { ZERO: u8 = 128 },
    |block, _| translated::<V>(each(block.add(2), 18), &OF_UNEVEN), f16_scales(block, 18, false));
codes!(Mxfp4, 17, 1, { ZERO: u8 = 12 },
|block, _| translated::<V>(each(block.add(1), 17), &OF_E2M1), {
    let scales = V::spread(floats::<V>(each(block, 17), |at| power(*at) / 2.0));
    alike(scales, scales)
});
codes!(Int8, 36, 1, { ZERO: u8 = 128 },
|block, _| bytes::<V>(each(block.add(4), 36)), {
    let scales = V::spread(floats::<V>(each(block, 36), |at| f32_at(at)));
    alike(scales, scales)
});
codes!(Int4, 21, 1, { OFFSETS: bool = true },
|block, _| nibbles::<V>(each(block.add(5), 21)), {
    let scales = V::spread(floats::<V>(each(block, 21), |at| f32_at(at)));
    let zeros = V::spread(floats::<V>(each(block.add(4), 21), |at| -f32::from(*at)));
    alike(scales, scales.mul(zeros))
});
codes!(Int4G128, 72, 4, { OFFSETS: bool = true },
    |block, run| nibbles::<V>(each(block.add(8 + 16 * run), 16)),
    { let _ = run; alike(V::splat(f32_at(block)), V::splat(f32_at(block.add(4)))) });
codes!(Int8G128, 132, 4, { ZERO: u8 = 128 },
    |block, run| bytes::<V>(each(block.add(4 + 32 * run), 32)),
    { let _ = run; alike(V::splat(f32_at(block)), V::splat(f32_at(block))) });

/// The numbers of six bits of Q4_K and Q5_K, factors and offsets of eight runs each, as bytes.
///
/// # Safety
/// The address is valid for 12 reads.
#[inline(always)]
unsafe fn six_bits(packed: *const u8) -> [u64; 2] {
    const LOW_FOUR: u64 = 0x0f0f_0f0f;
    const LOW_SIX: u64 = 0x3f3f_3f3f;
    // SAFETY: the caller's promise.
    let word = |at: usize| u64::from(u32::from_le_bytes(unsafe { packed.add(at).cast::<[u8; 4]>().read() }));
    let (factors, offsets, rest) = (word(0), word(4), word(8));
    let highest = |of: u64| (of >> 6 & 0x0303_0303) << 4;
    [
        factors & LOW_SIX | (rest & LOW_FOUR | highest(factors)) << 32,
        offsets & LOW_SIX | (rest >> 4 & LOW_FOUR | highest(offsets)) << 32,
    ]
}

/// Scales and offsets of a vector's runs of Q4_K and Q5_K.
///
/// # Safety
/// The machine has the instructions of `V`; the block is there.
#[inline(always)]
unsafe fn scales_of_six_bits<V: Integers>(block: *const u8, run: usize) -> [[V; 2]; 2] {
    // SAFETY: the caller's promises.
    unsafe {
        let [factors, offsets] = six_bits(block.add(4)).map(|all| all >> (8 * run));
        let both = block.cast::<[half::f16; 2]>().read_unaligned();
        let [scale, least] = both.map(|number| V::widen_f16(number));
        let scales = V::spread_i8::<1>(factors).mul(V::splat(scale));
        alike(scales, V::spread_i8::<1>(offsets).mul(V::splat(-least)))
    }
}

/// Codes of runs of which two neighbours share 32 bytes, one its low bits and one its high bits.
///
/// # Safety
/// The machine has the instructions of `V`; `from` is valid for 128 reads.
#[inline(always)]
unsafe fn nibbles_of_two<V: Integers>(from: *const u8, run: usize) -> [V::Bytes; 2] {
    let first = std::array::from_fn(|next| from.wrapping_add(16 * (run + next - next % 2)));
    // SAFETY: the caller's promises.
    unsafe {
        let first_half = V::parts(V::load_runs(first), [0, 4, 0, 4], 15);
        [first_half, V::parts(V::load_runs(first.map(|from| from.wrapping_add(16))), [0, 4, 0, 4], 15)]
    }
}

codes!(Q4K, 144, 8, { OFFSETS: bool = true },
    |block, run| nibbles_of_two::<V>(block.add(16), run), scales_of_six_bits(block, run));
codes!(Q5K, 176, 8, { OFFSETS: bool = true },
    |block, run| {
        let [first, second] = nibbles_of_two::<V>(block.add(48), run);
        // Bit `run` of each of 32 bytes is the fifth one of a code.
        let fifth = [16, 32].map(|at| each(block.wrapping_add(at), 0));
        let runs = std::array::from_fn(|next| (run + next) as u32);
        let of_first = V::parts(V::load_runs(fifth[0]), runs, 1);
        let of_second = V::parts(V::load_runs(fifth[1]), runs, 1);
        [V::above(first, of_first, 4), V::above(second, of_second, 4)]
    }, scales_of_six_bits(block, run));

/// Numbers with a sign in six bits, 32 less each.
#[inline(always)]
fn less_32(bytes: u64) -> u64 {
    const HIGHEST: u64 = 0x8080_8080_8080_8080;
    ((bytes | HIGHEST) - 0x2020_2020_2020_2020) ^ HIGHEST
}

codes!(Iq4Xs, 136, 8, { ZERO: u8 = 128 },
|block, run| translated::<V>(each(block.add(8 + 16 * run), 16), &OF_UNEVEN), {
    // Two bits of each run in two bytes, and four bits in four bytes, to a byte each.
    let high = u64::from(u16::from_le_bytes(block.add(2).cast::<[u8; 2]>().read()));
    let high = (high | high << 24) & 0x0000_00ff_0000_00ff;
    let high = (high | high << 12) & 0x000f_000f_000f_000f;
    let high = (high | high << 6) & 0x0303_0303_0303_0303;
    let low = u64::from(u32::from_le_bytes(block.add(4).cast::<[u8; 4]>().read()));
    let low = (low | low << 16) & 0x0000_ffff_0000_ffff;
    let low = (low | low << 8) & 0x00ff_00ff_00ff_00ff;
    let low = (low | low << 4) & 0x0f0f_0f0f_0f0f_0f0f;
    let factors = less_32(low | high << 4) >> (8 * run);
    let scales = V::spread_i8::<1>(factors).mul(V::splat(V::widen_f16(block.cast::<half::f16>().read_unaligned())));
    alike(scales, scales)
});

/// A scale for both halves of each run, from bytes that have them by turns.
///
/// # Safety
/// The machine has the instructions of `V`; the address is valid for 2 reads.
#[inline(always)]
unsafe fn by_turns<V: Integers>(factors: u64, run: usize, scale: *const u8, sign: f32) -> [V; 2] {
    // SAFETY: the caller's promises.
    unsafe {
        let scale = V::splat(sign * V::widen_f16(scale.cast::<half::f16>().read_unaligned()));
        let factors = factors >> (16 * (run % 4));
        [V::spread_i8::<2>(factors).mul(scale), V::spread_i8::<2>(factors >> 8).mul(scale)]
    }
}

/// The bit of a byte at which a run of four begins whose codes share bytes, `bits` each.
#[inline(always)]
fn places(run: usize, bits: u32) -> [u32; 4] {
    std::array::from_fn(|next| bits * (run % 4 + next) as u32 % 8)
}

/// Some bits of 32 bytes that four runs share: both halves of the bytes.
///
/// # Safety
/// The machine has the instructions of `V`; `from` is valid for 32 reads.
#[inline(always)]
unsafe fn shared<V: Integers>(from: *const u8, at: [u32; 4], mask: u8) -> [V::Bytes; 2] {
    // SAFETY: the caller's promises.
    unsafe {
        let first = V::parts(V::load_runs(each(from, 0)), at, mask);
        [first, V::parts(V::load_runs(each(from.wrapping_add(16), 0)), at, mask)]
    }
}

codes!(Q2K, 84, 8, { OFFSETS: bool = true, HALVES: bool = true },
|block, run| shared::<V>(block.add(16 + 32 * (run / 4)), places(run, 2), 3), {
    const LOW_FOUR: u64 = 0x0f0f_0f0f_0f0f_0f0f;
    let both = eight_at(block.add(8 * (run / 4)));
    let [first, second] = by_turns::<V>(both & LOW_FOUR, run, block.add(80), 1.0);
    let [offset, other] = by_turns::<V>(both >> 4 & LOW_FOUR, run, block.add(82), -1.0);
    [[first, offset], [second, other]]
});
codes!(Q3K, 110, 8, { ZERO: u8 = 4, HALVES: bool = true },
|block, run| {
    let [first, second] = shared::<V>(block.add(32 + 32 * (run / 4)), places(run, 2), 3);
    let bits = std::array::from_fn(|next| (run + next) as u32 % 8);
    let [third, other] = shared::<V>(block, bits, 1);
    [V::above(first, third, 2), V::above(second, other, 2)]
}, {
    const LOW_FOUR: u64 = 0x0f0f_0f0f_0f0f_0f0f;
    const LOW_TWO: u64 = 0x0303_0303;
    let low = eight_at(block.add(96)) >> (4 * (run / 4)) & LOW_FOUR;
    let high = u64::from(u32::from_le_bytes(block.add(104).cast::<[u8; 4]>().read())) >> (4 * (run / 4));
    let six = low | (high & LOW_TWO | (high >> 2 & LOW_TWO) << 32) << 4;
    let [first, second] = by_turns::<V>(less_32(six), run, block.add(108), 1.0);
    [[first; 2], [second; 2]]
});
codes!(Q6K, 210, 8, { ZERO: u8 = 32, HALVES: bool = true },
|block, run| {
    // Runs 0 and 2 of four share bytes, and runs 1 and 3.
    let low = block.add(64 * (run / 4));
    let first = std::array::from_fn(|next| low.wrapping_add(32 * ((run + next) % 2)));
    let at = std::array::from_fn(|next| if (run % 4 + next) % 4 < 2 { 0 } else { 4 });
    let [third, other] = shared::<V>(block.add(128 + 32 * (run / 4)), places(run, 2), 3);
    let of_first = V::parts(V::load_runs(first), at, 15);
    let of_second = V::parts(V::load_runs(first.map(|from| from.wrapping_add(16))), at, 15);
    [V::above(of_first, third, 4), V::above(of_second, other, 4)]
}, {
    let factors = eight_at(block.add(192 + 8 * (run / 4)));
    let [first, second] = by_turns::<V>(factors, run, block.add(208), 1.0);
    [[first; 2], [second; 2]]
});
