//! Rules of the architecture that a compiler does not check: who may depend on whom, where features and `unsafe` may
//! stand, how long a file may be, and that documents name what exists. The rules themselves are functions over text, in `rules`,
//! each with violations that it is shown to find.

mod rules;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rules::{
    dependencies, features, named_files, named_methods, sends, silent_skips, unsafe_code, unsafe_without_reason,
    unwraps, workspace_dependencies,
};
use tributary_tests::root;

const CRATES: [&str; 11] =
    ["launch", "service", "study", "engine", "coordinator", "worker", "comm", "protocol", "kernels", "charts", "tests"];

/// The crates that the command is made of.
const PRODUCTION: [&str; 10] =
    ["launch", "service", "study", "engine", "coordinator", "worker", "comm", "protocol", "kernels", "charts"];

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

#[test]
fn crates_depend_only_on_those_below() {
    const BELOW_ENGINE: &[&str] =
        &["tributary-kernels", "tributary-protocol", "tributary-comm", "tributary-worker", "tributary-coordinator"];
    let below_study = [BELOW_ENGINE, &["tributary-engine", "tributary-charts"]].concat();
    let below_launch = [&below_study[..], &["tributary-service", "tributary-study"]].concat();
    let allowed: BTreeMap<&str, &[&str]> = BTreeMap::from([
        ("kernels", &[][..]),
        ("protocol", &[]),
        ("comm", &["tributary-protocol"]),
        ("worker", &["tributary-kernels", "tributary-protocol", "tributary-comm"]),
        ("charts", &[]),
        ("coordinator", &["tributary-protocol", "tributary-comm", "tributary-charts"]),
        ("study", &below_study),
        ("engine", BELOW_ENGINE),
        ("service", &["tributary-protocol", "tributary-coordinator", "tributary-engine"]),
        ("launch", &below_launch),
    ]);
    for (name, allowed) in allowed {
        let manifest = std::fs::read_to_string(root().join(name).join("Cargo.toml")).expect("a manifest");
        for dependency in workspace_dependencies(&manifest) {
            assert!(allowed.contains(&dependency.as_str()), "{name} must not depend on {dependency}");
        }
    }
}

/// Options and the errors of programs belong to the command.
#[test]
fn nobody_below_the_command_knows_its_tools() {
    for name in PRODUCTION.into_iter().filter(|&name| name != "launch") {
        let manifest = std::fs::read_to_string(root().join(name).join("Cargo.toml")).expect("a manifest");
        for tool in ["clap", "anyhow", "indicatif"] {
            let found = dependencies(&manifest, tool);
            assert!(found.is_empty(), "{name} must not depend on {found:?}");
        }
    }
}

/// The command holds options and glue: what is worth more stands in a crate that others can use.
#[test]
fn the_command_stays_small() {
    const LIMIT: usize = 7000;
    let source = files(&["launch"]).into_iter().filter(|(path, _)| path.starts_with("launch/src/"));
    let lines: usize = source.map(|(_, text)| text.lines().count()).sum();
    assert!((1000..=LIMIT).contains(&lines), "launch/src has {lines} lines, at most {LIMIT}");
}

/// Whoever waits for sockets is asynchronous, and nobody else is.
#[test]
fn only_the_service_is_asynchronous() {
    for name in PRODUCTION.into_iter().filter(|&name| name != "service") {
        let manifest = std::fs::read_to_string(root().join(name).join("Cargo.toml")).expect("a manifest");
        for tool in ["tokio", "axum", "hyper", "futures", "futures-util"] {
            let found = dependencies(&manifest, tool);
            assert!(found.is_empty(), "{name} must not depend on {found:?}");
        }
    }
}

#[test]
fn features_stand_at_the_leaves() {
    let may = |path: &str| path == "comm/src/lib.rs" || path.starts_with("kernels/src/");
    for (path, text) in files(&CRATES).into_iter().filter(|(path, _)| !may(path)) {
        let found = features(&text);
        assert!(found.is_empty(), "{path}: features belong in comm/src/lib.rs or under kernels/src: {found:#?}");
    }
}

#[test]
fn unsafe_stands_where_it_may_and_says_why() {
    let may = [
        "kernels/src/cpu/",
        "kernels/src/cuda/",
        "comm/src/nccl/ffi.rs",
        "comm/src/nccl/mark.rs",
        "comm/src/nccl/memory.rs",
        "worker/src/model/weights.rs",
        // An allocator that counts.
        "tests/tests/running_memory.rs",
    ];
    for (path, text) in files(&CRATES) {
        let found = unsafe_code(&text);
        assert!(
            found.is_empty() || may.iter().any(|place| path.starts_with(place)),
            "{path}: no unsafe here: {found:#?}"
        );
        let found = unsafe_without_reason(&text);
        assert!(found.is_empty(), "{path}: unsafe without a reason of its own: {found:#?}");
        let found = sends(&text);
        assert!(found.is_empty() || path.starts_with("kernels/src/cpu/"), "{path}: {found:#?}");
    }
}

#[test]
fn nothing_matches_on_a_method() {
    // The registry of what methods are, and that of their selectors.
    let may = |path: &str| path.starts_with("protocol/src/method/") || path == "worker/src/select/mod.rs";
    let skipped = |path: &str| may(path) || is_test(path) || path.ends_with("/kit.rs");
    for (path, text) in files(&PRODUCTION).into_iter().filter(|(path, _)| !skipped(path)) {
        let found = named_methods(&text);
        assert!(found.is_empty(), "{path}: ask the method's descriptor: {found:#?}");
    }
}

#[test]
fn every_method_is_in_the_readme() {
    let text = std::fs::read_to_string(root().join("README.md")).expect("readable");
    for method in tributary_protocol::METHODS {
        let row = format!("| `{}` |", method.name);
        assert!(text.contains(&row), "README.md has no row `{row}` in its table of methods");
    }
}

#[test]
fn no_unwrap_outside_tests() {
    for (path, text) in files(&PRODUCTION).into_iter().filter(|(path, _)| !is_test(path)) {
        let found = unwraps(&text);
        assert!(found.is_empty(), "{path}: {found:#?}");
    }
}

/// Whether a whole file is for tests or measurements.
fn is_test(path: &str) -> bool {
    ["/tests/", "/benches/", "/examples/"].iter().any(|folder| path.contains(folder))
        || path.ends_with("/tests.rs")
        || path.ends_with("_tests.rs")
}

#[test]
fn what_is_not_run_is_said() {
    for (path, text) in files(&CRATES) {
        let found = silent_skips(&text);
        assert!(found.is_empty(), "{path}: {found:#?}");
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
        for name in named_files(&text) {
            assert!(root().join(name).exists(), "{document} names `{name}`, which does not exist");
        }
    }
}
