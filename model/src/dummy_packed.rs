//! Random packed weights from a seed: drawn codes, with scales that give a matrix the variance of
//! plain random weights.

use half::f16;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use tributary_kernels::{Packed, Packing};

use crate::dummy::fingerprint;
use crate::error::Result;

/// A matrix of variance 1/columns. Its rows must be whole blocks.
pub(super) fn matrix(seed: u64, name: &str, shape: [usize; 2], packing: Packing) -> Result<Packed> {
    let blocks = shape[0] * shape[1] / packing.numbers();
    let mut bytes = vec![0; blocks * packing.bytes()];
    ChaCha8Rng::seed_from_u64(seed ^ fingerprint(name)).fill_bytes(&mut bytes);
    let spread = 1.0 / (shape[1] as f32).sqrt();
    bytes.chunks_exact_mut(packing.bytes()).for_each(|block| scale(block, packing, spread));
    Ok(Packed::new(packing, shape, bytes)?)
}

/// The standard deviation of codes of so many bits.
fn deviation(bits: i32) -> f32 {
    ((4f32.powi(bits) - 1.0) / 12.0).sqrt()
}

/// That of the codes of [`Packing::Iq4Nl`].
const UNEVEN: f32 = 67.0;

/// Writes an f16.
fn half(block: &mut [u8], at: usize, value: f32) {
    block[at..at + 2].copy_from_slice(&f16::from_f32(value).to_le_bytes());
}

/// Puts scales into a block of random bytes, so that its numbers have a standard deviation and, but
/// for half a code, mean 0.
fn scale(block: &mut [u8], packing: Packing, spread: f32) {
    let whole = |block: &mut [u8], value: f32| block[..4].copy_from_slice(&value.to_le_bytes());
    match packing {
        Packing::Q4_0 => half(block, 0, spread / deviation(4)),
        Packing::Q5_0 => half(block, 0, spread / deviation(5)),
        Packing::Q8_0 => half(block, 0, spread / deviation(8)),
        Packing::Iq4Nl => half(block, 0, spread / UNEVEN),
        Packing::Q4_1 => {
            half(block, 0, spread / deviation(4));
            half(block, 2, -7.5 * spread / deviation(4));
        }
        Packing::Q5_1 => {
            half(block, 0, spread / deviation(5));
            half(block, 2, -15.5 * spread / deviation(5));
        }
        Packing::Q2K | Packing::Q3K | Packing::Q4K | Packing::Q5K | Packing::Q6K | Packing::Iq4Xs => {
            scale_runs(block, packing, spread);
        }
        Packing::Mxfp4 => block[0] = (127.0 + (spread / 2.9).log2().round()) as u8,
        Packing::Fp8 | Packing::Fp8G128 => {
            // Numbers from 1 to 2 with a sign, so that none is far out.
            block[4..].iter_mut().for_each(|code| *code = *code & 0x87 | 0x38);
            whole(block, spread / 1.5);
        }
        Packing::Int8 | Packing::Int8G128 => whole(block, spread / deviation(8)),
        Packing::Int4 => {
            whole(block, spread / deviation(4));
            block[4] = 8;
        }
        Packing::Int4G128 => {
            whole(block, spread / deviation(4));
            whole(&mut block[4..], -8.0 * spread / deviation(4));
        }
    }
}

/// The same for a block whose runs have scales: 8, 16 or 32 times its own, in the bits of its
/// layout.
fn scale_runs(block: &mut [u8], packing: Packing, spread: f32) {
    match packing {
        Packing::Q2K => {
            block[..16].fill(8 | 12 << 4);
            half(block, 80, spread / deviation(2) / 8.0);
            half(block, 82, spread / deviation(2) / 8.0);
        }
        Packing::Q3K => {
            block[96..104].fill(0);
            block[104..108].fill(0xff);
            half(block, 108, spread / deviation(3) / 16.0);
        }
        Packing::Q4K | Packing::Q5K => {
            let (bits, centre) = if packing == Packing::Q4K { (4, 7.5) } else { (5, 15.5) };
            block[4..12].fill(32 | 2 << 6);
            block[12..16].fill(0);
            half(block, 0, spread / deviation(bits) / 32.0);
            half(block, 2, centre * spread / deviation(bits) / 32.0);
        }
        Packing::Q6K => {
            block[192..208].fill(16);
            half(block, 208, spread / deviation(6) / 16.0);
        }
        Packing::Iq4Xs => {
            block[2..4].fill(0xff);
            block[4..8].fill(0);
            half(block, 0, spread / UNEVEN / 16.0);
        }
        other => unreachable!("{other:?} has one scale a block"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test may panic

    use candle_core::DType;

    use super::*;

    #[test]
    fn numbers_have_the_variance_of_plain_random_weights() {
        for packing in Packing::ALL {
            let matrix = matrix(7, "a", [64, 256], packing).unwrap().unpacked(DType::F64).unwrap();
            let numbers: Vec<f64> = matrix.flatten_all().unwrap().to_vec1().unwrap();
            let count = numbers.len() as f64;
            let mean = numbers.iter().sum::<f64>() / count;
            let deviation = (numbers.iter().map(|number| number * number).sum::<f64>() / count).sqrt();
            // A power of two may miss it by a half.
            assert!((deviation * 16.0 - 1.0).abs() < 0.5, "{packing:?}: {deviation}");
            assert!(mean.abs() * 16.0 < 0.3, "{packing:?}: {mean}");
        }
    }
}
