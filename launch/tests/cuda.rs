//! The command on GPUs, emulated or real: its answers, and its refusals. Built with the feature
//! `nccl`.

mod kit;

use std::process::{Command, Output, Stdio};
use std::time::Duration;

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
fn gpus_are_calibrated_together_with_what_connects_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("here.toml").display().to_string();
    let calibrate = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tributary"));
        command
            .args(["bench", "--model", &demo(), "--device", "cuda", "--calibrate", &file, "--force", "--repeats", "3"])
            .args(more);
        command.output().expect("the command starts")
    };
    let output = calibrate(&["--worlds", "2"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let profile = std::fs::read_to_string(&file).expect("written");
    for line in ["ranks = 2", "memory_of = \"device\"", "description = \"2 x "] {
        assert!(profile.lines().any(|found| found.starts_with(line)), "{line}: {profile}");
    }
    assert!(profile.contains("over NCCL "), "{profile}");
    let plan = ["plan", "--model", &demo(), "--tokens", "256", "--world", "2", "--profile", &file];
    let output = Command::new(env!("CARGO_BIN_EXE_tributary")).args(plan).output().expect("the command starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let output = calibrate(&["--worlds", "5", "--allow-shared-gpu"]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(64), "{errors}");
    assert!(errors.contains("ranks share a GPU"), "{errors}");
    let output = calibrate(&["--worlds", "2", "--device-memory", "1MiB"]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(71), "{errors}");
    assert!(errors.contains("the weights need about") && errors.lines().count() == 1, "{errors}");
}

fn doctor(arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tributary"));
    command
        .args(["doctor", "--backend", "nccl", "--sizes", "1MiB,1200B"])
        .args(arguments)
        .envs(variables.iter().copied());
    command.output().expect("the command starts")
}

#[test]
fn doctor_measures_between_gpus() {
    let output = doctor(&["--world-size", "2", "--json"], &[]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    kit::measured_between_gpus(&serde_json::from_slice(&output.stdout).expect("JSON"), 2);
    let text = String::from_utf8(doctor(&["--world-size", "2"], &[]).stdout).expect("text");
    for part in
        ["every check passed on 2 ranks", "all-gather between GPUs over NCCL ", "bus [GB/s]", "a rank takes ", " µs"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    let alone = doctor(&[], &[]);
    assert!(alone.status.success(), "one rank has nothing to measure: {}", String::from_utf8_lossy(&alone.stderr));
}

#[test]
fn doctor_says_what_is_missing_between_gpus() {
    let cases =
        [(&[][..], "", "no CUDA device"), (&["--world-size", "2"], "0", "rank number 2 of this host finds 1 GPU;")];
    for (arguments, visible, says) in cases {
        let output = doctor(arguments, &[("CUDA_VISIBLE_DEVICES", visible)]);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(78), "{says}: {errors}");
        let line = errors.starts_with("tributary: --backend nccl: ") && errors.contains(says);
        assert!(line && errors.lines().count() == 1, "{says}: {errors}");
    }
    // More than the GPUs hold is left out, on all ranks.
    let output = doctor(&["--world-size", "2", "--json", "--sizes", "4000GiB"], &[]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((output.status.code(), report["left_out"].as_array().map(Vec::len)), (Some(0), Some(1)), "{report}");
}

#[test]
fn doctor_names_the_gpus() {
    let output = Command::new(env!("CARGO_BIN_EXE_tributary")).arg("doctor").current_dir(root()).output();
    let output = output.expect("the command starts");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("GPU-"), "{text}");
}

/// Faults that only an emulated GPU and an emulated NCCL have on demand: failures, and much memory.
mod emulated {
    use super::*;

    #[test]
    #[ignore = "needs an emulated GPU: make cuda-test"]
    fn a_gpu_without_memory_for_nccl_is_said_in_one_line() {
        let variables = [("EMULATED_NCCL_BYTES", "9000000000")];
        refused(&["--world-size", "2"], &variables, 71, "the GPU has no memory for NCCL's buffers");
    }

    /// Each rank's NCCL takes 200 MB here. A request needs some 140 MiB without it.
    #[test]
    #[ignore = "needs an emulated GPU: make cuda-test"]
    fn what_nccl_takes_is_measured_and_within_the_budget() {
        const BYTES: u64 = 200_000_000;
        let two = ["--world-size", "2", "--method", "infoflow"];
        let variables = [("EMULATED_NCCL_BYTES", BYTES.to_string())];
        let variables = [(variables[0].0, variables[0].1.as_str())];
        let output = prefill(&[&two[..], &["--json"]].concat(), &variables);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        for rank in report["ranks"].as_array().expect("ranks") {
            let bytes = rank["device_memory"]["message_bytes"].as_u64().expect("a number");
            assert!((BYTES..BYTES + (4 << 20)).contains(&bytes), "{rank:#}");
        }
        let budget = [&two[..], &["--device-memory", "300MiB"]].concat();
        assert!(prefill(&budget, &[]).status.success(), "300 MiB suffice where NCCL takes nothing");
        refused(&budget, &variables, 71, "of device memory");
    }

    #[test]
    #[ignore = "needs an emulated GPU: make cuda-test"]
    fn a_card_of_80_gib_has_80_gib_to_give() {
        let variables = [("EMULATED_GPU_BYTES", "85899345920")];
        let output = prefill(&["--device-memory", "60GiB"], &variables);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        refused(&["--device-memory", "90GiB"], &variables, 71, "80.0 GiB are free on the device");
    }

    /// The demo model's shape with heads of 64, in a folder; without weights.
    fn with_wide_heads(folder: &std::path::Path) -> String {
        for name in ["tokenizer.json", "tokenizer_config.json"] {
            std::fs::copy(std::path::Path::new(&demo()).join(name), folder.join(name)).expect("copied");
        }
        let config = std::fs::read_to_string(std::path::Path::new(&demo()).join("config.json")).expect("a config");
        let mut config: serde_json::Value = serde_json::from_str(&config).expect("JSON");
        config["head_dim"] = 64.into();
        std::fs::write(folder.join("config.json"), config.to_string()).expect("written");
        folder.display().to_string()
    }

    /// Grids of the kernel that keeps its multiprocessors, in a ring of two ranks.
    fn grids(model: &str, left: &str) -> Vec<u32> {
        let log = tempfile::NamedTempFile::new().expect("a file");
        let mut command = Command::new(env!("CARGO_BIN_EXE_tributary"));
        command.args(["prefill", "--model", model, "--load-format", "dummy", "--synthetic", "2x300+20"]);
        command.args(["--device", "cuda", "--dtype", "bf16", "--world-size", "2", "--method", "ring"]);
        command.args(["--max-tokens", "1", "--message-multiprocessors", left]).env("EMULATED_LAUNCH_LOG", log.path());
        let output = command.output().expect("the command starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = std::fs::read_to_string(log.path()).expect("launches");
        let of = |line: &str| line.strip_prefix("attend_sm90_bf16_64 ")?.split(' ').next()?.parse().ok();
        text.lines().filter_map(of).collect()
    }

    #[test]
    #[ignore = "needs an emulated GPU: make cuda-test"]
    fn attention_leaves_multiprocessors_to_messages_that_are_under_way() {
        let folder = tempfile::tempdir().expect("a folder");
        let model = with_wide_heads(folder.path());
        // An emulated GPU has 132.
        let (leaving, taking) = (grids(&model, "131"), grids(&model, "0"));
        assert_eq!(leaving.len(), taking.len(), "launches");
        // A rank's first step runs during the exchange, its second one after it. The last layer
        // computes one row only.
        let alone = leaving.iter().filter(|&&blocks| blocks == 1).count();
        assert_eq!(2 * alone, leaving.len(), "{leaving:?}");
        assert!(taking.iter().all(|&blocks| blocks > 1), "{taking:?}");
        assert!(leaving.iter().all(|blocks| *blocks == 1 || taking.contains(blocks)), "{leaving:?}, {taking:?}");
    }

    #[test]
    #[ignore = "needs an emulated GPU: make cuda-test"]
    fn a_failed_kernel_is_said_in_one_line() {
        let fault = tempfile::NamedTempFile::new().expect("a file");
        let variables = [("EMULATED_FAULT_FILE", fault.path().to_str().expect("text"))];
        for arguments in [&[][..], &["--world-size", "2"]] {
            refused(arguments, &variables, 70, "the GPU takes no more work from this process: start it again");
        }
    }

    #[test]
    #[ignore = "needs an emulated GPU: make cuda-test"]
    fn a_study_ends_with_a_failed_kernel_and_goes_on_in_another_process() {
        const RUNS: usize = 60;
        let folder = tempfile::tempdir().expect("a folder");
        let (out, fault) = (folder.path().join("study"), folder.path().join("fault"));
        let bench = |more: &[&str]| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_tributary"));
            command.args(["bench", "--model", &demo(), "--device", "cuda"]);
            command.args(["--chunk-tokens", "64", "--query-tokens", "8"]);
            command.args(["--lengths", "128", "--methods", "full", "--warmups", "1", "--repeats", &RUNS.to_string()]);
            command.arg("--out").arg(&out).args(more).env("EMULATED_FAULT_FILE", &fault);
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the command starts")
        };
        let point = || -> serde_json::Value {
            let text = std::fs::read_to_string(out.join("report.json")).unwrap_or_default();
            serde_json::from_str::<serde_json::Value>(&text).unwrap_or_default()["points"][0].clone()
        };
        let count = |what: &str| point()[what].as_array().map_or(0, Vec::len);
        let mut running = bench(&[]);
        while count("samples") < 2 && running.try_wait().expect("our child").is_none() {
            std::thread::sleep(Duration::from_millis(5));
        }
        std::fs::write(&fault, "").expect("written");
        let ended = running.wait_with_output().expect("it ends");
        let errors = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(70), "{errors}");
        for part in ["CUDA_ERROR_ILLEGAL_ADDRESS", "start it again", "--resume goes on"] {
            assert!(errors.lines().count() == 1 && errors.contains(part), "{part}: {errors}");
        }
        assert_eq!(count("failures"), 1, "nothing was tried again in that process: {:#}", point());
        assert!((2..RUNS).contains(&count("samples")), "{:#}", point());
        std::fs::remove_file(&fault).expect("removed");
        let ended = bench(&["--resume"]).wait_with_output().expect("it ends");
        assert_eq!(ended.status.code(), Some(0), "{}", String::from_utf8_lossy(&ended.stderr));
        assert_eq!((count("samples"), count("failures")), (RUNS - 1, 1), "the other runs were made");
    }

    #[test]
    #[ignore = "needs an emulated GPU: make cuda-test"]
    fn a_failed_kernel_ends_a_calibration_in_one_line_too() {
        let fault = tempfile::NamedTempFile::new().expect("a file");
        let demo = demo();
        let commands = [
            vec!["bench", "--model", &demo, "--device", "cuda", "--calibrate", "--repeats", "3"],
            vec!["bench", "--model", &demo, "--device", "cuda", "--calibrate", "--repeats", "3", "--worlds", "2"],
        ];
        for arguments in commands {
            let mut command = Command::new(env!("CARGO_BIN_EXE_tributary"));
            let output = command.args(&arguments).env("EMULATED_FAULT_FILE", fault.path()).output().expect("it starts");
            let errors = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(70), "{arguments:?}: {errors}");
            let line = "the GPU takes no more work from this process: start it again";
            assert!(errors.contains(line) && errors.lines().count() == 1, "{arguments:?}: {errors}");
        }
    }
}
