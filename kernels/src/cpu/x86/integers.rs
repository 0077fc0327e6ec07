//! Codes and sums of whole numbers in vectors of AVX2, and of AVX-512 with AVX512-BW and
//! AVX512-VNNI.

use std::arch::asm;
use std::arch::x86_64::*;

use super::super::integers::Integers;
use super::{Avx2, Avx512};

/// The places of a run's bytes, in its lanes: of neighbours, and of every second one.
static PLACES: [[u8; 16]; 2] = [spread_places(1), spread_places(2)];

const fn spread_places(step: u8) -> [u8; 16] {
    let (mut places, mut lane) = ([0; 16], 0);
    while lane < 16 {
        places[lane] = lane as u8 / 4 * step;
        lane += 1;
    }
    places
}

/// Whole numbers with a sign, a byte of some in each of 16 places.
///
/// # Safety
/// The machine has AVX2.
#[inline(always)]
unsafe fn spread_bytes<const STEP: usize>(numbers: u64) -> __m128i {
    // SAFETY: the caller's promise; the table has 16 places.
    unsafe {
        let places = _mm_loadu_si128(PLACES[STEP - 1].as_ptr().cast());
        _mm_shuffle_epi8(_mm_cvtsi64_si128(numbers.cast_signed()), places)
    }
}

impl Integers for Avx2 {
    type Bytes = __m256i;
    type Words = __m256i;
    type Sums = __m256i;

    #[inline(always)]
    unsafe fn load_runs(from: [*const u8; 4]) -> __m256i {
        // SAFETY: the caller promises the instructions and 16 readable bytes at both.
        unsafe { _mm256_loadu2_m128i(from[1].cast(), from[0].cast()) }
    }

    #[inline(always)]
    fn part(bytes: __m256i, at: u32, mask: u8) -> __m256i {
        // SAFETY: bytes come from functions whose callers promise the instructions.
        unsafe {
            let down = _mm256_srl_epi16(bytes, _mm_cvtsi32_si128(at.cast_signed()));
            _mm256_and_si256(down, _mm256_set1_epi8(mask.cast_signed()))
        }
    }

    #[inline(always)]
    fn parts(bytes: __m256i, at: [u32; 4], mask: u8) -> __m256i {
        let [a, b, ..] = at.map(u32::cast_signed);
        // SAFETY: bytes come from functions whose callers promise the instructions.
        unsafe {
            let down = _mm256_srlv_epi32(bytes, _mm256_setr_epi32(a, a, a, a, b, b, b, b));
            _mm256_and_si256(down, _mm256_set1_epi8(mask.cast_signed()))
        }
    }

    #[inline(always)]
    fn above(low: __m256i, high: __m256i, at: u32) -> __m256i {
        // SAFETY: bytes come from functions whose callers promise the instructions.
        unsafe { _mm256_or_si256(low, _mm256_sll_epi16(high, _mm_cvtsi32_si128(at.cast_signed()))) }
    }

    #[inline(always)]
    fn with_bits(bytes: __m256i, bits: u64, value: u8) -> __m256i {
        // SAFETY: bytes come from functions whose callers promise the instructions.
        unsafe {
            // Each byte of bits in eight places, then one bit of it in each.
            let all = _mm256_set1_epi32((bits as u32).cast_signed());
            let places = _mm256_set_epi64x(0x0303_0303_0303_0303, 0x0202_0202_0202_0202, 0x0101_0101_0101_0101, 0);
            let bit = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64.cast_signed());
            let set = _mm256_cmpeq_epi8(_mm256_and_si256(_mm256_shuffle_epi8(all, places), bit), bit);
            _mm256_add_epi8(bytes, _mm256_and_si256(set, _mm256_set1_epi8(value.cast_signed())))
        }
    }

    #[inline(always)]
    fn more_by_128(bytes: __m256i) -> __m256i {
        // SAFETY: bytes come from functions whose callers promise the instructions.
        unsafe { _mm256_xor_si256(bytes, _mm256_set1_epi8(i8::MIN)) }
    }

    #[inline(always)]
    fn translated(bytes: __m256i, table: &[u8; 16]) -> __m256i {
        // SAFETY: bytes come from functions whose callers promise the instructions; the table has
        // 16 bytes.
        unsafe {
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
            _mm256_shuffle_epi8(table, bytes)
        }
    }

    #[inline(always)]
    unsafe fn nothing() -> __m256i {
        // SAFETY: the caller promises the instructions.
        unsafe { _mm256_setzero_si256() }
    }

    #[inline(always)]
    unsafe fn load_sums(from: *const i32) -> __m256i {
        // SAFETY: the caller promises the instructions and `N` readable numbers.
        unsafe { _mm256_loadu_si256(from.cast()) }
    }

    #[inline(always)]
    fn widened(bytes: __m256i) -> [__m256i; 2] {
        // SAFETY: bytes come from functions whose callers promise the instructions.
        unsafe { [_mm256_and_si256(bytes, _mm256_set1_epi16(0xff)), _mm256_srli_epi16::<8>(bytes)] }
    }

    #[inline(always)]
    unsafe fn dot(sums: __m256i, codes: __m256i, inputs: *const i16) -> __m256i {
        // SAFETY: the caller promises the instructions and `2 · N` readable numbers.
        unsafe { _mm256_add_epi32(sums, _mm256_madd_epi16(codes, _mm256_loadu_si256(inputs.cast()))) }
    }

    #[inline(always)]
    fn floats(sums: __m256i) -> Self {
        // SAFETY: sums come from functions whose callers promise the instructions.
        Self(unsafe { _mm256_cvtepi32_ps(sums) })
    }

    #[inline(always)]
    unsafe fn spread_f16(numbers: u64) -> Self {
        // SAFETY: the caller promises the instructions.
        unsafe {
            let numbers = _mm_cvtph_ps(_mm_cvtsi64_si128(numbers.cast_signed()));
            let places = _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1);
            Self(_mm256_permutevar8x32_ps(_mm256_castps128_ps256(numbers), places))
        }
    }

    #[inline(always)]
    unsafe fn spread(numbers: [f32; 4]) -> Self {
        // SAFETY: the caller promises the instructions.
        unsafe { Self(_mm256_set_m128(_mm_set1_ps(numbers[1]), _mm_set1_ps(numbers[0]))) }
    }

    #[inline(always)]
    unsafe fn spread_i8<const STEP: usize>(numbers: u64) -> Self {
        // SAFETY: the caller promises the instructions.
        unsafe { Self(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(spread_bytes::<STEP>(numbers)))) }
    }
}

impl Integers for Avx512 {
    type Bytes = __m512i;
    type Words = __m512i;
    type Sums = __m512i;

    #[inline(always)]
    unsafe fn load_runs(from: [*const u8; 4]) -> __m512i {
        // SAFETY: the caller promises the instructions and 16 readable bytes at each.
        unsafe {
            let runs = _mm512_castsi128_si512(_mm_loadu_si128(from[0].cast()));
            let runs = _mm512_inserti32x4::<1>(runs, _mm_loadu_si128(from[1].cast()));
            let runs = _mm512_inserti32x4::<2>(runs, _mm_loadu_si128(from[2].cast()));
            _mm512_inserti32x4::<3>(runs, _mm_loadu_si128(from[3].cast()))
        }
    }

    #[inline(always)]
    fn part(bytes: __m512i, at: u32, mask: u8) -> __m512i {
        // SAFETY: bytes come from functions whose callers promise the instructions.
        unsafe {
            let down = _mm512_srl_epi16(bytes, _mm_cvtsi32_si128(at.cast_signed()));
            _mm512_and_si512(down, _mm512_set1_epi8(mask.cast_signed()))
        }
    }

    #[inline(always)]
    fn parts(bytes: __m512i, at: [u32; 4], mask: u8) -> __m512i {
        let [a, b, c, d] = at.map(u32::cast_signed);
        // SAFETY: bytes come from functions whose callers promise the instructions.
        unsafe {
            let at = _mm512_setr_epi32(a, a, a, a, b, b, b, b, c, c, c, c, d, d, d, d);
            _mm512_and_si512(_mm512_srlv_epi32(bytes, at), _mm512_set1_epi8(mask.cast_signed()))
        }
    }

    #[inline(always)]
    fn above(low: __m512i, high: __m512i, at: u32) -> __m512i {
        // SAFETY: bytes come from functions whose callers promise the instructions.
        unsafe { _mm512_or_si512(low, _mm512_sll_epi16(high, _mm_cvtsi32_si128(at.cast_signed()))) }
    }

    #[inline(always)]
    fn with_bits(bytes: __m512i, bits: u64, value: u8) -> __m512i {
        // SAFETY: bytes come from functions whose callers promise the instructions.
        unsafe { _mm512_mask_add_epi8(bytes, bits, bytes, _mm512_set1_epi8(value.cast_signed())) }
    }

    #[inline(always)]
    fn more_by_128(bytes: __m512i) -> __m512i {
        // SAFETY: bytes come from functions whose callers promise the instructions.
        unsafe { _mm512_xor_si512(bytes, _mm512_set1_epi8(i8::MIN)) }
    }

    #[inline(always)]
    fn translated(bytes: __m512i, table: &[u8; 16]) -> __m512i {
        // SAFETY: bytes come from functions whose callers promise the instructions; the table has
        // 16 bytes.
        unsafe {
            let table = _mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast()));
            _mm512_shuffle_epi8(table, bytes)
        }
    }

    #[inline(always)]
    unsafe fn nothing() -> __m512i {
        // SAFETY: the caller promises the instructions.
        unsafe { _mm512_setzero_si512() }
    }

    #[inline(always)]
    unsafe fn load_sums(from: *const i32) -> __m512i {
        // SAFETY: the caller promises the instructions and `N` readable numbers.
        unsafe { _mm512_loadu_si512(from.cast()) }
    }

    #[inline(always)]
    fn widened(bytes: __m512i) -> [__m512i; 2] {
        // SAFETY: bytes come from functions whose callers promise the instructions.
        unsafe { [_mm512_and_si512(bytes, _mm512_set1_epi16(0xff)), _mm512_srli_epi16::<8>(bytes)] }
    }

    #[inline(always)]
    unsafe fn dot(sums: __m512i, codes: __m512i, inputs: *const i16) -> __m512i {
        // SAFETY: the caller promises the instructions and `2 · N` readable numbers.
        unsafe { dot_of_pairs(sums, codes, _mm512_loadu_si512(inputs.cast())) }
    }

    #[inline(always)]
    fn floats(sums: __m512i) -> Self {
        // SAFETY: sums come from functions whose callers promise the instructions.
        Self(unsafe { _mm512_cvtepi32_ps(sums) })
    }

    #[inline(always)]
    unsafe fn spread_f16(numbers: u64) -> Self {
        // SAFETY: the caller promises the instructions.
        unsafe { Self(spread_four(_mm_cvtph_ps(_mm_cvtsi64_si128(numbers.cast_signed())))) }
    }

    #[inline(always)]
    unsafe fn spread(numbers: [f32; 4]) -> Self {
        let [a, b, c, d] = numbers;
        // SAFETY: the caller promises the instructions.
        unsafe { Self(spread_four(_mm_setr_ps(a, b, c, d))) }
    }

    #[inline(always)]
    unsafe fn spread_i8<const STEP: usize>(numbers: u64) -> Self {
        // SAFETY: the caller promises the instructions.
        unsafe { Self(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(spread_bytes::<STEP>(numbers)))) }
    }
}

/// `sums` and the products of pairs of 16-bit numbers, added up in each lane.
///
/// By hand: the compiler makes a product and an addition of it, which wait less and take two
/// instructions.
///
/// # Safety
/// The machine has AVX512-VNNI.
#[inline]
#[target_feature(enable = "avx512vnni,avx512f")]
unsafe fn dot_of_pairs(sums: __m512i, codes: __m512i, inputs: __m512i) -> __m512i {
    // SAFETY: the caller's promise.
    unsafe {
        let more;
        asm!("vpdpwssd {sums}, {codes}, {inputs}", sums = inlateout(zmm_reg) sums => more, codes = in(zmm_reg) codes,
             inputs = in(zmm_reg) inputs, options(pure, nomem, nostack, preserves_flags));
        more
    }
}

/// Each of four numbers in four lanes.
///
/// # Safety
/// The machine has AVX-512F.
#[inline(always)]
unsafe fn spread_four(numbers: __m128) -> __m512 {
    // SAFETY: the caller's promise.
    unsafe {
        let places = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
        _mm512_permutexvar_ps(places, _mm512_castps128_ps512(numbers))
    }
}
