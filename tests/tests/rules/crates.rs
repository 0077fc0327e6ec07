//! Rules of crates: their dependencies on each other, and on libraries.

use super::lines::{dependencies, workspace_dependencies};
use super::{Tree, Violation};

/// The command's crates, and those of the workspace that each may depend on. Arrows run down this
/// list.
const ARROWS: [(&str, &[&str]); 20] = [
    (
        "launch",
        &[
            "service",
            "study",
            "quality",
            "load",
            "mpirun",
            "engine",
            "coordinator",
            "planner",
            "model",
            "comm",
            "store",
            "methods",
            "protocol",
            "kernels",
            "pictures",
            "charts",
            "system",
        ],
    ),
    ("service", &["engine", "coordinator", "planner", "methods", "protocol", "pictures", "system"]),
    (
        "study",
        &[
            "load",
            "engine",
            "coordinator",
            "planner",
            "model",
            "comm",
            "store",
            "methods",
            "protocol",
            "kernels",
            "charts",
            "system",
        ],
    ),
    (
        "quality",
        &["engine", "coordinator", "planner", "train", "comm", "methods", "protocol", "pictures", "charts", "system"],
    ),
    ("load", &["charts", "protocol", "system"]),
    ("mpirun", &["engine", "comm", "protocol", "system"]),
    ("train", &["model", "comm", "protocol", "kernels", "charts", "system"]),
    (
        "engine",
        &[
            "coordinator",
            "planner",
            "worker",
            "model",
            "comm",
            "store",
            "methods",
            "protocol",
            "kernels",
            "pictures",
            "system",
        ],
    ),
    ("coordinator", &["planner", "charts", "comm", "methods", "protocol", "pictures", "system"]),
    ("planner", &["methods", "protocol", "system"]),
    ("worker", &["model", "comm", "store", "methods", "protocol", "kernels", "pictures", "system"]),
    ("model", &["comm", "protocol", "kernels", "pictures", "system"]),
    ("comm", &["protocol", "system"]),
    ("store", &["protocol", "system"]),
    ("pictures", &[]),
    ("charts", &[]),
    ("kernels", &[]),
    ("protocol", &["methods"]),
    ("methods", &[]),
    ("system", &[]),
];

/// Libraries that only some crates may know, and why.
const TOOLS: [(&[&str], &[&str], &str); 4] = [
    (&["clap", "anyhow", "indicatif"], &["launch"], "options and the errors of programs belong to the command"),
    (
        &["tokio", "axum", "hyper", "futures"],
        &["service", "store"],
        "only crates that wait for sockets are asynchronous",
    ),
    (
        &["candle"],
        &["launch", "study", "train", "engine", "worker", "model", "comm", "kernels"],
        "tensors are for those who compute with them or carry them",
    ),
    (&["image", "fast_image_resize"], &["pictures"], "one crate decodes files that are not trusted"),
];

/// Folders of the command's crates.
pub fn production() -> impl Iterator<Item = &'static str> {
    ARROWS.into_iter().map(|(name, _)| name)
}

/// The manifests of those crates that the tree has.
fn manifests(tree: &Tree) -> impl Iterator<Item = (&'static str, &'static [&'static str], &str)> {
    ARROWS.into_iter().filter_map(|(name, below)| Some((name, below, tree.text(&format!("{name}/Cargo.toml"))?)))
}

/// Crates depend only on those below them.
pub fn arrows(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for (name, below, manifest) in manifests(tree) {
        let strange = |dependency: &String| !below.iter().any(|below| *dependency == format!("tributary-{below}"));
        for dependency in workspace_dependencies(manifest).into_iter().filter(strange) {
            let may = if below.is_empty() { "no other crate".to_owned() } else { below.join(", ") };
            found.push(Violation::new(name, format!("depends on {dependency}; it may depend on {may}")));
        }
    }
    found
}

/// Some libraries are for some crates only.
pub fn tools(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for (name, _, manifest) in manifests(tree) {
        for (tools, may, why) in TOOLS.iter().filter(|(_, may, _)| !may.contains(&name)) {
            for tool in tools.iter().flat_map(|tool| dependencies(manifest, tool)) {
                found.push(Violation::new(name, format!("knows {tool}, which only {} may: {why}", may.join(", "))));
            }
        }
    }
    found
}
