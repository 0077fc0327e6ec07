//! Keys and values in 8 bits: their rounding against every code of E4M3, and attention to them
//! against attention to the same numbers in f32 and bf16.

#![allow(clippy::unwrap_used)] // a test may panic, its helpers too

use candle_core::{DType, Device, Tensor};
use proptest::prelude::*;
use tributary_kernels::{
    Kernels, Keys, PAD, Pairing, Positions, Query, Readings, Reduce, Rope, RopeConfig, RopeScaling, Rule, SHARED,
    from_eight_bits, is_in_eight_bits, numbers_of_head, of_e4m3, to_eight_bits,
};

#[allow(dead_code)] // the reference in f64 is for other tests
mod naive;
use naive::{Case, Random, Sizes};

fn flat(x: &Tensor) -> Vec<f32> {
    x.to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

fn head(numbers: &[f32]) -> Tensor {
    Tensor::from_vec(numbers.to_vec(), (1, 1, numbers.len()), &Device::Cpu).unwrap()
}

/// Magnitudes of E4M3 and their codes.
fn codes() -> Vec<(f32, u8)> {
    (0..0x7f).map(|code| (of_e4m3(code), code)).collect()
}

#[test]
fn a_number_becomes_the_nearest_code() {
    let (mut random, codes) = (Random::new(3), codes());
    for step in 0..20_000 {
        // 448 in the head makes its scale 1.
        let magnitude = match step % 3 {
            0 => random.value().abs() * 448.0,
            1 => random.value().abs() * 0.03,
            _ => 2f32.powf(9.0 * random.value()).min(448.0),
        };
        let nearest = |&(number, code): &(f32, u8)| ((number - magnitude).abs(), code & 1);
        let wanted = codes.iter().min_by(|a, b| nearest(a).partial_cmp(&nearest(b)).unwrap()).unwrap();
        let packed = to_eight_bits(&head(&[448.0, -magnitude])).unwrap();
        let bytes: Vec<u8> = packed.flatten_all().unwrap().to_vec1().unwrap();
        assert_eq!(bytes, [0x7e, 0x80 | wanted.1, 127], "of {magnitude:e}");
    }
}

#[test]
fn a_scale_is_the_smallest_power_of_two_that_will_do() {
    for (largest, scale) in [(448.0, 1.0), (449.0, 2.0), (224.0, 0.5), (1e-30, 2f32.powi(-108)), (3e37, 2f32.powi(116))]
    {
        let packed = to_eight_bits(&head(&[largest, -largest / 3.0, 0.0])).unwrap();
        let bytes: Vec<u8> = packed.flatten_all().unwrap().to_vec1().unwrap();
        assert_eq!(f32::from_bits(u32::from(bytes[3]) << 23), scale, "of {largest:e}");
        let back = flat(&from_eight_bits(&packed, DType::F32).unwrap());
        assert!((back[0] / largest - 1.0).abs() <= 1.0 / 16.0, "{largest:e}: {back:?}");
        assert!((back[1] * -3.0 / largest - 1.0).abs() <= 1.0 / 16.0, "{largest:e}: {back:?}");
        assert_eq!(back[2], 0.0);
    }
}

#[test]
fn heads_that_are_not_finite_stay_so_and_tiny_ones_are_zero() {
    for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let back = flat(&from_eight_bits(&to_eight_bits(&head(&[1.0, odd])).unwrap(), DType::F32).unwrap());
        assert!(back.iter().all(|x| !x.is_finite()), "{odd}: {back:?}");
    }
    for none in [0.0, -0.0, 1e-40] {
        let back = flat(&from_eight_bits(&to_eight_bits(&head(&[none, 0.0])).unwrap(), DType::F32).unwrap());
        assert_eq!(back, [0.0, 0.0]);
    }
}

#[test]
fn numbers_from_eight_bits_are_packed_without_loss() {
    let mut random = Random::new(5);
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        let values: Vec<f32> = random.values(40 * 3 * 24).iter().map(|x| x * x * x * 9.0).collect();
        let x = Tensor::from_vec(values, (40, 3, 24), &Device::Cpu).unwrap().to_dtype(dtype).unwrap();
        let packed = to_eight_bits(&x).unwrap();
        assert_eq!((packed.dims(), numbers_of_head(&packed).unwrap()), (&[40, 3, 25][..], 24));
        assert!(is_in_eight_bits(&packed) && !is_in_eight_bits(&x));
        let once = from_eight_bits(&packed, dtype).unwrap();
        let again = from_eight_bits(&to_eight_bits(&once).unwrap(), dtype).unwrap();
        assert_eq!((flat(&once), once.dtype()), (flat(&again), dtype));
        let rows = from_eight_bits(&packed.narrow(0, 7, 9).unwrap().narrow(1, 1, 2).unwrap(), dtype).unwrap();
        assert_eq!(flat(&rows), flat(&once.narrow(0, 7, 9).unwrap().narrow(1, 1, 2).unwrap()));
    }
    let x = Tensor::zeros((2, 2, 4), DType::F64, &Device::Cpu).unwrap();
    assert!(to_eight_bits(&x).unwrap_err().to_string().contains("f32, bf16 or f16"));
}

/// Keys in 8 bits, and the same numbers in `dtype`.
fn both_ways(case: &Case, dtype: DType) -> (Vec<Keys>, Vec<Keys>) {
    let of = |x: &Tensor| {
        let packed = to_eight_bits(x).unwrap();
        (packed.clone(), from_eight_bits(&packed, dtype).unwrap())
    };
    let block = |block: &Keys| {
        let ((k, wide_k), (v, wide_v)) = (of(&block.k), of(&block.v));
        (Keys { k, v, at: block.at.clone() }, Keys { k: wide_k, v: wide_v, at: block.at.clone() })
    };
    case.keys.iter().map(block).unzip()
}

/// Attention and its readings of keys in 8 bits and of the same numbers; bits agree, but for a
/// decoded row's.
fn check(sizes: &Sizes) -> std::result::Result<(), TestCaseError> {
    let case = Case::new(sizes);
    for (kernels, dtype) in
        [Kernels::Auto, Kernels::Plain].into_iter().flat_map(|k| [DType::F32, DType::BF16].map(|d| (k, d)))
    {
        let (packed, wide) = both_ways(&case, dtype);
        let of = |keys| Query { keys, dtype, ..case.query() };
        let (found, wanted) = (kernels.attend(&of(&packed)).unwrap(), kernels.attend(&of(&wide)).unwrap());
        for (name, found, wanted) in [("out", &found.out, &wanted.out), ("lse", &found.lse, &wanted.lse)] {
            let wanted: Vec<f64> = flat(wanted).into_iter().map(f64::from).collect();
            let far = naive::distance(&flat(found), &wanted);
            let bound = match (sizes.queries, dtype) {
                // Of one row, keys are taken in other portions.
                (1, DType::F32) => 3e-6,
                (1, _) => 2e-2,
                _ => f64::MIN_POSITIVE,
            };
            prop_assert!(far < bound, "{:?} {:?}: {} {:e}", kernels, dtype, name, far);
        }
        let lse = &wanted.lse;
        let scores = |keys| flat(&kernels.column_scores(&of(keys), lse, Reduce::Norm).unwrap());
        prop_assert_eq!(scores(&packed), scores(&wide), "{:?} {:?}: scores", kernels, dtype);
        for by in [Readings::PerRow, Readings::PerKvHead, Readings::Largest] {
            let read = |keys| flat(&kernels.readings(&of(keys), lse, by).unwrap());
            prop_assert_eq!(read(&packed), read(&wide), "{:?} {:?}: {:?}", kernels, dtype, by);
        }
        let peaks = |keys| flat(&kernels.peaks(&of(keys), lse).unwrap());
        prop_assert_eq!(peaks(&packed), peaks(&wide), "{:?} {:?}: peaks", kernels, dtype);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn attention_to_eight_bits_is_attention_to_their_numbers(sizes in naive::sizes()) {
        // One row with rotations has a way of its own.
        check(&Sizes { queries: sizes.queries.max(2), ..sizes })?;
    }

    #[test]
    fn a_decoded_row_sees_the_numbers_of_eight_bits(sizes in naive::decode_sizes()) {
        check(&sizes)?;
    }

    /// Keys in 8 bits are turned as they are read; others were turned before.
    #[test]
    fn a_decoded_row_turns_the_keys_that_it_reads(
        sizes in naive::decode_sizes(),
        interleaved in any::<bool>(),
        window in any::<bool>(),
    ) {
        let pairing = if interleaved { Pairing::Interleaved } else { Pairing::Half };
        let case = Case::new(&Sizes { rotary: Some((pairing, sizes.head_dim / 2)), ..sizes.clone() });
        let rope = case.rope.as_ref().unwrap();
        let at = case.at_q.clone().within(window.then_some(300));
        for (dtype, bound) in [(DType::F32, 3e-6), (DType::BF16, 2e-2)] {
            let (packed, wide) = both_ways(&case, DType::F32);
            let found = Kernels::Auto.attend(&Query { at: &at, keys: &packed, dtype, ..case.query() }).unwrap();
            let turned = wide.iter().map(|block| Keys { k: rope.apply(&block.k, &block.at).unwrap(), ..block.clone() });
            let (q, keys) = (rope.apply(&case.q, &at).unwrap(), turned.collect::<Vec<_>>());
            let query = Query { q: &q, at: &at, keys: &keys, rope: None, ..case.query() };
            let wanted = Kernels::Auto.attend(&query).unwrap();
            for (name, found, wanted) in [("out", &found.out, &wanted.out), ("lse", &found.lse, &wanted.lse)] {
                let wanted: Vec<f64> = flat(wanted).into_iter().map(f64::from).collect();
                let far = naive::distance(&flat(found), &wanted);
                prop_assert!(far < bound, "{name} in {dtype:?}: {far:e}");
            }
        }
    }
}
