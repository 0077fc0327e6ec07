//! What a layer of experts refuses, and its two ways.

use std::path::Path;

use candle_core::{DType, Device, Tensor};
use serde_json::json;
use tributary_kernels::{Gate, Partial};

use super::{Biases, Expert, ExpertLayer, stacked_biases};
use crate::experts::{Router, Scores};
use crate::{Config, Learnable, kit};

/// A layer of 5 experts, of which a row passes 2: hidden 12, width 20; perhaps with biases.
fn layer(dtype: DType, biased: bool) -> ExpertLayer {
    let mut seed = 1;
    let mut tensor = |rows: usize, columns: usize| {
        let number = |i: usize| ((i * i + 37 * i) * seed % 101) as f64 / 50.0 - 1.0;
        let numbers: Vec<f64> = (0..rows * columns).map(number).collect();
        seed += 3;
        let tensor = Tensor::from_vec(numbers, (rows, columns), &Device::Cpu).expect("a tensor");
        tensor.to_dtype(dtype).expect("numbers of another type")
    };
    let router =
        Router { scores: Scores::Softmax, active: 2, normalised: true, factor: 1.0, groups: 1, used_groups: 1 };
    let mut expert = || {
        let mut bias =
            |width: usize| tensor(1, width).flatten_all().and_then(|bias| bias.to_dtype(DType::F32)).expect("a bias");
        let biases = biased.then(|| Biases { gate: bias(20), up: bias(20), down: bias(12) });
        Expert { gate: tensor(20, 12).into(), up: tensor(20, 12).into(), down: tensor(12, 20).into(), biases }
    };
    let experts: Vec<Expert> = (0..5).map(|_| expert()).collect();
    let shared = Some(expert());
    let gate = if biased { Gate::ClampedSilu { limit: 2.0 } } else { Gate::Silu };
    let biases = stacked_biases(&experts, &Device::Cpu).expect("biases");
    ExpertLayer { router, router_weight: tensor(5, 12), bias: Vec::new(), gate, experts, biases, shared }
}

/// A GPU has all experts compute their rows at once; the sums are those of one after the other.
#[test]
fn experts_at_once_are_experts_in_turn() {
    for (dtype, bound, biased) in
        [(DType::F32, 1e-6, false), (DType::BF16, 1e-2, false), (DType::F32, 1e-6, true), (DType::BF16, 2e-2, true)]
    {
        let layer = layer(dtype, biased);
        for rows in [0, 1, 9, 70] {
            let numbers: Vec<f32> = (0..rows * 12).map(|i| (i as f32 * 1.9).cos()).collect();
            let x = Tensor::from_vec(numbers, (rows, 12), &Device::Cpu).expect("a tensor");
            let x = x.to_dtype(dtype).expect("numbers of another type");
            let logits = tributary_kernels::linear_f32(&x, &layer.router_weight).expect("logits");
            let logits = logits.to_dtype(DType::F64).expect("numbers of another type");
            let met = layer.router.route(&logits, &layer.bias).expect("routed");
            let sums = || Tensor::ones((rows, 12), DType::F32, &Device::Cpu).expect("ones");
            let (at_once, in_turn) = (sums(), sums());
            layer.add_at_once(&at_once, &x, &met).expect("all experts");
            layer.add_in_turn(&in_turn, &x, &met).expect("one after the other");
            let numbers = |x: &Tensor| x.flatten_all().and_then(|x| x.to_vec1::<f32>()).expect("numbers");
            let (found, expected) = (numbers(&at_once), numbers(&in_turn));
            let most = expected.iter().fold(0f32, |most, x| most.max(x.abs()));
            assert!(rows == 0 || most > 2.0, "something was added: {most}");
            let far = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(far <= bound * most, "{dtype:?}, {rows} rows: {far}");
        }
    }
}

/// A model with experts is not learned: the sums over rows are taken in place.
#[test]
fn no_gradient_flows_through_experts() {
    let mut config = kit::config();
    config["architectures"] = json!(["Qwen3MoeForCausalLM"]);
    for (key, value) in [("num_experts", 4), ("num_experts_per_tok", 2), ("moe_intermediate_size", 8), ("head_dim", 8)]
    {
        config[key] = value.into();
    }
    let config = Config::parse(&config.to_string(), Path::new("config.json")).expect("a right config");
    let (heads, head_dim) = (config.heads, config.head_dim);
    let learned = Learnable::drawn(config, 1, DType::F32).expect("drawn");
    let attended = Tensor::zeros((2, heads, head_dim), DType::F32, &Device::Cpu).expect("a tensor");
    let rows = learned.model().embed(&[1, 2]).expect("embedded");
    let attended = Partial::of_output(attended).expect("an output");
    let error = learned.model().finish(0, rows, attended).expect_err("gradients are wanted").to_string();
    assert!(error.contains("no gradient flows through experts"), "{error}");
}
