//! Sinks against their definition: one more key in each head, with a logit of its own and the value
//! 0.

use candle_core::{DType, Device, Tensor};
use tributary_kernels::{Kernels, Keys, Partial, Positions, Query, lse_with_sinks, merge, with_sinks};

const SINKS: [f32; 4] = [-40.0, -0.7, 0.4, 3.0];

fn values(rows: usize, heads: usize, seed: usize) -> Tensor {
    let number = |i: usize| ((i * 37 + seed * 11) % 101) as f32 / 40.0 - 1.2;
    let numbers: Vec<f32> = (0..rows * heads * 8).map(number).collect();
    Tensor::from_vec(numbers, (rows, heads, 8), &Device::Cpu).expect("numbers")
}

fn numbers(x: &Tensor) -> Vec<f64> {
    x.to_dtype(DType::F64).and_then(|x| x.flatten_all()?.to_vec1()).expect("numbers")
}

fn attend(kernels: Kernels, q: &Tensor, keys: &[Keys]) -> Partial {
    let at = Positions::run(0, q.dims()[0]);
    kernels.attend(&Query { q, at: &at, keys, rope: None, scale: 0.3, dtype: DType::F32 }).expect("attention")
}

fn assert_near(found: &Tensor, expected: &[f64], what: &str) {
    let found = numbers(found);
    assert_eq!(found.len(), expected.len(), "{what}");
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert!((found - expected).abs() < 1e-5, "{what}, number {index}: {found}, not {expected}");
    }
}

#[test]
fn a_sink_is_one_more_key_without_a_value() {
    let (rows, heads) = (6, 4);
    let (q, k, v) = (values(rows, heads, 1), values(rows, 2, 2), values(rows, 2, 3));
    let keys = [Keys { k: k.clone(), v: v.clone(), at: Positions::run(0, rows) }];
    let (queries, k, v) = (numbers(&q), numbers(&k), numbers(&v));
    let (mut outs, mut sums) = (Vec::new(), Vec::new());
    for row in 0..rows {
        for head in 0..heads {
            let kv = head / 2;
            let dot = |key: usize| -> f64 {
                (0..8).map(|dim| queries[(row * heads + head) * 8 + dim] * k[(key * 2 + kv) * 8 + dim]).sum()
            };
            let weights: Vec<f64> = (0..=row).map(|key| (0.3 * dot(key)).exp()).collect();
            let all = weights.iter().sum::<f64>() + f64::from(SINKS[head]).exp();
            let value = |dim: usize| -> f64 {
                weights.iter().enumerate().map(|(key, weight)| weight * v[(key * 2 + kv) * 8 + dim] / all).sum()
            };
            outs.extend((0..8).map(value));
            sums.push(all.ln());
        }
    }
    for kernels in [Kernels::Auto, Kernels::Plain] {
        for dtype in [DType::F32, DType::F64] {
            let keys = keys.each_ref().map(|keys| {
                let of = |x: &Tensor| x.to_dtype(dtype).expect("numbers of another type");
                Keys { k: of(&keys.k), v: of(&keys.v), at: keys.at.clone() }
            });
            let found = attend(kernels, &q.to_dtype(dtype).expect("numbers of another type"), &keys);
            let what = format!("{kernels:?} {dtype:?}");
            assert_near(&lse_with_sinks(&found.lse, &SINKS).expect("a sum"), &sums, &what);
            let found = with_sinks(&found, &SINKS).expect("sinks");
            assert_near(&found.out, &outs, &what);
            assert_near(&found.lse, &sums, &what);
        }
    }
}

/// Keys in two halves: the sink is added to their merge, and to neither of them.
#[test]
fn a_sink_counts_once_after_a_merge() {
    let (rows, q) = (5, values(5, 4, 1));
    let block = |from: usize, count: usize| {
        let part = |x: Tensor| x.narrow(0, from, count).expect("rows");
        let places: Vec<u32> = (from as u32..(from + count) as u32).collect();
        [Keys { k: part(values(rows, 2, 2)), v: part(values(rows, 2, 3)), at: Positions::run(0, rows).select(&places) }]
    };
    let whole = with_sinks(&attend(Kernels::Auto, &q, &block(0, rows)), &SINKS).expect("sinks");
    let halves = [block(0, 2), block(2, 3)].map(|keys| attend(Kernels::Auto, &q, &keys));
    let merged = with_sinks(&merge(&halves[0], &halves[1]).expect("merged"), &SINKS).expect("sinks");
    assert_near(&merged.out, &numbers(&whole.out), "merged");
    let twice = halves.each_ref().map(|half| with_sinks(half, &SINKS).expect("sinks"));
    let twice = merge(&twice[0], &twice[1]).expect("merged");
    let far = numbers(&twice.out).iter().zip(numbers(&whole.out)).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    assert!(far > 1e-2, "a sink that counts twice shows: {far}");
}

#[test]
fn rows_that_see_nothing_stay_0_and_wrong_counts_are_refused() {
    let blind = Partial {
        out: Tensor::zeros((2, 4, 8), DType::F32, &Device::Cpu).expect("zeros"),
        lse: Tensor::full(f32::NEG_INFINITY, (2, 4), &Device::Cpu).expect("sums"),
    };
    let found = with_sinks(&blind, &SINKS).expect("sinks");
    assert_eq!(numbers(&found.out), vec![0.0; 64]);
    assert_near(&found.lse, &SINKS.repeat(2).iter().map(|&sink| f64::from(sink)).collect::<Vec<_>>(), "only sinks");
    let unread = Tensor::full(f32::INFINITY, (1, 4), &Device::Cpu).expect("sums");
    assert_eq!(numbers(&lse_with_sinks(&unread, &SINKS).expect("sums")), vec![f64::INFINITY; 4]);
    assert!(with_sinks(&blind, &SINKS[1..]).is_err() && lse_with_sinks(&blind.lse, &SINKS[1..]).is_err());
    let none =
        Partial { out: blind.out.narrow(0, 0, 0).expect("no rows"), lse: blind.lse.narrow(0, 0, 0).expect("no rows") };
    assert_eq!(with_sinks(&none, &SINKS).expect("no rows").out.dims(), [0, 4, 8]);
}
