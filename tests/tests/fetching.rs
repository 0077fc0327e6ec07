//! The scripts of `tests/real-models` against made-up wheels, without a network.

use std::process::Command;

use tributary_tests::root;

/// What was fetched is kept, and each failure ends with one line and its exit code.
#[test]
fn fetching_real_models_resumes_and_says_what_failed() {
    let script = root().join("tests/real-models/test_fetch.py");
    let output = Command::new("python3").arg(&script).output().expect("python starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("\nOK"), "{said}");
}
