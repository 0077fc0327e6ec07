//! Vectors of AVX2.

use std::arch::asm;
use std::arch::x86_64::*;

use half::{bf16, f16};

use super::super::lanes::{CausalPosition, Lanes, exp2_fraction};
use crate::SHARED;

/// Eight f32 in AVX2, with FMA and F16C.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct Avx2(pub(super) __m256);

impl Lanes for Avx2 {
    const N: usize = 8;
    const BLOCK: usize = 2;

    one_instruction! {
        _mm256_set1_ps, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_fmadd_ps,
        add: _mm256_add_ps, sub: _mm256_sub_ps, mul: _mm256_mul_ps, div: _mm256_div_ps, max: _mm256_max_ps
    }

    #[inline(always)]
    unsafe fn load_bf16(from: *const bf16) -> Self {
        // SAFETY: the caller promises the instructions and `N` readable values.
        unsafe {
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
            Self(_mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide)))
        }
    }

    #[inline(always)]
    unsafe fn load_f16(from: *const f16) -> Self {
        // SAFETY: the caller promises the instructions and `N` readable values.
        Self(unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.cast())) })
    }

    #[inline(always)]
    unsafe fn load_i8(from: *const i8) -> Self {
        // SAFETY: the caller promises the instructions and `N` readable values.
        Self(unsafe { _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(from.cast()))) })
    }

    #[inline(always)]
    unsafe fn load_e4m3(from: *const u8) -> Self {
        // SAFETY: the caller promises the instructions and `N` readable values.
        Self(unsafe {
            // The sign fills the upper half, and stays in its first bit.
            let codes = _mm_cvtepi8_epi16(_mm_loadl_epi64(from.cast()));
            _mm256_cvtph_ps(_mm_and_si128(_mm_slli_epi16::<7>(codes), _mm_set1_epi16(0xbf80_u16.cast_signed())))
        })
    }

    type Whole = __m256i;

    #[inline(always)]
    unsafe fn load_bytes(from: *const u8) -> __m256i {
        // SAFETY: the caller promises the instructions and `N` readable values.
        unsafe { _mm256_cvtepu8_epi32(_mm_loadl_epi64(from.cast())) }
    }

    #[inline(always)]
    unsafe fn bits(bits: u32, first: u32) -> __m256i {
        // SAFETY: the caller promises the instructions.
        unsafe {
            let places = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
            let places = _mm256_add_epi32(places, _mm256_set1_epi32(first.cast_signed()));
            _mm256_and_si256(_mm256_srlv_epi32(_mm256_set1_epi32(bits.cast_signed()), places), _mm256_set1_epi32(1))
        }
    }

    #[inline(always)]
    fn field(whole: __m256i, first: u32, count: u32) -> __m256i {
        // SAFETY: numbers come from functions whose callers promise the instructions.
        unsafe {
            let down = _mm256_srlv_epi32(whole, _mm256_set1_epi32(first.cast_signed()));
            _mm256_and_si256(down, _mm256_set1_epi32((1 << count) - 1))
        }
    }

    #[inline(always)]
    fn joined(low: __m256i, high: __m256i, at: u32) -> __m256i {
        // SAFETY: numbers come from functions whose callers promise the instructions.
        unsafe { _mm256_or_si256(low, _mm256_sllv_epi32(high, _mm256_set1_epi32(at.cast_signed()))) }
    }

    #[inline(always)]
    fn float(whole: __m256i) -> Self {
        // SAFETY: numbers come from functions whose callers promise the instructions.
        Self(unsafe { _mm256_cvtepi32_ps(whole) })
    }

    #[inline(always)]
    unsafe fn looked_up(from: *const u8, high: bool, table: &[i8; 16]) -> Self {
        // SAFETY: the caller promises the instructions and `N` readable values.
        unsafe {
            let bytes = _mm_loadl_epi64(from.cast());
            let bytes = if high { _mm_srli_epi16::<4>(bytes) } else { bytes };
            let codes = _mm_and_si128(bytes, _mm_set1_epi8(15));
            let numbers = _mm_shuffle_epi8(_mm_loadu_si128(table.as_ptr().cast()), codes);
            Self(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(numbers)))
        }
    }

    #[inline(always)]
    fn sum_fours(vectors: &[Self]) -> [Self; 4] {
        assert_eq!(vectors.len(), Self::N, "vectors to add up");
        // SAFETY: the vectors prove the instructions.
        unsafe {
            let mut quads = [Self(_mm256_setzero_ps()); 4];
            for (i, quad) in quads.iter_mut().take(2).enumerate() {
                let pair = |a: __m256, b: __m256| _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
                let a = pair(vectors[4 * i].0, vectors[4 * i + 1].0);
                let b = pair(vectors[4 * i + 2].0, vectors[4 * i + 3].0);
                let (low, high) = (_mm256_shuffle_ps::<0b01_00_01_00>(a, b), _mm256_shuffle_ps::<0b11_10_11_10>(a, b));
                *quad = Self(_mm256_add_ps(low, high));
            }
            quads
        }
    }

    #[inline(always)]
    fn sum_parts([first, second, ..]: [Self; 4]) -> Self {
        // SAFETY: the parts prove the instructions.
        unsafe {
            let low = _mm256_permute2f128_ps::<0x20>(first.0, second.0);
            Self(_mm256_add_ps(low, _mm256_permute2f128_ps::<0x31>(first.0, second.0)))
        }
    }

    #[inline(always)]
    fn reduce_max(self) -> f32 {
        // SAFETY: `self` proves the instructions.
        unsafe {
            let four = _mm_max_ps(_mm256_castps256_ps128(self.0), _mm256_extractf128_ps::<1>(self.0));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
        }
    }

    #[inline(always)]
    fn any_above(self, other: Self) -> bool {
        // SAFETY: `self` proves the instructions.
        unsafe { _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_NLE_UQ>(self.0, other.0)) != 0 }
    }

    #[inline(always)]
    fn exp2(self) -> Self {
        // SAFETY: `self` proves the instructions.
        unsafe {
            // The bound is the first operand, so that a NaN passes through.
            let x = _mm256_min_ps(_mm256_set1_ps(128.0), _mm256_max_ps(_mm256_set1_ps(-127.0), self.0));
            let whole = _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(x);
            let value = exp2_fraction(Self(_mm256_sub_ps(x, whole)));
            // A whole part of −127 has the bits of 0.
            let exponent = _mm256_add_epi32(_mm256_cvtps_epi32(whole), _mm256_set1_epi32(127));
            value.mul(Self(_mm256_castsi256_ps(_mm256_slli_epi32::<23>(exponent))))
        }
    }

    #[inline(always)]
    unsafe fn keep_seen(self, keys: [*const u32; 3], query: CausalPosition) -> Self {
        // SAFETY: `self` proves the instructions; the caller promises `N` readable entries.
        unsafe {
            let [order, segment, rope] = keys.map(|list| _mm256_loadu_si256(list.cast()));
            let lowest = _mm256_set1_epi32(query.lowest.cast_signed());
            let in_window = _mm256_cmpeq_epi32(_mm256_max_epu32(rope, lowest), rope);
            let limit = _mm256_set1_epi32(query.order.cast_signed());
            let not_later = _mm256_cmpeq_epi32(_mm256_max_epu32(order, limit), limit);
            let same = _mm256_cmpeq_epi32(segment, _mm256_set1_epi32(query.segment.cast_signed()));
            let in_sight = _mm256_xor_si256(same, _mm256_set1_epi32(-i32::from(query.others)));
            let shared = _mm256_cmpeq_epi32(segment, _mm256_set1_epi32(SHARED.cast_signed()));
            let seen = _mm256_and_si256(not_later, _mm256_or_si256(in_sight, shared));
            let seen = _mm256_and_si256(seen, in_window);
            Self(_mm256_blendv_ps(_mm256_set1_ps(f32::NEG_INFINITY), self.0, _mm256_castsi256_ps(seen)))
        }
    }

    #[inline(always)]
    fn prefetch<T>(at: *const T) {
        // SAFETY: every x86-64 has the instruction, and it may be given any address.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(at.cast()) }
    }

    #[inline(always)]
    fn prefetch_once<T>(at: *const T) {
        // SAFETY: every x86-64 has the instruction, and it may be given any address.
        unsafe { _mm_prefetch::<_MM_HINT_NTA>(at.cast()) }
    }

    #[inline(always)]
    unsafe fn transpose(from: *const f32, from_step: usize, to: *mut f32, to_step: usize) {
        // SAFETY: the caller promises the instructions and eight rows and columns on both sides.
        unsafe {
            let mut rows = [_mm256_setzero_ps(); 8];
            for (i, row) in rows.iter_mut().enumerate() {
                *row = _mm256_loadu_ps(from.add(i * from_step));
            }
            let mut pairs = rows;
            for i in 0..4 {
                pairs[2 * i] = _mm256_unpacklo_ps(rows[2 * i], rows[2 * i + 1]);
                pairs[2 * i + 1] = _mm256_unpackhi_ps(rows[2 * i], rows[2 * i + 1]);
            }
            // quads[4i + c]: in each half of the register, column c of that half out of rows 4i ..
            // 4i + 4.
            let mut quads = rows;
            for i in 0..2 {
                for half in 0..2 {
                    let (a, b) = (pairs[4 * i + half], pairs[4 * i + half + 2]);
                    quads[4 * i + 2 * half] = _mm256_shuffle_ps::<0b01_00_01_00>(a, b);
                    quads[4 * i + 2 * half + 1] = _mm256_shuffle_ps::<0b11_10_11_10>(a, b);
                }
            }
            for c in 0..4 {
                let low = _mm256_permute2f128_ps::<0x20>(quads[c], quads[4 + c]);
                let high = _mm256_permute2f128_ps::<0x31>(quads[c], quads[4 + c]);
                _mm256_storeu_ps(to.add(c * to_step), low);
                _mm256_storeu_ps(to.add((c + 4) * to_step), high);
            }
        }
    }
}
