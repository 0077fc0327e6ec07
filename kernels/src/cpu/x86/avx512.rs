//! Vectors of AVX-512, and pairs of bf16 in them.

use std::arch::asm;
use std::arch::x86_64::*;

use half::{bf16, f16};

use super::super::lanes::{CausalPosition, Lanes, exp2_fraction};
use super::super::pairs::Pairs;
use crate::SHARED;
use crate::packing::E4M3_BYTES;

/// Sixteen f32 in AVX-512F.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct Avx512(pub(super) __m512);

/// (a and b) or c, as a table of three bits.
pub(super) const AND_OR: i32 = 0xea;

impl Lanes for Avx512 {
    const N: usize = 16;
    const BLOCK: usize = 4;

    one_instruction! {
        _mm512_set1_ps, _mm512_loadu_ps, _mm512_storeu_ps, _mm512_fmadd_ps,
        add: _mm512_add_ps, sub: _mm512_sub_ps, mul: _mm512_mul_ps, div: _mm512_div_ps, max: _mm512_max_ps
    }

    #[inline(always)]
    unsafe fn load_bf16(from: *const bf16) -> Self {
        // SAFETY: the caller promises the instructions and `N` readable values.
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
            Self(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide)))
        }
    }

    #[inline(always)]
    unsafe fn load_f16(from: *const f16) -> Self {
        // SAFETY: the caller promises the instructions and `N` readable values.
        Self(unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) })
    }

    #[inline(always)]
    unsafe fn load_i8(from: *const i8) -> Self {
        // SAFETY: the caller promises the instructions and `N` readable values.
        Self(unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast()))) })
    }

    #[inline(always)]
    unsafe fn load_e4m3(from: *const u8) -> Self {
        // SAFETY: the caller promises the instructions and `N` readable values.
        Self(unsafe {
            // The sign fills the upper half, and stays in its first bit.
            let codes = _mm256_cvtepi8_epi16(_mm_loadu_si128(from.cast()));
            let bits = _mm256_set1_epi16(0xbf80_u16.cast_signed());
            _mm512_cvtph_ps(_mm256_and_si256(_mm256_slli_epi16::<7>(codes), bits))
        })
    }

    type Whole = __m512i;

    #[inline(always)]
    unsafe fn load_bytes(from: *const u8) -> __m512i {
        // SAFETY: the caller promises the instructions and `N` readable values.
        unsafe { _mm512_cvtepu8_epi32(_mm_loadu_si128(from.cast())) }
    }

    #[inline(always)]
    unsafe fn bits(bits: u32, first: u32) -> __m512i {
        // SAFETY: the caller promises the instructions.
        unsafe { _mm512_maskz_set1_epi32((bits >> first) as u16, 1) }
    }

    #[inline(always)]
    fn field(whole: __m512i, first: u32, count: u32) -> __m512i {
        // SAFETY: numbers come from functions whose callers promise the instructions.
        unsafe {
            let down = _mm512_srlv_epi32(whole, _mm512_set1_epi32(first.cast_signed()));
            _mm512_and_si512(down, _mm512_set1_epi32((1 << count) - 1))
        }
    }

    #[inline(always)]
    fn joined(low: __m512i, high: __m512i, at: u32) -> __m512i {
        // SAFETY: numbers come from functions whose callers promise the instructions.
        unsafe { _mm512_or_si512(low, _mm512_sllv_epi32(high, _mm512_set1_epi32(at.cast_signed()))) }
    }

    #[inline(always)]
    fn float(whole: __m512i) -> Self {
        // SAFETY: numbers come from functions whose callers promise the instructions.
        Self(unsafe { _mm512_cvtepi32_ps(whole) })
    }

    #[inline(always)]
    unsafe fn looked_up(from: *const u8, high: bool, table: &[i8; 16]) -> Self {
        // SAFETY: the caller promises the instructions and `N` readable values. Four bits of each
        // index count.
        unsafe {
            let bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(from.cast()));
            let codes = if high { _mm512_srli_epi32::<4>(bytes) } else { bytes };
            let table = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(table.as_ptr().cast())));
            Self(_mm512_permutexvar_ps(codes, table))
        }
    }

    #[inline(always)]
    fn sum_fours(vectors: &[Self]) -> [Self; 4] {
        assert_eq!(vectors.len(), Self::N, "vectors to add up");
        // SAFETY: the vectors prove the instructions.
        unsafe {
            let mut quads = [Self(_mm512_setzero_ps()); 4];
            for (i, quad) in quads.iter_mut().enumerate() {
                let pair = |a: __m512, b: __m512| _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
                let a = pair(vectors[4 * i].0, vectors[4 * i + 1].0);
                let b = pair(vectors[4 * i + 2].0, vectors[4 * i + 3].0);
                let (low, high) = (_mm512_shuffle_ps::<0b01_00_01_00>(a, b), _mm512_shuffle_ps::<0b11_10_11_10>(a, b));
                *quad = Self(_mm512_add_ps(low, high));
            }
            quads
        }
    }

    #[inline(always)]
    fn sum_parts([first, second, third, fourth]: [Self; 4]) -> Self {
        // SAFETY: the parts prove the instructions.
        unsafe {
            // Quarters 0 and 1 of both, then 2 and 3, are next to each other in a sum.
            let halves = |a: __m512, b: __m512| {
                _mm512_add_ps(_mm512_shuffle_f32x4::<0x88>(a, b), _mm512_shuffle_f32x4::<0xdd>(a, b))
            };
            Self(halves(halves(first.0, second.0), halves(third.0, fourth.0)))
        }
    }

    #[inline(always)]
    fn reduce_max(self) -> f32 {
        // SAFETY: `self` proves the instructions.
        unsafe { _mm512_reduce_max_ps(self.0) }
    }

    #[inline(always)]
    fn any_above(self, other: Self) -> bool {
        // SAFETY: `self` proves the instructions.
        unsafe { _mm512_cmp_ps_mask::<_CMP_NLE_UQ>(self.0, other.0) != 0 }
    }

    #[inline(always)]
    fn exp2(self) -> Self {
        // SAFETY: `self` proves the instructions.
        unsafe {
            // "Not less than" is true for NaN, which so comes through; −∞ and subnormal results
            // become 0.
            let kept = _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(self.0, _mm512_set1_ps(-126.5));
            let whole = _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(self.0);
            let value = exp2_fraction(Self(_mm512_sub_ps(self.0, whole)));
            Self(_mm512_maskz_scalef_ps(kept, value.0, whole))
        }
    }

    #[inline(always)]
    unsafe fn keep_seen(self, keys: [*const u32; 3], query: CausalPosition) -> Self {
        // SAFETY: `self` proves the instructions; the caller promises `N` readable entries.
        unsafe {
            let [order, segment, rope] = keys.map(|list| _mm512_loadu_si512(list.cast()));
            let in_window = _mm512_cmpge_epu32_mask(rope, _mm512_set1_epi32(query.lowest.cast_signed()));
            let not_later = _mm512_cmple_epu32_mask(order, _mm512_set1_epi32(query.order.cast_signed()));
            let same = _mm512_cmpeq_epu32_mask(segment, _mm512_set1_epi32(query.segment.cast_signed()));
            let shared = _mm512_cmpeq_epu32_mask(segment, _mm512_set1_epi32(SHARED.cast_signed()));
            let in_sight = same ^ if query.others { !0 } else { 0 };
            let seen = not_later & (in_sight | shared) & in_window;
            Self(_mm512_mask_mov_ps(_mm512_set1_ps(f32::NEG_INFINITY), seen, self.0))
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
        // SAFETY: the caller promises the instructions and sixteen rows and columns on both sides.
        unsafe {
            let mut rows = [_mm512_setzero_ps(); 16];
            for (i, row) in rows.iter_mut().enumerate() {
                *row = _mm512_loadu_ps(from.add(i * from_step));
            }
            let mut pairs = rows;
            for i in 0..8 {
                pairs[2 * i] = _mm512_unpacklo_ps(rows[2 * i], rows[2 * i + 1]);
                pairs[2 * i + 1] = _mm512_unpackhi_ps(rows[2 * i], rows[2 * i + 1]);
            }
            // quads[4i + c]: in each quarter of the register, column c of that quarter out of rows
            // 4i .. 4i + 4.
            let mut quads = rows;
            for i in 0..4 {
                for half in 0..2 {
                    let (a, b) = (pairs[4 * i + half], pairs[4 * i + half + 2]);
                    quads[4 * i + 2 * half] = _mm512_shuffle_ps::<0b01_00_01_00>(a, b);
                    quads[4 * i + 2 * half + 1] = _mm512_shuffle_ps::<0b11_10_11_10>(a, b);
                }
            }
            for c in 0..4 {
                let upper = (quads[c], quads[4 + c]);
                let lower = (quads[8 + c], quads[12 + c]);
                // Quarters 0 and 2, then 1 and 3, of all sixteen rows.
                let even =
                    (_mm512_shuffle_f32x4::<0x88>(upper.0, upper.1), _mm512_shuffle_f32x4::<0x88>(lower.0, lower.1));
                let odd =
                    (_mm512_shuffle_f32x4::<0xdd>(upper.0, upper.1), _mm512_shuffle_f32x4::<0xdd>(lower.0, lower.1));
                _mm512_storeu_ps(to.add(c * to_step), _mm512_shuffle_f32x4::<0x88>(even.0, even.1));
                _mm512_storeu_ps(to.add((c + 4) * to_step), _mm512_shuffle_f32x4::<0x88>(odd.0, odd.1));
                _mm512_storeu_ps(to.add((c + 8) * to_step), _mm512_shuffle_f32x4::<0xdd>(even.0, even.1));
                _mm512_storeu_ps(to.add((c + 12) * to_step), _mm512_shuffle_f32x4::<0xdd>(odd.0, odd.1));
            }
        }
    }
}

/// The lower halves of two registers of 16-bit numbers, by turns.
static TAKE_TURNS: [u16; 32] = turns();

const fn turns() -> [u16; 32] {
    let mut numbers = [0; 32];
    let mut i = 0;
    while i < 16 {
        numbers[2 * i] = i as u16;
        numbers[2 * i + 1] = 32 + i as u16;
        i += 1;
    }
    numbers
}

/// With AVX512-BF16, AVX512-BW and AVX512-VBMI; see `level.rs`.
impl Pairs for Avx512 {
    #[inline(always)]
    unsafe fn paired_with(self, next: Self) -> Self {
        // SAFETY: the caller promises the instructions. The two types are the same 512 bits.
        unsafe { Self(std::mem::transmute::<__m512bh, __m512>(_mm512_cvtne2ps_pbh(next.0, self.0))) }
    }

    #[inline(always)]
    unsafe fn load_pairs(from: *const bf16, second: Option<*const bf16>) -> Self {
        // SAFETY: the caller promises the instructions and `N` readable values at both.
        unsafe {
            let read = |from: *const bf16| _mm512_castsi256_si512(_mm256_loadu_si256(from.cast()));
            let second = second.map_or(_mm512_setzero_si512(), read);
            let pairs = _mm512_permutex2var_epi16(read(from), _mm512_loadu_si512(TAKE_TURNS.as_ptr().cast()), second);
            Self(_mm512_castsi512_ps(pairs))
        }
    }

    #[inline(always)]
    unsafe fn load_e4m3_of_64(from: *const u8, part: usize) -> Self {
        // SAFETY: the caller promises the instructions and 64 readable bytes. Seven bits of each
        // index count.
        unsafe {
            let [low, high] = [E4M3_BYTES[0].as_ptr(), E4M3_BYTES[1].as_ptr()];
            let order = _mm512_set_epi64(7, 3, 6, 2, 5, 1, 4, 0); // interleaving takes half of every 16 bytes
            let codes = _mm512_permutexvar_epi64(order, _mm512_loadu_si512(from.cast()));
            let (low, low_rest) = (_mm512_loadu_si512(low.cast()), _mm512_loadu_si512(low.add(64).cast()));
            let (high, high_rest) = (_mm512_loadu_si512(high.cast()), _mm512_loadu_si512(high.add(64).cast()));
            let low = _mm512_permutex2var_epi8(low, codes, low_rest);
            let high = _mm512_permutex2var_epi8(high, codes, high_rest);
            let high = _mm512_ternarylogic_epi32::<{ AND_OR }>(codes, _mm512_set1_epi8(i8::MIN), high);
            Self(_mm512_castsi512_ps(match part {
                0 => _mm512_unpacklo_epi8(low, high),
                _ => _mm512_unpackhi_epi8(low, high),
            }))
        }
    }

    #[inline(always)]
    fn total(self) -> f32 {
        // SAFETY: `self` proves the instructions.
        unsafe { _mm512_reduce_add_ps(self.0) }
    }

    #[inline(always)]
    fn masked(self, bits: u32) -> Self {
        // SAFETY: `self` proves the instructions.
        unsafe {
            let bits = _mm512_set1_epi32(bits.cast_signed());
            Self(_mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(self.0), bits)))
        }
    }

    #[inline(always)]
    unsafe fn dot(self, a: Self, b: Self) -> Self {
        // SAFETY: the caller promises the instructions. The two types are the same 512 bits.
        unsafe {
            let (a, b) = (std::mem::transmute::<__m512, __m512bh>(a.0), std::mem::transmute::<__m512, __m512bh>(b.0));
            Self(_mm512_dpbf16_ps(self.0, a, b))
        }
    }
}
