//! The choice of experts, and the fields of a config.json that tell of them.

use candle_core::Device;
use serde_json::{Value, json};

use super::*;

fn router(scores: Scores, normalised: bool) -> Router {
    Router { scores, active: 2, normalised, factor: 1.0, groups: 1, used_groups: 1 }
}

fn near(found: &[(usize, f64)], expected: &[(usize, f64)]) {
    assert_eq!(found.len(), expected.len(), "{found:?}");
    for ((expert, weight), (known, right)) in found.iter().zip(expected) {
        assert_eq!(expert, known, "{found:?}");
        assert!((weight - right).abs() < 1e-12, "{found:?}");
    }
}

#[test]
fn a_softmax_router_takes_the_best() {
    let logits = [0.0, 2f64.ln(), 4f64.ln(), 1f64.ln()]; // probabilities 1, 2, 4 and 1 of 8
    near(&router(Scores::Softmax, false).choose(&logits, &[]), &[(1, 0.25), (2, 0.5)]);
    near(&router(Scores::Softmax, true).choose(&logits, &[]), &[(1, 1.0 / 3.0), (2, 2.0 / 3.0)]);
}

#[test]
fn of_equal_scores_the_first_is_taken() {
    near(&router(Scores::Softmax, true).choose(&[1.0; 5], &[]), &[(0, 0.5), (1, 0.5)]);
}

/// The bias decides who is chosen, and not with what weight.
#[test]
fn a_sigmoid_router_has_a_bias_and_groups() {
    let of = |score: f64| (score / (1.0 - score)).ln();
    let logits = [0.9, 0.1, 0.5, 0.6, 0.3, 0.2].map(of);
    let plain = Router { factor: 2.0, ..router(Scores::Sigmoid, false) };
    near(&plain.choose(&logits, &[0.0; 6]), &[(0, 1.8), (3, 1.2)]);
    let bias = [0.0, 0.0, 0.0, 0.0, 0.6, 0.0];
    near(&plain.choose(&logits, &bias), &[(0, 1.8), (4, 0.6)]);
    // Groups of two have 1.0, 1.1 and 0.5: the best expert of all is in none of those used.
    let grouped = Router { groups: 3, ..plain };
    near(&grouped.choose(&logits, &[0.0; 6]), &[(2, 1.0), (3, 1.2)]);
    let normalised = Router { normalised: true, ..grouped };
    near(&normalised.choose(&logits, &[0.0; 6]), &[(2, 2.0 * 0.5 / 1.1), (3, 2.0 * 0.6 / 1.1)]);
}

#[test]
fn rows_are_sorted_by_expert() {
    let logits = Tensor::new(&[[5.0, 4.0, 0.0], [0.0, 4.0, 5.0], [5.0, 0.0, 4.0]], &Device::Cpu).expect("a tensor");
    let met = router(Scores::Softmax, true).route(&logits, &[]).expect("routes");
    assert_eq!(met.iter().map(|met| met.rows.clone()).collect::<Vec<_>>(), [vec![0, 2], vec![0, 1], vec![1, 2]]);
    let all: f32 = met.iter().flat_map(|met| &met.weights).sum();
    assert!((all - 3.0).abs() < 1e-6, "each row's weights sum to one");
}

fn experts(scores: Scores, changes: Value) -> std::result::Result<Option<Experts>, String> {
    let count = if scores == Scores::Softmax { "num_experts" } else { "n_routed_experts" };
    let mut config = json!({"num_experts_per_tok": 2, "moe_intermediate_size": 16});
    config[count] = 8.into();
    for (key, value) in changes.as_object().expect("an object") {
        config[key] = value.clone();
    }
    let stated: Stated = serde_json::from_value(config).map_err(|error| error.to_string())?;
    stated.into_experts(scores, 6)
}

#[test]
fn some_layers_are_dense() {
    let of = |scores, changes| experts(scores, changes).expect("a right config").expect("experts").in_layer;
    assert_eq!(of(Scores::Softmax, json!({})), [true; 6]);
    assert_eq!(
        of(Scores::Softmax, json!({"decoder_sparse_step": 2, "mlp_only_layers": [3]})),
        [false, true, false, false, false, true]
    );
    assert_eq!(of(Scores::Sigmoid, json!({"first_k_dense_replace": 2})), [false, false, true, true, true, true]);
    assert_eq!(experts(Scores::Softmax, json!({"decoder_sparse_step": 7})), Ok(None));
}

#[test]
fn numbers_that_do_not_fit_are_refused() {
    for (scores, changes, said) in [
        (Scores::Softmax, json!({"num_experts": null}), "missing field `num_experts`"),
        (Scores::Softmax, json!({"num_experts": 0}), "num_experts 0: must be from 1 to 4096"),
        (Scores::Softmax, json!({"num_experts": 5000}), "num_experts 5000: must be from 1 to 4096"),
        (Scores::Softmax, json!({"num_experts_per_tok": 9}), "num_experts_per_tok 9: must be from 1 to num_experts 8"),
        (Scores::Softmax, json!({"num_experts_per_tok": 0}), "num_experts_per_tok 0: must be from 1 to num_experts 8"),
        (
            Scores::Softmax,
            json!({"moe_intermediate_size": 0}),
            "moe_intermediate_size 0, 0 times in the expert for all rows: must be from 1 to 1048576",
        ),
        (
            Scores::Sigmoid,
            json!({"n_shared_experts": u64::MAX / 2}),
            "moe_intermediate_size 16, 9223372036854775807 times in the expert for all rows: must be from 1 to 1048576",
        ),
        (
            Scores::Sigmoid,
            json!({"num_local_experts": 9}),
            "n_routed_experts 8 and num_local_experts 9 contradict each other",
        ),
        (Scores::Softmax, json!({"decoder_sparse_step": 0}), "decoder_sparse_step is 0"),
        (Scores::Sigmoid, json!({"n_group": 3}), "n_group 3: 8 experts are not in such groups of two or more"),
        (Scores::Sigmoid, json!({"n_group": 8}), "n_group 8: 8 experts are not in such groups of two or more"),
        (
            Scores::Sigmoid,
            json!({"n_group": 4, "topk_group": 1, "num_experts_per_tok": 3}),
            "topk_group 1: must be from 1 to n_group 4, with at least num_experts_per_tok 3 experts",
        ),
        (
            Scores::Sigmoid,
            json!({"routed_scaling_factor": -1.0}),
            "routed_scaling_factor -1: must be a positive number",
        ),
    ] {
        assert_eq!(experts(scores, changes.clone()), Err(said.to_owned()), "{changes}");
    }
}
