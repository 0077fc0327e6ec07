//! Numbers in MXFP4: blocks of 32 in four bits each (E2M1), with one power of two a block (E8M0).
//! (Open Compute Project 2023, "OCP Microscaling Formats (MX) Specification", sections 5.2 to 5.4.)

use rayon::prelude::*;

/// Numbers of a block.
pub const BLOCK: usize = 32;

/// The numbers of the four bits' codes.
const VALUES: [f32; 16] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// The exponent's bias, and its code of no number.
const BIAS: i32 = 127;
const NO_NUMBER: u8 = 255;

/// Numbers from blocks of 16 bytes, the low four bits of a byte first, and a scale each.
pub fn unpacked(blocks: &[u8], scales: &[u8]) -> Vec<f32> {
    assert_eq!(blocks.len(), scales.len() * BLOCK / 2, "bytes of {} blocks", scales.len());
    let mut numbers = vec![0.0; scales.len() * BLOCK];
    let rooms = numbers.par_chunks_exact_mut(BLOCK).zip(blocks.par_chunks_exact(BLOCK / 2)).zip(scales);
    rooms.for_each(|((room, block), &scale)| {
        let factor = match scale {
            NO_NUMBER => f32::NAN,
            scale => 2f32.powi(i32::from(scale) - BIAS),
        };
        for (pair, byte) in room.chunks_exact_mut(2).zip(block) {
            pair[0] = VALUES[usize::from(byte & 15)] * factor;
            pair[1] = VALUES[usize::from(byte >> 4)] * factor;
        }
    });
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn low_bits_come_first_and_scales_are_powers_of_two() {
        let mut blocks = [0u8; 32];
        (blocks[0], blocks[1], blocks[31]) = (0x71, 0xF8, 0x2A);
        let found = unpacked(&blocks, &[127, 124]);
        assert_eq!(found[..4], [0.5, 6.0, -0.0, -6.0]);
        assert!(found[2].is_sign_negative());
        assert_eq!((found[62], found[63], found.len()), (-0.125, 0.125, 64));
        assert!(unpacked(&[0x22; 16], &[255]).iter().all(|number| number.is_nan()));
        assert_eq!(unpacked(&[0x22; 16], &[0])[0], 2f32.powi(-127), "the smallest scale");
    }
}
