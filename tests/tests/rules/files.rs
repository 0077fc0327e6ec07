//! Rules of source files: their length and their functions', their imports, and their contents.

use std::collections::BTreeMap;

use super::circles::circles;
use super::lengths::long_functions;
use super::lines::{self, BrokenLine};
use super::modules::Modules;
use super::{Tree, Violation, crates};

/// The longest source file, in lines.
const FILE_LINES: usize = 600;

/// The widest comment.
const COMMENT_COLUMNS: usize = 100;

/// The longest function, in lines: a screen.
const FUNCTION_LINES: usize = 60;

/// Places that may depend on a feature of the build.
const FEATURES: [&str; 2] = ["comm/src/lib.rs", "kernels/src/"];

/// Places that may have `unsafe`.
const UNSAFE: [&str; 9] = [
    "kernels/src/cpu/",
    "kernels/src/cuda/",
    "comm/src/nccl/ffi.rs",
    "comm/src/nccl/device_counter.rs",
    "comm/src/nccl/memory.rs",
    "model/src/weights.rs",
    // The allocator, and an option of it.
    "launch/src/huge_pages.rs",
    "launch/src/main.rs",
    // An allocator that counts.
    "tests/src/counting.rs",
];

/// Where a method may be named: its own file, and the registry.
const METHODS: [&str; 1] = ["methods/src/methods/"];

fn within(path: &str, places: &[&str]) -> bool {
    places.iter().any(|place| path.starts_with(place))
}

fn violations(path: &str, places: Vec<BrokenLine>, what: &str) -> impl Iterator<Item = Violation> {
    places
        .into_iter()
        .map(move |BrokenLine { line, text }| Violation::new(format!("{path}:{line}"), format!("`{text}`: {what}")))
}

/// Files of one crate import each other without circles.
pub fn file_circles(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for name in crates::production() {
        let folder = format!("{name}/src/");
        let own =
            tree.sources().filter_map(|(path, text)| Some((path.strip_prefix(&folder)?.to_owned(), text.to_owned())));
        let modules = Modules::new(&own.collect::<BTreeMap<_, _>>());
        let arrows = modules.arrows();
        for circle in circles(&arrows) {
            let inside = circle.iter().flat_map(|&from| {
                let to = arrows[from].iter().filter(|(to, _)| circle.contains(to));
                to.map(move |(to, names)| {
                    format!("{from} uses {} of {to}", names.iter().copied().collect::<Vec<_>>().join(", "))
                })
            });
            let what = format!("files import each other in a circle: {}", inside.collect::<Vec<_>>().join("; "));
            found.push(Violation::new(folder.clone(), what));
        }
    }
    found
}

/// A function fits on a screen.
pub fn function_length(tree: &Tree) -> Vec<Violation> {
    let long = |(path, text)| {
        long_functions(text, FUNCTION_LINES).into_iter().map(move |long| {
            let what = format!("`{}` has {} lines, at most {FUNCTION_LINES}", long.name, long.lines);
            Violation::new(format!("{path}:{}", long.line), what)
        })
    };
    tree.sources().flat_map(long).collect()
}

/// A file fits in one sitting.
pub fn file_length(tree: &Tree) -> Vec<Violation> {
    let long = tree.sources().filter(|(_, text)| text.lines().count() > FILE_LINES);
    let what = |text: &str| format!("has {} lines, at most {FILE_LINES}", text.lines().count());
    long.map(|(path, text)| Violation::new(path, what(text))).collect()
}

/// Comments are no wider than a reader's column, except rows of tables.
pub fn comment_width(tree: &Tree) -> Vec<Violation> {
    let wide = |line: &str| {
        let text = line.trim_start();
        let is_row = text.trim_start_matches(['/', '!', ' ']).starts_with('|');
        text.starts_with("//") && !is_row && line.chars().count() > COMMENT_COLUMNS
    };
    let found = |(path, text): (&str, &str)| {
        let lines = text.lines().enumerate().filter(|(_, line)| wide(line));
        let what = format!("the comment is wider than {COMMENT_COLUMNS} columns");
        lines.map(|(index, _)| Violation::new(format!("{path}:{}", index + 1), what.clone())).collect::<Vec<_>>()
    };
    tree.sources().flat_map(found).collect()
}

/// A file opens with its purpose.
pub fn opening(tree: &Tree) -> Vec<Violation> {
    let silent = tree.sources().filter(|(_, text)| !text.starts_with("//!"));
    silent.map(|(path, _)| Violation::new(path, "does not open with `//!` and what it is for")).collect()
}

/// Features are asked for at the leaves.
pub fn features(tree: &Tree) -> Vec<Violation> {
    let what = format!("features are asked for in {} only", FEATURES.join(" and under "));
    let elsewhere = tree.sources().filter(|(path, _)| !within(path, &FEATURES));
    elsewhere.flat_map(|(path, text)| violations(path, lines::features(text), &what).collect::<Vec<_>>()).collect()
}

/// `unsafe` is only in its places, and says why it holds there; no code overrules the compiler on
/// threads.
pub fn unsafe_code(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for (path, text) in tree.sources() {
        if !within(path, &UNSAFE) {
            found.extend(violations(path, lines::unsafe_code(text), "`unsafe` is not allowed in this file"));
        }
        let unsaid = lines::unsafe_without_reason(text);
        found.extend(violations(path, unsaid, "no `// SAFETY:` right above says why it holds"));
        if !path.starts_with("kernels/src/cpu/") {
            found.extend(violations(path, lines::sends(text), "take the value on the thread that will use it"));
        }
    }
    found
}

/// One crate reads the operating system's files.
pub fn system_files(tree: &Tree) -> Vec<Violation> {
    let others = tree.production().filter(|(path, _)| !path.starts_with("system/"));
    let found =
        |(path, text)| violations(path, lines::system_files(text), "ask the crate `system`").collect::<Vec<_>>();
    others.flat_map(found).collect()
}

/// Nothing asks for a method by its name but the registry.
pub fn methods(tree: &Tree) -> Vec<Violation> {
    let others = tree.production().filter(|(path, _)| !within(path, &METHODS));
    let named =
        |(path, text)| violations(path, lines::named_methods(text), "ask the method's declaration").collect::<Vec<_>>();
    others.flat_map(named).collect()
}

/// `unwrap` is for tests.
pub fn unwraps(tree: &Tree) -> Vec<Violation> {
    let what = "give an error, or `expect` the invariant that makes it impossible";
    tree.production()
        .flat_map(|(path, text)| violations(path, lines::unwraps(text), what).collect::<Vec<_>>())
        .collect()
}

/// A skipped test says so.
pub fn silent_skips(tree: &Tree) -> Vec<Violation> {
    let what = "give the reason, or call the kit's `skipped`, which the run's last line counts";
    tree.sources()
        .flat_map(|(path, text)| violations(path, lines::silent_skips(text), what).collect::<Vec<_>>())
        .collect()
}

/// Documentation has no examples: cargo-nextest does not run them.
pub fn examples(tree: &Tree) -> Vec<Violation> {
    let fenced = |line: &str| ["/// ```", "//! ```"].iter().any(|fence| line.trim_start().starts_with(fence));
    let with_examples = tree.sources().filter(|(_, text)| text.lines().any(fenced));
    let what = "has an example in its documentation: let `make test` run `cargo test --doc` too";
    with_examples.map(|(path, _)| Violation::new(path, what)).collect()
}
