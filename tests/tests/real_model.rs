//! SmolLM2-135M-Instruct against what other programs make of it (`tests/real-models/record.py`):
//! token ids, the first token's logits, and greedy tokens.

use std::path::{Path, PathBuf};

use candle_core::{DType, Device};
use serde_json::Value;
use tributary_coordinator::Tokenizer;
use tributary_model::{LoadFormat, gguf, load};
use tributary_protocol::{Chunk, Exchange, Plan};
use tributary_tests::{group, logits, method, plan, real, root, run_one};

const NAME: &str = "smollm2-135m-instruct";

/// Of logits up to 30.
const TOLERANCE: f64 = 2e-3;

fn recorded() -> Value {
    let text = std::fs::read_to_string(root().join("tests/real-models/smollm2.json")).expect("a record");
    serde_json::from_str(&text).expect("JSON")
}

fn ids(value: &Value) -> Vec<u32> {
    let list = value.as_array().expect("a list");
    list.iter().map(|id| id.as_u64().expect("an id") as u32).collect()
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().expect("a list").iter().map(|number| number.as_f64().expect("a number")).collect()
}

/// The model in the forms in which it is cached, with the bound of its logits: its folder, in 16
/// bits, and its GGUF file, packed. The record is of numbers that were rounded to 16 bits.
fn forms() -> Vec<(PathBuf, f64)> {
    let described = |file: PathBuf| {
        let cache = std::env::temp_dir().join("tributary-tests");
        gguf::described(&file, &cache).expect("a description")
    };
    let folder = real::cached(NAME).map(|folder| (folder, TOLERANCE));
    let file = real::cached(&format!("{NAME}.gguf")).map(|file| (described(file), 20.0 * TOLERANCE));
    folder.into_iter().chain(file).collect()
}

#[test]
fn texts_have_the_ids_of_pythons_tokenizers_and_of_llama_cpp() {
    let recorded = recorded();
    let texts = recorded["texts"].as_array().expect("a list");
    assert_eq!(texts.len(), 50);
    for (folder, _) in forms() {
        let tokenizer = Tokenizer::from_folder(&folder, None).expect("a tokenizer");
        for pair in texts {
            let text = pair[0].as_str().expect("a text");
            assert_eq!(tokenizer.encode(text).expect("ids").ids, ids(&pair[1]), "{}: {text:?}", folder.display());
        }
    }
}

/// A request of one chunk and a query of the last tokens of the prompt.
fn request(prompt: &[u32], max_tokens: usize) -> Plan {
    let (context, query) = prompt.split_at(prompt.len() / 2);
    let usual = plan(0, &[context.len()], query.len(), 1, method("full"), Exchange::Replicate);
    let chunk = Chunk { ids: context.to_vec(), ..usual.chunks[0].clone() };
    Plan { chunks: vec![chunk], query: query.to_vec(), max_tokens, ..usual }
}

#[test]
fn logits_and_greedy_tokens_are_those_of_transformers() {
    for (folder, tolerance) in forms() {
        check(&folder, tolerance);
    }
}

fn check(folder: &Path, tolerance: f64) {
    let recorded = recorded();
    let model = load(folder, LoadFormat::Safetensors, DType::F32, &Device::Cpu).expect("the model loads");
    let group = group(&model, 1);
    let mut agreed = 0;
    for (name, wanted) in recorded["requests"].as_object().expect("requests") {
        let prompt = ids(&wanted["ids"]);
        let greedy = ids(&wanted["greedy"]);
        let (outcome, _) = run_one(&group, &request(&prompt, greedy.len()));
        assert_eq!(outcome.tokens, greedy, "{name}");
        agreed += wanted["llama_cpp"].as_u64().expect("a number");
        let found: Vec<f64> = logits(&outcome).iter().map(|&logit| f64::from(logit)).collect();
        for (&id, logit) in ids(&wanted["largest"]).iter().zip(numbers(&wanted["logits"])) {
            let error = (found[id as usize] - logit).abs();
            assert!(error < tolerance, "{name}, token {id}: {error}");
        }
        let log_sum_exp = found.iter().map(|logit| logit.exp()).sum::<f64>().ln();
        let error = (log_sum_exp - wanted["log_sum_exp"].as_f64().expect("a number")).abs();
        assert!(error < tolerance, "{name}: {error}");
    }
    assert!(agreed >= 40, "llama.cpp says hardly any of these tokens: {agreed}");
    group.end().expect("the group ends well");
}
