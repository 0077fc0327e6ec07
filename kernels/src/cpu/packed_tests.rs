//! Packed matrices: blocks against ggml's values, products against those of the unpacked matrix.

#![allow(clippy::unwrap_used)] // a test may panic

use std::path::Path;

use candle_core::{DType, Device, Tensor};

use self::drawn::drawn;
use super::blocks::unpack;
use super::level::Level;
use super::many_rows::Weight;
use super::multiply::Added;
use super::{packed_integers, packed_pairs, packed_rows};
use crate::{Packed, Packing, linear};

#[path = "../../tests/naive/drawn.rs"]
mod drawn;

#[test]
fn blocks_are_what_ggml_makes_of_them() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/blocks.safetensors");
    let known = candle_core::safetensors::load(path, &Device::Cpu).unwrap();
    for packing in Packing::ALL.into_iter().filter(|packing| packing.is_of_gguf()) {
        let of = |what: &str| known[&format!("{}.{what}", packing.name())].flatten_all().unwrap();
        let (raw, values): (Vec<u8>, Vec<f32>) = (of("raw").to_vec1().unwrap(), of("values").to_vec1().unwrap());
        assert!(raw.len() >= 5 * packing.bytes(), "{packing:?}: a few blocks");
        for level in Level::available() {
            let mut found = vec![0.0; values.len()];
            unpack(level, packing, &raw, &mut found);
            for (place, (found, value)) in found.iter().zip(&values).enumerate() {
                // A number may be a sum, which is fused here and rounded twice there.
                let near = (found - value).abs() <= 2e-6 * value.abs().max(1e-3);
                assert!(
                    near || (found.is_nan() && value.is_nan()) || found == value,
                    "{packing:?} at {level:?}, {place}: {found} for {value}"
                );
            }
        }
    }
}

#[test]
fn narrow_floats_and_groups_are_what_their_definition_says() {
    // E4M3: sign, four bits of exponent with bias 7, three bits of mantissa.
    let value = |code: u8| {
        let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7));
        let size = if exponent == 0 {
            mantissa / 8.0 * 2f32.powi(-6)
        } else {
            (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 7)
        };
        if code & 0x80 == 0 { size } else { -size }
    };
    let codes: Vec<u8> = (0..=255).filter(|code| code & 0x7f != 0x7f).chain([0, 0]).collect();
    let bytes: Vec<u8> = codes.chunks_exact(32).flat_map(|codes| [&0.5f32.to_le_bytes(), codes].concat()).collect();
    let groups = [&[0, 0, 0x80, 0x3e, 7][..], &(0..16).map(|i| i << 4 | (15 - i)).collect::<Vec<u8>>()].concat(); // a quarter
    for level in Level::available() {
        let mut found = vec![0.0; 256];
        unpack(level, Packing::Fp8, &bytes, &mut found);
        let expected: Vec<f32> = codes.iter().map(|&code| 0.5 * value(code)).collect();
        assert_eq!(found, expected, "{level:?}");
        let of_128: Vec<u8> = codes.chunks(128).flat_map(|codes| [&0.5f32.to_le_bytes(), codes].concat()).collect();
        unpack(level, Packing::Fp8G128, &of_128, &mut found);
        assert_eq!(found, expected, "{level:?}");
        unpack(level, Packing::Int4, &groups, &mut found[..32]);
        let expected: Vec<f32> = (0..16).rev().chain(0..16).map(|code| 0.25 * (code - 7) as f32).collect();
        assert_eq!(found[..32], expected, "{level:?}");
        let scale = 0.25f32.to_le_bytes();
        let of_128: Vec<u8> = [&scale[..], &(-1.75f32).to_le_bytes(), &groups[5..].repeat(4)].concat();
        unpack(level, Packing::Int4G128, &of_128, &mut found[..128]);
        assert_eq!(found[..128], expected.repeat(4), "{level:?}");
        let whole: Vec<u8> = [&[0, 0, 0x80, 0xbe][..], &(112..144).collect::<Vec<u8>>()].concat(); // less a quarter
        unpack(level, Packing::Int8, &whole, &mut found[..32]);
        let expected: Vec<f32> = (112..128).chain(-128..-112).map(|code| -0.25 * code as f32).collect();
        assert_eq!(found[..32], expected, "{level:?}");
        unpack(level, Packing::Int8G128, &[&whole[..4], &whole[4..].repeat(4)].concat(), &mut found[..128]);
        assert_eq!(found[..128], expected.repeat(4), "{level:?}");
    }
}

#[test]
fn codes_of_eight_bits_are_exact() {
    let one = (1f32.to_le_bytes(), half::f16::ONE.to_le_bytes());
    let (one, short): (&[u8], &[u8]) = (&one.0, &one.1);
    let alone = [(Packing::Fp8, one), (Packing::Int8, one), (Packing::Q8_0, short)];
    let kinds = alone.into_iter().flat_map(|kind| [(kind, 1), (kind, 2)]);
    let many = [(Packing::Fp8G128, one), (Packing::Int8G128, one)].map(|kind| (kind, 1));
    // One in fixed point is as many steps as the largest of its row has; a product of theirs is
    // rounded twice.
    let near = |found: f32, expected: f32| (found - expected).abs() <= 2e-7 * expected.abs();
    for ((packing, scale), blocks) in kinds.chain(many) {
        let inputs = blocks * packing.numbers();
        let codes: Vec<u8> = (0..=255).collect();
        let codes = codes.chunks(packing.numbers());
        let blocks: Vec<u8> = codes.flat_map(|codes| [scale, codes].concat()).collect();
        let packed = Packed::new(packing, [256 / inputs, inputs], blocks).unwrap();
        let numbers: Vec<f32> = packed.unpacked(DType::F32).unwrap().flatten_all().unwrap().to_vec1().unwrap();
        for level in Level::available() {
            for input in 0..inputs {
                let x: Vec<f32> = (0..inputs).map(|i| if i == input { 1.0 } else { 0.0 }).collect();
                let found = match packed_integers::product(level, &x, &packed) {
                    Some(found) => found,
                    None if level.has_pairs() => packed_pairs::product(level, &x, &packed).unwrap(),
                    None => continue,
                };
                let mut both = found.iter().zip(numbers.iter().skip(input).step_by(inputs));
                let all = both.all(|(&found, &expected)| near(found, expected));
                assert!(all, "{packing:?}, {level:?}: code {input} and those a row after it");
            }
        }
    }
}

/// Rows, outputs and inputs: few rows and many, pieces and panels that are not whole, several
/// pieces.
const SIZES: [(usize, usize, usize); 11] = [
    (5, 18, 2560),
    (6, 19, 2144),
    (8, 19, 2560),
    (1, 70, 512),
    (2, 17, 96),
    (3, 33, 256),
    (8, 65, 288),
    (11, 16, 768),
    (32, 5, 256),
    (40, 130, 512),
    (35, 3, 32),
];

#[test]
fn products_are_those_of_the_unpacked_matrix() {
    let device = Device::Cpu;
    for packing in Packing::ALL {
        for (rows, outputs, inputs) in SIZES {
            if inputs % packing.numbers() != 0 {
                continue;
            }
            let packed = drawn(packing, [outputs, inputs]);
            let plain = packed.unpacked(DType::F64).unwrap();
            let values: Vec<f32> = (0..rows * inputs).map(|i| (i * 7919 % 20_011) as f32 / 10_005.5 - 1.0).collect();
            let x = Tensor::from_slice(&values, (rows, inputs), &device).unwrap();
            let exact: Vec<f64> = x
                .to_dtype(DType::F64)
                .unwrap()
                .matmul(&plain.t().unwrap())
                .unwrap()
                .flatten_all()
                .unwrap()
                .to_vec1()
                .unwrap();
            let size = exact.iter().map(|value| value.abs()).sum::<f64>() / exact.len() as f64;
            let check = |found: &[f32], bound: f64, what: &str| {
                for (found, exact) in found.iter().zip(&exact) {
                    let error = (f64::from(*found) - exact).abs() / size;
                    assert!(error < bound, "{packing:?}, {rows} rows, {what}: {error:e}");
                }
            };
            for level in Level::available().into_iter().chain([Level::with_slow_pairs()]) {
                check(&packed_rows::product(level, &values, &packed), 1e-5, "few rows");
                if let Some(found) = packed_integers::product(level, &values, &packed) {
                    check(&found, 5e-4, "few rows in whole numbers");
                }
                if level.has_pairs()
                    && let Some(found) = packed_pairs::product(level, &values, &packed)
                {
                    check(&found, 2e-2, "few rows in pairs");
                }
                for in_pairs in [false, true].into_iter().filter(|pairs| !pairs || level.has_pairs()) {
                    let out = Weight::of_packed(level, &packed, in_pairs).product(&values, Added::default());
                    check(&out, if in_pairs { 5e-2 } else { 1e-5 }, "many rows");
                }
            }
            let bias = Tensor::rand(-1f32, 1.0, outputs, &device).unwrap();
            let there = linear(&x, &packed, Some(&bias)).unwrap().broadcast_sub(&bias).unwrap();
            check(&there.flatten_all().unwrap().to_vec1::<f32>().unwrap(), 1e-5, "with a bias");
        }
    }
}

/// One row is multiplied as its weight is unpacked, several from memory; in whole numbers one row
/// meets its inputs at once, and several piece by piece.
#[test]
fn one_row_has_the_bits_that_it_has_among_others() {
    type Product = fn(Level, &[f32], &Packed) -> Option<Vec<f32>>;
    let products: [(Product, usize); 2] =
        [(|level, x, packed| Some(packed_rows::product(level, x, packed)), 2), (packed_integers::product, 15)];
    for packing in Packing::ALL {
        let inputs = 1280; // five pieces
        let packed = drawn(packing, [37, inputs]);
        let x: Vec<f32> = (0..15 * inputs).map(|i| (i * 7919 % 20_011) as f32 / 10_005.5 - 1.0).collect();
        for (level, (product, rows)) in Level::available().into_iter().flat_map(|level| products.map(|of| (level, of)))
        {
            let Some(all) = product(level, &x[..rows * inputs], &packed) else { continue };
            for (row, among) in x.chunks_exact(inputs).zip(all.chunks_exact(37)) {
                assert_eq!(product(level, row, &packed).unwrap(), among, "{packing:?} at {level:?}");
            }
        }
    }
}

/// What is not finite is seen in every result, and zeros and the smallest numbers give zeros.
#[test]
fn inputs_without_a_scale_are_seen_or_are_zeros() {
    for packing in Packing::ALL {
        let packed = drawn(packing, [19, 256]);
        for level in Level::available() {
            for (value, finite) in [(f32::NAN, false), (f32::INFINITY, false), (-f32::INFINITY, false), (1e-39, true)] {
                let x: Vec<f32> = (0..256).map(|i| if i == 70 { value } else { 0.0 }).collect();
                let Some(found) = packed_integers::product(level, &x, &packed) else { continue };
                assert!(found.iter().all(|value| value.is_finite() == finite), "{packing:?}, {level:?}: {value}");
                assert!(!finite || found.iter().all(|value| value.abs() < 1e-30), "{packing:?}, {level:?}: {value}");
            }
        }
    }
}

#[test]
fn threads_change_no_bit() {
    let cases = [(Packing::Q4K, 5, false), (Packing::Q5_0, 3, true), (Packing::Fp8, 3, true), (Packing::Q6K, 70, true)];
    for (packing, rows, in_bf16) in cases {
        let packed = drawn(packing, [1000, 1024]).multiplied_in_bf16(in_bf16);
        let x = Tensor::rand(-1f32, 1.0, (rows, 1024), &Device::Cpu).unwrap();
        let on = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| linear(&x, &packed, None).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap())
        };
        assert_eq!(on(1), on(3), "{packing:?}");
    }
}

#[test]
fn rows_that_are_no_whole_blocks_and_missing_bytes_are_refused() {
    assert!(Packed::new(Packing::Q4K, [2, 128], vec![0; 144]).is_err());
    assert!(Packed::new(Packing::Q4_0, [2, 64], vec![0; 71]).is_err());
    assert!(drawn(Packing::Q4_0, [4, 64]).select([4]).is_err());
}
