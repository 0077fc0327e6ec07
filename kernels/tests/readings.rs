//! Readings by KV head and by query row, and everything plain in f64: values against hand-made
//! sums, gradients against differences that are exact to ten digits in f64.

#![allow(clippy::unwrap_used)] // a test may panic, its helpers too

use candle_core::{DType, Device, Tensor, Var};
use tributary_kernels::{
    Kernels, Keys, PAD, Pairing, Positions, Query, Readings, Reduce, Rope, RopeConfig, RopeScaling, merge,
};

const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const SCALE: f32 = 0.5;

struct Model {
    q: Var,
    k: Var,
    v: Var,
    at_q: Positions,
    at_k: Positions,
    rope: Rope,
}

impl Model {
    fn new(dtype: DType) -> Self {
        let random = |shape: (usize, usize, usize)| Tensor::randn(0f64, 1.0, shape, &Device::Cpu).unwrap();
        let var = |shape| Var::from_tensor(&random(shape).to_dtype(dtype).unwrap()).unwrap();
        Self {
            q: var((3, HEADS, 8)),
            k: var((6, KV_HEADS, 8)),
            v: var((6, KV_HEADS, 8)),
            // Query 0 sees nothing; no query sees key 5.
            at_q: Positions::in_sequence([0, 5, 6], [0, 4, 9]),
            at_k: Positions::in_sequence([1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 9, PAD]),
            rope: Rope::new(
                &RopeConfig {
                    head_dim: 8,
                    rotary_dims: 8,
                    theta: 1e4,
                    scaling: &RopeScaling::None,
                    pairing: Pairing::Half,
                },
                8,
            )
            .unwrap(),
        }
    }

    fn keys(&self) -> [Keys; 1] {
        [Keys { k: self.k.as_tensor().clone(), v: self.v.as_tensor().clone(), at: self.at_k.clone() }]
    }

    fn lse(&self) -> Tensor {
        Kernels::Auto
            .attend(&Query {
                q: &self.q,
                at: &self.at_q,
                keys: &self.keys(),
                rope: Some(&self.rope),
                scale: SCALE,
                dtype: DType::F32,
            })
            .unwrap()
            .lse
    }

    fn readings(&self, by: Readings) -> Tensor {
        let rope = Some(&self.rope);
        Kernels::Auto
            .readings(
                &Query { q: &self.q, at: &self.at_q, keys: &self.keys(), rope, scale: SCALE, dtype: DType::F32 },
                &self.lse(),
                by,
            )
            .unwrap()
    }
}

fn values(tensor: &Tensor) -> Vec<f64> {
    tensor.to_dtype(DType::F64).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

/// A key's attention is the share of its own log-sum-exp in that of all keys.
#[test]
fn a_peak_is_the_most_that_a_row_pays_to_one_key() {
    let model = Model::new(DType::F32);
    let (lse, keys, rope) = (model.lse(), model.keys(), Some(&model.rope));
    let peaks = Kernels::Auto
        .peaks(&Query { q: &model.q, at: &model.at_q, keys: &keys, rope, scale: SCALE, dtype: DType::F32 }, &lse)
        .unwrap();
    assert_eq!(peaks.dims(), &[3, HEADS]);
    let mut expected = [0f64; 3 * HEADS];
    for key in 0..6 {
        let pick = |x: &Var| x.narrow(0, key, 1).unwrap();
        let one = [Keys { k: pick(&model.k), v: pick(&model.v), at: model.at_k.select(&[key as u32]) }];
        let alone = Kernels::Auto
            .attend(&Query { q: &model.q, at: &model.at_q, keys: &one, rope, scale: SCALE, dtype: DType::F32 })
            .unwrap()
            .lse;
        for (most, (alone, all)) in expected.iter_mut().zip(values(&alone).into_iter().zip(values(&lse))) {
            *most = most.max(if alone.is_finite() { (alone - all).exp() } else { 0.0 });
        }
    }
    let found = values(&peaks);
    assert!(
        found.iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 1e-5),
        "{found:?}, {expected:?}"
    );
    assert!(found[..HEADS].iter().all(|&peak| peak == 0.0) && found[HEADS..].iter().all(|&peak| peak > 0.2));
    let none = Kernels::Auto
        .peaks(&Query { q: &model.q, at: &model.at_q, keys: &[], rope, scale: SCALE, dtype: DType::F32 }, &lse)
        .unwrap();
    assert_eq!(values(&none), [0.0; 3 * HEADS]);
}

/// As [`a_peak_is_the_most_that_a_row_pays_to_one_key`], with the largest head in place of the
/// largest key.
#[test]
fn the_largest_head_of_a_row_and_a_key_is_read() {
    let model = Model::new(DType::F32);
    let (lse, rope) = (values(&model.lse()), Some(&model.rope));
    let found = model.readings(Readings::Largest);
    assert_eq!(found.dims(), &[3, 6]);
    let found = values(&found);
    for key in 0..6 {
        let pick = |x: &Var| x.narrow(0, key, 1).unwrap();
        let one = [Keys { k: pick(&model.k), v: pick(&model.v), at: model.at_k.select(&[key as u32]) }];
        let query = Query { q: &model.q, at: &model.at_q, keys: &one, rope, scale: SCALE, dtype: DType::F32 };
        let alone = values(&Kernels::Auto.attend(&query).unwrap().lse);
        for row in 0..3 {
            let of_head = |head: usize| {
                let (alone, all) = (alone[row * HEADS + head], lse[row * HEADS + head]);
                if alone.is_finite() { (alone - all).exp() } else { 0.0 }
            };
            let expected = (0..HEADS).map(of_head).fold(0.0, f64::max);
            assert!((found[row * 6 + key] - expected).abs() < 1e-5, "row {row}, key {key}: {found:?}, {expected}");
        }
    }
    assert!(found[..6].iter().all(|&read| read == 0.0) && found[6..].iter().any(|&read| read > 0.2), "{found:?}");
}

#[test]
fn readings_add_up_to_the_mass_of_a_column() {
    for (dtype, tolerance) in [(DType::F32, 1e-5), (DType::F64, 1e-12)] {
        let model = Model::new(dtype);
        let (lse, keys, rope) = (model.lse(), model.keys(), Some(&model.rope));
        assert_eq!(lse.dtype(), dtype, "nothing is narrowed");
        let mass = Kernels::Plain
            .column_scores(
                &Query { q: &model.q, at: &model.at_q, keys: &keys, rope, scale: SCALE, dtype: DType::F32 },
                &lse,
                Reduce::Mass,
            )
            .unwrap();
        let (mass, by_head) = (values(&mass), model.readings(Readings::PerKvHead));
        let by_row = model.readings(Readings::PerRow);
        assert_eq!((by_head.dims(), by_row.dims()), (&[KV_HEADS, 6][..], &[3, 6][..]));
        assert_eq!((by_head.dtype(), by_row.dtype()), (dtype, dtype));
        let (by_head, by_row) = (values(&by_head), values(&by_row));
        for key in 0..6 {
            let heads = (by_head[key] + by_head[6 + key]) / KV_HEADS as f64;
            let rows: f64 = (0..3).map(|row| by_row[6 * row + key]).sum();
            assert!((heads - mass[key]).abs() < tolerance, "{dtype:?}, key {key}: {heads} of heads, {}", mass[key]);
            assert!((rows - mass[key]).abs() < tolerance, "{dtype:?}, key {key}: {rows} of rows, {}", mass[key]);
        }
        // Every row that sees anything gives away 1 in all.
        let given: Vec<f64> = by_row.chunks(6).map(|row| row.iter().sum()).collect();
        for (found, expected) in given.iter().zip([0.0, 1.0, 1.0]) {
            assert!((found - expected).abs() < tolerance, "{dtype:?}: {given:?}");
        }
        assert!(by_head[5] == 0.0 && by_row[5] == 0.0, "no query sees the last key");
    }
}

#[test]
fn no_key_at_all_gives_empty_lists() {
    let model = Model::new(DType::F64);
    let lse = Tensor::zeros((3, HEADS), DType::F64, &Device::Cpu).unwrap();
    let by_row = Kernels::Auto
        .readings(
            &Query { q: &model.q, at: &model.at_q, keys: &[], rope: None, scale: SCALE, dtype: DType::F32 },
            &lse,
            Readings::PerRow,
        )
        .unwrap();
    assert_eq!(by_row.dims(), [3, 0]);
}

#[test]
fn gradients_of_readings_and_attention_are_exact_in_f64() {
    let model = Model::new(DType::F64);
    let loss = || {
        let weigh = |x: Tensor| {
            let count = x.elem_count();
            let weights: Vec<f64> = (0..count).map(|i| ((7 * i + 3) % 11) as f64 - 5.0).collect();
            let weights = Tensor::from_vec(weights, x.dims(), &Device::Cpu).unwrap();
            (x * weights).unwrap().sum_all().unwrap()
        };
        let part = |rows: std::ops::Range<usize>| {
            let cut = |x: &Var| x.narrow(0, rows.start, rows.len()).unwrap();
            let list: Vec<u32> = rows.clone().map(|row| row as u32).collect();
            let keys = [Keys { k: cut(&model.k), v: cut(&model.v), at: model.at_k.select(&list) }];
            Kernels::Auto
                .attend(&Query {
                    q: &model.q,
                    at: &model.at_q,
                    keys: &keys,
                    rope: Some(&model.rope),
                    scale: SCALE,
                    dtype: DType::F32,
                })
                .unwrap()
        };
        let merged = merge(&part(0..2), &part(2..6)).unwrap();
        let readings = [Readings::PerKvHead, Readings::PerRow].map(|by| weigh(model.readings(by)));
        ((readings[0].clone() + &readings[1]).unwrap() + weigh(merged.out)).unwrap()
    };
    let gradients = loss().backward().unwrap();
    let step = 1e-5;
    for (name, var) in [("q", &model.q), ("k", &model.k), ("v", &model.v)] {
        let found = values(gradients.get(var).unwrap_or_else(|| panic!("the gradient of {name} is lost")));
        let start = values(var);
        for index in 0..start.len() {
            let at = |by: f64| {
                let mut moved = start.clone();
                moved[index] += by;
                var.set(&Tensor::from_vec(moved, var.dims(), &Device::Cpu).unwrap()).unwrap();
                loss().to_scalar::<f64>().unwrap()
            };
            let slope = (at(step) - at(-step)) / (2.0 * step);
            let error = (found[index] - slope).abs() / slope.abs().max(1.0);
            assert!(error < 1e-7, "{name} {index}: {} and {slope}", found[index]);
        }
        var.set(&Tensor::from_vec(start, var.dims(), &Device::Cpu).unwrap()).unwrap();
    }
}
