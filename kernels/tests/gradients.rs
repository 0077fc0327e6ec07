//! Gradients through the plain attention, the column scores and the merge, checked numerically.

#![allow(clippy::unwrap_used)] // a test may panic, its helpers too

use candle_core::{DType, Device, Tensor, Var};
use tributary_kernels::{Kernels, Keys, PAD, Pairing, Positions, Query, Reduce, Rope, RopeConfig, RopeScaling, merge};

struct Model {
    q: Var,
    k: Var,
    v: Var,
    at_q: Positions,
    at_k: Positions,
    rope: Rope,
    /// Factors of the outputs before they are summed to a loss.
    probe: Tensor,
}

/// Numbers between `low` and `high` without a pattern, the same in every run.
fn scattered(shape: &[usize], (low, high): (f32, f32), seed: u32) -> Tensor {
    let number = |at: usize| {
        let bits = (at as u32 + 1000 * seed).wrapping_mul(0x9E37_79B9);
        let bits = (bits ^ bits >> 15).wrapping_mul(0x85EB_CA6B);
        low + (high - low) * ((bits ^ bits >> 13) >> 8) as f32 / (1 << 24) as f32
    };
    let count = shape.iter().product();
    Tensor::from_iter((0..count).map(number), &Device::Cpu).unwrap().reshape(shape).unwrap()
}

impl Model {
    fn new() -> Self {
        let var = |shape: [usize; 3], seed| Var::from_tensor(&scattered(&shape, (-1.7, 1.7), seed)).unwrap();
        Self {
            q: var([4, 4, 8], 1),
            k: var([6, 2, 8], 2),
            v: var([6, 2, 8], 3),
            // Query 0 sees nothing, query 3 is padding; no query sees key 5.
            at_q: Positions::in_sequence([0, 5, 6, 0], [0, 4, 9, PAD]),
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
            probe: scattered(&[4, 4, 8], (-1.7, 1.7), 4),
        }
    }

    /// A loss over output and lse of the keys `parts`, merged. Blind rows' lse is left out: it is
    /// −∞.
    fn loss(&self, kernels: Kernels, parts: &[&[u32]]) -> Tensor {
        let block = |rows: &&[u32]| {
            let rows = *rows;
            let list = Tensor::from_slice(rows, rows.len(), &Device::Cpu).unwrap();
            let pick = |x: &Var| x.index_select(&list, 0).unwrap();
            let keys = [Keys { k: pick(&self.k), v: pick(&self.v), at: self.at_k.select(rows) }];
            kernels
                .attend(&Query {
                    q: &self.q,
                    at: &self.at_q,
                    keys: &keys,
                    rope: Some(&self.rope),
                    scale: 0.5,
                    dtype: DType::F32,
                })
                .unwrap()
        };
        let partial = parts.iter().map(block).reduce(|a, b| merge(&a, &b).unwrap()).unwrap();
        let lse = partial.lse.narrow(0, 1, 2).unwrap().sum_all().unwrap();
        ((partial.out * &self.probe).unwrap().sum_all().unwrap() + lse).unwrap()
    }

    /// A loss over the scores of all keys. They are normalised by an lse that the attention gives,
    /// so that the gradient flows through both, or by a given one.
    fn score_loss(&self, kernels: Kernels, reduce: Reduce<'_>, lse: Option<&Tensor>) -> Tensor {
        let keys = [Keys { k: self.k.as_tensor().clone(), v: self.v.as_tensor().clone(), at: self.at_k.clone() }];
        let rope = Some(&self.rope);
        let own = || {
            kernels
                .attend(&Query { q: &self.q, at: &self.at_q, keys: &keys, rope, scale: 0.5, dtype: DType::F32 })
                .unwrap()
                .lse
        };
        let lse = lse.cloned().unwrap_or_else(own);
        let scores = kernels
            .column_scores(
                &Query { q: &self.q, at: &self.at_q, keys: &keys, rope, scale: 0.5, dtype: DType::F32 },
                &lse,
                reduce,
            )
            .unwrap();
        let weights = Tensor::new(&[3f32, -2.0, 5.0, 1.0, 4.0, 7.0], &Device::Cpu).unwrap();
        (scores * weights).unwrap().sum_all().unwrap()
    }
}

fn check(kernels: Kernels, parts: &[&[u32]]) {
    let model = Model::new();
    let vars = [("q", &model.q), ("k", &model.k), ("v", &model.v)];
    compare(&vars, || model.loss(kernels, parts));
}

/// Compares the gradients of a loss with its differences when a variable moves a little.
fn compare(vars: &[(&str, &Var)], loss: impl Fn() -> Tensor) {
    let gradients = loss().backward().unwrap();
    for &(name, var) in vars {
        let found = gradients.get(var).unwrap_or_else(|| panic!("the gradient of {name} is lost"));
        let found = found.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        let values = var.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        let mut largest = 0f32;
        for i in (0..values.len()).step_by(3) {
            let at = |step: f32| {
                let mut moved = values.clone();
                moved[i] += step;
                var.set(&Tensor::from_vec(moved, var.dims(), &Device::Cpu).unwrap()).unwrap();
                loss().to_scalar::<f32>().unwrap()
            };
            let slope = (at(1e-2) - at(-1e-2)) / 2e-2;
            at(0.0);
            let error = (found[i] - slope).abs();
            assert!(error < 5e-3 * slope.abs().max(1.0), "{name}[{i}]: {} instead of {slope}", found[i]);
            largest = largest.max(slope.abs());
        }
        assert!(largest > 0.1, "{name} has no gradient to speak of");
        assert!(found.iter().all(|gradient| gradient.is_finite()), "{name}: {found:?}");
    }
}

#[test]
fn of_plain_attention() {
    check(Kernels::Plain, &[&[0, 1, 2, 3, 4, 5]]);
}

#[test]
fn of_the_merge() {
    check(Kernels::Plain, &[&[0, 3, 5], &[1, 2, 4]]);
    check(Kernels::Plain, &[&[5], &[4, 1, 2, 3, 0], &[]]);
}

#[test]
fn are_not_lost_where_the_fastest_kernel_is_asked_for() {
    check(Kernels::Auto, &[&[0, 1, 2, 3, 4, 5]]);
}

#[test]
fn of_column_scores() {
    for kernels in [Kernels::Plain, Kernels::Auto] {
        for reduce in [Reduce::Norm, Reduce::Mass, Reduce::Weighted(&[1.0, 0.5, -2.0, 3.0])] {
            let model = Model::new();
            compare(&[("q", &model.q), ("k", &model.k)], || model.score_loss(kernels, reduce, None));
            // Normalised by a constant: as when other ranks' keys count as well.
            let lse = scattered(&[4, 4], (1.0, 2.0), 5);
            compare(&[("q", &model.q), ("k", &model.k)], || model.score_loss(kernels, reduce, Some(&lse)));
        }
    }
}

/// If only `lse` is a variable, its gradient must not be lost either.
#[test]
fn of_column_scores_to_what_normalises_them() {
    for kernels in [Kernels::Plain, Kernels::Auto] {
        let mut model = Model::new();
        model.at_q = Positions::in_sequence([6, 5, 6, 7], [9, 4, 9, 9]);
        let keys = [Keys { k: model.k.as_tensor().detach(), v: model.v.as_tensor().detach(), at: model.at_k.clone() }];
        let lse = Var::from_tensor(&scattered(&[4, 4], (0.0, 1.0), 6)).unwrap();
        let q = model.q.as_tensor().detach();
        compare(&[("lse", &lse)], || {
            let rope = Some(&model.rope);
            let scores = kernels
                .column_scores(
                    &Query { q: &q, at: &model.at_q, keys: &keys, rope, scale: 0.5, dtype: DType::F32 },
                    &lse,
                    Reduce::Norm,
                )
                .unwrap();
            scores.sum_all().unwrap()
        });
    }
}

/// A key that receives a score of exactly 0 leaves the gradients of the others alone.
#[test]
fn of_norm_scores_are_finite_where_a_score_is_0() {
    let model = Model::new();
    let blind = Tensor::full(f32::NEG_INFINITY, (4, 4), &Device::Cpu).unwrap();
    let gradients = model.score_loss(Kernels::Auto, Reduce::Norm, Some(&blind)).backward().unwrap();
    let found = gradients.get(&model.q).expect("a gradient").flatten_all().unwrap().to_vec1::<f32>().unwrap();
    assert!(found.iter().all(|&gradient| gradient == 0.0), "{found:?}");
}
