//! The command on GPUs, emulated or real: what it answers, and what it refuses. Built with the feature `nccl`.

mod kit;

use std::process::{Command, Output};

use kit::{demo, request, root};

/// `prefill` of one of the demo's requests on a GPU.
fn prefill(arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tributary"));
    command.args([
        "prefill",
        "--model",
        &demo(),
        "--request",
        &request("hop2-0"),
        "--device",
        "cuda",
        "--max-tokens",
        "1",
    ]);
    command.args(arguments).envs(variables.iter().copied()).output().expect("the command starts")
}

fn answer(arguments: &[&str]) -> serde_json::Value {
    let output = prefill(&[arguments, &["--json"]].concat(), &[]);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn refused(arguments: &[&str], variables: &[(&str, &str)], code: i32, says: &str) {
    let output = prefill(arguments, variables);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {errors}");
    assert!(errors.lines().count() == 1 && errors.contains(says), "{arguments:?}: {errors}");
    assert!(output.stdout.is_empty());
}

#[test]
fn a_request_is_answered_on_a_gpu_as_on_the_cpu_alone_or_by_two_ranks() {
    let arguments = ["prefill", "--model", &demo(), "--request", &request("hop2-0"), "--max-tokens", "1", "--json"];
    let on_cpu = kit::json(&arguments)["answer"].clone();
    assert!(on_cpu.as_str().is_some_and(|text| !text.is_empty()), "{on_cpu}");
    for method in ["full", "infoflow"] {
        let alone = answer(&["--method", method]);
        let two = answer(&["--method", method, "--world-size", "2"]);
        assert_eq!(alone["answer"], two["answer"], "{method}: one rank and two");
        assert!(alone.to_string().contains("\"device_memory\":"), "{alone:#}");
        assert!(two.to_string().contains("NCCL"), "tensors go over NCCL: {two:#}");
    }
    assert_eq!(answer(&["--method", "infoflow"])["answer"], on_cpu);
}

#[test]
fn what_a_gpu_cannot_do_is_said_in_one_line() {
    refused(&[], &[("CUDA_VISIBLE_DEVICES", "")], 78, "--device cuda: ");
    refused(&["--dtype", "f32"], &[], 78, "no attention kernel for heads of 32 in f32");
    refused(&["--device-memory", "1MiB"], &[], 71, "of device memory");
    refused(&["--device-memory", "4000GiB"], &[], 71, "free on the device");
    refused(&["--world-size", "2"], &[("CUDA_VISIBLE_DEVICES", "0")], 78, "GPU");
}

#[test]
fn a_gpu_without_memory_for_nccl_is_said_in_one_line() {
    if !kit::gpus_are_emulated() {
        println!("skipped: only an emulated NCCL takes as much memory as it is told to");
        return;
    }
    let variables = [("EMULATED_NCCL_BYTES", "9000000000")];
    refused(&["--world-size", "2"], &variables, 71, "the GPU has no memory for NCCL's buffers");
}

#[test]
fn doctor_names_the_gpus() {
    let output = Command::new(env!("CARGO_BIN_EXE_tributary")).arg("doctor").current_dir(root()).output();
    let output = output.expect("the command starts");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("GPU-"), "{text}");
}
