//! Experts in MXFP4 as gpt-oss stores them: blocks of 32 numbers in four bits, two neighbours in a
//! byte, and a power of two for each block in another tensor. (Open Compute Project 2023, "OCP
//! Microscaling Formats (MX) Specification", sections 5.2 to 5.4.)

use rayon::prelude::*;

/// Numbers of a block.
pub const BLOCK: usize = 32;

/// Bytes of a block of [`tributary_kernels::Packing::Mxfp4`]: the scale, then the first half of the
/// numbers in low bits and the second half in high ones.
const BYTES: usize = 1 + BLOCK / 2;

/// Such blocks, from blocks of 16 bytes with the first of two neighbours in the low four bits, and
/// their scales.
pub fn blocks(numbers: &[u8], scales: &[u8]) -> Vec<u8> {
    assert_eq!(numbers.len(), scales.len() * BLOCK / 2, "bytes of {} blocks", scales.len());
    let mut blocks = vec![0; scales.len() * BYTES];
    let rooms = blocks.par_chunks_exact_mut(BYTES).zip(numbers.par_chunks_exact(BLOCK / 2)).zip(scales);
    rooms.for_each(|((room, block), &scale)| {
        room[0] = scale;
        let number = |place: usize| block[place / 2] >> (4 * (place % 2)) & 15;
        for (place, byte) in room[1..].iter_mut().enumerate() {
            *byte = number(place) | number(place + BLOCK / 2) << 4;
        }
    });
    blocks
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test may panic

    use candle_core::DType;
    use tributary_kernels::{Packed, Packing};

    use super::*;

    fn unpacked(numbers: &[u8], scales: &[u8]) -> Vec<f32> {
        let packed = Packed::new(Packing::Mxfp4, [1, BLOCK * scales.len()], blocks(numbers, scales)).unwrap();
        packed.unpacked(DType::F32).unwrap().flatten_all().unwrap().to_vec1().unwrap()
    }

    #[test]
    fn low_bits_come_first_and_scales_are_powers_of_two() {
        let mut numbers = [0u8; 32];
        (numbers[0], numbers[1], numbers[31]) = (0x71, 0xF8, 0x2A);
        let found = unpacked(&numbers, &[127, 124]);
        assert_eq!(found[..4], [0.5, 6.0, 0.0, -6.0]);
        assert_eq!((found[62], found[63], found.len()), (-0.125, 0.125, 64));
        assert!(unpacked(&[0x22; 16], &[255]).iter().all(|number| number.is_nan()));
        assert_eq!(unpacked(&[0x22; 16], &[0])[0], 2f32.powi(-127), "the smallest scale");
    }
}
