//! A small model that learns to read for another one: gradients of all its weights, ranks, parts,
//! and the folder that is written.

mod kit;

use std::path::{Path, PathBuf};

use candle_core::{DType, Device};
use kit::{error_of_gradient, learned_with, model, numbers, samples, settings};
use tributary_model::{Config, LoadFormat, Progress, load};
use tributary_train::{Auxiliary, Job, Objective, Pupil, Reader, Sample, Settings, Sizes, Wish};

/// A reader of random weights.
fn reader(objective: Objective, beside: &Path) -> Reader {
    let sizes = Sizes { layers: 2, hidden: 8, heads: 2, intermediate: 10 };
    Reader { objective, sizes, start: None, beside: beside.to_owned() }
}

/// A folder that seems to have a tokenizer.
fn beside() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("tokenizer.json"), "{\"words\": 31}").expect("written");
    folder
}

/// Samples whose teacher and student read after one token.
fn behind_one(count: u32) -> Vec<Sample> {
    samples(count).into_iter().map(|sample| Sample { prefix: vec![1], taught_behind: None, ..sample }).collect()
}

#[test]
fn every_weight_has_the_gradient_of_finite_differences() {
    let (model, progress, nowhere) = (model(DType::F64), Progress::default(), PathBuf::new());
    let sample = &behind_one(2)[1];
    let mut most = 0.0f64;
    for (objective, without) in [(Objective::Language, 0), (Objective::Select, 7)] {
        let own = Auxiliary::new(&reader(objective, &nowhere), &*model, 2).expect("a small model");
        let parameters = own.parameters();
        assert_eq!(parameters.len(), 2 + 2 * 9, "embeddings, a last norm, and nine tensors in each of two layers");
        let loss = || own.loss(&*model, (1, sample), &progress).expect("a loss");
        let mut still = 0;
        for (place, var) in parameters.iter().enumerate() {
            let gradients = loss().backward().expect("gradients");
            if gradients.get(var).is_none_or(|found| numbers(found).iter().all(|&x| x == 0.0)) {
                still += 1;
                continue;
            }
            let (apart, largest) = error_of_gradient(var, &loss);
            assert!(largest > 1e-6, "{objective:?}, parameter {place} matters: {largest:e}");
            assert!(apart < 1e-6, "{objective:?}, parameter {place}: {apart:e}");
            most = most.max(apart);
        }
        // Selection reads the last layer's attention only: its values and later parts have no
        // gradient.
        assert_eq!(still, without, "{objective:?}");
    }
    println!("largest error of a gradient {most:e}");
}

#[test]
fn a_small_model_is_learned_alike_in_every_world_and_in_parts() {
    let (folder, beside) = (tempfile::tempdir().expect("a folder"), beside());
    let out = |name: &str| folder.path().join(name);
    let settings = Settings { epochs: 8, learning_rate: 0.01, ..settings() };
    for objective in [Objective::Language, Objective::Select] {
        let wish = Wish::Auxiliary(reader(objective, beside.path()));
        let name = |world: &str| format!("{objective:?}-{world}");
        let learned = |world: usize, name: &str, change: &(dyn Fn(&mut Job<'_>) + Sync)| {
            learned_with((&wish, &settings), world, &out(name), change).expect("learned")
        };
        let one = learned(1, &name("1"), &|_| ());
        for world in [2, 3] {
            let found = learned(world, &name(&world.to_string()), &|_| ());
            let apart = found.iter().zip(&one).fold(0.0f64, |most, (a, b)| most.max((a - b).abs()));
            println!("{objective:?}, world {world}: {apart:e}");
            assert!(apart < 1e-5, "{objective:?}, world {world}: {apart:e}");
        }
        let half = learned(1, &name("parts"), &|job| job.stop_after = Some(5));
        assert_ne!(half, one);
        assert_eq!(learned(1, &name("parts"), &|job| job.resume = true), one, "bit for bit");
        let summary = std::fs::read_to_string(out(&name("1")).join("training.json")).expect("a summary");
        let summary: serde_json::Value = serde_json::from_str(&summary).expect("JSON");
        let losses: Vec<f64> = serde_json::from_value(summary["epoch_losses"].clone()).expect("losses");
        assert!(losses[7] < 0.95 * losses[0], "{losses:?}");
        let agreement: [f64; 2] = serde_json::from_value(summary["agreement"].clone()).expect("a pair");
        assert!(agreement.iter().all(|share| (0.0..=1.0).contains(share)), "{agreement:?}");
    }
}

#[test]
fn what_was_learned_is_a_model_folder_from_which_another_goes_on() {
    let (folder, beside) = (tempfile::tempdir().expect("a folder"), beside());
    let [first, second] = ["first", "second"].map(|name| folder.path().join(name));
    let language = Wish::Auxiliary(reader(Objective::Language, beside.path()));
    let learned = learned_with((&language, &settings()), 1, &first, |_| ()).expect("learned");
    let read = load(&first, LoadFormat::Safetensors, DType::F32, &Device::Cpu).expect("a model");
    let Config { layers, hidden, vocab, bos, tied_embeddings, .. } = read.config().clone();
    assert_eq!((layers, hidden, vocab, bos, tied_embeddings), (2, 8, 31, None, true));
    let tokenizer = |folder: &Path| std::fs::read(folder.join("tokenizer.json")).expect("a tokenizer");
    assert_eq!(tokenizer(&first), tokenizer(beside.path()));

    let on = Reader { start: Some(first.clone()), ..reader(Objective::Select, Path::new("/nowhere")) };
    let own = Auxiliary::new(&on, &*model(DType::F32), 4).expect("a model to go on from");
    let begun: Vec<f64> = own.parameters().iter().flat_map(|var| numbers(var)).collect();
    assert_eq!(begun, learned, "it goes on from what was learned");
    let select = Wish::Auxiliary(on);
    let further = learned_with((&select, &settings()), 1, &second, |_| ()).expect("learned");
    assert_ne!(further, learned);
    assert_eq!(tokenizer(&second), tokenizer(&first));
    // A checkpoint belongs to the weights it began with.
    learned_with((&language, &settings()), 1, &second, |job| job.stop_after = Some(1)).expect("learned");
    let other = learned_with((&select, &settings()), 1, &second, |job| job.resume = true).expect_err("refused");
    assert_eq!(other.exit_code(), 64, "{other}");
}

#[test]
fn what_cannot_be_read_is_refused() {
    let (model, folder) = (model(DType::F32), tempfile::tempdir().expect("a folder"));
    let select = reader(Objective::Select, folder.path());
    let refused = |reader: &Reader, samples: &[Sample], says: &str| {
        let error = Wish::Auxiliary(reader.clone()).fits(model.config(), samples).expect_err(says);
        assert!(error.exit_code() == 64 && error.to_string().contains(says), "{error}");
    };
    let one_document = Sample { chunks: vec![vec![1, 2]], query: vec![3], ..Sample::default() };
    refused(&select, &[one_document], "two documents");
    let long = Sample { chunks: vec![vec![1], vec![2; 255]], query: vec![3], ..Sample::default() };
    refused(&select, &[long], "257 tokens to read at once; it has 256 positions");
    let config = serde_json::json!({
        "architectures": ["LlamaForCausalLM"], "vocab_size": 30, "hidden_size": 8, "intermediate_size": 8,
        "num_hidden_layers": 1, "num_attention_heads": 1, "rms_norm_eps": 1e-5, "max_position_embeddings": 256,
    });
    std::fs::write(folder.path().join("config.json"), config.to_string()).expect("written");
    let start = Some(folder.path().to_owned());
    refused(&Reader { start, ..select.clone() }, &behind_one(1), "it knows 30 tokens, and the model 31");
    for (sizes, says) in [
        (Sizes { layers: 0, ..select.sizes }, "--layers 0"),
        (Sizes { heads: 3, ..select.sizes }, "--heads 3: --hidden 8 is no even number"),
    ] {
        let error = Wish::Auxiliary(Reader { sizes, ..select.clone() }).check().expect_err(says);
        assert!(error.exit_code() == 64 && error.to_string().contains(says), "{error}");
    }
}
