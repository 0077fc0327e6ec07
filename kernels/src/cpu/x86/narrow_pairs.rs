//! Pairs of bf16 in vectors of eight lanes, with AVX512-BF16, AVX512-BW and AVX512-VL: a run takes
//! two of them, and the product with its scale is one narrow one.

use std::arch::x86_64::*;

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
}

impl Pairs for Avx2 {
    #[inline(always)]
    unsafe fn paired_with(self, next: Self) -> Self {
        // SAFETY: the caller promises the instructions. The two types are the same 256 bits.
        unsafe { Self(std::mem::transmute::<__m256bh, __m256>(_mm256_cvtne2ps_pbh(next.0, self.0))) }
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
