//! The attacks of `make attack` in their short form: memory, silence and lock-outs of a service,
//! and crafted folders, each against its bound.

use std::process::Command;

#[path = "kit/mod.rs"]
mod kit;

#[test]
fn every_attack_is_held() {
    let script = kit::root().join("tests/attack/run.py");
    let mut command = Command::new("python3");
    command.arg(script).arg(env!("CARGO_BIN_EXE_tributary")).arg("--short");
    let output = command.output().expect("python starts");
    let said = String::from_utf8_lossy(&output.stdout);
    println!("{said}");
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
}
