//! A folder gives back the written adapter. It is rejected if it is another model's, or damaged.

use super::*;
use crate::Model;
use crate::kit;

fn model() -> Arc<dyn Model> {
    kit::model(&kit::config())
}

const BASE: [u8; 32] = [7; 32];
const LOOKAHEAD: AdapterKind = AdapterKind::Lookahead { rows: 3, rank: 2, alpha: 8.0 };

/// Numbers that differ from each other.
fn numbers(shape: (usize, usize), first: f32) -> Tensor {
    let all: Vec<f32> = (0..shape.0 * shape.1).map(|i| first + i as f32 / 8.0).collect();
    Tensor::from_vec(all, shape, &Device::Cpu).expect("numbers")
}

fn lookahead(config: &Config) -> Adapter {
    let pair = |(place, linear): (usize, Linear)| {
        let (out, input) = linear.shape(config);
        let first = (place * 10) as f32;
        ((place, linear), LowRankPair { a: numbers((2, input), first), b: numbers((out, 2), -first), scale: 4.0 })
    };
    let places = (0..config.layers).flat_map(|layer| Linear::ALL.map(|linear| (layer, linear)));
    let low_rank = LowRank::new(places.map(pair)).expect("ranks fit");
    Adapter { embeddings: numbers((3, config.hidden), 0.5), low_rank: Some(Arc::new(low_rank)) }
}

fn values(tensor: &Tensor) -> Vec<Vec<f32>> {
    tensor.to_vec2().expect("f32")
}

#[test]
fn what_was_written_is_read_back() {
    let (model, folder) = (model(), tempfile::tempdir().expect("a folder"));
    let config = AdapterConfig::new(LOOKAHEAD, BASE, model.config(), serde_json::json!({"epochs": 3}));
    let adapter = lookahead(model.config());
    AdapterFolder::write(folder.path(), &config, &adapter).expect("written");
    let read = AdapterFolder::read(folder.path(), model.config(), BASE).expect("read");
    assert_eq!(read.config, config);
    assert_eq!(values(&read.adapter.embeddings), values(&adapter.embeddings));
    let (found, expected) = (read.adapter.low_rank.expect("matrices"), adapter.low_rank.expect("matrices"));
    assert_eq!(found.pairs().count(), 7 * model.config().layers);
    for ((place, found), (expected_place, expected)) in found.pairs().zip(expected.pairs()) {
        assert_eq!((place, found.scale), (expected_place, expected.scale));
        assert_eq!(values(&found.a), values(&expected.a), "A of {place:?}");
        assert_eq!(values(&found.b), values(&expected.b), "B of {place:?}");
    }

    // The number follows from kind and numbers, and from nothing else.
    let other = AdapterConfig { training: serde_json::Value::Null, ..config.clone() };
    AdapterFolder::write(folder.path(), &other, &adapter_with(&read.adapter.embeddings, &found)).expect("written");
    assert_eq!(AdapterFolder::read(folder.path(), model.config(), BASE).expect("read").number, read.number);
    let moved = (&read.adapter.embeddings + 1.0).expect("numbers");
    AdapterFolder::write(folder.path(), &config, &adapter_with(&moved, &found)).expect("written");
    assert_ne!(AdapterFolder::read(folder.path(), model.config(), BASE).expect("read").number, read.number);
}

fn adapter_with(embeddings: &Tensor, low_rank: &Arc<LowRank>) -> Adapter {
    Adapter { embeddings: embeddings.clone(), low_rank: Some(Arc::clone(low_rank)) }
}

#[test]
fn another_models_and_damaged_ones_are_refused() {
    let (model, folder) = (model(), tempfile::tempdir().expect("a folder"));
    let kind = AdapterKind::KvPacket { head: 2, tail: 1 };
    let config = AdapterConfig::new(kind, BASE, model.config(), serde_json::Value::Null);
    let adapter = Adapter::from(numbers((3, model.config().hidden), 0.0));
    let write = |config: &AdapterConfig, adapter: &Adapter| {
        AdapterFolder::write(folder.path(), config, adapter).expect("written");
    };
    let refused = |base: [u8; 32]| AdapterFolder::read(folder.path(), model.config(), base).expect_err("refused");
    let read = |base: [u8; 32]| AdapterFolder::read(folder.path(), model.config(), base);
    assert!(matches!(read(BASE), Err(Error::File { .. })), "an empty folder");

    write(&config, &adapter);
    assert!(read(BASE).is_ok());
    assert!(refused([8; 32]).to_string().contains("for another model"), "{}", refused([8; 32]));
    write(&AdapterConfig { hidden: 7, ..config.clone() }, &adapter);
    assert!(refused(BASE).to_string().contains("width 7"), "{}", refused(BASE));
    write(&AdapterConfig { format: 2, ..config.clone() }, &adapter);
    assert!(refused(BASE).to_string().contains("format 2"), "{}", refused(BASE));
    write(&config, &Adapter::from(numbers((2, model.config().hidden), 0.0)));
    assert!(matches!(refused(BASE), Error::WrongShape { .. }), "a row is missing");
    write(&AdapterConfig { kind: LOOKAHEAD, ..config.clone() }, &adapter);
    assert!(matches!(refused(BASE), Error::MissingTensor { .. }), "its matrices are missing");
    write(&config, &Adapter::from((numbers((3, model.config().hidden), 0.0) * f64::INFINITY).expect("numbers")));
    assert!(refused(BASE).to_string().contains("NaN"), "{}", refused(BASE));

    for (kind, message) in [
        (AdapterKind::KvPacket { head: u32::MAX, tail: 4 }, "rows or more"),
        (AdapterKind::KvPacket { head: 0, tail: 0 }, "no rows"),
        (AdapterKind::Lookahead { rows: 3, rank: 2, alpha: 1e30 }, "alpha / rank must be above 0"),
        (AdapterKind::Lookahead { rows: 3, rank: 2, alpha: -8.0 }, "alpha / rank must be above 0"),
        (AdapterKind::Lookahead { rows: 3, rank: 1 << 20, alpha: 8.0 }, "rank 1048576"),
    ] {
        write(&AdapterConfig { kind, ..config.clone() }, &adapter);
        let error = refused(BASE);
        assert!(error.to_string().contains(message) && error.exit_code() == 64, "{kind:?}: {error}");
    }
    write(&config, &adapter);
    let integers = Tensor::zeros((3, model.config().hidden), DType::U32, &Device::Cpu).expect("numbers");
    let file = HashMap::from([("embeddings".to_owned(), integers)]);
    candle_core::safetensors::save(&file, folder.path().join("adapter.safetensors")).expect("written");
    assert!(refused(BASE).to_string().contains("an adapter's are F32"), "{}", refused(BASE));

    write(&config, &adapter);
    let tensors = folder.path().join("adapter.safetensors");
    let bytes = std::fs::read(&tensors).expect("bytes");
    std::fs::write(&tensors, &bytes[..bytes.len() - 9]).expect("written");
    assert!(matches!(refused(BASE), Error::Weights { .. }), "cut short");
    std::fs::write(folder.path().join("adapter.json"), "{}").expect("written");
    assert!(matches!(refused(BASE), Error::Config { .. }));
}

#[test]
fn a_folder_that_cannot_be_written_is_the_disks_fault() {
    let (model, folder) = (model(), tempfile::tempdir().expect("a folder"));
    let file = folder.path().join("file");
    std::fs::write(&file, "").expect("written");
    let kind = AdapterKind::KvPacket { head: 2, tail: 1 };
    let config = AdapterConfig::new(kind, BASE, model.config(), serde_json::Value::Null);
    let adapter = Adapter::from(numbers((3, model.config().hidden), 0.0));
    let error = AdapterFolder::write(&file.join("adapter"), &config, &adapter).expect_err("no folder");
    assert_eq!(error.exit_code(), tributary_protocol::exit::DISK, "{error}");
}
