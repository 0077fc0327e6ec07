//! How the numbers of a packed matrix are stored: blocks of integers or of narrow floats, with a
//! scale each.

use half::f16;

/// A number in E4M3, divided by 256: in f16, with the same bits, the exponent's bias is 15 in place
/// of 7.
#[inline(always)]
pub(crate) fn e4m3_in_f16(code: u8) -> f16 {
    f16::from_bits(u16::from(code & 0x80) << 8 | u16::from(code & 0x7f) << 7)
}

/// A number in E4M3. The two codes of no number, 0x7f and 0xff, give 480 and −480.
pub fn of_e4m3(code: u8) -> f32 {
    e4m3_in_f16(code).to_f32() * 256.0
}

/// m · 2⁻¹⁷ in bf16 for m of three bits: numbers in E4M3 without an exponent, divided by 256.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
pub(crate) const SMALL_E4M3: [u16; 32] = {
    let (mut table, mut mantissa) = ([0; 32], 0);
    while mantissa < 8 {
        table[mantissa] = ((mantissa as f32 / 131_072.0).to_bits() >> 16) as u16;
        mantissa += 1;
    }
    table
};

/// The bytes of magnitudes in E4M3, divided by 256, in bf16: the low ones, then the high ones.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
pub(crate) static E4M3_BYTES: [[u8; 128]; 2] = {
    let (mut bytes, mut code) = ([[0; 128]; 2], 0);
    while code < 128 {
        // The exponent's bias is 127 less 8 in place of 7.
        let bits = if code < 8 { SMALL_E4M3[code] } else { (code << 4) as u16 + ((127 - 8 - 7) << 7) };
        [bytes[0][code], bytes[1][code]] = bits.to_le_bytes();
        code += 1;
    }
    bytes
};

/// A packing. Those of GGUF have its layout (ggml, `ggml-common.h`); a row of a matrix is a run of
/// whole blocks. Scales and offsets of blocks are f16 unless said. The CUDA kernels know each by
/// its place in this list (`kernels/cu/packed.cu`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Packing {
    /// 4 bits, a scale for 32 numbers.
    Q4_0,
    /// 4 bits, scale and offset for 32 numbers.
    Q4_1,
    /// 5 bits, a scale for 32 numbers.
    Q5_0,
    /// 5 bits, scale and offset for 32 numbers.
    Q5_1,
    /// 8 bits, a scale for 32 numbers.
    Q8_0,
    /// 2 bits; 256 numbers, scales and offsets for 16 of them in 4 bits.
    Q2K,
    /// 3 bits; 256 numbers, scales for 16 of them in 6 bits.
    Q3K,
    /// 4 bits; 256 numbers, scales and offsets for 32 of them in 6 bits.
    Q4K,
    /// 5 bits; 256 numbers, scales and offsets for 32 of them in 6 bits.
    Q5K,
    /// 6 bits; 256 numbers, scales for 16 of them in 8 bits.
    Q6K,
    /// 4 bits for numbers not evenly apart, a scale for 32 of them.
    Iq4Nl,
    /// 4 bits for numbers not evenly apart; 256 numbers, scales for 32 of them in 6 bits.
    Iq4Xs,
    /// 4 bits of float (E2M1), a power of two for 32 numbers (E8M0). (Open Compute Project 2023,
    /// "OCP Microscaling Formats (MX) Specification", sections 5.2 to 5.4.)
    Mxfp4,
    /// 8 bits of float (E4M3 without infinities), an f32 scale for 32 numbers. (Micikevicius et al.
    /// 2022, arXiv:2209.05433, section 3.)
    Fp8,
    /// 8 bits, an f32 scale for 32 numbers.
    Int8,
    /// 4 bits less a zero point, an f32 scale for 32 numbers: groups of AWQ, GPTQ and others.
    Int4,
    /// As [`Fp8`](Self::Fp8), a scale for 128 numbers.
    Fp8G128,
    /// As [`Int8`](Self::Int8), a scale for 128 numbers.
    Int8G128,
    /// 4 bits, an f32 scale and an f32 offset for 128 numbers, in four runs of 32.
    Int4G128,
}

impl Packing {
    /// Every packing.
    pub const ALL: [Packing; 19] = [
        Packing::Q4_0,
        Packing::Q4_1,
        Packing::Q5_0,
        Packing::Q5_1,
        Packing::Q8_0,
        Packing::Q2K,
        Packing::Q3K,
        Packing::Q4K,
        Packing::Q5K,
        Packing::Q6K,
        Packing::Iq4Nl,
        Packing::Iq4Xs,
        Packing::Mxfp4,
        Packing::Fp8,
        Packing::Int8,
        Packing::Int4,
        Packing::Fp8G128,
        Packing::Int8G128,
        Packing::Int4G128,
    ];

    /// Numbers of a block.
    pub fn numbers(self) -> usize {
        match self {
            Packing::Q2K | Packing::Q3K | Packing::Q4K | Packing::Q5K | Packing::Q6K | Packing::Iq4Xs => 256,
            Packing::Fp8G128 | Packing::Int8G128 | Packing::Int4G128 => 128,
            _ => 32,
        }
    }

    /// Bytes of a block.
    pub fn bytes(self) -> usize {
        match self {
            Packing::Mxfp4 => 17,
            Packing::Q4_0 | Packing::Iq4Nl => 18,
            Packing::Q4_1 => 20,
            Packing::Int4 => 21,
            Packing::Q5_0 => 22,
            Packing::Q5_1 => 24,
            Packing::Q8_0 => 34,
            Packing::Fp8 | Packing::Int8 => 36,
            Packing::Int4G128 => 72,
            Packing::Q2K => 84,
            Packing::Q3K => 110,
            Packing::Fp8G128 | Packing::Int8G128 => 132,
            Packing::Iq4Xs => 136,
            Packing::Q4K => 144,
            Packing::Q5K => 176,
            Packing::Q6K => 210,
        }
    }

    /// That of the same codes with a scale for 128 numbers, where there is one.
    pub fn in_groups_of_128(self) -> Option<Self> {
        match self {
            Packing::Fp8 | Packing::Fp8G128 => Some(Packing::Fp8G128),
            Packing::Int8 | Packing::Int8G128 => Some(Packing::Int8G128),
            Packing::Int4 | Packing::Int4G128 => Some(Packing::Int4G128),
            _ => None,
        }
    }

    /// Whether GGUF has it.
    pub fn is_of_gguf(self) -> bool {
        self.in_groups_of_128().is_none()
    }

    /// Its usual name.
    pub fn name(self) -> &'static str {
        match self {
            Packing::Q4_0 => "Q4_0",
            Packing::Q4_1 => "Q4_1",
            Packing::Q5_0 => "Q5_0",
            Packing::Q5_1 => "Q5_1",
            Packing::Q8_0 => "Q8_0",
            Packing::Q2K => "Q2_K",
            Packing::Q3K => "Q3_K",
            Packing::Q4K => "Q4_K",
            Packing::Q5K => "Q5_K",
            Packing::Q6K => "Q6_K",
            Packing::Iq4Nl => "IQ4_NL",
            Packing::Iq4Xs => "IQ4_XS",
            Packing::Mxfp4 => "MXFP4",
            Packing::Fp8 => "FP8",
            Packing::Int8 => "INT8",
            Packing::Int4 => "INT4",
            Packing::Fp8G128 => "FP8_G128",
            Packing::Int8G128 => "INT8_G128",
            Packing::Int4G128 => "INT4_G128",
        }
    }
}
