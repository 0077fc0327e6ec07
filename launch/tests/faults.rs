//! Failures of ranks, by real signals and in every phase: the whole job ends in time, with its exit code and its cause, and
//! leaves no process behind. Built with the features `mpi` and `failpoints`.

mod kit;

use std::time::{Duration, Instant};

use kit::job::{Ended, Fault, Job, LONG_MS, signal};
use kit::{demo, request};
use rustix::process::Signal;

/// The collectives' deadline in these tests, in seconds.
const DEADLINE_S: u64 = 2;

/// What the issue of a failure may take beyond the deadline.
const SLACK: Duration = Duration::from_secs(5);

const WORLD: usize = 4;

/// A prefill that passes through every phase.
fn arguments<'a>(model: &'a str, request: &'a str, deadline: &'a str) -> Vec<&'a str> {
    vec![
        "prefill",
        "--model",
        model,
        "--request",
        request,
        "--reorder",
        "--max-tokens",
        "8",
        "--collective-timeout",
        deadline,
        "--start-timeout",
        "5",
    ]
}

/// Runs a job whose `rank` is held in `phase` by a failpoint, and sends it a signal there; the end and how long it took.
fn strike(rank: usize, phase: &str, with: Signal) -> (Ended, Duration) {
    let failpoint = match phase {
        "start" | "load" => format!("launch::{phase}=sleep({LONG_MS})"),
        _ => format!("worker::{phase}=sleep({LONG_MS})"),
    };
    strike_at(Fault { rank, failpoint: &failpoint }, rank, phase, with)
}

fn strike_at(fault: Fault<'_>, rank: usize, phase: &str, with: Signal) -> (Ended, Duration) {
    let (model, request, deadline) = (demo(), request("hop2-0"), DEADLINE_S.to_string());
    let mut job = Job::start(WORLD, Some(fault), &arguments(&model, &request, &deadline));
    let pid = job.enters(rank, phase);
    std::thread::sleep(Duration::from_millis(200));
    let struck = Instant::now();
    signal(pid, with);
    let ended = job.end();
    let took = ended.at - struck;
    println!(
        "rank {rank}, {phase}, {with:?}: exit {} after {:.2} s: {}",
        ended.code,
        took.as_secs_f64(),
        ended.cause()
    );
    (ended, took)
}

/// One line of ours, which says of this rank alone that it does not answer.
fn only_rank_is_silent(rank: usize, ended: &Ended) {
    let errors = &ended.errors;
    assert_eq!(ended.causes(), 1, "{errors:#?}");
    assert_eq!(ended.cause().matches("does not answer").count(), 1, "{errors:#?}");
    assert!(ended.cause().contains(&format!("rank {rank} does not answer")), "{errors:#?}");
}

/// The deadline that has passed, as the cause names it: at least what was asked for, at most ten times the plan's estimate
/// of some seconds.
fn deadline(ended: &Ended) -> Duration {
    let text = ended.cause().split("not finished after ").nth(1).or(ended.cause().split("within ").nth(1));
    let seconds = text.and_then(|text| text.split(['s', ';']).next()?.parse().ok()).expect("a deadline in the cause");
    let named = Duration::from_secs_f64(seconds);
    assert!((Duration::from_secs(DEADLINE_S)..Duration::from_secs(10)).contains(&named), "{named:?}");
    named
}

/// Every phase that a rank passes through, start to decoding.
const PHASES: [&str; 10] =
    ["start", "load", "dispatch", "chunk_prefill", "reorder", "probe", "select", "recompute", "first_token", "decode"];

#[test]
fn a_killed_rank_ends_the_job_in_every_phase() {
    for phase in PHASES {
        let (ended, took) = strike(2, phase, Signal::KILL);
        assert!(took < SLACK, "{phase}: {took:?}");
        assert_eq!(ended.code, 137, "{phase}: bare mpirun reports the killed rank: {:#?}", ended.errors);
        if phase != "start" {
            // Before the ranks have met, nobody but mpirun knows whom it has lost.
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
fn a_stopped_rank_ends_the_job_in_every_phase() {
    for phase in PHASES {
        let (ended, took) = strike(2, phase, Signal::STOP);
        assert!(took < deadline(&ended) + SLACK, "{phase}: {took:?}");
        assert_eq!(ended.code, 75, "{phase}: {:#?}", ended.errors);
        let cause = ended.cause();
        assert!(cause.starts_with("tributary: "), "{phase}: {:#?}", ended.errors);
        if phase != "start" {
            only_rank_is_silent(2, &ended);
        }
    }
}

#[test]
fn an_idle_rank_is_missed_too() {
    for (with, code) in [(Signal::KILL, 137), (Signal::STOP, 75)] {
        // The coordinator is busy before it has a plan: the ranks wait for rank 0's ticks.
        let fault = Fault { rank: 0, failpoint: &format!("launch::request=sleep({LONG_MS})") };
        let (ended, took) = strike_at(fault, 2, "idle", with);
        assert_eq!(ended.code, code, "{:#?}", ended.errors);
        assert!(took < Duration::from_secs(DEADLINE_S) + SLACK, "{took:?}");
        match with {
            Signal::KILL => assert!(ended.cause().starts_with("tributary: rank 2 (process "), "{:#?}", ended.errors),
            _ => only_rank_is_silent(2, &ended),
        }
    }
}

#[test]
fn the_coordinators_rank_and_the_last_one_are_no_exception() {
    for rank in [0, 3] {
        let (ended, took) = strike(rank, "recompute", Signal::KILL);
        assert_eq!(ended.code, 137, "{:#?}", ended.errors);
        assert!(took < SLACK, "{took:?}");
        assert!(ended.cause().contains(&format!("rank {rank} (process ")), "{:#?}", ended.errors);
        let (ended, took) = strike(rank, "recompute", Signal::STOP);
        assert_eq!(ended.code, 75, "{:#?}", ended.errors);
        assert!(took < deadline(&ended) + SLACK, "{took:?}");
        only_rank_is_silent(rank, &ended);
    }
}

#[test]
fn a_pause_shorter_than_the_deadline_is_survived_and_shown() {
    let (model, request) = (demo(), request("hop2-0"));
    let mut arguments = arguments(&model, &request, "10");
    arguments.push("--json");
    let fault = Fault { rank: 2, failpoint: "worker::recompute=sleep(300)" };
    let mut job = Job::start(WORLD, Some(fault), &arguments);
    let pid = job.enters(2, "recompute");
    signal(pid, Signal::STOP);
    std::thread::sleep(Duration::from_millis(1500));
    signal(pid, Signal::CONT);
    let ended = job.end();
    assert_eq!(ended.code, 0, "{:#?}", ended.errors);
    let report: serde_json::Value = serde_json::from_str(&ended.stdout).expect("JSON");
    let threads = ["--world-size", "4"];
    let alone = kit::json(&[&arguments[..], &threads].concat());
    assert_eq!(report["answer"], alone["answer"]);
    let phases = report["phases"].as_array().expect("phases");
    let recompute = phases.iter().find(|row| row["phase"] == "recompute").expect("it happened");
    assert_eq!(recompute["slowest_rank"], 2, "{recompute}");
    assert!(recompute["slowest_ms"].as_f64().expect("a time") > 1400.0, "{recompute}");
    let notes = report["notes"].to_string();
    assert!(notes.contains("straggler: rank 2 in recompute"), "{notes}");
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
        let mut job = Job::start(WORLD, Some(fault), &arguments(&model, &request, "5"));
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
    let cases = [
        ("comm::mpi::version=return", 76, "the ranks run different versions of this program: rank 0: protocol 2"),
        ("launch::build=return(0.0.9 abc)", 76, "the ranks do not agree on build"),
        ("launch::model=return(other)", 78, "the ranks do not agree on model"),
        ("launch::config=return(other)", 78, "the ranks do not agree on config"),
    ];
    for (failpoint, code, text) in cases {
        let began = Instant::now();
        let job = Job::start(WORLD, Some(Fault { rank: 2, failpoint }), &arguments(&model, &request, "5"));
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
    // The fault stands in for a folder that is missing on that rank's host.
    let fault = Fault { rank: 2, failpoint: "launch::folder=return(/no/such/folder)" };
    let ended = Job::start(WORLD, Some(fault), &arguments(&model, &request, "5")).end();
    assert_eq!(ended.code, 64, "{:#?}", ended.errors);
    assert!(ended.cause().starts_with("tributary: rank 2: cannot read /no/such/folder"), "{:#?}", ended.errors);
    assert!(ended.at - began < Duration::from_secs(20));
}

#[test]
fn a_rank_that_panics_ends_all() {
    let (model, request) = (demo(), request("hop2-0"));
    let fault = Fault { rank: 1, failpoint: "worker::probe=panic" };
    let ended = Job::start(WORLD, Some(fault), &arguments(&model, &request, "5")).end();
    assert_eq!(ended.code, 70, "{:#?}", ended.errors);
    assert!(ended.cause().contains("the rank's thread panicked"), "{:#?}", ended.errors);
}

#[test]
fn the_watchdog_ends_what_no_deadline_ends() {
    // All work is done, but one rank never leaves MPI: the others stand in a call of MPI's own.
    let (model, request) = (demo(), request("hop2-0"));
    let fault = Fault { rank: 2, failpoint: &format!("comm::mpi::leave=sleep({LONG_MS})") };
    let began = Instant::now();
    let ended = Job::start(WORLD, Some(fault), &arguments(&model, &request, "2")).end();
    assert_eq!(ended.code, 75, "{:#?}", ended.errors);
    assert!(ended.cause().contains("leaving MPI not finished after 2s"), "{:#?}", ended.errors);
    assert!(ended.at - began < Duration::from_secs(2) + SLACK + SLACK, "start, work, deadline");
}

/// A prefill by `tributary launch` whose ranks rest at `phase`; what comes of a signal sent to the process that `whom` names.
fn launched(options: &[&str], phase: &str, with: Signal, whom: impl Fn(&Job, u32) -> u32) -> (Ended, Duration) {
    let (model, request) = (demo(), request("hop2-0"));
    let failpoint = format!("worker::{phase}=sleep(2500)");
    let mut job = Job::launch(&failpoint, options, &arguments(&model, &request, "3"));
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
    assert!(took < deadline(&ended) + SLACK, "{took:?}");
    assert!(ended.first_line().contains("rank 2 does not answer"), "{:#?}", ended.errors);
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
fn a_rank_stopped_in_the_middle_of_a_transfer_is_the_one_that_is_named() {
    // A rest after every piece makes one all-gather of 256 MiB last for seconds.
    let fault = Fault { rank: 2, failpoint: "comm::mpi::piece=sleep(100)" };
    let arguments = ["doctor", "--skip-checks", "--sizes", "256MiB", "--collective-timeout", "4"];
    let mut job = Job::start(WORLD, Some(fault), &arguments);
    let pid = job.enters(2, "load");
    std::thread::sleep(Duration::from_millis(1500));
    signal(pid, Signal::STOP);
    let ended = job.end();
    assert_eq!(ended.code, 75, "{:#?}", ended.errors);
    only_rank_is_silent(2, &ended);
}

#[test]
fn a_failure_is_told_although_the_main_thread_is_busy() {
    let (model, request) = (demo(), request("hop2-0"));
    let fault = Fault { rank: 0, failpoint: &format!("launch::request=sleep({LONG_MS})") };
    let mut job = Job::start(2, Some(fault), &arguments(&model, &request, "2"));
    let pid = job.enters(1, "idle");
    std::thread::sleep(Duration::from_millis(200));
    let struck = Instant::now();
    signal(pid, Signal::STOP);
    let ended = job.end();
    assert_eq!(ended.code, 75, "{:#?}", ended.errors);
    assert!(ended.at - struck < deadline(&ended) + SLACK, "{:?}", ended.at - struck);
    only_rank_is_silent(1, &ended);
}

#[test]
fn output_may_take_longer_than_a_collective() {
    let (model, request) = (demo(), request("hop2-0"));
    let fault = Fault { rank: 0, failpoint: "launch::output=sleep(4000)" };
    let ended = Job::start(2, Some(fault), &arguments(&model, &request, "2")).end();
    assert_eq!(ended.code, 0, "{:#?}", ended.errors);
    assert!(ended.stdout.contains("answer:"), "{}", ended.stdout);
}

#[test]
fn loading_has_a_deadline() {
    let (model, request) = (demo(), request("hop2-0"));
    let fault = Fault { rank: 1, failpoint: &format!("launch::load=sleep({LONG_MS})") };
    let began = Instant::now();
    let ended = Job::start(2, Some(fault), &arguments(&model, &request, "2")).end();
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
