//! Rules of documents: named files exist, methods are named, and rows of tables are whole.

use super::lines::{named_files, uneven_rows};
use super::{Tree, Violation};

/// Files that documents name exist. The changelog describes the past, and is left out.
pub fn named_files_exist(tree: &Tree, exists: impl Fn(&str) -> bool) -> Vec<Violation> {
    let mut found = Vec::new();
    for (path, text) in tree.documents().filter(|(path, _)| *path != "CHANGELOG.md") {
        let absent = named_files(text).into_iter().filter(|name| !exists(name));
        found.extend(absent.map(|name| Violation::new(path, format!("names `{name}`, which does not exist"))));
    }
    found
}

/// Every method has its row in the README's table.
pub fn methods_in_the_readme(tree: &Tree, methods: &[&str]) -> Vec<Violation> {
    let text = tree.text("README.md").unwrap_or_default();
    let absent = methods.iter().filter(|name| !text.contains(&format!("| `{name}` |")));
    absent
        .map(|name| Violation::new("README.md", format!("has no row `| `{name}` |` in its table of methods")))
        .collect()
}

/// Every row of a table has as many cells as the table's head.
pub fn table_rows(tree: &Tree) -> Vec<Violation> {
    let uneven = |(path, text)| {
        uneven_rows(text).into_iter().map(move |row| {
            let what = format!("the row has {} cells, the head of its table {}", row.cells, row.head);
            Violation::new(format!("{path}:{}", row.line), what)
        })
    };
    tree.documents().flat_map(uneven).collect()
}
