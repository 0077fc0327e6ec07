//! Comparison of the dumps of two runs.

use std::path::Path;

use candle_core::{DType, Device, safetensors};

/// Asserts that two dumps have the same order, selection and tokens; gives the largest difference
/// of a first-token logit, relative to the largest logit.
pub fn same(found: &Path, expected: &Path) -> f64 {
    let request = |folder: &Path| -> serde_json::Value {
        let text = std::fs::read_to_string(folder.join("request.json")).expect("a request");
        serde_json::from_str(&text).expect("JSON")
    };
    let (one, other) = (request(found), request(expected));
    for key in
        ["/generated", "/order", "/chunks", "/query", "/settings/method", "/settings/exchange", "/settings/world"]
    {
        let (one, other) = (one.pointer(key).expect("there"), other.pointer(key).expect("there"));
        assert_eq!(one, other, "{key} in {} and {}", found.display(), expected.display());
    }
    let load = |folder: &Path| safetensors::load(folder.join("result.safetensors"), &Device::Cpu).expect("a result");
    let (one, other) = (load(found), load(expected));
    let rows = |tensors: &std::collections::HashMap<String, candle_core::Tensor>| {
        tensors.get("selected").map(|rows| rows.to_vec1::<u32>().expect("rows"))
    };
    assert_eq!(rows(&one), rows(&other), "the same rows are selected");
    let logits = |tensors: &std::collections::HashMap<String, candle_core::Tensor>| {
        tensors["first_token_logits"].to_dtype(DType::F32).and_then(|all| all.to_vec1::<f32>()).expect("logits")
    };
    let (one, other) = (logits(&one), logits(&other));
    assert_eq!(one.len(), other.len());
    let largest = other.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
    let difference = one.iter().zip(&other).fold(0.0f32, |largest, (a, b)| largest.max((a - b).abs()));
    assert!(one.iter().all(|value| value.is_finite()), "finite logits");
    f64::from(difference / largest)
}
