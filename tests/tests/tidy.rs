//! Rules of the architecture that a compiler does not check: dependencies and imports, places of
//! features and `unsafe`, lengths of files and functions, names in documents, and rows of tables.
//! The rules are functions in `rules`, each with planted violations that it must find.

mod rules;

use rules::{Tree, Violation, crates, documents, files};
use tributary_methods::{Claim, METHODS, Method};
use tributary_tests::root;

/// The whole tree keeps a rule.
fn keeps(rule: impl Fn(&Tree) -> Vec<Violation>) {
    let tree = Tree::read(&root());
    assert!(tree.sources().count() > 300, "the sources were found");
    let found: Vec<String> = rule(&tree).iter().map(ToString::to_string).collect();
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

#[test]
fn crates_depend_only_on_those_below() {
    keeps(crates::arrows);
}

#[test]
fn libraries_are_known_by_those_who_may() {
    keeps(crates::tools);
}

#[test]
fn files_import_each_other_without_circles() {
    keeps(files::file_circles);
}

#[test]
fn functions_fit_on_a_screen() {
    keeps(files::function_length);
}

#[test]
fn files_are_short() {
    keeps(files::file_length);
}

#[test]
fn files_open_with_what_they_are_for() {
    keeps(files::opening);
}

#[test]
fn features_stand_at_the_leaves() {
    keeps(files::features);
}

#[test]
fn unsafe_stands_where_it_may_and_says_why() {
    keeps(files::unsafe_code);
}

#[test]
fn comments_fit_in_a_column() {
    keeps(files::comment_width);
}

#[test]
fn one_crate_reads_what_the_system_shows() {
    keeps(files::system_files);
}

#[test]
fn nothing_matches_on_a_method() {
    keeps(files::methods);
}

#[test]
fn no_unwrap_outside_tests() {
    keeps(files::unwraps);
}

#[test]
fn what_is_not_run_is_said() {
    keeps(files::silent_skips);
}

#[test]
fn no_example_stands_where_nothing_runs_it() {
    keeps(files::examples);
}

#[test]
fn documents_name_files_that_exist() {
    keeps(|tree| documents::named_files_exist(tree, |name| root().join(name).exists()));
}

#[test]
fn rows_of_tables_are_as_wide_as_their_heads() {
    keeps(documents::table_rows);
}

#[test]
fn every_method_is_in_the_readme() {
    let names: Vec<&str> = METHODS.iter().map(|method| method.name).collect();
    keeps(|tree| documents::methods_in_the_readme(tree, &names));
}

/// The table of all methods in docs/methods.md, from their declarations.
fn table_of_methods() -> String {
    let row = |method: &Method| {
        let claim = match method.claim {
            Claim::Exact => "exact".to_owned(),
            Claim::Approximate { exact_where, .. } => format!("exact {exact_where}"),
        };
        let ratio = method.ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.2}"));
        let keys = method.options.iter().map(|option| format!("`{}`", option.key));
        let needs = method.requires.map(|requirement| format!("needs `{}`", requirement.flag()));
        let options = keys.chain(needs).collect::<Vec<_>>().join(", ");
        let options = if options.is_empty() { "-" } else { &options };
        format!("| `{}` | {} | {claim} | {ratio} | {options} |\n", method.name, method.summary)
    };
    let head = "| method | recomputes | claim | default ratio | its options |\n| --- | --- | --- | --- | --- |\n";
    head.to_owned() + &METHODS.into_iter().map(row).collect::<String>()
}

/// `UPDATE_DOCS=1 cargo test --release -p tributary-tests --test tidy` writes the table anew.
#[test]
fn the_table_of_methods_is_that_of_their_declarations() {
    let path = root().join("docs/methods.md");
    let page = std::fs::read_to_string(&path).expect("the page of methods");
    let start = page.find("| method | recomputes |").expect("the table of all methods");
    let end = start + page[start..].find("\n\n").expect("the end of the table") + 1;
    let wanted = table_of_methods();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, format!("{}{wanted}{}", &page[..start], &page[end..])).expect("written");
        return;
    }
    assert_eq!(&page[start..end], wanted, "UPDATE_DOCS=1 writes it anew");
}
