//! Planted violations of every rule, texts that look like one and are none, and the messages.

use super::{Tree, Violation, crates, documents, files};

/// The messages of a rule over a tree.
fn said(found: Vec<Violation>) -> Vec<String> {
    for violation in &found {
        println!("{violation}");
    }
    found.iter().map(ToString::to_string).collect()
}

#[test]
fn an_arrow_that_runs_up_is_found() {
    let tree = Tree::from([
        ("comm/Cargo.toml", "[dependencies]\ntributary-protocol.workspace = true\ntributary-worker.workspace = true\n"),
        ("protocol/Cargo.toml", "[dependencies]\ntributary-comm = { path = \"../comm\" }\n"),
        (
            "worker/Cargo.toml",
            "[dependencies]\ntributary-comm.workspace = true\n[dev-dependencies]\ntributary-tests = \"1\"\n",
        ),
    ]);
    let wanted = [
        "comm: depends on tributary-worker; it may depend on protocol, system",
        "protocol: depends on tributary-comm; it may depend on methods",
    ];
    assert_eq!(said(crates::arrows(&tree)), wanted);
}

#[test]
fn a_library_in_the_wrong_crate_is_found() {
    let tree = Tree::from([
        ("launch/Cargo.toml", "[dependencies]\nclap.workspace = true\ncandle-core.workspace = true\n"),
        (
            "engine/Cargo.toml",
            "[dependencies]\nclap = \"4\"\ncandle-core = \"1\"\n[dev-dependencies]\nanyhow = \"1\"\n",
        ),
        ("coordinator/Cargo.toml", "[dependencies]\ncandle-nn.workspace = true\ntokio.workspace = true\n"),
        ("service/Cargo.toml", "[dependencies]\naxum.workspace = true\n"),
        ("store/Cargo.toml", "[dependencies]\ntokio = { workspace = true, features = [\"rt\"] }\n"),
    ]);
    let wanted = [
        "engine: knows clap, which only launch may: options and the errors of programs belong to the command",
        "coordinator: knows tokio, which only service, store may: only crates that wait for sockets are asynchronous",
        "coordinator: knows candle-nn, which only launch, study, train, engine, worker, model, comm, kernels may: tensors are for those who \
         compute with them or carry them",
    ];
    assert_eq!(said(crates::tools(&tree)), wanted);
}

#[test]
fn circles_of_files_are_found() {
    let tree = Tree::from([
        (
            "comm/src/lib.rs",
            "mod a; mod b; mod c; mod d; mod error; mod deep; mod e; mod f; mod g; mod open; mod pair; mod room; mod same;\n\
             pub use error::Error; pub use a::A; pub use tributary_protocol::Traffic; pub struct Root(g::G);",
        ),
        // Directly, by an import and by a path in code.
        ("comm/src/a.rs", "use crate::b::B; pub struct A(B); pub type Text = String;"),
        ("comm/src/b.rs", "pub struct B; fn back() -> Vec<crate::a::Text> { vec![] }"),
        // A name that the root re-exports leads to its definition.
        ("comm/src/c.rs", "use crate::Error; pub fn c() -> Error { todo!() }"),
        ("comm/src/error.rs", "pub struct Error; impl Error { fn of() { let _ = format!(\"{}\", crate::c::c()); } }"),
        // For tests only, in a comment, in a text, or handed on without use: none of these is an
        // arrow.
        ("comm/src/d.rs", "use crate::e::E; pub struct D(E);"),
        (
            "comm/src/e.rs",
            "//! [`crate::d::D`]\npub struct E; const TEXT: &str = \"crate::d::D\";\n#[cfg(test)]\nmod tests { use crate::d::D; }",
        ),
        ("comm/src/f.rs", "pub use crate::deep::Deep;"),
        // A re-export of another crate's name does not belong to the root.
        ("comm/src/g.rs", "use crate::Traffic; pub struct G(Traffic);"),
        // A module and those inside it are files as all others, alone and together with others
        // inside it.
        ("comm/src/pair/mod.rs", "mod half; pub struct Pair(half::Half); pub struct Own;"),
        ("comm/src/pair/half.rs", "pub struct Half(super::Own);"),
        ("comm/src/deep/mod.rs", "mod child; mod other; pub struct Deep(child::Child); pub struct Own;"),
        ("comm/src/deep/child.rs", "use super::*; pub struct Child(Own, super::other::Other);"),
        ("comm/src/deep/other.rs", "use super::child; pub struct Other(child::Child);"),
        // A module that calls those inside it is in no circle where they share a file of their own,
        // which it hands on.
        ("comm/src/open/mod.rs", "mod child; mod shared; pub use shared::Shared; fn open() { child::Child::of(); }"),
        ("comm/src/open/child.rs", "use super::Shared; pub struct Child(Shared); impl Child { pub fn of() {} }"),
        ("comm/src/open/shared.rs", "pub struct Shared;"),
        // A variable is not the module of its name.
        ("comm/src/room/mod.rs", "mod door; pub struct Room; fn of(door: u8) -> u8 { door }"),
        ("comm/src/room/door.rs", "use super::Room; pub struct Door(Room);"),
        // But a function may have the name of its module.
        ("comm/src/same/mod.rs", "mod part; pub use part::part; pub struct Same; fn of() { part(); }"),
        ("comm/src/same/part.rs", "pub fn part() -> super::Same { todo!() }"),
    ]);
    let wanted = [
        "comm/src/: files import each other in a circle: a.rs uses B of b.rs; b.rs uses Text of a.rs",
        "comm/src/: files import each other in a circle: c.rs uses Error of error.rs; error.rs uses c of c.rs",
        "comm/src/: files import each other in a circle: deep/child.rs uses Own, super of deep/mod.rs; deep/child.rs uses Other of \
         deep/other.rs; deep/mod.rs uses Child of deep/child.rs; deep/other.rs uses Child, child of deep/child.rs",
        "comm/src/: files import each other in a circle: pair/half.rs uses Own of pair/mod.rs; pair/mod.rs uses Half of pair/half.rs",
        "comm/src/: files import each other in a circle: same/mod.rs uses part of same/part.rs; same/part.rs uses Same of same/mod.rs",
    ];
    assert_eq!(said(files::file_circles(&tree)), wanted);
}

#[test]
fn long_functions_are_found() {
    let body = |lines: usize| "    step();\n".repeat(lines);
    let text = format!(
        "//! A file.\n/// A comment\n/// is no line of it.\n#[inline]\nfn fits() {{\n{}}}\nfn long(\n    x: u8,\n) {{\n{}}}\n\
         impl A {{\n    fn method() {{\n{}}}\n}}\n",
        body(58),
        body(58),
        body(59)
    );
    let found = said(files::function_length(&Tree::from([("comm/src/a.rs", text.as_str())])));
    assert_eq!(
        found,
        ["comm/src/a.rs:65: `long` has 62 lines, at most 60", "comm/src/a.rs:128: `method` has 61 lines, at most 60"]
    );
}

#[test]
fn long_and_silent_files_are_found() {
    let (long, fits) = (format!("//! Long.\n{}", "\n".repeat(600)), format!("//! Fits.\n{}", "\n".repeat(599)));
    let tree =
        Tree::from([("comm/src/a.rs", long.as_str()), ("comm/src/b.rs", &fits), ("comm/src/c.rs", "// Silent.\n")]);
    assert_eq!(said(files::file_length(&tree)), ["comm/src/a.rs: has 601 lines, at most 600"]);
    assert_eq!(said(files::opening(&tree)), ["comm/src/c.rs: does not open with `//!` and what it is for"]);
}

#[test]
fn features_and_unsafe_are_found_where_they_may_not_stand() {
    let asks = "#[cfg(feature = \"mpi\")]\nmod mpi;\n";
    let tree = Tree::from([("comm/src/lib.rs", asks), ("kernels/src/cuda/mod.rs", asks), ("engine/src/lib.rs", asks)]);
    let wanted = [
        "engine/src/lib.rs:1: `#[cfg(feature = \"mpi\")]`: features are asked for in comm/src/lib.rs and under kernels/src/ only",
    ];
    assert_eq!(said(files::features(&tree)), wanted);
    let tree = Tree::from([
        ("kernels/src/cpu/a.rs", "// SAFETY: it is ours.\nunsafe { read(p) }\nunsafe { read(q) }\n"),
        ("engine/src/a.rs", "// SAFETY: it is ours.\nunsafe impl Send for A {}\n"),
    ]);
    let wanted = [
        "engine/src/a.rs:2: `unsafe impl Send for A {}`: `unsafe` is not allowed in this file",
        "engine/src/a.rs:2: `unsafe impl Send for A {}`: take the value on the thread that will use it",
        "kernels/src/cpu/a.rs:3: `unsafe { read(q) }`: no `// SAFETY:` right above says why it holds",
    ];
    assert_eq!(said(files::unsafe_code(&tree)), wanted);
}

#[test]
fn methods_unwraps_and_silent_skips_are_found() {
    let tree = Tree::from([
        ("methods/src/methods/mod.rs", "fn a() { Method::find(\"full\"); }\n"),
        ("worker/src/strategy/mod.rs", "fn a(method: &Method) { method.name == \"full\"; }\n"),
        ("worker/src/strategy/tests.rs", "fn a() { Method::find(\"full\"); b().unwrap(); }\n"),
        ("engine/src/a.rs", "fn a() { b().unwrap(); }\nfn b() { read(\"/proc/stat\"); }\n"),
        ("launch/tests/a.rs", "#[ignore]\n#[test]\nfn a() { b().unwrap(); println!(\"skipped\"); }\n"),
    ]);
    let wanted = [
        "worker/src/strategy/mod.rs:1: `fn a(method: &Method) { method.name == \"full\"; }`: ask the method's declaration",
    ];
    assert_eq!(said(files::methods(&tree)), wanted);
    let what = "give an error, or `expect` the invariant that makes it impossible";
    assert_eq!(said(files::unwraps(&tree)), [format!("engine/src/a.rs:1: `fn a() {{ b().unwrap(); }}`: {what}")]);
    let wanted = ["engine/src/a.rs:2: `fn b() { read(\"/proc/stat\"); }`: ask the crate `system`"];
    assert_eq!(said(files::system_files(&tree)), wanted);
    let found = said(files::silent_skips(&tree));
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].starts_with("launch/tests/a.rs:1: `#[ignore]`: give the reason"), "{found:?}");
}

#[test]
fn wide_comments_are_found() {
    let wide = "w".repeat(100);
    let text = format!("//! A file.\n    // {wide}\n//! | {wide} |\nlet a = \"// {wide}\";\n");
    let tree = Tree::from([("engine/src/a.rs", text.as_str())]);
    let wanted = "engine/src/a.rs:2: the comment is wider than 100 columns";
    assert_eq!(said(files::comment_width(&tree)), [wanted]);
}

#[test]
fn examples_in_documentation_are_found() {
    let tree = Tree::from([
        ("engine/src/a.rs", "//! A file.\n    /// ```\n    /// run();\n    /// ```\n"),
        ("engine/src/b.rs", "//! A file, with ``` in its text.\n// ```\n"),
    ]);
    let wanted = "engine/src/a.rs: has an example in its documentation: let `make test` run `cargo test --doc` too";
    assert_eq!(said(files::examples(&tree)), [wanted]);
}

#[test]
fn documents_that_name_what_is_not_there_are_found() {
    let tree = Tree::from([
        ("README.md", "| `full` | `docs/there.md`\n"),
        ("docs/page.md", "`docs/gone.md`\n"),
        ("CHANGELOG.md", "`old/file.rs`\n"),
    ]);
    let found = said(documents::named_files_exist(&tree, |name| name == "docs/there.md"));
    assert_eq!(found, ["docs/page.md: names `docs/gone.md`, which does not exist"]);
    let found = said(documents::methods_in_the_readme(&tree, &["full", "ring"]));
    assert_eq!(found, ["README.md: has no row `| `ring` |` in its table of methods"]);
}

#[test]
fn rows_of_another_width_are_found() {
    let tree = Tree::from([
        ("README.md", "| a | b |\n| --- | --- |\n| `x | y` | 2 |\n"),
        ("docs/page.md", "# Page\n\n| a | b |\n| --- | --- |\n| 1 | 2 |\n| 1 | 2 | 3 |\n"),
        ("comm/src/lib.rs", "//! | a | b |\n//! | --- | --- |\n//! | 1 |\n"),
    ]);
    let wanted = ["docs/page.md:6: the row has 3 cells, the head of its table 2"];
    assert_eq!(said(documents::table_rows(&tree)), wanted);
}
