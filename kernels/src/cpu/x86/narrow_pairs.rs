//! Pairs of bf16 in vectors of eight lanes, with AVX512-BF16, AVX512-BW and AVX512-VL. Codes of
//! four bits take two such vectors for a run, and the product with its scale is one narrow one.

use std::arch::x86_64::*;

use half::bf16;

use super::super::lanes::Lanes;
use super::super::pairs::Pairs;
use super::Avx2;
use super::avx512::AND_OR;
use crate::packing::SMALL_E4M3;

impl Avx2 {
    /// The bytes of 16 codes, as numbers of 16 bits.
    ///
    /// # Safety
    /// The machine has AVX2; `from` is valid for 16 reads.
    #[inline(always)]
    unsafe fn words(from: *const u8) -> __m256i {
        // SAFETY: the caller's promises.
        unsafe { _mm256_cvtepu8_epi16(_mm_loadu_si128(from.cast())) }
    }

    /// Those of four bits that are in the high or in the low half of each byte, and nothing else.
    ///
    /// # Safety
    /// As [`words`](Self::words).
    #[inline(always)]
    unsafe fn nibbles(from: *const u8, high: bool) -> __m256i {
        // SAFETY: the caller's promises.
        unsafe {
            match high {
                true => _mm256_srli_epi16::<4>(Self::words(from)),
                false => _mm256_and_si256(Self::words(from), _mm256_set1_epi16(15)),
            }
        }
    }

    /// Numbers of a table at codes, of which five bits count.
    ///
    /// # Safety
    /// The machine has AVX512-BW and AVX512-VL.
    #[inline(always)]
    unsafe fn at(codes: __m256i, table: &[bf16; 32]) -> Self {
        // SAFETY: the caller's promise; the table has 32 numbers.
        unsafe {
            let first = _mm256_loadu_si256(table.as_ptr().cast());
            let second = _mm256_loadu_si256(table[16..].as_ptr().cast());
            Self(_mm256_castsi256_ps(_mm256_permutex2var_epi16(first, codes, second)))
        }
    }
}

impl Pairs for Avx2 {
    #[inline(always)]
    unsafe fn paired_with(self, next: Self) -> Self {
        // SAFETY: the caller promises the instructions. The two types are the same 256 bits.
        unsafe { Self(std::mem::transmute::<__m256bh, __m256>(_mm256_cvtne2ps_pbh(next.0, self.0))) }
    }

    #[inline(always)]
    unsafe fn look_up_both(from: *const u8, part: usize, table: &[bf16; 32]) -> Self {
        // SAFETY: the caller's promises.
        unsafe { Self::look_up(from, part == 1, table) }
    }

    #[inline(always)]
    unsafe fn look_up_less(from: *const u8, zero: u8, part: usize, table: &[bf16; 32]) -> Self {
        // SAFETY: the caller promises the instructions and 16 readable bytes.
        unsafe {
            let zero = _mm256_set1_epi8(zero.cast_signed());
            Self::at(_mm256_sub_epi16(Self::nibbles(from, part == 1), zero), table)
        }
    }

    #[inline(always)]
    unsafe fn look_up(from: *const u8, high: bool, table: &[bf16; 32]) -> Self {
        // SAFETY: the caller promises the instructions and 16 readable bytes. Four bits of each
        // index count.
        unsafe {
            let words = Self::words(from);
            let codes = if high { _mm256_srli_epi16::<4>(words) } else { words };
            let table = _mm256_loadu_si256(table.as_ptr().cast());
            Self(_mm256_castsi256_ps(_mm256_permutexvar_epi16(codes, table)))
        }
    }

    #[inline(always)]
    unsafe fn look_up_five(from: *const u8, bits: u32, part: usize, table: &[bf16; 32]) -> Self {
        // SAFETY: the caller promises the instructions and 16 readable bytes.
        unsafe {
            let (four, fifth) = (Self::nibbles(from, part == 1), (bits >> (16 * part)) as u16);
            Self::at(_mm256_mask_add_epi16(four, fifth, four, _mm256_set1_epi16(16)), table)
        }
    }

    #[inline(always)]
    unsafe fn look_up_five_of(both: [*const u8; 2], high: bool, at: u32, table: &[bf16; 32]) -> Self {
        // SAFETY: the caller promises the instructions and 16 readable bytes at both.
        unsafe {
            let (four, fifth) = (Self::nibbles(both[0], high), Self::words(both[1]));
            let more = _mm256_test_epi16_mask(fifth, _mm256_set1_epi16(1 << at));
            Self::at(_mm256_mask_add_epi16(four, more, four, _mm256_set1_epi16(16)), table)
        }
    }

    #[inline(always)]
    unsafe fn load_e4m3_paired(from: *const u8) -> Self {
        // SAFETY: the caller promises the instructions and 16 readable bytes.
        unsafe {
            let codes = Self::words(from);
            // The exponent's bias is 127 less 8 in place of 7.
            let magnitude = _mm256_slli_epi16::<4>(codes);
            let (bits, bias) = (_mm256_set1_epi16(0x07f0), _mm256_set1_epi16((127 - 8 - 7) << 7));
            let normal = _mm256_ternarylogic_epi32::<{ AND_OR }>(magnitude, bits, bias);
            // Those without an exponent are looked up by their mantissa.
            let small = _mm256_testn_epi16_mask(codes, _mm256_set1_epi16(0x78));
            let table = _mm256_loadu_si256(SMALL_E4M3.as_ptr().cast());
            let magnitude = _mm256_mask_permutexvar_epi16(normal, small, codes, table);
            let sign = _mm256_slli_epi16::<8>(codes);
            let both = _mm256_ternarylogic_epi32::<{ AND_OR }>(sign, _mm256_set1_epi16(i16::MIN), magnitude);
            Self(_mm256_castsi256_ps(both))
        }
    }

    #[inline(always)]
    unsafe fn load_i8_paired(from: *const i8) -> Self {
        // SAFETY: the caller promises the instructions and 16 readable numbers.
        unsafe { Self::load_i8(from).paired_with(Self::load_i8(from.add(Self::N))) }
    }

    #[inline(always)]
    fn total(self) -> f32 {
        // SAFETY: `self` proves the instructions.
        unsafe {
            let four = _mm_add_ps(_mm256_castps256_ps128(self.0), _mm256_extractf128_ps::<1>(self.0));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
        }
    }

    #[inline(always)]
    unsafe fn dot(self, a: Self, b: Self) -> Self {
        // SAFETY: the caller promises the instructions. The two types are the same 256 bits.
        unsafe {
            let (a, b) = (std::mem::transmute::<__m256, __m256bh>(a.0), std::mem::transmute::<__m256, __m256bh>(b.0));
            Self(_mm256_dpbf16_ps(self.0, a, b))
        }
    }
}
