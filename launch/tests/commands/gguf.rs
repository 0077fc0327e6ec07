//! A model in a GGUF file answers on any number of ranks, and is refused in a line where it is cut
//! off or where its description has no place.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::kit::root;

/// A recorded file with biases and packed weights.
fn file() -> PathBuf {
    root().join("tests/golden/packed/qwen2/model.gguf")
}

/// A prefill of random tokens, with the user's cache in a folder, or without a home.
fn prefill(file: &Path, world: &str, cache: Option<&Path>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tributary"));
    command.args(["prefill", "--method", "infoflow", "--synthetic", "3x16+8", "--max-tokens", "4", "--json"]);
    command.arg("--model").arg(file).args(["--world-size", world]).env_remove("HOME").env_remove("XDG_CACHE_HOME");
    if let Some(cache) = cache {
        command.env("XDG_CACHE_HOME", cache);
    }
    command.output().expect("the program starts")
}

fn refused(output: &Output, exit_code: i32, says: &str) {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(exit_code), "{errors}");
    assert!(errors.lines().count() == 1 && errors.contains(says), "{errors}");
}

#[test]
fn a_file_answers_on_any_number_of_ranks() {
    let cache = tempfile::tempdir().expect("a folder");
    let tokens = |world: &str| {
        let output = prefill(&file(), world, Some(cache.path()));
        let report: serde_json::Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)));
        assert_eq!(report["ranks"].as_array().map(Vec::len), world.parse().ok());
        report["token_ids"].clone()
    };
    let alone = tokens("1");
    assert!(alone.as_array().is_some_and(|ids| !ids.is_empty()), "{alone}");
    assert_eq!([tokens("2"), tokens("3")], [alone.clone(), alone]);
    let descriptions = std::fs::read_dir(cache.path().join("tributary/gguf")).expect("descriptions");
    assert_eq!(descriptions.count(), 1, "it is described once");
}

#[test]
fn a_file_that_is_cut_off_and_a_description_without_a_place_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let cut = folder.path().join("cut.gguf");
    let whole = std::fs::read(file()).expect("a recorded file");
    std::fs::write(&cut, &whole[..whole.len() - 1000]).expect("written");
    refused(&prefill(&cut, "1", Some(folder.path())), 65, "truncated");
    refused(&prefill(&file(), "1", None), 78, "set HOME or XDG_CACHE_HOME");
}
