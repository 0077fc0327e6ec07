//! Folders of models of text and pictures: names of tensors, tensors too many and too few, random
//! weights, the model's hash.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use serde_json::json;

use crate::error::{Error, Result};
use crate::picture_kit::{RECORDED, error, folder, json as recorded_json, pictures, vision};
use crate::{Config, Features, Learnable, LoadFormat, Model, Pictures, Progress, fingerprint, load};

fn features(model: &dyn Model, pictures: &Pictures) -> Features {
    model.tower().expect("a tower").features(pictures, &Progress::default()).expect("features")
}

/// A copy of a recorded model's folder whose tensors are changed.
fn with_tensors(name: &str, change: impl FnOnce(&mut HashMap<String, Tensor>)) -> tempfile::TempDir {
    let copy = tempfile::tempdir().expect("a folder");
    for file in ["config.json", "generation_config.json", "preprocessor_config.json"] {
        std::fs::copy(folder(name).join(file), copy.path().join(file)).expect("copied");
    }
    let mut tensors =
        candle_core::safetensors::load(folder(name).join("model.safetensors"), &Device::Cpu).expect("read");
    change(&mut tensors);
    candle_core::safetensors::save(&tensors, copy.path().join("model.safetensors")).expect("written");
    copy
}

fn open(folder: &Path) -> Result<Arc<dyn Model>> {
    load(folder, LoadFormat::Safetensors, DType::F32, &Device::Cpu)
}

/// The other of both namings.
fn renamed(name: &str) -> String {
    if let Some(rest) = name.strip_prefix("model.visual.") {
        return format!("visual.{rest}");
    }
    if let Some(rest) = name.strip_prefix("model.language_model.") {
        return format!("model.{rest}");
    }
    match name.strip_prefix("model.") {
        Some(rest) => format!("model.language_model.{rest}"),
        None if name.starts_with("visual.") => format!("model.{name}"),
        None => name.to_owned(),
    }
}

#[test]
fn both_namings_of_tensors_are_read() {
    for name in RECORDED {
        let given = pictures(name, &["d", "e"]);
        let other = with_tensors(name, |tensors| {
            *tensors = tensors.drain().map(|(name, tensor)| (renamed(&name), tensor)).collect();
        });
        let found = [folder(name), other.path().to_owned()].map(|folder| {
            let model = open(&folder).expect("a model");
            (features(&*model, &given).features, model.embed(&[7, 261]).expect("rows").hidden)
        });
        assert_eq!(error(&found[1].0, &found[0].0), 0.0, "{name}");
        assert_eq!(error(&found[1].1, &found[0].1), 0.0, "{name}");
    }
}

#[test]
fn tensors_too_many_too_few_and_of_other_shapes_are_named() {
    let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F32, &Device::Cpu).expect("zeros");
    let refused = |name: &str, change: &dyn Fn(&mut HashMap<String, Tensor>)| -> Error {
        let error = open(with_tensors(name, |tensors| change(tensors)).path()).err().expect("refused");
        assert_eq!(error.exit_code(), 65, "{error}");
        error
    };
    let left = refused("qwen3vl-tiny", &|tensors| {
        tensors.insert("model.visual.blocks.5.norm1.weight".to_owned(), zeros(&[32]));
    });
    assert!(left.to_string().contains("`model.visual.blocks.5.norm1.weight` is of no part of the tower"), "{left}");
    let left = refused("qwen25vl-tiny", &|tensors| {
        tensors.insert("visual.patch_embed.proj.bias".to_owned(), zeros(&[32]));
    });
    assert!(left.to_string().contains("`visual.patch_embed.proj.bias`"), "{left}");
    for (name, tensor) in [
        ("qwen3vl-tiny", "model.visual.deepstack_merger_list.2.norm.bias"),
        ("qwen25vl-tiny", "visual.merger.ln_q.weight"),
    ] {
        let missing = refused(name, &|tensors| drop(tensors.remove(tensor)));
        assert!(matches!(missing, Error::MissingTensor { .. }), "{missing}");
        let wrong = refused(name, &|tensors| drop(tensors.insert(tensor.to_owned(), zeros(&[33]))));
        assert!(matches!(wrong, Error::WrongShape { .. }), "{wrong}");
    }
    let twice = refused("qwen25vl-tiny", &|tensors| {
        tensors.insert("model.visual.merger.ln_q.weight".to_owned(), zeros(&[32]));
    });
    assert!(twice.to_string().contains("are both `visual.merger.ln_q.weight`"), "{twice}");
}

/// Random weights need only the config; features are as large as embeddings may be.
#[test]
fn random_weights_of_a_tower() {
    for name in RECORDED {
        let only = tempfile::tempdir().expect("a folder");
        std::fs::copy(folder(name).join("config.json"), only.path().join("config.json")).expect("copied");
        for dtype in [DType::F32, DType::BF16] {
            let model = load(only.path(), LoadFormat::Dummy { seed: 3 }, dtype, &Device::Cpu).expect("a model");
            let given = pictures(name, &["d", "f"]);
            let found = features(&*model, &given);
            let size = |x: &Tensor| x.sqr().and_then(|x| x.mean_all()?.sqrt()?.to_scalar::<f32>()).expect("a number");
            let sizes: Vec<f32> = std::iter::once(&found.features).chain(&found.levels).map(size).collect();
            println!("{name}: {dtype:?}: features of {sizes:?}");
            assert!(sizes.iter().all(|size| (0.05..5.0).contains(size)), "{name}: {dtype:?}: {sizes:?}");
            let half = found.features.dims()[0] / 2;
            let apart = error(&found.rows(0, half).expect("d").features, &found.rows(half, half).expect("f").features);
            assert!(apart > 0.1, "{name}: two pictures have other features: {apart}");
        }
    }
}

/// Heads as wide as those of published towers, 72 and 80, in f32 and in candle's operations in f64.
#[test]
fn heads_of_published_widths() {
    for (name, width) in RECORDED.into_iter().zip([72, 80]) {
        let only = tempfile::tempdir().expect("a folder");
        let mut config = recorded_json(name, "config.json");
        let heads = config["vision_config"]["num_heads"].as_u64().expect("a number");
        config["vision_config"]["hidden_size"] = json!(heads * width);
        std::fs::write(only.path().join("config.json"), config.to_string()).expect("written");
        let given = pictures(name, &["a", "d"]);
        let found = [DType::F32, DType::F64].map(|dtype| {
            let model = load(only.path(), LoadFormat::Dummy { seed: 4 }, dtype, &Device::Cpu).expect("a model");
            features(&*model, &given).features
        });
        let error = error(&found[0], &found[1]);
        println!("{name}: heads of {width}: {error:.1e}");
        assert!(error < 1e-5, "{name}: heads of {width}: {error:e}");
    }
}

#[test]
fn a_models_hash_has_what_makes_numbers_of_pixels() {
    let hash = |folder: &Path| fingerprint(folder, LoadFormat::Dummy { seed: 1 }, None).expect("readable").hash;
    for name in RECORDED {
        let copy = tempfile::tempdir().expect("a folder");
        let write = |file: &str, value: &serde_json::Value| {
            std::fs::write(copy.path().join(file), value.to_string()).expect("written");
        };
        let (config, mut stated) =
            (recorded_json(name, "config.json"), recorded_json(name, "preprocessor_config.json"));
        write("config.json", &config);
        write("preprocessor_config.json", &stated);
        let first = hash(copy.path());
        stated["image_mean"] = json!([0.25, 0.5, 0.5]);
        write("preprocessor_config.json", &stated);
        let second = hash(copy.path());
        assert_ne!(second, first, "{name}: another mean");
        stated["size"] = json!({ "shortest_edge": 5000, "longest_edge": 50_000 });
        for flat in ["min_pixels", "max_pixels"] {
            stated.as_object_mut().expect("an object").remove(flat);
        }
        write("preprocessor_config.json", &stated);
        assert_eq!(hash(copy.path()), second, "{name}: other limits are other pixels");
        // Of other models the file says nothing.
        let mut of_text = config;
        of_text["architectures"] = json!(["Qwen3ForCausalLM"]);
        write("config.json", &of_text);
        let third = hash(copy.path());
        write("preprocessor_config.json", &json!("anything"));
        assert_eq!(hash(copy.path()), third, "{name}");
    }
}

#[test]
fn a_model_that_reads_pictures_is_not_trained() {
    for name in RECORDED {
        let config = Config::read(&folder(name)).expect("a config");
        let error = Learnable::drawn(config, 1, DType::F32).err().expect("refused");
        assert_eq!(error.exit_code(), 64);
        assert!(error.to_string().contains("a model that reads pictures is not trained"), "{error}");
    }
}

/// Numbers of published configs that follow from the fields.
#[test]
fn numbers_of_a_tower() {
    let [third, second] = RECORDED.map(vision);
    assert_eq!((third.patch_numbers(), third.head_dim(), third.token_patches(), third.levels()), (1536, 8, 4, 3));
    assert_eq!((second.patch_numbers(), second.head_dim(), second.token_patches(), second.levels()), (1176, 16, 4, 0));
}
