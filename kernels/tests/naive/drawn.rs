//! Packed matrices that are drawn. The including file brings the crate's names into its root.

#![allow(clippy::unwrap_used)] // a test may panic, its helpers too

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use super::{Packed, Packing};

/// Blocks of a matrix that numbers near 1 could have, the same for the same packing and shape.
pub fn drawn(packing: Packing, shape: [usize; 2]) -> Packed {
    let mut random = ChaCha8Rng::seed_from_u64(packing.bytes() as u64);
    let count = shape[0] * shape[1] / packing.numbers();
    let mut bytes = vec![0; count * packing.bytes()];
    random.fill_bytes(&mut bytes);
    for block in bytes.chunks_exact_mut(packing.bytes()) {
        let one = half::f16::from_f32(0.01 + f32::from(block[0]) / 1e4).to_le_bytes();
        let (single, at): (bool, &[usize]) = match packing {
            Packing::Q4_0 | Packing::Q5_0 | Packing::Q8_0 | Packing::Iq4Nl | Packing::Iq4Xs => (false, &[0]),
            Packing::Q4_1 | Packing::Q5_1 | Packing::Q4K | Packing::Q5K => (false, &[0, 2]),
            Packing::Q2K => (false, &[80, 82]),
            Packing::Q3K => (false, &[108]),
            Packing::Q6K => (false, &[208]),
            Packing::Mxfp4 | Packing::Fp8 | Packing::Int8 | Packing::Int4 => (true, &[]),
            Packing::Fp8G128 | Packing::Int8G128 | Packing::Int4G128 => (true, &[]),
        };
        at.iter().for_each(|&at| block[at..at + 2].copy_from_slice(&one));
        if single {
            match packing {
                Packing::Mxfp4 => block[0] = 120 + block[0] % 8,
                _ => block[..4].copy_from_slice(&0.02f32.to_le_bytes()),
            }
        }
        match packing {
            Packing::Int4 => block[4] %= 16,
            Packing::Int4G128 => {
                let offset = -0.02 * f32::from(block[4] % 16);
                block[4..8].copy_from_slice(&offset.to_le_bytes());
            }
            // Neither of the two codes of no number.
            Packing::Fp8 | Packing::Fp8G128 => block[4..].iter_mut().for_each(|code| *code &= 0xfe),
            _ => {}
        }
    }
    Packed::new(packing, shape, bytes).unwrap()
}
