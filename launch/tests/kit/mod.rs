//! Running the command as a user does.

#[allow(dead_code)] // not every test file has adapters
pub mod adapter;

#[allow(dead_code)] // not every test file runs jobs
pub mod job;

#[allow(dead_code)] // only tests of metrics have it judge them
pub mod promtool;

#[allow(dead_code)] // not every test file strikes ranks
pub mod strike;

#[allow(dead_code)] // not every test file compares dumps
pub mod dump;

#[allow(dead_code)] // not every test file looks at a process's memory
pub mod held;

#[allow(dead_code)] // not every test file has disks of its own
pub mod mounts;

#[allow(dead_code)] // one test file needs several hosts
pub mod hosts;

#[allow(dead_code)] // only tests of the service have clients
pub mod http;

#[allow(dead_code)] // as above
pub mod server;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The repository's root.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate stands in the repository").to_owned()
}

/// The demo model's folder, as text.
#[allow(dead_code)] // not every test file runs it
pub fn demo() -> String {
    root().join("examples/models/demo").display().to_string()
}

/// A copy of the demo model that a test may change.
#[allow(dead_code)] // not every test file changes one
pub fn copy_of_demo() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(root().join("examples/models/demo").join(name), folder.path().join(name)).expect("a copy");
    }
    folder
}

/// One of the demo's requests, as text.
#[allow(dead_code)] // not every test file asks one
pub fn request(name: &str) -> String {
    root().join(format!("examples/models/demo/requests/{name}.json")).display().to_string()
}

/// A model that reads pictures, and a request with pictures to it.
#[allow(dead_code)] // not every test file has pictures
pub fn vision() -> (String, String) {
    let path = |name: &str| root().join("tests/golden").join(name).display().to_string();
    (path("qwen3vl-tiny"), path("vlm/request.json"))
}

/// Runs the command with these arguments.
#[allow(dead_code)] // not every test file runs it alone
pub fn tributary(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tributary"));
    // Nothing that a test does is remembered in the user's own folder.
    command.env("XDG_CACHE_HOME", env!("CARGO_TARGET_TMPDIR"));
    command.args(arguments).output().expect("the command starts")
}

/// An exit code, what was printed, and what was printed as errors.
#[allow(dead_code)] // not every test file reads all three
pub fn told(Output { status, stdout, stderr }: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (status.code(), text(stdout), text(stderr))
}

/// Runs the command with these arguments: its exit code, its output, and its errors.
#[allow(dead_code)] // not every test file reads all three
pub fn run(arguments: &[&str]) -> (Option<i32>, String, String) {
    told(&tributary(arguments))
}

/// Runs the command, which must succeed, and parses its output.
#[allow(dead_code)] // not every test file asks for JSON
pub fn json(arguments: &[&str]) -> serde_json::Value {
    let output = tributary(arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {errors}");
    assert!(errors.is_empty(), "no progress where standard error is no terminal: {errors}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// Reports that a test, or a part of one, is skipped, with the reason: it bypasses the test
/// harness, which captures the output of passing tests. Only for tools that a machine may lack; a
/// test that needs another machine is ignored with a reason instead.
#[allow(dead_code)] // not every test file skips
pub fn skipped(why: &str) {
    let _ = writeln!(std::io::stderr(), "skipped: {why}");
}

/// Asserts that `doctor` has checked and measured `world` ranks with their tensors on GPUs.
#[allow(dead_code)] // as above
pub fn measured_between_gpus(report: &serde_json::Value, world: usize) {
    assert_eq!((&report["world"], &report["checks"]), (&world.into(), &"passed".into()), "{report:#}");
    assert!(report["between_gpus"].as_str().is_some_and(|name| name.starts_with("NCCL ")), "{report:#}");
    assert!(report["latency"]["median_us"].as_f64().is_some_and(|time_us| time_us > 0.0), "{report:#}");
    let gathers = report["all_gathers"].as_array().expect("a list");
    assert!(!gathers.is_empty());
    for gather in gathers {
        assert_eq!(gather["wrong_values"], 0, "{gather}");
        assert!(gather["bus_gb_per_s"].as_f64().is_some_and(|speed| speed > 0.0), "threads copy too: {gather}");
    }
}
