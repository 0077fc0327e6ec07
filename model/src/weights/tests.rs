//! Damaged, incomplete or unsupported weight files, each with its message and exit code.

use std::collections::HashMap;
use std::path::Path;

use candle_core::{DType, Device, Tensor};
use tempfile::TempDir;

use super::Weights;
use crate::error::{Error, Result};

fn write(path: &Path, tensors: &[(&str, &[usize])]) {
    let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F32, &Device::Cpu).expect("zeros");
    let map: HashMap<String, Tensor> = tensors.iter().map(|(name, shape)| ((*name).to_owned(), zeros(shape))).collect();
    candle_core::safetensors::save(&map, path).expect("written");
}

/// A folder with one intact file.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    write(&folder.path().join("model.safetensors"), &[("norm", &[4]), ("matrix", &[3, 4])]);
    folder
}

fn check<T>(found: Result<T>, exit_code: u8, messages: &[&str]) {
    let Err(error) = found else { panic!("no error, expected {messages:?}") };
    for message in messages {
        assert!(error.to_string().contains(message), "{error}: no `{message}`");
    }
    assert_eq!(error.exit_code(), exit_code, "{error}");
}

/// The file of an intact folder after a change of its bytes.
fn changed(change: impl FnOnce(&mut Vec<u8>)) -> Result<Weights> {
    let folder = folder();
    let path = folder.path().join("model.safetensors");
    let mut bytes = std::fs::read(&path).expect("read");
    change(&mut bytes);
    std::fs::write(&path, bytes).expect("written");
    Weights::open(folder.path(), DType::F32, &Device::Cpu)
}

/// A file whose only tensor, `x` of two elements, is of the given type.
fn typed(dtype: &str, bytes: usize) -> Result<Tensor> {
    let folder = tempfile::tempdir().expect("a folder");
    let header = format!(r#"{{"x":{{"dtype":"{dtype}","shape":[2],"data_offsets":[0,{bytes}]}}}}"#);
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend(vec![0; bytes]);
    std::fs::write(folder.path().join("model.safetensors"), file).expect("written");
    Weights::open(folder.path(), DType::F32, &Device::Cpu)?.get("x", &[2])
}

#[test]
fn whole_files_are_read_in_the_models_dtype_and_norms_in_f32() {
    let folder = folder();
    let weights = Weights::open(folder.path(), DType::BF16, &Device::Cpu).expect("opened");
    assert_eq!(weights.get("matrix", &[3, 4]).expect("there").dtype(), DType::BF16);
    assert_eq!(weights.get_f32("norm", &[4]).expect("there").dtype(), DType::F32);
}

#[test]
fn norms_keep_their_precision_in_a_bf16_model() {
    let folder = tempfile::tempdir().expect("a folder");
    let norm = Tensor::new(&[1.0f32 + 1.0 / 1024.0], &Device::Cpu).expect("a tensor"); // bf16 would round it to 1
    let map = HashMap::from([("norm".to_owned(), norm)]);
    candle_core::safetensors::save(&map, folder.path().join("model.safetensors")).expect("written");
    let weights = Weights::open(folder.path(), DType::BF16, &Device::Cpu).expect("opened");
    let found = weights.get_f32("norm", &[1]).and_then(|x| Ok(x.to_vec1::<f32>()?)).expect("f32");
    assert_eq!(found, [1.0 + 1.0 / 1024.0]);
}

#[test]
fn a_missing_or_misshapen_tensor_is_named() {
    let folder = folder();
    let weights = Weights::open(folder.path(), DType::F32, &Device::Cpu).expect("opened");
    check(weights.get("head", &[7, 4]), 65, &["no tensor `head` of shape [7, 4]"]);
    check(weights.get("matrix", &[4, 3]), 65, &["`matrix`", "expected shape [4, 3]", "found [3, 4]"]);
}

#[test]
fn what_is_no_float_is_refused() {
    for (dtype, bytes) in [("I8", 2), ("U8", 2), ("I64", 16), ("F8_E4M3", 2), ("BOOL", 2)] {
        let names = ["model.safetensors", "tensor `x`", "expected F32, F16, BF16 or F64", "quantization_config"];
        check(typed(dtype, bytes), 65, &names);
    }
    check(typed("X3", 2), 65, &["model.safetensors", "not a whole safetensors file"]);
    for (dtype, bytes) in [("F32", 8), ("F16", 4), ("BF16", 4), ("F64", 16)] {
        assert_eq!(typed(dtype, bytes).expect(dtype).dtype(), DType::F32);
    }
}

#[test]
fn damaged_files_are_refused() {
    let cut = |length: usize| changed(|bytes| bytes.truncate(length));
    check(cut(0), 65, &["model.safetensors", "truncated: 0 bytes"]);
    check(cut(5), 65, &["truncated: 5 bytes"]);
    check(cut(20), 65, &["truncated or not safetensors"]);
    check(changed(|bytes| bytes.truncate(bytes.len() - 1)), 65, &["not a whole safetensors file"]);
    check(changed(|bytes| bytes.extend([0; 3])), 65, &["not a whole safetensors file"]);
    check(changed(|bytes| bytes[7] = 0x7f), 65, &["header of ", "the maximum is ", "truncated or not safetensors"]);
    check(changed(|bytes| bytes[8] = b'['), 65, &["not a whole safetensors file"]);
}

#[test]
fn a_pointer_in_the_place_of_weights_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 988097824\n";
    std::fs::write(folder.path().join("model.safetensors"), pointer).expect("written");
    check(Weights::open(folder.path(), DType::F32, &Device::Cpu), 65, &["model.safetensors", "Git LFS pointer"]);
}

#[test]
fn missing_files_are_named() {
    let empty = tempfile::tempdir().expect("a folder");
    check(Weights::open(empty.path(), DType::F32, &Device::Cpu), 64, &["cannot read ", "model.safetensors"]);
    std::fs::create_dir(empty.path().join("model.safetensors")).expect("a folder");
    check(Weights::open(empty.path(), DType::F32, &Device::Cpu), 64, &["cannot read ", "no regular file"]);
}

#[test]
fn an_index_must_name_files_that_are_there() {
    let folder = folder();
    let open = |index: &str| {
        std::fs::write(folder.path().join("model.safetensors.index.json"), index).expect("written");
        Weights::open(folder.path(), DType::F32, &Device::Cpu)
    };
    let whole = open(r#"{"weight_map": {"norm": "model.safetensors", "lost": "model.safetensors"}}"#).expect("opened");
    assert!(whole.get("norm", &[4]).is_ok());
    check(whole.get("lost", &[4]), 65, &["no tensor `lost`"]);
    let stale = open(r#"{"weight_map": {"norm": "part-2.safetensors"}}"#).expect("the single file comes first");
    assert!(stale.get("norm", &[4]).is_ok());
    write(&folder.path().join("part-2.safetensors"), &[("norm", &[4])]);
    let both = open(r#"{"weight_map": {"norm": "part-2.safetensors"}}"#);
    check(both, 65, &["model.safetensors: it is beside ", "model.safetensors.index.json with all its shards"]);
    std::fs::remove_file(folder.path().join("part-2.safetensors")).expect("removed");
    std::fs::remove_file(folder.path().join("model.safetensors")).expect("removed");
    check(open(r#"{"weight_map": {"norm": "part-2.safetensors"}}"#), 64, &["cannot read ", "part-2.safetensors"]);
    check(
        open(r#"{"weight_map": {"norm": "../model.safetensors"}}"#),
        65,
        &["`../model.safetensors` is not a file name"],
    );
    check(open(r#"{"weight_map": {"norm": ".."}}"#), 65, &["`..` is not a file name"]);
    check(open(r#"{"weight_map": {"norm": 3}}"#), 65, &["index.json", "`norm`"]);
    check(open("{}"), 65, &["index.json", "no `weight_map`"]);
    check(open("{"), 65, &["index.json"]);
    assert!(matches!(open("[]"), Err(Error::Weights { .. })));
}

/// The text part of a model of text and pictures: either spelling, and never two of one name.
#[test]
fn tensors_of_a_text_part_are_found_once() {
    let one = Tensor::ones(2, DType::F32, &Device::Cpu).expect("a tensor");
    let opened = |names: &[&str]| {
        let folder = tempfile::tempdir().expect("a folder");
        let tensors: HashMap<String, Tensor> = names.iter().map(|name| ((*name).to_owned(), one.clone())).collect();
        candle_core::safetensors::save(&tensors, folder.path().join("model.safetensors")).expect("saved");
        Weights::open(folder.path(), DType::F32, &Device::Cpu).expect("opened").of_text_part()
    };
    for name in ["model.norm.weight", "language_model.model.norm.weight", "model.language_model.norm.weight"] {
        let weights = opened(&[name, "vision_tower.norm.weight"]).expect("one of each name");
        assert!(weights.has("model.norm.weight") && weights.get("model.norm.weight", &[2]).is_ok(), "{name}");
    }
    let twice = opened(&["language_model.model.norm.weight", "model.language_model.norm.weight"]);
    let error = twice.err().expect("two of one name").to_string();
    assert!(error.contains("are both `model.norm.weight` of its text part"), "{error}");
}
