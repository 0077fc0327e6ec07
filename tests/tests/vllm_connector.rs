//! The connector for vLLM in `integrations/vllm`, without vLLM: rules, states, threads. With a real
//! one: `make vllm-test`.

use std::process::Command;

use tributary_tests::root;

#[test]
fn the_connector_for_vllm_takes_only_what_the_rules_allow() {
    let tests = root().join("integrations/vllm/tests");
    let output =
        Command::new("python3").args(["-m", "unittest", "discover"]).arg(&tests).output().expect("python starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("\nOK"), "{said}");
    // The last line counts tests that were skipped for want of torch.
    println!("{}", said.trim_end().lines().last().unwrap_or_default());
}
