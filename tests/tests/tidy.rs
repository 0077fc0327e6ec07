//! Rules of the architecture that a compiler does not check: who may depend on whom, where features and `unsafe` may
//! stand, how long a file may be, and that documents name what exists.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use tributary_tests::root;

const CRATES: [&str; 6] = ["launch", "coordinator", "worker", "comm", "kernels", "tests"];

/// The longest source file, in lines.
const LINE_LIMIT: usize = 400;

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let Ok(entries) = std::fs::read_dir(folder) else { return found };
    for entry in entries.map(|entry| entry.expect("an entry").path()) {
        if entry.is_dir() {
            found.extend(sources(&entry));
        } else if entry.extension().is_some_and(|extension| extension == "rs") {
            found.push(entry);
        }
    }
    found
}

/// Path below the root and text of every Rust file of the given crates.
fn files(crates: &[&str]) -> BTreeMap<String, String> {
    let read = |path: PathBuf| {
        let name = path.strip_prefix(root()).expect("below the root").to_string_lossy().into_owned();
        (name, std::fs::read_to_string(&path).expect("readable"))
    };
    let all: BTreeMap<_, _> = crates.iter().flat_map(|name| sources(&root().join(name))).map(read).collect();
    assert!(all.len() > crates.len(), "the sources were found");
    all
}

/// Lines of a file that are code, not comment.
fn code(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(str::trim).filter(|line| !line.starts_with("//"))
}

#[test]
fn crates_depend_only_on_those_below() {
    let allowed: BTreeMap<&str, &[&str]> = BTreeMap::from([
        ("kernels", &[][..]),
        ("comm", &[]),
        ("worker", &["tributary-kernels", "tributary-comm"]),
        ("coordinator", &["tributary-comm"]),
        ("launch", &["tributary-kernels", "tributary-comm", "tributary-worker", "tributary-coordinator"]),
    ]);
    for (name, allowed) in allowed {
        let manifest = std::fs::read_to_string(root().join(name).join("Cargo.toml")).expect("a manifest");
        let dependencies = manifest.split("[dependencies]").nth(1).expect("a section").split("\n[").next();
        for line in dependencies.expect("the section's text").lines().filter(|line| line.starts_with("tributary")) {
            let dependency = line.split(['.', ' ', '=']).next().expect("a name");
            assert!(allowed.contains(&dependency), "{name} must not depend on {dependency}");
        }
    }
}

#[test]
fn features_stand_at_the_leaves() {
    let may = |path: &str| path == "comm/src/lib.rs" || path.starts_with("kernels/src/") || path.starts_with("tests/");
    for (path, text) in files(&CRATES) {
        let found = code(&text).any(|line| line.contains("cfg(feature") || line.contains("cfg!(feature"));
        assert!(!found || may(&path), "{path}: cfg(feature) belongs in comm/src/lib.rs or under kernels/src");
    }
}

#[test]
fn unsafe_stands_where_it_may_and_says_why() {
    let may = ["kernels/src/cpu/", "kernels/src/cuda/", "comm/src/nccl/ffi.rs", "worker/src/model/weights.rs"];
    for (path, text) in files(&["launch", "coordinator", "worker", "comm", "kernels"]) {
        let blocks = code(&text).filter(|line| line.contains("unsafe {") || line.contains("unsafe impl")).count();
        if blocks == 0 {
            continue;
        }
        assert!(may.iter().any(|place| path.starts_with(place)), "{path}: no unsafe here");
        assert!(text.contains("// SAFETY:"), "{path}: unsafe without a reason");
        let sends = code(&text).any(|line| line.contains("unsafe impl Send") || line.contains("unsafe impl Sync"));
        assert!(!sends || path.starts_with("kernels/src/cpu/"), "{path}: unsafe impl Send or Sync");
    }
}

#[test]
fn no_unwrap_outside_tests() {
    for (path, text) in files(&["launch", "coordinator", "worker", "comm", "kernels"]) {
        if path.contains("/tests") || path.contains("/benches/") || path.contains("/examples/") {
            continue;
        }
        let production = text.split("#[cfg(test)]").next().expect("split gives at least one part");
        let line = code(production).find(|line| line.contains(".unwrap()"));
        assert!(line.is_none(), "{path}: {}", line.unwrap_or_default());
    }
}

#[test]
fn files_are_short_and_open_with_what_they_are_for() {
    for (path, text) in files(&CRATES) {
        let lines = text.lines().count();
        assert!(lines <= LINE_LIMIT, "{path}: {lines} lines, at most {LINE_LIMIT}");
        assert!(text.starts_with("//!"), "{path}: no opening comment");
    }
}

#[test]
fn documents_name_files_that_exist() {
    for document in ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"] {
        let text = std::fs::read_to_string(root().join(document)).expect("readable");
        let names = text.split('`').skip(1).step_by(2).filter(|name| {
            let known =
                ["rs", "md", "toml", "json", "safetensors", "py"].iter().any(|end| name.ends_with(&format!(".{end}")));
            known && name.contains('/') && !name.contains([' ', '<', '*', '$', '{'])
        });
        for name in names {
            assert!(root().join(name).exists(), "{document} names `{name}`, which does not exist");
        }
    }
}
