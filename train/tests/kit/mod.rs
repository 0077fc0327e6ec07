//! A model of two layers with random weights, samples for it, and a training on as many ranks as
//! wanted.
#![allow(dead_code)] // not every test file learns everything

use std::path::Path;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor, Var};
use tributary_comm::{Communicator, local};
use tributary_model::{LoadFormat, Model, load};

use tributary_train::{AdapterKind, Error, Job, Result, Sample, Settings, Wish, on_threads, train};

/// A model with random weights.
pub fn model(dtype: DType) -> Arc<dyn Model> {
    let folder = tempfile::tempdir().expect("a folder");
    let config = serde_json::json!({
        "architectures": ["LlamaForCausalLM"], "vocab_size": 31, "hidden_size": 12, "intermediate_size": 20,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "max_position_embeddings": 256, "hidden_act": "silu",
        "tie_word_embeddings": false, "eos_token_id": 30,
    });
    std::fs::write(folder.path().join("config.json"), config.to_string()).expect("written");
    load(folder.path(), LoadFormat::Dummy { seed: 3 }, dtype, &Device::Cpu).expect("a model")
}

/// Samples of three short chunks, every other one without a prefix.
pub fn samples(count: u32) -> Vec<Sample> {
    let run = |from: u32, count: u32| (from..from + count).map(|id| id * 7 % 30).collect::<Vec<u32>>();
    let sample = |number: u32| Sample {
        prefix: run(number, number % 2 * 2),
        chunks: vec![run(number, 5), run(number + 3, 3), run(2 * number, 4)],
        query: run(number + 11, 2),
        answer_tokens: 3,
        taught_behind: number.is_multiple_of(3).then(|| vec![1]),
    };
    (0..count).map(sample).collect()
}

pub fn settings() -> Settings {
    Settings { epochs: 2, batch: 4, learning_rate: 0.01, warmup: 0.3, clip: 1.0, decay: 0.01, seed: 5 }
}

pub const PACKET: Wish = Wish::Adapter(AdapterKind::KvPacket { head: 2, tail: 1 });
pub const AHEAD: Wish = Wish::Adapter(AdapterKind::Lookahead { rows: 3, rank: 2, alpha: 8.0 });

/// Learns vectors around chunks on `world` ranks.
pub fn learned(world: usize, out: &Path, change: impl Fn(&mut Job<'_>) + Sync) -> Result<Vec<f64>> {
    learned_with((&PACKET, &settings()), world, out, change)
}

/// Learns on `world` ranks; gives the learned numbers.
pub fn learned_with(
    (wish, settings): (&Wish, &Settings),
    world: usize,
    out: &Path,
    change: impl Fn(&mut Job<'_>) + Sync,
) -> Result<Vec<f64>> {
    let (model, samples) = (model(DType::F32), samples(8));
    let mut job = Job { settings, samples: &samples, out, resume: false, stop_after: None, base_model: [7; 32] };
    change(&mut job);
    let one = |seat: local::Seat| -> Result<Vec<f64>> {
        let mut comm = seat.take();
        let pupil = wish.pupil(&*model, 9)?;
        let done = train(&job, &*model, &*pupil, &mut comm, &|_, _| ());
        done.inspect_err(|error| comm.abort(&error.to_string(), error.exit_code()))?;
        Ok(pupil.parameters().iter().flat_map(|var| numbers(var)).collect())
    };
    on_threads(local::seats(world), 1, one, |error| matches!(error, Error::Comm(_)))
}

pub fn numbers(tensor: &Tensor) -> Vec<f64> {
    tensor.flatten_all().and_then(|flat| flat.to_dtype(DType::F64)?.to_vec1()).expect("numbers")
}

/// Largest error of a gradient of `loss` against its central differences, as a share of the largest
/// slope, which is given too.
pub fn error_of_gradient(var: &Var, loss: &dyn Fn() -> Tensor) -> (f64, f64) {
    let (gradients, step) = (loss().backward().expect("gradients"), 1e-6);
    let (found, start) = (numbers(gradients.get(var).expect("a gradient")), numbers(var));
    let set = |values: Vec<f64>| {
        let tensor = Tensor::from_vec(values, var.dims(), &Device::Cpu).expect("numbers");
        var.set(&tensor).expect("set");
    };
    let at = |index: usize, by: f64| {
        let mut moved = start.clone();
        moved[index] += by;
        set(moved);
        loss().to_scalar::<f64>().expect("a number")
    };
    let slopes: Vec<f64> = (0..start.len()).map(|index| (at(index, step) - at(index, -step)) / (2.0 * step)).collect();
    set(start.clone());
    let largest = slopes.iter().fold(0.0f64, |most, slope| most.max(slope.abs()));
    (found.iter().zip(&slopes).fold(0.0f64, |most, (a, b)| most.max((a - b).abs())) / largest, largest)
}
