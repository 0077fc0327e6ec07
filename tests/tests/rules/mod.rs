//! The rules of `tidy.rs`. Each is a function from a tree of texts to its violations, so that
//! `planted.rs` can show that each finds them.

mod circles;
pub mod crates;
pub mod documents;
pub mod files;
mod lengths;
pub mod lines;
#[cfg(test)]
mod lines_tests;
mod modules;
#[cfg(test)]
mod planted;
mod source;

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

/// Violation of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The file, with the line where there is one, or the crate.
    pub place: String,
    /// Description of the violation, with its remedy.
    pub what: String,
}

impl Violation {
    fn new(place: impl Into<String>, what: impl Into<String>) -> Self {
        Self { place: place.into(), what: what.into() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.what)
    }
}

/// The texts of a source tree: sources, manifests and documents by their paths below its root.
pub struct Tree {
    texts: BTreeMap<String, String>,
}

impl Tree {
    /// The texts of a folder. Folders of build results and hidden ones are left out.
    pub fn read(root: &Path) -> Self {
        let mut tree = Self { texts: BTreeMap::new() };
        tree.add(root, "");
        tree
    }

    fn add(&mut self, folder: &Path, name: &str) {
        for entry in std::fs::read_dir(folder).expect("a folder of the tree") {
            let entry = entry.expect("an entry");
            let own = entry.file_name().to_string_lossy().into_owned();
            let path = entry.path();
            let kind = entry.file_type().expect("a kind");
            if kind.is_dir() && own != "target" && !own.starts_with('.') {
                self.add(&path, &format!("{name}{own}/"));
            } else if kind.is_file() && [".rs", ".md", "Cargo.toml"].iter().any(|end| own.ends_with(end)) {
                let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
                self.texts.insert(format!("{name}{own}"), text);
            }
        }
    }

    /// A text by its path.
    pub fn text(&self, path: &str) -> Option<&str> {
        self.texts.get(path).map(String::as_str)
    }

    /// Paths and texts of all Rust files.
    pub fn sources(&self) -> impl Iterator<Item = (&str, &str)> {
        self.all().filter(|(path, _)| path.ends_with(".rs"))
    }

    /// Paths and texts of the command's Rust files, without their tests.
    pub fn production(&self) -> impl Iterator<Item = (&str, &str)> {
        let in_command = |path: &str| crates::production().any(|name| path.starts_with(&format!("{name}/")));
        self.sources().filter(move |(path, _)| in_command(path) && !is_test(path))
    }

    /// Paths and texts of all documents.
    pub fn documents(&self) -> impl Iterator<Item = (&str, &str)> {
        self.all().filter(|(path, _)| path.ends_with(".md"))
    }

    fn all(&self) -> impl Iterator<Item = (&str, &str)> {
        self.texts.iter().map(|(path, text)| (path.as_str(), text.as_str()))
    }
}

#[cfg(test)]
impl<const N: usize> From<[(&str, &str); N]> for Tree {
    fn from(texts: [(&str, &str); N]) -> Self {
        Self { texts: texts.into_iter().map(|(path, text)| (path.to_owned(), text.to_owned())).collect() }
    }
}

/// Whether a whole file is for tests or measurements.
pub fn is_test(path: &str) -> bool {
    ["/tests/", "/benches/", "/examples/"].iter().any(|folder| path.contains(folder))
        || ["/tests.rs", "_tests.rs", "/kit.rs"].iter().any(|end| path.ends_with(end))
        || path.starts_with("tests/")
}
