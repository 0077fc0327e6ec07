//! Files that are damaged, or of kinds that are not read, are refused in one line, before memory is
//! taken for what they claim.

#![allow(clippy::unwrap_used)] // a test may panic

use std::path::Path;

use super::described::described;
use super::file::Gguf;
use super::names::{Change, Source, source};
use super::tensors::OfGguf;
use crate::Config;

/// A file in the making.
#[derive(Clone)]
struct Bytes(Vec<u8>);

impl Bytes {
    /// The head of a file with numbers of tensors and keys.
    fn head(version: u32, tensors: u64, keys: u64) -> Self {
        Self([b"GGUF".as_slice(), &version.to_le_bytes(), &tensors.to_le_bytes(), &keys.to_le_bytes()].concat())
    }

    fn text(mut self, text: &str) -> Self {
        self.0.extend((text.len() as u64).to_le_bytes());
        self.0.extend(text.as_bytes());
        self
    }

    fn u32(mut self, number: u32) -> Self {
        self.0.extend(number.to_le_bytes());
        self
    }

    fn u64(mut self, number: u64) -> Self {
        self.0.extend(number.to_le_bytes());
        self
    }

    fn key(self, key: &str, text: &str) -> Self {
        self.text(key).u32(8).text(text)
    }

    fn tensor(self, name: &str, dims: &[u64], kind: u32, from: u64) -> Self {
        let this = self.text(name).u32(dims.len() as u32);
        dims.iter().fold(this, |this, &dim| this.u64(dim)).u32(kind).u64(from)
    }

    /// Zeros up to the next multiple of 32, and so many more.
    fn zeros(mut self, count: usize) -> Self {
        self.0.resize(self.0.len().next_multiple_of(32) + count, 0);
        self
    }
}

/// What opening a file of these bytes says.
fn said(bytes: &Bytes) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.gguf");
    std::fs::write(&path, &bytes.0).unwrap();
    match Gguf::open(&path) {
        Ok(_) => String::new(),
        Err(error) => {
            let text = error.to_string();
            assert!(matches!(error.exit_code(), 64 | 65) && !text.contains('\n'), "{text}");
            text
        }
    }
}

#[test]
fn damaged_files_are_refused_in_a_line() {
    let whole = Bytes::head(3, 1, 1).key("general.architecture", "llama").tensor("a", &[32, 2], 2, 0).zeros(36);
    assert_eq!(said(&whole), "", "it is whole");
    let two = |second: u64| Bytes::head(3, 2, 0).tensor("a", &[32], 0, 0).tensor("b", &[32], 0, second).zeros(256);
    assert_eq!(said(&two(128)), "", "they stand one after the other");
    for (wanted, bytes) in [
        ("truncated: it ends after 0 bytes", Bytes(Vec::new())),
        ("no GGUF file: it begins with `GGML`", Bytes(b"GGML and more".to_vec())),
        ("GGUF version 1; 2 and 3 are supported", Bytes::head(1, 0, 0)),
        ("for big-endian machines", Bytes::head(3u32.swap_bytes(), 0, 0)),
        ("tensors and 0 keys in 24 bytes", Bytes::head(3, 1 << 60, 0)),
        ("0 tensors and 1152921504606846976 keys", Bytes::head(3, 0, 1 << 60)),
        ("a text of 1099511627776 bytes", Bytes::head(3, 0, 1).u64(1 << 40).zeros(64)),
        ("a text that is not UTF-8", Bytes([&Bytes::head(3, 0, 1).u64(2).0[..], &[0xff; 64]].concat())),
        ("a: a value of type 13", Bytes::head(3, 0, 1).text("a").u32(13).zeros(64)),
        ("a: a list of 1099511627776 values", Bytes::head(3, 0, 1).text("a").u32(9).u32(4).u64(1 << 40).zeros(64)),
        ("a: a list of lists", Bytes::head(3, 0, 1).text("a").u32(9).u32(9).u64(1).zeros(64)),
        ("key `a` is there twice", Bytes::head(3, 0, 2).key("a", "b").key("a", "c").zeros(64)),
        (
            "general.alignment 3: must be a power",
            Bytes::head(3, 0, 1).text("general.alignment").u32(4).u32(3).zeros(64),
        ),
        ("`a` has 5 dimensions", Bytes::head(3, 1, 0).tensor("a", &[1; 5], 0, 0).zeros(64)),
        ("tensor `a` is IQ2_XXS; F32, F16, BF16,", Bytes::head(3, 1, 0).tensor("a", &[256], 16, 0).zeros(256)),
        ("tensor `a` is of type 99", Bytes::head(3, 1, 0).tensor("a", &[256], 99, 0).zeros(256)),
        ("rows of 33 numbers are not whole blocks of 32", Bytes::head(3, 1, 0).tensor("a", &[33], 2, 0).zeros(64)),
        ("truncated or damaged", Bytes::head(3, 1, 0).tensor("a", &[1 << 40, 1 << 40], 0, 0).zeros(64)),
        ("ends at byte 224 of 223: truncated", Bytes(two(96).0[..223].to_vec())),
        ("tensors `a` and `b` overlap", two(64)),
        ("begins at 100: no multiple of 32", two(100)),
        ("`a` is there twice", Bytes::head(3, 2, 0).tensor("a", &[8], 0, 0).tensor("a", &[8], 0, 32).zeros(64)),
        ("a text of 20 bytes with 8 left", Bytes(whole.0[..40].to_vec())),
        ("version https", Bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n".to_vec())),
    ] {
        let found = said(&bytes);
        let is_pointer = wanted == "version https" && found.contains("LFS");
        assert!(found.contains(wanted) || is_pointer, "{found:?} for {wanted:?}");
    }
}

/// Every prefix of a file is refused, and so is nearly every file with a byte changed; none panics.
#[test]
fn no_prefix_and_no_changed_byte_panics() {
    let whole = Bytes::head(3, 1, 2)
        .key("general.architecture", "llama")
        .text("llama.block_count")
        .u32(4)
        .u32(2)
        .tensor("blk.0.a", &[32, 2], 2, 0)
        .zeros(36);
    for length in 0..whole.0.len() {
        assert_ne!(said(&Bytes(whole.0[..length].to_vec())), "", "{length} bytes");
    }
    for at in 0..whole.0.len() {
        for value in [0, 1, 0x7f, 0xff] {
            let mut changed = whole.clone();
            changed.0[at] = value;
            _ = said(&changed);
        }
    }
}

#[test]
fn models_that_are_not_read_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.gguf");
    for (wanted, keys) in [
        ("architecture `none: `general.architecture` is missing`", &[][..]),
        (
            "architecture `mamba` is not supported in GGUF files; supported are llama,",
            &[("general.architecture", "mamba")],
        ),
        ("it holds `adapter`", &[("general.architecture", "llama"), ("general.type", "adapter")]),
        ("tensor `token_embd.weight` is missing", &[("general.architecture", "llama")]),
    ] {
        let head = Bytes::head(3, 0, keys.len() as u64);
        let bytes = keys.iter().fold(head, |bytes, (key, text)| bytes.key(key, text));
        std::fs::write(&path, bytes.zeros(32).0).unwrap();
        let error = described(&path, folder.path()).unwrap_err();
        assert!(error.to_string().contains(wanted) && error.exit_code() == 64, "{error}");
    }
    let split = Bytes::head(3, 0, 1).text("split.count").u32(2).0;
    std::fs::write(&path, [&split[..], &3u16.to_le_bytes(), &[0; 32]].concat()).unwrap();
    let error = described(&path, folder.path()).unwrap_err().to_string();
    assert!(error.contains("a model in 3 files; the first one's name ends in `-00001-of-00003.gguf`"), "{error}");
}

#[test]
fn tensors_are_found_under_their_names() {
    let of = |name: &str, expert: Option<usize>, change: Change| Some(Source { name: name.to_owned(), expert, change });
    for (name, architecture, wanted) in [
        ("model.layers.3.self_attn.q_proj.bias", "llama", of("blk.3.attn_q.bias", None, Change::OfHeads)),
        ("model.layers.3.self_attn.q_proj.weight", "qwen2", of("blk.3.attn_q.weight", None, Change::None)),
        ("model.norm.weight", "gemma3", of("output_norm.weight", None, Change::LessOne)),
        ("model.layers.0.post_attention_layernorm.weight", "qwen3", of("blk.0.ffn_norm.weight", None, Change::None)),
        (
            "model.layers.0.mlp.experts.7.up_proj.weight",
            "qwen3moe",
            of("blk.0.ffn_up_exps.weight", Some(7), Change::None),
        ),
        ("model.layers.0.mlp.gate.weight", "qwen3moe", of("blk.0.ffn_gate_inp.weight", None, Change::None)),
        ("model.layers.0.self_attn.sinks", "gpt-oss", of("blk.0.attn_sinks.weight", None, Change::None)),
        ("model.vision.weight", "llama", None),
    ] {
        assert_eq!(source(name, architecture), wanted, "{name}");
    }
}

/// A description is made once, and anew for another file of the same name.
#[test]
fn a_description_is_that_of_the_file_as_it_is() {
    let golden =
        |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/packed").join(name).join("model.gguf");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.gguf");
    std::fs::copy(golden("qwen2"), &path).unwrap();
    let first = described(&path, folder.path()).unwrap();
    assert_eq!(described(&path, folder.path()).unwrap(), first);
    assert_eq!(Config::read(&first).unwrap().architecture, "Qwen2ForCausalLM");
    std::fs::remove_file(&path).unwrap();
    std::fs::copy(golden("qwen3"), &path).unwrap();
    let second = described(&path, folder.path()).unwrap();
    assert_eq!(Config::read(&second).unwrap().architecture, "Qwen3ForCausalLM");
    // What is lost of it is made anew, and two descriptions are the same.
    std::fs::remove_file(second.join("config.json")).unwrap();
    assert_eq!(described(&path, folder.path()).unwrap(), second);
    let elsewhere = tempfile::tempdir().unwrap();
    let third = described(&path, elsewhere.path()).unwrap();
    for name in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
        assert_eq!(std::fs::read(second.join(name)).unwrap(), std::fs::read(third.join(name)).unwrap(), "{name}");
    }
    let left: Vec<_> =
        std::fs::read_dir(folder.path().join("gguf")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.len() == 2 && left.iter().all(|name| !name.to_string_lossy().contains("new")), "{left:?}");
}

/// A file of one of the recorded models, with bytes of what it says of itself changed, is described
/// or refused in bounded time and memory, and never panics.
#[test]
fn no_changed_byte_of_a_model_panics() {
    let recorded = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/packed");
    for (name, length) in [("llama-k", 3000), ("qwen3-moe", 3000), ("gemma3", 2500), ("glm4-moe", 2500)] {
        let whole = std::fs::read(recorded.join(name).join("model.gguf")).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.gguf");
        for step in 0..150usize {
            let mut changed = whole.clone();
            changed[(step * 2_654_435_761) % length] ^= 1 << (step % 8);
            changed[(step * 40_503 + 17) % length] = 0xff;
            std::fs::write(&path, changed).unwrap();
            if let Ok(described) = described(&path, folder.path()) {
                _ = Config::read(&described);
                std::fs::remove_dir_all(described).unwrap();
            }
        }
    }
}

#[test]
fn numbers_that_no_file_can_have_are_refused() {
    const EPSILON: (&str, f32) = ("attention.layer_norm_rms_epsilon", 1e-6);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.gguf");
    let numbers =
        [("embedding_length", 64), ("attention.head_count", 4), ("context_length", 64), ("feed_forward_length", 96)];
    let file = |layers: u64, floats: &[(&str, f32)]| {
        let keys = 2 + numbers.len() + floats.len();
        let bytes = Bytes::head(3, 1, keys as u64).key("general.architecture", "qwen3moe");
        let bytes = bytes.text("qwen3moe.block_count").u32(10).u64(layers);
        let number =
            |bytes: Bytes, (key, number): &(&str, u32)| bytes.text(&format!("qwen3moe.{key}")).u32(4).u32(*number);
        let bytes = numbers.iter().fold(bytes, number);
        let float = |bytes: Bytes, (key, value): &(&str, f32)| {
            bytes.text(&format!("qwen3moe.{key}")).u32(6).u32(value.to_bits())
        };
        floats.iter().fold(bytes, float).tensor("token_embd.weight", &[64, 2], 0, 0).zeros(512).0
    };
    for (wanted, bytes) in [
        ("`qwen3moe.block_count` 18446744073709551615: 18446744073709551615 layers", file(u64::MAX, &[EPSILON])),
        ("`qwen3moe.block_count` 0", file(0, &[EPSILON])),
        ("`qwen3moe.attention.layer_norm_rms_epsilon` is missing", file(1, &[])),
        ("`qwen3moe.rope.freq_base` null: must be a finite number", file(1, &[EPSILON, ("rope.freq_base", f32::NAN)])),
        ("`qwen3moe.rope.scaling.yarn_ext_factor` 0.5", file(1, &[EPSILON, ("rope.scaling.yarn_ext_factor", 0.5)])),
        ("`qwen3moe.rope.scaling.attn_factor` is not", file(1, &[EPSILON, ("rope.scaling.attn_factor", 1.0)])),
        ("`qwen3moe.expert_gating_func` 2", file(1, &[EPSILON, ("expert_gating_func", 2.0)])),
        ("`qwen3moe.expert_count` is missing", file(1, &[EPSILON])),
    ] {
        std::fs::write(&path, bytes).unwrap();
        let error = described(&path, folder.path()).unwrap_err();
        assert!(error.to_string().contains(wanted) && error.exit_code() == 64, "{error} for {wanted}");
    }
}

#[test]
fn parts_of_a_split_file_are_read_together() {
    let folder = tempfile::tempdir().unwrap();
    let part = |number: u16, name: &str, value: u8| {
        let mut bytes = Bytes::head(3, 1, 2);
        for (key, value) in [("split.count", 2), ("split.no", number - 1)] {
            bytes = bytes.text(key).u32(2);
            bytes.0.extend(u16::to_le_bytes(value));
        }
        let mut bytes = bytes.tensor(name, &[8], 0, 0).zeros(0).0;
        bytes.extend([value; 32]);
        let path = folder.path().join(format!("m-{number:05}-of-00002.gguf"));
        std::fs::write(&path, bytes).unwrap();
        path
    };
    let (first, second) = (part(1, "a", 1), part(2, "b", 2));
    let file = Gguf::open(&first).unwrap();
    assert_eq!(file.paths().collect::<Vec<_>>(), [&first, &second]);
    for (name, value) in [("a", 1), ("b", 2)] {
        let place = &file.tensors[name];
        assert_eq!(file.bytes(place, 0, place.bytes()).unwrap(), [value; 32], "{name}");
    }
    let error = |path: &Path| Gguf::open(path).map(drop).unwrap_err().to_string();
    assert!(error(&second).contains("name the first one"));
    part(2, "a", 2);
    assert!(error(&first).contains("tensor `a` is there twice"));
    std::fs::remove_file(&second).unwrap();
    assert!(error(&first).contains("-00002-of-00002.gguf"));
}

#[test]
fn a_tensor_that_nothing_reads_is_named() {
    let file = |extra: &str| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.gguf");
        let head = Bytes::head(3, 2, 1).key("general.architecture", "llama");
        let bytes = head.tensor("output_norm.weight", &[8], 0, 0).tensor(extra, &[8], 0, 32).zeros(64);
        std::fs::write(&path, bytes.0).unwrap();
        let file = OfGguf::new(Gguf::open(&path).unwrap());
        assert!(file.read("model.norm.weight", &[8]).unwrap().is_some());
        file.check_all_read(2).map_err(|error| error.to_string())
    };
    for left_out in ["rope_freqs.weight", "blk.2.attn_q.bias"] {
        assert_eq!(file(left_out), Ok(()), "{left_out}");
    }
    for named in ["blk.1.attn_q.bias", "blk.x.attn_q.bias", "other"] {
        assert!(file(named).is_err_and(|what| what.contains(&format!("tensor `{named}` is of no known use"))));
    }
}
