//! What a layer of experts refuses.

use std::path::Path;

use candle_core::{DType, Device, Tensor};
use serde_json::json;

use crate::{Config, Learnable, kit};

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
    let error = learned.model().finish(0, rows, attended).expect_err("gradients are wanted").to_string();
    assert!(error.contains("no gradient flows through experts"), "{error}");
}
