//! Prometheus' own judge of metrics. Debian's package `prometheus` has it; `.ci/tools prometheus`
//! unpacks that where it is not installed.

use std::io::Write;
use std::process::{Command, Stdio};

use super::{root, skipped};

/// Checks that `promtool check metrics` has nothing to say about a text.
pub fn finds_nothing(text: &str) {
    let unpacked = root().join("target/prometheus/usr/bin/promtool");
    let program = if unpacked.exists() { unpacked } else { "promtool".into() };
    let started = Command::new(program).args(["check", "metrics"]).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut promtool = match started {
        Ok(promtool) => promtool,
        Err(error) => {
            assert!(std::env::var_os("CI").is_none(), "promtool: {error}: run `make test`");
            return skipped("promtool is not there; `make test` unpacks it");
        }
    };
    let mut input = promtool.stdin.take().expect("it is piped");
    input.write_all(text.as_bytes()).expect("promtool reads");
    drop(input);
    let output = promtool.wait_with_output().expect("promtool ends");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{said}");
}
