//! Pictures against golden files and limits. The files are made by the programs in
//! `tests/golden/vlm`, which name their sources.

mod data_urls;
mod formats;
mod golden;
mod limits;
mod rules;

use std::path::PathBuf;

use tributary_pictures::Rules;

/// A file among the golden ones.
fn golden_path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/vlm").join(name)
}

/// The bytes of a golden file.
fn golden(name: &str) -> Vec<u8> {
    let path = golden_path(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Rules of the tiny Qwen3-VL.
fn tiny_rules() -> Rules {
    Rules::new(16, 2, 4096, 65536).expect("rules")
}
