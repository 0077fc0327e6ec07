//! What only an emulated GPU does when it is told to: have an old driver, and put shared memory where it does not belong. Both are
//! told by the environment of a process, so each is another run of one of the other tests.

use std::process::Command;

/// What a test that must fail says in a process with this variable.
fn refused(test: &str, variable: &str, value: &str) -> String {
    let program = std::env::current_exe().unwrap();
    let output = Command::new(program).args(["--exact", test, "--nocapture"]).env(variable, value).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("running 1 test"), "{test} is one of the tests: {said}");
    assert!(!output.status.success(), "{variable}={value}: {said}");
    said
}

#[test]
#[ignore = "needs an emulated GPU: make cuda-test"]
fn an_older_driver_is_refused_with_both_versions() {
    let said = refused("filling::nothing_and_other_types_are_told", "EMULATED_DRIVER_VERSION", "12080");
    let line = "its driver knows CUDA 12.8, and this program is built for 13.0: install NVIDIA's driver 580 or newer";
    assert!(said.contains(line), "{said}");
}

#[test]
#[ignore = "needs an emulated GPU: make cuda-test"]
fn shared_memory_that_is_not_aligned_stops_the_packed_kernel() {
    let said = refused("attention::numbers_in_hidden_keys_change_nothing", "EMULATED_SHARED_BASE", "512");
    assert!(said.contains("attend_sm90_bf16_64"), "{said}");
    assert!(said.contains("shared memory does not begin at a multiple of 1024"), "{said}");
}
