//! Failures of ranks, by real signals and in every phase: the whole job ends in time, with its exit
//! code and its cause, and no process is left. Ranks that are silent or stuck are in `silence.rs`.
//! Built with the features `mpi` and `failpoints`.

mod kit;

use std::time::{Duration, Instant};

use kit::job::{Ended, Fault, Job, LONG_MS, signal};
use kit::strike::{HEARTBEAT, PHASES, SLACK, WORLD, arguments, only_rank_is_silent, strike, strike_at};
use kit::{demo, request};
use rustix::process::Signal;

#[test]
fn a_killed_rank_ends_the_job_in_every_phase() {
    for phase in PHASES {
        let (ended, took) = strike(2, phase, Signal::KILL);
        assert!(took < SLACK, "{phase}: {took:?}");
        assert_eq!(ended.code, 137, "{phase}: bare mpirun reports the killed rank: {:#?}", ended.errors);
        if phase != "start" {
            // Before the ranks have met, only mpirun knows the lost rank.
            let cause = ended.cause();
            assert!(
                cause.starts_with("tributary: rank 2 (process ") && cause.ends_with("has died"),
                "{phase}: {:#?}",
                ended.errors
            );
        }
    }
}

#[test]
fn an_idle_rank_is_missed_too() {
    for (with, code) in [(Signal::KILL, 137), (Signal::STOP, 75)] {
        // The coordinator is busy before it has a plan: the ranks wait for rank 0's ticks.
        let fault = Fault { rank: 0, failpoint: &format!("engine::request=sleep({LONG_MS})") };
        let (ended, took) = strike_at(fault, 2, "idle", with);
        assert_eq!(ended.code, code, "{:#?}", ended.errors);
        assert!(took < HEARTBEAT + SLACK, "{took:?}");
        match with {
            Signal::KILL => assert!(ended.cause().starts_with("tributary: rank 2 (process "), "{:#?}", ended.errors),
            _ => only_rank_is_silent(2, "idle", &ended),
        }
    }
}

#[test]
fn the_first_rank_and_the_last_one_are_no_exception() {
    for rank in [0, 3] {
        let (ended, took) = strike(rank, "recompute", Signal::KILL);
        assert_eq!(ended.code, 137, "{:#?}", ended.errors);
        assert!(took < SLACK, "{took:?}");
        assert!(ended.cause().contains(&format!("rank {rank} (process ")), "{:#?}", ended.errors);
    }
}

#[test]
fn signals_end_all_ranks_with_their_own_codes() {
    for (with, code) in [(Signal::TERM, 143), (Signal::INT, 130)] {
        let fault = Fault { rank: 1, failpoint: &format!("worker::probe=sleep({LONG_MS})") };
        let (ended, took) = strike_at(fault, 1, "probe", with);
        assert_eq!(ended.code, code, "{:#?}", ended.errors);
        assert!(took < SLACK, "{took:?}");
    }
    // The same for mpirun itself, which passes it on.
    for with in [Signal::TERM, Signal::INT] {
        let (model, request) = (demo(), request("hop2-0"));
        let fault = Fault { rank: 1, failpoint: &format!("worker::probe=sleep({LONG_MS})") };
        let mut job = Job::start(WORLD, Some(fault), &arguments(&model, &request, &[]));
        job.enters(1, "probe");
        let struck = Instant::now();
        signal(job.pid(), with);
        let ended = job.end();
        println!("mpirun, {with:?}: exit {} after {:?}", ended.code, ended.at - struck);
        assert_ne!(ended.code, 0, "{:#?}", ended.errors);
        assert!(ended.at - struck < SLACK);
    }
}

#[test]
fn ranks_that_differ_say_how() {
    let (model, request) = (demo(), request("hop2-0"));
    let versions = format!(
        "the ranks run different versions of this program: rank 0: protocol {}",
        tributary_protocol::PROTOCOL_VERSION
    );
    let cases = [
        ("comm::mpi::version=return", 76, versions.as_str()),
        ("engine::build=return(0.0.9 abc)", 76, "the ranks do not agree on build"),
        ("engine::model=return(other)", 78, "the ranks do not agree on model"),
        ("engine::config=return(other)", 78, "the ranks do not agree on config"),
    ];
    for (failpoint, code, text) in cases {
        let began = Instant::now();
        let job = Job::start(WORLD, Some(Fault { rank: 2, failpoint }), &arguments(&model, &request, &[]));
        let ended = job.end();
        assert_eq!(ended.code, code, "{failpoint}: {:#?}", ended.errors);
        assert!(ended.cause().starts_with(&format!("tributary: {text}")), "{failpoint}: {:#?}", ended.errors);
        assert!(ended.at - began < Duration::from_secs(20));
        assert_eq!(ended.causes(), 1, "one rank says it: {:#?}", ended.errors);
    }
}

#[test]
fn a_model_that_one_rank_cannot_read_ends_all() {
    let (model, request) = (demo(), request("hop2-0"));
    let began = Instant::now();
    // The fault simulates a folder that is missing on that rank's host.
    let fault = Fault { rank: 2, failpoint: "engine::folder=return(/no/such/folder)" };
    let ended = Job::start(WORLD, Some(fault), &arguments(&model, &request, &[])).end();
    assert_eq!(ended.code, 64, "{:#?}", ended.errors);
    assert!(ended.cause().starts_with("tributary: rank 2: cannot read /no/such/folder"), "{:#?}", ended.errors);
    assert!(ended.at - began < Duration::from_secs(20));
}

#[test]
fn a_rank_that_panics_ends_all() {
    let (model, request) = (demo(), request("hop2-0"));
    let fault = Fault { rank: 1, failpoint: "worker::probe=panic" };
    let ended = Job::start(WORLD, Some(fault), &arguments(&model, &request, &[])).end();
    assert_eq!(ended.code, 70, "{:#?}", ended.errors);
    assert!(ended.cause().contains("the rank's thread panicked"), "{:#?}", ended.errors);
}

#[test]
fn the_watchdog_ends_what_no_deadline_ends() {
    // All work is done, but one rank never leaves MPI: the others wait in a call of MPI's own.
    let (model, request) = (demo(), request("hop2-0"));
    let fault = Fault { rank: 2, failpoint: &format!("comm::mpi::leave=sleep({LONG_MS})") };
    let began = Instant::now();
    let ended = Job::start(WORLD, Some(fault), &arguments(&model, &request, &[])).end();
    assert_eq!(ended.code, 75, "{:#?}", ended.errors);
    assert!(ended.cause().contains("leaving MPI not finished after 2s"), "the heartbeat timeout: {:#?}", ended.errors);
    assert!(ended.at - began < Duration::from_secs(2) + SLACK + SLACK, "start, work, deadline");
}

/// A prefill by `tributary launch` whose ranks rest at `phase`; gives the outcome of a signal to
/// the process that `whom` names.
fn launched(options: &[&str], phase: &str, with: Signal, whom: impl Fn(&Job, u32) -> u32) -> (Ended, Duration) {
    let (model, request) = (demo(), request("hop2-0"));
    let failpoint = format!("worker::{phase}=sleep(2500)");
    let mut job = Job::launch(&failpoint, options, &arguments(&model, &request, &[]));
    let rank_2 = job.enters(2, phase);
    std::thread::sleep(Duration::from_millis(200));
    let struck = Instant::now();
    signal(whom(&job, rank_2), with);
    let ended = job.end();
    let took = ended.at - struck;
    println!(
        "launch {options:?}, {phase}, {with:?}: exit {} after {:.2} s: {}",
        ended.code,
        took.as_secs_f64(),
        ended.first_line()
    );
    (ended, took)
}

#[test]
fn launch_names_the_cause_first_and_maps_the_exit_code() {
    for phase in ["chunk_prefill", "recompute", "decode"] {
        let (ended, took) = launched(&["-n", "4"], phase, Signal::KILL, |_, rank_2| rank_2);
        assert_eq!(ended.code, 69, "{:#?}", ended.errors);
        assert!(took < SLACK, "{took:?}");
        let first = ended.first_line();
        assert!(first.starts_with("tributary: rank 2 ") && first.ends_with("has died"), "{:#?}", ended.errors);
        assert_eq!(ended.errors.len(), 1, "{:#?}", ended.errors);
    }
    let (ended, took) = launched(&["-n", "4"], "recompute", Signal::STOP, |_, rank_2| rank_2);
    assert_eq!(ended.code, 75, "{:#?}", ended.errors);
    assert!(took < HEARTBEAT + SLACK, "{took:?}");
    only_rank_is_silent(2, "recompute", &ended);
}

#[test]
fn launch_passes_signals_on() {
    for (with, code) in [(Signal::TERM, 143), (Signal::INT, 130)] {
        let (ended, took) = launched(&["-n", "4"], "probe", with, |job, _| job.pid());
        assert_eq!(ended.code, code, "{:#?}", ended.errors);
        assert!(took < SLACK, "{took:?}");
    }
    let (ended, took) = launched(&["-n", "4"], "probe", Signal::KILL, |job, _| job.pid());
    assert_eq!(ended.code, 137, "launch itself was killed; the ranks have gone with it");
    assert!(took < SLACK, "{took:?}");
}

#[test]
fn launch_starts_a_failed_job_again() {
    let (ended, _) = launched(&["-n", "4", "--restarts", "1"], "probe", Signal::KILL, |_, rank_2| rank_2);
    assert_eq!(ended.code, 0, "{:#?}", ended.errors);
    assert!(ended.stdout.contains("answer:"), "{}", ended.stdout);
    assert!(ended.errors[1].starts_with("tributary: attempt 2 of 2 after: "), "{:#?}", ended.errors);
}

#[test]
fn a_failure_is_told_although_the_main_thread_is_busy() {
    let (model, request) = (demo(), request("hop2-0"));
    let fault = Fault { rank: 0, failpoint: &format!("engine::request=sleep({LONG_MS})") };
    let mut job = Job::start(2, Some(fault), &arguments(&model, &request, &[]));
    let pid = job.enters(1, "idle");
    std::thread::sleep(Duration::from_millis(200));
    let struck = Instant::now();
    signal(pid, Signal::STOP);
    let ended = job.end();
    assert_eq!(ended.code, 75, "{:#?}", ended.errors);
    assert!(ended.at - struck < HEARTBEAT + SLACK, "{:?}", ended.at - struck);
    only_rank_is_silent(1, "idle", &ended);
}

#[test]
fn output_may_take_longer_than_every_timeout() {
    let (model, request) = (demo(), request("hop2-0"));
    let fault = Fault { rank: 0, failpoint: "launch::output=sleep(4000)" };
    let arguments = arguments(&model, &request, &["--collective-timeout", "2"]);
    let ended = Job::start(2, Some(fault), &arguments).end();
    assert_eq!(ended.code, 0, "{:#?}", ended.errors);
    assert!(ended.stdout.contains("answer:"), "{}", ended.stdout);
}

#[test]
fn loading_has_a_deadline() {
    let (model, request) = (demo(), request("hop2-0"));
    let fault = Fault { rank: 1, failpoint: &format!("engine::load=sleep({LONG_MS})") };
    let began = Instant::now();
    let ended = Job::start(2, Some(fault), &arguments(&model, &request, &[])).end();
    assert_eq!(ended.code, 75, "{:#?}", ended.errors);
    assert!(ended.at - began < Duration::from_secs(5) + SLACK + SLACK, "{:#?}", ended.errors);
    assert!(ended.cause().contains("waiting for ranks [1]: rank 1 computes"), "{:#?}", ended.errors);
}

#[test]
fn processes_that_were_started_for_different_work_say_so() {
    let mut launcher = kit::job::mpirun(1);
    let program = env!("CARGO_BIN_EXE_tributary");
    launcher.args([program, "doctor", "--skip-checks", "--sizes", "1MiB", ":", "-n", "1", program, "doctor"]);
    launcher.args(["--skip-checks", "--sizes", "1MiB,2MiB"]);
    let ended = Job::run(launcher).end();
    assert_eq!(ended.code, 70, "{:#?}", ended.errors);
    assert!(ended.cause().contains("measures"), "{:#?}", ended.errors);
}

#[test]
fn a_request_that_fails_is_listed_counts_as_wrong_and_is_asked_once_more() {
    let folder = tempfile::tempdir().expect("a folder");
    let (rows, out) = (folder.path().join("codes.jsonl"), folder.path().join("out"));
    let row = "{\"chunks\": [\"passage code of lamp is 1 2 3 .\", \"passage a dog sits .\"], \"question\": \"question : code of lamp is\", \
        \"references\": [\"1\"], \"metric\": \"begins_with\", \"max_tokens\": 1}\n";
    std::fs::write(&rows, row.repeat(3)).expect("written");
    let asked = |failpoint: &str, more: &[&str]| {
        let (suite, model, shown) = (rows.display().to_string(), demo(), out.display().to_string());
        let fixed = ["quality", "--suite", &suite, "--model", &model, "--methods", "infoflow", "--out", &shown];
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_tributary"));
        let output = command.args(fixed).args(more).env("FAILPOINTS", failpoint).output().expect("the command starts");
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        let report = std::fs::read_to_string(out.join("report.json")).expect("a report");
        let table = std::fs::read_to_string(out.join("answers.csv")).expect("a table");
        (String::from_utf8_lossy(&output.stdout).into_owned(), serde_json::from_str(&report).expect("JSON"), table)
    };
    // One token an answer, full prefill first: the third is full prefill's of the second row.
    let (printed, report, table): (String, serde_json::Value, String) =
        asked("worker::logits=2*off->1*return->off", &[]);
    assert!(printed.contains("# 1 requests got no answer:\n#   codes, request 1, full: "), "{printed}");
    let failures = report["failures"].as_array().expect("failures");
    assert_eq!((failures.len(), &failures[0]["sample"], &failures[0]["method"]), (1, &1.into(), &"full".into()));
    let of = |report: &serde_json::Value, method: &str| -> serde_json::Value {
        let points = report["points"].as_array().expect("points");
        points.iter().find(|point| point["method"] == method && point["task"] == "all").expect("a point").clone()
    };
    let full = of(&report, "full");
    assert_eq!((&full["requests"], &full["failures"]), (&3.into(), &1.into()), "it is not dropped");
    assert!((full["score"]["mean"].as_f64().expect("a mean") - 2.0 / 3.0).abs() < 1e-9, "{full}");
    let near = &of(&report, "infoflow")["agreement"];
    assert_eq!(near["requests"], 2, "requests that both have answered: {near}");
    assert!(table.lines().count() == 1 + 6 && table.contains("NaN"), "{table}");

    let (printed, report, _) = asked("", &["--resume"]);
    assert!(printed.contains("5 of them were there before") && !printed.contains("got no answer"), "{printed}");
    assert_eq!((&of(&report, "full")["score"]["mean"], &report["failures"]), (&1.0.into(), &serde_json::json!([])));
}
