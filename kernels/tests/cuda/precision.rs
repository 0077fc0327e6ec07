//! Errors of rounding over very many keys, and propagation of a NaN.

use candle_core::{DType, Device, Tensor};
use tributary_kernels::{Kernels, Keys, PAD, Positions, Query};

use crate::attention::flat;
use crate::kit::{Leaving, gpu, on};

const KEYS: usize = 131_072;
const HEAD_DIM: usize = 64;

/// Rows of `width` heads, each with two given first numbers.
fn rows(count: usize, width: usize, two: impl Fn(usize) -> [f32; 2]) -> Tensor {
    let mut values = vec![0f32; count * width * HEAD_DIM];
    for (i, head) in values.chunks_mut(HEAD_DIM).enumerate() {
        head[..2].copy_from_slice(&two(i / width));
    }
    Tensor::from_vec(values, (count, width, HEAD_DIM), &Device::Cpu).unwrap().to_dtype(DType::F16).unwrap()
}

/// Key 0 has the largest product, about 60 in powers of two, and all others have the same, half as
/// much weight. The first half of them counts +1 and the second -1: their sum shows differences of
/// their weights far below the precision of f16.
fn one_large_key_and_many_alike(queries: usize, kv_heads: usize) {
    const LARGEST: f32 = 303.0;
    const SCALE: f32 = 0.138_629_44; // 0.2 ln 2: five less is half the weight
    let _leaving = Leaving::these(usize::MAX); // lists are not split: one running softmax takes all keys
    let device = gpu();
    // A row of 16 bits holds the value in two numbers, since one is not enough.
    let q = on(&rows(queries, kv_heads, |_| [1.0, 1.0]), &device);
    let product = |key: usize| if key == 0 { LARGEST } else { LARGEST - 5.0 };
    let k = on(&rows(KEYS, kv_heads, |key| [256.0, product(key) - 256.0]), &device);
    let sign = |key: usize| {
        if key == 0 {
            0.0
        } else if key < KEYS / 2 {
            1.0
        } else {
            -1.0
        }
    };
    let v = on(&rows(KEYS, kv_heads, |key| [sign(key), 1.0]), &device);
    // The first row alone sees anything: a tile of rows that see nothing costs nothing.
    let order: Vec<u32> = (0..queries).map(|row| if row == 0 { KEYS as u32 } else { PAD }).collect();
    let at = Positions::new(vec![0; queries], order, vec![0; queries]);
    let found = Kernels::Auto
        .attend(&Query {
            q: &q,
            at: &at,
            keys: &[Keys { k, v, at: Positions::run(0, KEYS) }],
            rope: None,
            scale: SCALE,
            dtype: DType::F32,
        })
        .unwrap();
    let weights: Vec<f64> = (0..KEYS).map(|key| (f64::from(SCALE) * f64::from(product(key))).exp()).collect();
    let total: f64 = weights.iter().sum();
    let difference = weights.iter().enumerate().map(|(key, weight)| weight * f64::from(sign(key))).sum::<f64>() / total;
    let (out, lse) = (flat(&found.out), flat(&found.lse));
    for head in 0..kv_heads {
        let far = (f64::from(lse[head]) - total.ln()).abs();
        let apart = 2.0 * (f64::from(out[head * HEAD_DIM]) - difference).abs();
        println!("{queries} rows: lse {far:e} off, early and late keys {apart:e} apart");
        assert!(far < 1e-5, "lse {} for {}: {far:e}", lse[head], total.ln());
        assert!(apart < 1e-5, "early and late keys: {apart:e} apart");
        assert!((out[head * HEAD_DIM + 1] - 1.0).abs() < 1e-3, "the weights are 1 together");
    }
}

#[test]
fn where_keys_lie_131072_of_them_weigh_what_they_should() {
    one_large_key_and_many_alike(1, 2);
}

#[test]
fn packed_131072_keys_weigh_what_they_should() {
    one_large_key_and_many_alike(256, 1);
}

/// Output and lse of `queries` rows over `keys` keys, both causal, 2 heads, where row `at` of keys
/// or values is NaN in head 0.
fn with_nan(queries: usize, keys: usize, in_keys: Option<usize>, in_values: Option<usize>) -> (Vec<f32>, Vec<f32>) {
    let device = gpu();
    let tensor = |seed: usize, count: usize, nan: Option<usize>| {
        let mut values: Vec<f32> = (0..count * 2 * HEAD_DIM).map(|i| ((i * seed) as f32 * 0.37).sin()).collect();
        if let Some(row) = nan {
            values[row * 2 * HEAD_DIM..][..HEAD_DIM].fill(f32::NAN);
        }
        let tensor = Tensor::from_vec(values, (count, 2, HEAD_DIM), &Device::Cpu).unwrap();
        on(&tensor.to_dtype(DType::BF16).unwrap(), &device)
    };
    let (q, k, v) = (tensor(3, queries, None), tensor(5, keys, in_keys), tensor(7, keys, in_values));
    let at = Positions::run((keys - queries) as u32, queries);
    let keys = Keys { k, v, at: Positions::run(0, keys) };
    let found = Kernels::Auto
        .attend(&Query { q: &q, at: &at, keys: &[keys], rope: None, scale: 0.125, dtype: DType::F32 })
        .unwrap();
    (flat(&found.out), flat(&found.lse))
}

/// In parts and in one piece, by both kernels: a NaN among a row's keys is no sign that it saw
/// nothing.
#[test]
fn a_visible_nan_comes_through() {
    // Lists are cut where there are many processors for them.
    for (left, queries, keys) in [(0, 3, 3000), (usize::MAX, 20, 90), (0, 300, 2500), (usize::MAX, 300, 400)] {
        let _leaving = Leaving::these(left);
        let nan = keys - queries + queries / 2; // half of the rows see it
        let (clean, clean_lse) = with_nan(queries, keys, None, None);
        let (by_key, by_key_lse) = with_nan(queries, keys, Some(nan), None);
        let (by_value, by_value_lse) = with_nan(queries, keys, None, Some(nan));
        for row in 0..2 * queries {
            let (saw, what) = (row % 2 == 0 && row / 2 >= queries / 2, format!("row {row} of {queries} over {keys}"));
            let out = |list: &[f32]| list[row * HEAD_DIM..][..HEAD_DIM].to_vec();
            if saw {
                assert!(out(&by_key).iter().all(|x| x.is_nan()), "{what}, key: {:?}", out(&by_key));
                assert!(by_key_lse[row].is_nan(), "{what}, key: lse {}", by_key_lse[row]);
                assert!(out(&by_value).iter().all(|x| x.is_nan()), "{what}, value: {:?}", out(&by_value));
            } else {
                assert_eq!((out(&by_key), by_key_lse[row]), (out(&clean), clean_lse[row]), "{what}, key unseen");
            }
            assert_eq!(by_value_lse[row], clean_lse[row], "{what}: values have no part in lse");
        }
    }
}
