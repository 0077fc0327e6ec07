//! Planted violations of every rule, and texts that look like one and are none.

use super::lines::{
    BrokenLine, UnevenRow, dependencies, features, named_files, named_methods, sends, silent_skips, system_files,
    uneven_rows, unsafe_code, unsafe_without_reason, unwraps, workspace_dependencies,
};

fn lines(places: Vec<BrokenLine>) -> Vec<usize> {
    places.into_iter().map(|place| place.line).collect()
}

#[test]
fn unwraps_are_found_behind_tests_too() {
    let text = r##"//! A module.
#[cfg(test)]
use std::fmt; // .unwrap() in a comment
fn first() { "1".parse::<u32>().unwrap(); }
#[cfg(test)]
mod tests {
    fn helper() -> char { let brace = '}'; let text = "}"; other().unwrap(); brace }
    #[test]
    fn it_works() { helper().unwrap(); }
}
fn second() -> u32 {
    let text = ".unwrap()"; /* .unwrap() */
    let raw = r#"quote " and .unwrap()"#;
    text
        .parse()
        .unwrap()
}
#[cfg(all(test, unix))]
fn only_in_tests() { x().unwrap(); }
fn third() { list.map(Result::unwrap); let lifetime: &'static str = a; b.unwrap() }
#[test]
#[ignore = "not now"]
fn a_test() {
    x.unwrap();
}
fn fourth() { x.unwrap_or(1); y.unwrap() }
"##;
    assert_eq!(lines(unwraps(text)), [4, 16, 20, 26]);
}

#[test]
fn features_are_found_in_every_form() {
    let text = r#"
#[cfg(feature = "cuda")]
#[cfg_attr(not(feature = "nccl"), path = "absent.rs")]
#[cfg(all(unix, feature="mpi"))]
#[cfg(any(
    unix,
    feature
        = "cuda",
))]
let built = cfg!(feature = "cuda");
let text = "cfg(feature = \"cuda\")"; // cfg(feature = "cuda")
#[target_feature(enable = "avx2")]
#[cfg(target_feature = "avx2")]
let feature_count = 1; let feature: u32 = 2;
"#;
    assert_eq!(lines(features(text)), [2, 3, 4, 7, 10]);
}

#[test]
fn methods_are_found_where_they_are_named() {
    let text = r#"
//! Not Method::find("full").
fn first(method: &Method) -> bool { method.name == "full" }
fn second(plan: &Plan) -> bool { Some(plan.method.method) == Method::find("ring") }
fn fine(method: &Method, name: &str) -> bool { method.is_exact() || method.name == name || Method::find(name).is_some() }
#[cfg(test)]
mod tests { fn a_test() { Method::find("none"); } }
"#;
    assert_eq!(lines(named_methods(text)), [3, 4]);
}

#[test]
fn every_unsafe_block_needs_a_reason_of_its_own() {
    let text = r#"
// SAFETY: the pointer is one of ours.
let a = unsafe { read(p) };
let b = unsafe { read(q) };
// SAFETY: the list is as long as the call says, which is
// checked above.
let c = list.iter().map(|x| x + 1).fold(
    0,
    |sum, x| unsafe { add(sum, x) },
);
// A comment that gives no reason.
unsafe { read(r) };
// SAFETY: this belongs to the statement below alone.
let d = 1;
let e = unsafe {
    read(s)
};
let text = "unsafe { }"; // unsafe { }
/// # Safety
/// The caller's.
unsafe fn risky() {}
fn not_unsafely() {}
unsafe { read(t) } // SAFETY: said beside it.
"#;
    assert_eq!(lines(unsafe_code(text)), [3, 4, 9, 12, 15, 23]);
    assert_eq!(lines(unsafe_without_reason(text)), [4, 12, 15]);
    let text = "unsafe impl Send for A {}\nunsafe impl<T> Sync for B<T> {}\nunsafe impl Sender for C {}\n";
    assert_eq!(lines(sends(text)), [1, 2]);
    assert_eq!(lines(unsafe_without_reason(text)), [1, 2, 3]);
}

#[test]
fn silent_skips_are_found() {
    let text = r#"
#[ignore]
#[ignore = "needs 2 GPUs: make gpu"]
println!("SKIPPED: no GPU");
eprintln!("skipped: no GPU");
skipped("no GPU"); // println!("skipped")
println!("{taken} rows were taken");
"#;
    assert_eq!(lines(silent_skips(text)), [2, 4, 5]);
}

#[test]
fn files_of_the_system_are_found() {
    let text = r#"
//! Reads "/proc/meminfo" not at all.
fn first() { read("/proc/meminfo"); read(format!("/proc/{pid}/stat")); }
fn second() { Path::new("/sys/fs/cgroup"); } // "/proc"
fn own() { Command::new("/proc/self/exe"); Path::new("/sys/class/net"); Path::new("/home/proc/x"); }
#[cfg(test)]
mod tests { fn a_test() { read("/proc/1/stat"); } }
"#;
    assert_eq!(lines(system_files(text)), [3, 4]);
}

#[test]
fn dependencies_are_found_in_every_section() {
    let manifest = r#"
[package]
name = "tributary-comm"

[features]
mpi = ["tributary-kernels/cuda"]

[dependencies]
anyhow.workspace = true
tributary-worker.workspace = true
other = { package = "tributary-coordinator", path = "../coordinator" }
# tributary-absent.workspace = true

[dev-dependencies]
tributary-tests.workspace = true

[target.'cfg(unix)'.dependencies]
tributary = { workspace = true }

[dependencies.tributary-kernels]
workspace = true

[build-dependencies]
tributary-build = "1"
"#;
    let found = workspace_dependencies(manifest);
    let expected = ["tributary-worker", "tributary-coordinator", "tributary", "tributary-kernels", "tributary-build"];
    assert_eq!(found, expected);
    let manifest = "[dependencies]\nclap.workspace = true\nclap_complete = \"1\"\n[dev-dependencies]\nclap = \"4\"\nanyhow = \"1\"\n";
    assert_eq!(dependencies(manifest, "clap"), ["clap", "clap"]);
    assert!(dependencies(manifest, "anyhow").is_empty());
}

#[test]
fn documents_name_files_in_backquotes() {
    let text = "See `a/b.rs` and `make test`, `c.rs`, `d/*.rs`, `gpu/run.sh`, not a/e.rs, but `f/g.json`.";
    assert_eq!(named_files(text), ["a/b.rs", "gpu/run.sh", "f/g.json"]);
}

#[test]
fn uneven_rows_are_found_and_bars_in_text_are_none() {
    let text = r"
| a | b |
| --- | :-: |
| 1 | 2 |
| 1 | `x | y` |
| 1 | a \| b |
| `\` | 2
| 1 | |
| 1 | 2 | 3 |
| 1 |
no bar

| no | table | here |

| a | b |
| --- |
# A heading
| 1 | 2 | 3 |

```
| a | b |
| --- | --- |
| 1 |
```
";
    let of = |line, cells, head| UnevenRow { line, cells, head };
    assert_eq!(uneven_rows(text), [of(9, 3, 2), of(10, 1, 2), of(11, 1, 2), of(16, 1, 2)]);
}
