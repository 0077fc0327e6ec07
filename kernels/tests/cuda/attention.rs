//! Attention and column scores on the device against f64: every layout of blocks, hidden rows,
//! segments and shared keys that the CPU's tests know, with heads of the sizes that the kernels are
//! made for.

use candle_core::{DType, Device, Tensor};
use proptest::prelude::*;
use tributary_kernels::cuda::{download, nothing};
use tributary_kernels::{Kernels, Keys, Pairing, Partial, Positions, Query, Readings, Reduce, merge};

use crate::kit;
use crate::naive::{self, Case, Random, Sizes};

/// Relative distance that a dtype's rounding explains.
pub fn tolerance(dtype: DType) -> f64 {
    if dtype == DType::BF16 { 1e-2 } else { 2e-3 }
}

/// A case whose queries are of the keys' dtype, and the same on the device.
pub fn cases(sizes: &Sizes, device: &Device) -> (Case, Case) {
    let mut host = Case::new(sizes);
    let q = host.q.to_dtype(sizes.dtype).unwrap();
    let keys = host.keys.iter().map(|block| {
        let there = |x: &Tensor| match x.elem_count() {
            0 => nothing(x.dims(), x.dtype(), device).unwrap(), // the driver gives no memory of 0 bytes
            _ => x.to_device(device).unwrap(),
        };
        Keys { k: there(&block.k), v: there(&block.v), at: block.at.clone() }
    });
    let case = Case {
        q: q.to_device(device).unwrap(),
        at_q: host.at_q.clone(),
        keys: keys.collect(),
        rope: host.rope.clone(),
        scale: host.scale,
    };
    host.q = q.to_dtype(DType::F32).unwrap();
    (host, case)
}

pub fn attend(case: &Case) -> Partial {
    Kernels::Auto.attend(&case.query()).unwrap()
}

pub fn flat(x: &Tensor) -> Vec<f32> {
    let host = download(x).unwrap().to_dtype(DType::F32).unwrap();
    host.flatten_all().unwrap().to_vec1().unwrap()
}

fn norm(list: &[f64]) -> f64 {
    list.iter().map(|x| x * x).sum::<f64>().sqrt()
}

pub fn relative(found: &[f32], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let far: Vec<f64> = found.iter().zip(expected).map(|(&a, &b)| f64::from(a) - b).collect();
    let far = norm(&far);
    if far == 0.0 { 0.0 } else { far / norm(expected) }
}

/// Cases of the kernels' sizes; `queries` decides which kernel runs on Hopper.
fn sizes(queries: std::ops::Range<usize>, keys: std::ops::Range<usize>) -> impl Strategy<Value = Sizes> {
    let keys = prop::collection::vec(prop_oneof![1 => Just(0usize), 1 => 1..4usize, 4 => keys], 1..4);
    let head_dim = prop_oneof![Just(32usize), Just(64), Just(96), Just(128), Just(256)];
    let head = (1..3usize, 1..6usize, head_dim, 0..4usize, any::<bool>());
    (any::<u64>(), queries, keys, 1..4usize, 1..900usize, head, any::<bool>()).prop_map(
        |(seed, queries, keys, segments, orders, head, ascending)| {
            let (kv_heads, group, head_dim, rotary, narrow) = head;
            let rotary = match rotary {
                0 => None,
                1 => Some((Pairing::Half, head_dim)),
                2 => Some((Pairing::Half, head_dim / 2)),
                _ => Some((Pairing::Interleaved, head_dim / 2)),
            };
            let dtype = if narrow { DType::F16 } else { DType::BF16 };
            Sizes { seed, queries, keys, kv_heads, group, head_dim, segments, orders, rotary, dtype, ascending }
        },
    )
}

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

fn attention_is_that_of_f64(sizes: &Sizes) -> Result<(), TestCaseError> {
    let (host, case) = cases(sizes, &kit::gpu());
    // Rounding of turned rows is part of the method: the dtype's tolerance covers it.
    let (out, lse) = naive::attend(&host, sizes.rotary);
    let found = attend(&case);
    let error = relative(&flat(&found.out), &out);
    prop_assert!(error < tolerance(sizes.dtype), "out {error:e}");
    let far = naive::distance(&flat(&found.lse), &lse);
    prop_assert!(far < 2.0 * tolerance(sizes.dtype), "lse {far:e}");
    Ok(())
}

proptest! {
    #![proptest_config(config(24))]

    #[test]
    fn few_queries_where_the_keys_lie(sizes in sizes(1..20, 30..300)) {
        attention_is_that_of_f64(&sizes)?;
    }

    #[test]
    fn column_scores_are_those_of_f64(sizes in sizes(1..100, 30..200), shift in -2.0..2.0f32) {
        let device = kit::gpu();
        let (host, case) = cases(&sizes, &device);
        let (queries, heads, _) = case.q.dims3().unwrap();
        let (_, lse) = naive::attend(&host, sizes.rotary);
        let lse: Vec<f32> = lse.iter().map(|&lse| lse as f32 + shift).collect();
        let wide: Vec<f64> = lse.iter().map(|&lse| f64::from(lse)).collect();
        let attention = naive::attention(&host, sizes.rotary, &wide);
        let lse = Tensor::from_vec(lse, (queries, heads), &device).unwrap();
        let weights = Random::new(sizes.seed).values(queries);
        let magnitudes: Vec<f32> = weights.iter().map(|weight| weight.abs()).collect();
        for reduce in [Reduce::Norm, Reduce::Mass, Reduce::Weighted(&weights)] {
            let of = |reduce: Reduce<'_>| naive::reduced(&attention, sizes.keys.iter().sum(), reduce);
            let found = Kernels::Auto.column_scores(&case.query(), &lse, reduce);
            // Weights of both signs cancel: an error counts beside the sum of magnitudes.
            let size = if let Reduce::Weighted(_) = reduce { of(Reduce::Weighted(&magnitudes)) } else { of(reduce) };
            let found = flat(&found.unwrap());
            let apart: Vec<f64> = found.iter().zip(of(reduce)).map(|(&a, b)| f64::from(a) - b).collect();
            prop_assert_eq!(found.len(), size.len());
            let error = norm(&apart) / norm(&size).max(1e-30);
            prop_assert!(error < 2.0 * tolerance(sizes.dtype), "{reduce:?}: {error:e}");
        }
        let found = Kernels::Auto.readings(&case.query(), &lse, Readings::PerRow);
        let error = relative(&flat(&found.unwrap()), &attention.concat());
        prop_assert!(error < 2.0 * tolerance(sizes.dtype), "each row: {error:e}");
    }
}

proptest! {
    #![proptest_config(config(10))]

    #[test]
    fn many_queries(sizes in sizes(130..400, 30..300)) {
        attention_is_that_of_f64(&sizes)?;
    }
}

#[test]
fn a_long_staircase_is_that_of_f64_in_both_ways() {
    for (seed, dtype) in [(1, DType::BF16), (2, DType::F16)] {
        for queries in [9, 300] {
            let sizes = Sizes {
                seed,
                queries,
                keys: vec![700, 500],
                kv_heads: 1,
                group: 4,
                head_dim: 128,
                segments: 1,
                orders: 700,
                rotary: Some((Pairing::Half, 128)),
                dtype,
                ascending: false,
            };
            attention_is_that_of_f64(&sizes).unwrap();
        }
    }
}

/// More items than the emulated GPU has multiprocessors: blocks take one after the other. Heads of
/// one KV head alone, so that a query tile is 128 rows; segments apart, so that lists are short and
/// of several lengths.
#[test]
fn more_items_than_multiprocessors_are_that_of_f64() {
    let sizes = Sizes {
        seed: 7,
        queries: 1500,
        keys: vec![300, 90],
        kv_heads: 12,
        group: 1,
        head_dim: 64,
        segments: 3,
        orders: 380,
        rotary: Some((Pairing::Interleaved, 32)),
        dtype: DType::BF16,
        ascending: false,
    };
    attention_is_that_of_f64(&sizes).unwrap();
}

#[test]
fn one_row_over_131072_keys_is_that_of_f64() {
    let sizes = Sizes {
        seed: 5,
        queries: 1,
        keys: vec![131_071, 1],
        kv_heads: 1,
        group: 2,
        head_dim: 64,
        segments: 1,
        orders: 1,
        rotary: None,
        dtype: DType::F16,
        ascending: false,
    };
    attention_is_that_of_f64(&sizes).unwrap();
}

#[test]
fn parts_of_the_keys_merge_to_the_whole_and_unseen_rows_are_empty() {
    let device = kit::gpu();
    let rows = |seed: u64, count: usize| {
        let values = Random::new(seed).values(count * 2 * 64);
        Tensor::from_vec(values, (count, 2, 64), &Device::Cpu)
            .unwrap()
            .to_dtype(DType::BF16)
            .unwrap()
            .to_device(&device)
    };
    let (q, k, v) = (rows(1, 40).unwrap(), rows(2, 300).unwrap(), rows(3, 300).unwrap());
    let at = Positions::run(100, 40);
    let keys = |from: u32, count: usize| Keys {
        k: k.narrow(0, from as usize, count).unwrap(),
        v: v.narrow(0, from as usize, count).unwrap(),
        at: Positions::run(from, count),
    };
    let attend = |keys: &[Keys]| {
        Kernels::Auto.attend(&Query { q: &q, at: &at, keys, rope: None, scale: 0.125, dtype: DType::F32 }).unwrap()
    };
    let whole = attend(&[keys(0, 300)]);
    let merged = merge(&attend(&[keys(0, 77)]), &attend(&[keys(77, 223)])).unwrap();
    let wide: Vec<f64> = flat(&whole.out).into_iter().map(f64::from).collect();
    assert!(relative(&flat(&merged.out), &wide) < 1e-2);
    let later = attend(&[keys(150, 150)]);
    assert!(flat(&later.out).iter().all(|&x| x == 0.0));
    assert!(flat(&later.lse).iter().all(|&x| x == f32::NEG_INFINITY));
    let merged = merge(&whole, &later).unwrap();
    assert_eq!(flat(&merged.out), flat(&whole.out));
    let none = Kernels::Auto.attend(&Query {
        q: &q.narrow(0, 0, 0).unwrap(),
        at: &Positions::run(0, 0),
        keys: &[keys(0, 300)],
        rope: None,
        scale: 0.125,
        dtype: DType::F32,
    });
    assert_eq!(none.unwrap().out.dims(), [0, 2, 64]);
}

#[test]
fn numbers_in_hidden_keys_change_nothing() {
    let device = kit::gpu();
    for queries in [5, 300] {
        let values = |seed: u64, count: usize, poison: bool| {
            let mut values = Random::new(seed).values(count * 2 * 64);
            if poison {
                values[10 * 2 * 64..20 * 2 * 64].fill(f32::NAN);
            }
            Tensor::from_vec(values, (count, 2, 64), &Device::Cpu).unwrap().to_dtype(DType::BF16).unwrap()
        };
        let q = values(1, queries, false).to_device(&device).unwrap();
        let at = Positions::run(0, queries);
        let hidden: Vec<u32> = (10..20).collect();
        let attend = |poison: bool| {
            let [k, v] = [2, 3].map(|seed| values(seed, 200, poison).to_device(&device).unwrap());
            let keys = Keys { k, v, at: Positions::run(0, 200).without(&hidden) };
            let partial = Kernels::Auto
                .attend(&Query {
                    q: &q,
                    at: &at,
                    keys: std::slice::from_ref(&keys),
                    rope: None,
                    scale: 0.1,
                    dtype: DType::F32,
                })
                .unwrap();
            let (lse, by) = (&partial.lse, Reduce::Mass);
            let scores = Kernels::Auto
                .column_scores(
                    &Query { q: &q, at: &at, keys: &[keys], rope: None, scale: 0.1, dtype: DType::F32 },
                    lse,
                    by,
                )
                .unwrap();
            (flat(&partial.out), flat(&scores))
        };
        assert_eq!(attend(true), attend(false));
    }
}

/// A rank that keeps no chunk is asked all the same, and its answer travels and merges with those
/// of others: for all kernels, it is of the queries' type, and no kernel of candle's is needed for
/// it.
#[test]
fn attention_over_no_key_at_all_is_of_the_queries_type() {
    let device = kit::gpu();
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        for queries in [0, 3] {
            let q = match queries {
                0 => nothing((0, 2, 64), dtype, &device).unwrap(),
                _ => Tensor::zeros((queries, 2, 64), dtype, &device).unwrap(),
            };
            for kernels in [Kernels::Auto, Kernels::Plain] {
                let found = kernels
                    .attend(&Query {
                        q: &q,
                        at: &Positions::run(0, queries),
                        keys: &[],
                        rope: None,
                        scale: 0.1,
                        dtype: DType::F32,
                    })
                    .unwrap();
                assert_eq!((found.out.dtype(), found.out.dims()), (dtype, &[queries, 2, 64][..]), "{kernels:?}");
                assert_eq!((found.lse.dtype(), found.lse.dims()), (DType::F32, &[queries, 2][..]), "{kernels:?}");
                assert!(flat(&found.out).iter().all(|&x| x == 0.0), "{kernels:?} {dtype:?}");
                assert!(flat(&found.lse).iter().all(|&x| x == f32::NEG_INFINITY), "{kernels:?} {dtype:?}");
                let at = Positions::run(0, queries);
                let scores = kernels
                    .column_scores(
                        &Query { q: &q, at: &at, keys: &[], rope: None, scale: 0.1, dtype: DType::F32 },
                        &found.lse,
                        Reduce::Mass,
                    )
                    .unwrap();
                assert_eq!((scores.dtype(), scores.dims()), (DType::F32, &[0][..]), "{kernels:?}");
            }
        }
    }
}
