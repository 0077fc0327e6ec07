//! Ranks as processes with a GPU each, under a real mpirun: tensors go over NCCL, all else over
//! MPI. The tests cover answers, traffic, and the end after a failure of one rank. On an emulated
//! machine (`.ci/cuda emulated`, EMULATED_GPUS=4) or a real one of two GPUs. Built with the
//! features `nccl`, `mpi` and `failpoints`.

mod kit;

use std::process::{Command, Output};
use std::time::{Duration, Instant};

use kit::job::{Ended, Fault, Job, LONG_MS, has_mpirun, launchers, mpirun, signal};
use kit::{demo, request};
use rustix::process::Signal;
use serde_json::Value;

/// Longest time of a failure's end beyond the deadline.
const SLACK: Duration = Duration::from_secs(10);

/// `prefill` of one of the demo's requests.
fn prefill(more: &[&str]) -> Vec<String> {
    let base = ["prefill", "--model", &demo(), "--request", &request("hop2-0"), "--max-tokens", "2"].map(str::to_owned);
    base.into_iter().chain(more.iter().map(|&text| text.to_owned())).collect()
}

fn run(mut launcher: Command, arguments: &[String]) -> Output {
    launcher.arg(env!("CARGO_BIN_EXE_tributary")).args(arguments).output().expect("the launcher starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The report of a run that must succeed.
fn report(name: &str, output: &Output) -> Value {
    assert!(output.status.success(), "{name}: {}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// Tensor bytes that each rank has received.
fn received(report: &Value) -> Vec<u64> {
    let ranks = report["ranks"].as_array().expect("ranks").iter();
    ranks.map(|rank| rank["tensor_bytes_received"].as_u64().expect("a number")).collect()
}

/// A launcher whose rank 1 has another environment.
fn on_rank_1(variable: &str) -> Command {
    let mut launcher = mpirun(2);
    let script = format!("[ $OMPI_COMM_WORLD_RANK = 1 ] && export {variable}; exec \"$@\"");
    launcher.args(["sh", "-c", &script, "sh"]);
    launcher
}

/// One line of ours, with this exit code and these words; nothing on standard output.
fn refused(output: &Output, code: i32, says: &str) {
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{says}: {errors}");
    let ours: Vec<&str> = errors.lines().filter(|line| line.starts_with("tributary: ")).collect();
    assert!(ours.len() == 1 && ours[0].contains(says), "{says}: {errors}");
    assert!(output.stdout.is_empty(), "{says}: {}", text(&output.stdout));
}

#[test]
fn processes_with_a_gpu_each_answer_as_one_and_move_what_mpi_moves() {
    if !has_mpirun() {
        return;
    }
    let on_cpu = kit::json(&prefill(&["--json"]).iter().map(String::as_str).collect::<Vec<_>>());
    // The exchange is named: left to itself it follows what a machine is good at. Every row is
    // selected: of some, which ones may hang on a GPU's rounding, and with them what each rank
    // receives.
    for way in ["infoflow:ratio=1:exchange=replicate", "infoflow:ratio=1:exchange=pass-q", "ring"] {
        let with = |more: &[&str]| prefill(&[&["--method", way][..], more, &["--dtype", "bf16", "--json"]].concat());
        let alone = report("one rank", &run(mpirun(1), &with(&["--device", "cuda"])));
        let by_mpi = report("MPI", &run(mpirun(2), &with(&["--backend", "mpi"])));
        assert!(received(&by_mpi).iter().all(|&bytes| bytes > 0), "{way:?}: {:?}", received(&by_mpi));
        for (name, launcher) in launchers(2) {
            let two = report(name, &run(launcher, &with(&["--device", "cuda", "--backend", "nccl"])));
            assert_eq!(two["answer"], alone["answer"], "{name}, {way:?}: one rank and two");
            assert_eq!(two["answer"], on_cpu["answer"], "{name}, {way:?}: on the CPU");
            assert_eq!(received(&two), received(&by_mpi), "{name}, {way:?}");
            let backend = two["settings"]["backend"].as_str().expect("a text");
            assert!(backend.starts_with("NCCL ") && backend.contains("mpi ("), "{name}: {backend}");
        }
    }
}

/// A copy to the host is a piece of the device's work: it must be complete before MPI sends.
#[test]
fn tensors_of_gpus_go_over_mpi_as_they_are() {
    if !has_mpirun() {
        return;
    }
    let with = |more: &[&str]| prefill(&[&["--device", "cuda", "--json"], more].concat());
    for way in [["--method", "ring"], ["--method", "infoflow:exchange=pass-q"]] {
        let alone = report("one rank", &run(mpirun(1), &with(&way)));
        let two = report("two", &run(mpirun(2), &with(&[&way[..], &["--backend", "mpi"]].concat())));
        assert!(received(&two).iter().all(|&bytes| bytes > 0), "{way:?}: {:?}", received(&two));
        assert_eq!(two["answer"], alone["answer"], "{way:?}");
    }
}

/// A prefill whose rank 1 is held when it enters chunk prefill, and sent a signal there; how it
/// ends and how long that took.
fn strike(with: Signal) -> (Ended, Duration) {
    let arguments = prefill(&["--device", "cuda", "--backend", "nccl", "--heartbeat-timeout", "2"]);
    let fault = Fault { rank: 1, failpoint: &format!("worker::chunk_prefill=sleep({LONG_MS})") };
    let mut job = Job::start(2, Some(fault), &arguments.iter().map(String::as_str).collect::<Vec<_>>());
    let pid = job.enters(1, "chunk_prefill");
    std::thread::sleep(Duration::from_millis(200));
    let struck = Instant::now();
    signal(pid, with);
    let ended = job.end();
    let took = ended.at - struck;
    println!("{with:?}: exit {} after {:.2} s: {}", ended.code, took.as_secs_f64(), ended.cause());
    (ended, took)
}

#[test]
fn a_killed_rank_ends_the_others_and_is_named() {
    if !has_mpirun() {
        return;
    }
    let (ended, took) = strike(Signal::KILL);
    assert_eq!(ended.code, 137, "bare mpirun reports the killed rank: {:#?}", ended.errors);
    let cause = ended.cause();
    assert!(cause.starts_with("tributary: rank 1 (process ") && cause.ends_with("has died"), "{:#?}", ended.errors);
    assert!(took < SLACK, "{took:?}");
}

#[test]
fn a_stopped_rank_ends_the_others_and_is_named() {
    if !has_mpirun() {
        return;
    }
    let (ended, took) = strike(Signal::STOP);
    assert_eq!(ended.code, 75, "{:#?}", ended.errors);
    assert_eq!(ended.causes(), 1, "{:#?}", ended.errors);
    assert!(ended.cause().contains(") has been silent for 2s; rank 1 said last that it "), "{:#?}", ended.errors);
    assert!(took < Duration::from_secs(2) + SLACK, "{took:?}");
}

#[test]
fn a_straggler_shows_in_its_own_phase_alone() {
    if !has_mpirun() {
        return;
    }
    const LATE_MS: f64 = 1500.0;
    let arguments = prefill(&["--device", "cuda", "--backend", "nccl", "--json", "--collective-timeout", "20"]);
    let fault = Fault { rank: 1, failpoint: &format!("worker::recompute=sleep({LATE_MS})") };
    let ended = Job::start(2, Some(fault), &arguments.iter().map(String::as_str).collect::<Vec<_>>()).end();
    assert_eq!(ended.code, 0, "{:#?}", ended.errors);
    let report: Value = serde_json::from_str(&ended.stdout).expect("JSON");
    let spans = report["ranks"][0]["spans"].as_array().expect("spans");
    for span in spans {
        let (waited_ms, ms) = (span["waited_ms"].as_f64().expect("a time"), span["ms"].as_f64().expect("a time"));
        let late = span["phase"] == "recompute";
        assert_eq!(waited_ms > 0.5 * LATE_MS, late, "{spans:#?}");
        assert!(waited_ms <= ms + 1.0, "no longer than the phase: {span}");
    }
    assert!(report["notes"].to_string().contains("straggler: rank 1 in recompute"), "{}", report["notes"]);
}

#[test]
fn ranks_with_one_gpu_are_refused_unless_that_is_allowed() {
    if !has_mpirun() {
        return;
    }
    let one_gpu = || {
        let mut launcher = mpirun(2);
        launcher.env("CUDA_VISIBLE_DEVICES", "0");
        launcher
    };
    let arguments = ["--device", "cuda", "--backend", "nccl"];
    refused(&run(one_gpu(), &prefill(&arguments)), 78, "ranks 0 and 1 share one GPU of ");
    let shared = prefill(&[&arguments[..], &["--allow-shared-gpu", "--json"]].concat());
    let two = report("shared", &run(one_gpu(), &shared));
    assert_eq!(two["ranks"].as_array().map(Vec::len), Some(2));
}

#[test]
fn memory_is_divided_among_the_ranks_that_have_one_gpu() {
    if !has_mpirun() {
        return;
    }
    let arguments = prefill(&["--device", "cuda", "--backend", "nccl", "--allow-shared-gpu", "--json"]);
    // As some launchers do, each rank is shown one GPU alone, of two in turn.
    let budget_bytes = |world: usize| {
        let mut launcher = mpirun(world);
        let script = "export CUDA_VISIBLE_DEVICES=$((OMPI_COMM_WORLD_RANK % 2)); exec \"$@\"";
        launcher.args(["sh", "-c", script, "sh"]);
        let report = report(&format!("{world} ranks"), &run(launcher, &arguments));
        report["settings"]["device_budget_bytes"].as_f64().expect("rank 0 has a GPU")
    };
    let alone = budget_bytes(1);
    for (world, part) in [(2, 1.0), (3, 0.5)] {
        let found = budget_bytes(world) / alone;
        assert!((found - part).abs() < 0.1, "{world} ranks on two GPUs: {found} of what one rank has");
    }
}

#[test]
fn doctor_measures_between_the_gpus_of_processes() {
    if !has_mpirun() {
        return;
    }
    for (name, launcher) in launchers(2) {
        let arguments = ["doctor", "--backend", "nccl", "--sizes", "1MiB,1200B", "--json"].map(str::to_owned);
        kit::measured_between_gpus(&report(name, &run(launcher, &arguments)), 2);
    }
}

/// Faults that only an emulated GPU and an emulated NCCL have on demand: failures, much memory, and
/// another version.
mod emulated {
    use super::*;

    #[test]
    #[ignore = "needs emulated GPUs: make cuda-test"]
    fn a_gpu_without_memory_for_nccl_is_named() {
        assert!(has_mpirun(), "mpirun is missing: run `make test`");
        let output =
            run(on_rank_1("EMULATED_NCCL_BYTES=9000000000"), &prefill(&["--device", "cuda", "--backend", "nccl"]));
        refused(&output, 71, "rank 1: NCCL: ");
        let errors = text(&output.stderr);
        assert!(
            errors.contains("Failed to CUDA calloc 9000000000 bytes; the GPU has no memory for NCCL's buffers"),
            "{errors}"
        );
        assert!(errors.contains("give ranks less with --device-memory"), "{errors}");
    }

    #[test]
    #[ignore = "needs emulated GPUs: make cuda-test"]
    fn a_refusal_of_multicast_says_what_to_set() {
        assert!(has_mpirun(), "mpirun is missing: run `make test`");
        let over_nccl = prefill(&["--device", "cuda", "--backend", "nccl"]);
        let output = run(on_rank_1("EMULATED_NVLS=refused"), &over_nccl);
        refused(&output, 78, "rank 1: NCCL: ");
        assert!(text(&output.stderr).contains("set NCCL_NVLS_ENABLE=0"), "{}", text(&output.stderr));
        let without = run(on_rank_1("EMULATED_NVLS=refused NCCL_NVLS_ENABLE=0"), &over_nccl);
        assert!(without.status.success(), "{}", text(&without.stderr));
    }

    #[test]
    #[ignore = "needs emulated GPUs: make cuda-test"]
    fn a_failed_kernel_of_one_process_ends_all() {
        assert!(has_mpirun(), "mpirun is missing: run `make test`");
        let fault = tempfile::NamedTempFile::new().expect("a file");
        let variable = format!("EMULATED_FAULT_FILE={}", fault.path().display());
        let output = run(on_rank_1(&variable), &prefill(&["--device", "cuda", "--backend", "nccl"]));
        refused(&output, 70, "rank 1: ");
        let errors = text(&output.stderr);
        assert!(errors.contains("the GPU takes no more work from this process: start it again"), "{errors}");
    }

    /// A launcher with a variable for all ranks.
    fn with(variable: &str, value: &str) -> Command {
        let mut launcher = mpirun(2);
        launcher.env(variable, value);
        launcher
    }

    #[test]
    #[ignore = "needs emulated GPUs: make cuda-test"]
    fn an_old_nccl_and_one_whose_calls_block_are_refused() {
        assert!(has_mpirun(), "mpirun is missing: run `make test`");
        let over_nccl = prefill(&["--device", "cuda", "--backend", "nccl"]);
        let old = run(with("EMULATED_NCCL_VERSION", "22707"), &over_nccl);
        refused(&old, 78, "NCCL 2.27.7 is too old, 2.28.0 is the oldest that runs here");
        refused(&run(on_rank_1("NCCL_COMM_BLOCKING=1"), &over_nccl), 78, "rank 1 has NCCL_COMM_BLOCKING=1");
        let not_blocking = run(with("NCCL_COMM_BLOCKING", "0"), &over_nccl);
        assert!(not_blocking.status.success(), "{}", text(&not_blocking.stderr));
    }

    #[test]
    #[ignore = "needs emulated GPUs: make cuda-test"]
    fn more_than_two_ranks_of_one_gpu_are_refused() {
        assert!(has_mpirun(), "mpirun is missing: run `make test`");
        let mut launcher = mpirun(3);
        launcher.env("CUDA_VISIBLE_DEVICES", "0");
        let shared = prefill(&["--device", "cuda", "--backend", "nccl", "--allow-shared-gpu"]);
        refused(&run(launcher, &shared), 78, "3 ranks share GPU-");
    }

    /// Operations in the groups of all ranks: how many are broadcasts, how many messages.
    fn operations(hostname_of_rank_1: &str) -> (usize, usize) {
        let log = tempfile::NamedTempFile::new().expect("a file");
        let mut launcher = mpirun(2);
        launcher.env("EMULATED_NCCL_LOG", log.path());
        let elsewhere = format!("echo {hostname_of_rank_1} >/proc/sys/kernel/hostname; exec \"$@\"");
        let script =
            "[ $OMPI_COMM_WORLD_RANK = 1 ] || exec \"$@\"; exec unshare --map-root-user --uts sh -c \"$0\" sh \"$@\"";
        launcher.args(["sh", "-c", script, &elsewhere]);
        let method = ["--method", "infoflow:exchange=replicate"];
        let output = run(launcher, &prefill(&[&["--device", "cuda", "--backend", "nccl"][..], &method].concat()));
        assert!(output.status.success(), "{}", text(&output.stderr));
        let log = std::fs::read_to_string(log.path()).expect("the log");
        // The first five groups of a rank connect it with the others, in every way.
        let number = |line: &&str| line.split(' ').nth(3)?.trim_end_matches(':').parse::<u32>().ok();
        let groups: Vec<&str> = log.lines().filter(|line| number(line).is_some_and(|number| number > 5)).collect();
        let count = |word| groups.iter().map(|group| group.matches(word).count()).sum::<usize>();
        (count("broadcast "), count("send "))
    }

    #[test]
    #[ignore = "needs emulated GPUs: make cuda-test"]
    fn ranks_on_several_hosts_gather_by_broadcasts() {
        assert!(has_mpirun(), "mpirun is missing: run `make test`");
        let here = std::fs::read_to_string("/proc/sys/kernel/hostname").expect("a name");
        let (broadcasts, messages) = operations(here.trim());
        assert!(broadcasts == 0 && messages > 0, "one host: {broadcasts} broadcasts, {messages} messages");
        let (broadcasts, messages) = operations("elsewhere");
        assert!(broadcasts > 0 && messages == 0, "two hosts: {broadcasts} broadcasts, {messages} messages");
    }

    #[test]
    #[ignore = "needs emulated GPUs: make cuda-test"]
    fn ranks_with_different_versions_of_nccl_are_refused() {
        assert!(has_mpirun(), "mpirun is missing: run `make test`");
        let output =
            run(on_rank_1("EMULATED_NCCL_VERSION=22807"), &prefill(&["--device", "cuda", "--backend", "nccl"]));
        refused(&output, 78, "rank 0 runs NCCL 2.30.7, rank 1 2.28.7: make them equal");
    }
}
