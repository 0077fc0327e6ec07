//! Failures of ranks, by real signals and in every phase: the whole job ends in time, with its exit code and its cause, and
//! leaves no process behind. Built with the features `mpi` and `failpoints`.

mod kit;

use std::process::Command;
use std::time::{Duration, Instant};

use kit::job::{Ended, Fault, Job, LONG_MS, launch_with_fault, launchers, shell, signal};
use kit::{demo, request};
use rustix::process::Signal;

/// How long a process may be silent in these tests, in seconds.
const HEARTBEAT_S: u64 = 2;
const HEARTBEAT: Duration = Duration::from_secs(HEARTBEAT_S);

/// What the end of a job may take beyond the timeout.
const SLACK: Duration = Duration::from_secs(5);

const WORLD: usize = 4;

/// A prefill that passes through every phase, and options behind it. The timeout of collectives is long: a rank that is gone
/// must be noticed long before it.
fn arguments<'a>(model: &'a str, request: &'a str, options: &[&'a str]) -> Vec<&'a str> {
    let mut all = vec!["prefill", "--model", model, "--request", request, "--reorder", "--max-tokens", "8"];
    all.extend(["--collective-timeout", "60", "--heartbeat-timeout", "2", "--start-timeout", "5"]);
    // What comes later counts.
    for pair in options.chunks(2) {
        match all.iter().position(|known| *known == pair[0]) {
            Some(place) => all[place + 1] = pair[1],
            None => all.extend(pair),
        }
    }
    all
}

/// A failpoint that holds a rank in a phase.
fn held_in(phase: &str) -> String {
    match phase {
        "start" | "load" => format!("launch::{phase}=sleep({LONG_MS})"),
        _ => format!("worker::{phase}=sleep({LONG_MS})"),
    }
}

/// Runs a job whose `rank` is held in `phase` by a failpoint, and sends it a signal there; the end and how long it took.
fn strike(rank: usize, phase: &str, with: Signal) -> (Ended, Duration) {
    strike_at(Fault { rank, failpoint: &held_in(phase) }, rank, phase, with)
}

fn strike_at(fault: Fault<'_>, rank: usize, phase: &str, with: Signal) -> (Ended, Duration) {
    let (model, request) = (demo(), request("hop2-0"));
    let job = Job::start(WORLD, Some(fault), &arguments(&model, &request, &[]));
    strike_job(job, rank, phase, with)
}

/// Sends a signal to a rank of a job as soon as it is in a phase; the end and how long it took.
fn strike_job(mut job: Job, rank: usize, phase: &str, with: Signal) -> (Ended, Duration) {
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

/// One line of ours, which names this rank alone as silent, with its process, its host and the phase that it was in.
fn only_rank_is_silent(rank: usize, phase: &str, ended: &Ended) {
    let (errors, cause) = (&ended.errors, ended.cause());
    assert_eq!(ended.causes(), 1, "{errors:#?}");
    assert!(cause.starts_with(&format!("tributary: rank {rank} (process ")), "{errors:#?}");
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let said = format!(" on {host}) has been silent for 2s; rank {rank} said last that it ");
    assert!(cause.contains(&said), "{said}: {errors:#?}");
    assert_eq!(cause.matches("silent").count(), 1, "{errors:#?}");
    // A rank is in the phase `start` until it serves.
    let phase = if phase == "load" { "start" } else { phase };
    assert!(cause.contains(&format!(" in {phase}")) || cause.contains(&format!(", {phase})")), "{phase}: {errors:#?}");
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

/// The ways to start a job of `world` ranks, one of which has a fault.
fn starters(world: usize, fault: &Fault<'_>, arguments: &[&str]) -> Vec<(&'static str, Command)> {
    let mut all = launchers(world);
    for (_, launcher) in &mut all {
        launcher.args(shell(Some(fault))).arg(env!("CARGO_BIN_EXE_tributary")).args(arguments);
    }
    all.push(("tributary launch", launch_with_fault(world, fault, arguments)));
    all
}

#[test]
fn a_stopped_rank_ends_the_job_in_every_phase_under_every_launcher() {
    let (model, request) = (demo(), request("hop2-0"));
    let arguments = arguments(&model, &request, &[]);
    // Nine phases of a middle rank, three of the first and the last; the launchers take turns.
    let phases = PHASES[1..].iter().map(|phase| (2, *phase));
    let cases: Vec<_> = phases.chain([(0, "recompute"), (3, "chunk_prefill"), (0, "decode")]).collect();
    assert_eq!(cases.len(), 12);
    for (number, (rank, phase)) in cases.into_iter().enumerate() {
        let failpoint = held_in(phase);
        let mut starters = starters(WORLD, &Fault { rank, failpoint: &failpoint }, &arguments);
        let turn = number % starters.len();
        let (name, starter) = starters.swap_remove(turn);
        let (ended, took) = strike_job(Job::run(starter), rank, phase, Signal::STOP);
        assert!(took < HEARTBEAT + SLACK, "{name}, {phase}: {took:?}");
        assert_eq!(ended.code, 75, "{name}, {phase}: {:#?}", ended.errors);
        only_rank_is_silent(rank, phase, &ended);
    }
}

#[test]
fn a_rank_that_is_stopped_before_it_has_met_the_others_ends_the_start() {
    let (ended, took) = strike(2, "start", Signal::STOP);
    assert!(took < Duration::from_secs(5) + SLACK, "the start's own limit: {took:?}");
    assert_eq!(ended.code, 75, "{:#?}", ended.errors);
    assert!(ended.cause().starts_with("tributary: "), "{:#?}", ended.errors);
}

#[test]
fn an_idle_rank_is_missed_too() {
    for (with, code) in [(Signal::KILL, 137), (Signal::STOP, 75)] {
        // The coordinator is busy before it has a plan: the ranks wait for rank 0's ticks.
        let fault = Fault { rank: 0, failpoint: &format!("launch::request=sleep({LONG_MS})") };
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
fn a_rank_that_spins_in_a_layer_ends_the_job() {
    let (model, request) = (demo(), request("hop2-0"));
    let began = Instant::now();
    // Busy, alive and never further: the third layer that rank 1 begins.
    let fault = Fault { rank: 1, failpoint: &format!("worker::layer=2*off->delay({LONG_MS})") };
    let arguments = arguments(&model, &request, &["--collective-timeout", "2"]);
    let ended = Job::start(WORLD, Some(fault), &arguments).end();
    assert_eq!(ended.code, 75, "{:#?}", ended.errors);
    assert!(ended.at - began < Duration::from_secs(2) + SLACK + SLACK, "start and the timeout");
    let cause = ended.cause();
    assert!(cause.starts_with("tributary: rank 1 (process "), "{:#?}", ended.errors);
    assert!(cause.contains(") is stuck: it computes layer 2 in chunk_prefill of request 1, 2."), "{cause}");
    assert!(cause.ends_with("; a step may take 2s (--collective-timeout)"), "{cause}");
    assert_eq!(ended.causes(), 1, "{:#?}", ended.errors);
}

#[test]
fn a_thread_that_spins_in_a_layer_ends_the_process() {
    let (model, request) = (demo(), request("hop2-0"));
    for world in ["1", "3"] {
        let arguments = arguments(&model, &request, &["--collective-timeout", "2", "--world-size", world]);
        let mut command = Command::new(env!("CARGO_BIN_EXE_tributary"));
        command.args(&arguments).env("FAILPOINTS", format!("worker::layer=5*off->1*delay({LONG_MS})->off"));
        let began = Instant::now();
        let ended = Job::run(command).end();
        let took = ended.at - began;
        println!("{world} threads: exit {} after {took:.1?}: {}", ended.code, ended.cause());
        assert_eq!(ended.code, 75, "{:#?}", ended.errors);
        assert!(took < Duration::from_secs(2) + SLACK, "{took:?}");
        let cause = ended.cause();
        assert!(
            cause.contains(" is stuck: it computes layer ") && cause.ends_with(" (--collective-timeout)"),
            "{cause}"
        );
        assert_eq!(ended.causes(), 1, "{:#?}", ended.errors);
    }
}

#[test]
fn a_rank_whose_layers_are_all_slow_is_waited_for() {
    let (model, request) = (demo(), request("hop2-0"));
    // Twenty times as slow as it would be and more, from the first layer on; the others wait longer than the timeout.
    let fault = Fault { rank: 1, failpoint: "worker::layer=sleep(400)" };
    let arguments = arguments(&model, &request, &["--collective-timeout", "1", "--max-tokens", "1"]);
    let began = Instant::now();
    let ended = Job::start(2, Some(fault), &[&arguments[..], &["--json"]].concat()).end();
    assert_eq!(ended.code, 0, "{:#?}", ended.errors);
    assert!(ended.at - began > Duration::from_secs(4), "it was slow");
    let report: serde_json::Value = serde_json::from_str(&ended.stdout).expect("JSON");
    assert!(report["notes"].to_string().contains("straggler: rank 1"), "{report}");
}

#[test]
fn a_process_that_gives_no_signs_of_life_is_ended_although_it_runs() {
    let (model, request) = (demo(), request("hop2-0"));
    let fault = Fault { rank: 1, failpoint: &format!("comm::mpi::beat=return;worker::probe=sleep({LONG_MS})") };
    let ended = Job::start(2, Some(fault), &arguments(&model, &request, &[])).end();
    assert_eq!(ended.code, 75, "{:#?}", ended.errors);
    assert!(ended.cause().contains("rank 1 has never been heard"), "{:#?}", ended.errors);
}

#[test]
fn ranks_that_all_wait_for_each_other_end_the_job() {
    let (model, request) = (demo(), request("hop2-0"));
    // One call of rank 1 gets lost on its way, whichever that is: nobody is silent, nobody computes, and nothing will come.
    let fault = Fault { rank: 1, failpoint: "comm::mpi::lose=12*off->1*return->off" };
    let arguments = arguments(&model, &request, &["--collective-timeout", "2"]);
    let began = Instant::now();
    let ended = Job::start(WORLD, Some(fault), &arguments).end();
    assert_eq!(ended.code, 75, "{:#?}", ended.errors);
    assert!(ended.at - began < Duration::from_secs(2) + SLACK + SLACK, "start and the timeout");
    let cause = ended.cause();
    assert!(cause.contains(" not finished after 2s; waiting for ranks [1]: rank 1 waits for "), "{:#?}", ended.errors);
    assert_eq!(ended.causes(), 1, "{:#?}", ended.errors);
}

#[test]
fn a_stop_shorter_than_the_timeout_is_survived_and_shown() {
    let (model, request) = (demo(), request("hop2-0"));
    let mut arguments = arguments(&model, &request, &["--heartbeat-timeout", "10"]);
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
    let cases = [
        ("comm::mpi::version=return", 76, "the ranks run different versions of this program: rank 0: protocol 3"),
        ("launch::build=return(0.0.9 abc)", 76, "the ranks do not agree on build"),
        ("launch::model=return(other)", 78, "the ranks do not agree on model"),
        ("launch::config=return(other)", 78, "the ranks do not agree on config"),
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
    // The fault stands in for a folder that is missing on that rank's host.
    let fault = Fault { rank: 2, failpoint: "launch::folder=return(/no/such/folder)" };
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
    // All work is done, but one rank never leaves MPI: the others stand in a call of MPI's own.
    let (model, request) = (demo(), request("hop2-0"));
    let fault = Fault { rank: 2, failpoint: &format!("comm::mpi::leave=sleep({LONG_MS})") };
    let began = Instant::now();
    let ended = Job::start(WORLD, Some(fault), &arguments(&model, &request, &[])).end();
    assert_eq!(ended.code, 75, "{:#?}", ended.errors);
    assert!(ended.cause().contains("leaving MPI not finished after 2s"), "the heartbeat timeout: {:#?}", ended.errors);
    assert!(ended.at - began < Duration::from_secs(2) + SLACK + SLACK, "start, work, deadline");
}

/// A prefill by `tributary launch` whose ranks rest at `phase`; what comes of a signal sent to the process that `whom` names.
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
fn a_rank_stopped_in_the_middle_of_a_transfer_is_the_one_that_is_named() {
    // A rest after every piece makes one all-gather of 256 MiB last for seconds.
    let fault = Fault { rank: 2, failpoint: "comm::mpi::piece=sleep(100)" };
    let arguments = ["doctor", "--skip-checks", "--sizes", "256MiB", "--heartbeat-timeout", "2"];
    let mut job = Job::start(WORLD, Some(fault), &arguments);
    let pid = job.enters(2, "load");
    std::thread::sleep(Duration::from_millis(1500));
    signal(pid, Signal::STOP);
    let ended = job.end();
    assert_eq!(ended.code, 75, "{:#?}", ended.errors);
    only_rank_is_silent(2, "idle", &ended);
}

#[test]
fn a_failure_is_told_although_the_main_thread_is_busy() {
    let (model, request) = (demo(), request("hop2-0"));
    let fault = Fault { rank: 0, failpoint: &format!("launch::request=sleep({LONG_MS})") };
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
    let fault = Fault { rank: 1, failpoint: &format!("launch::load=sleep({LONG_MS})") };
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

/// Every rank that is special, in every phase, under every launcher, with requests whose compute is long: a table on standard
/// error. `make faults` runs it.
#[test]
#[ignore = "it takes half an hour: make faults"]
fn the_table_of_stops() {
    const RANKS: usize = 3;
    const HEARTBEAT: Duration = Duration::from_secs(10);
    let model = kit::root().join("models/dummy-25m").display().to_string();
    let mut arguments = vec!["prefill", "--model", &model, "--load-format", "dummy", "--synthetic", "32x512+32"];
    arguments.extend(["--reorder", "--max-tokens", "8", "--collective-timeout", "60"]);
    let mut rows = vec!["| launcher | rank | phase | seconds | exit code | line |".to_owned()];
    rows.push("| --- | --- | --- | --- | --- | --- |".to_owned());
    let phases = PHASES[1..].iter().copied().chain(["idle"]);
    let mut late = Vec::new();
    for (phase, rank) in phases.flat_map(|phase| (0..RANKS).map(move |rank| (phase, rank))) {
        // Idle ranks wait while rank 0's main thread is busy.
        let (held, failpoint) = match phase {
            "idle" => (0, format!("launch::request=sleep({LONG_MS})")),
            _ => (rank, held_in(phase)),
        };
        // Only ranks that follow have this place.
        if phase == "load" && rank == 0 {
            continue;
        }
        let fault = Fault { rank: held, failpoint: &failpoint };
        for (name, starter) in starters(RANKS, &fault, &arguments) {
            let (ended, took) = strike_job(Job::run(starter), rank, phase, Signal::STOP);
            let (code, cause) = (ended.code, ended.cause().replace('|', "/"));
            let row = format!("| {name} | {rank} | {phase} | {:.1} | {code} | {cause} |", took.as_secs_f64());
            if took > HEARTBEAT + SLACK || code != 75 || ended.causes() != 1 {
                late.push(row.clone());
            }
            eprintln!("{row}");
            rows.push(row);
        }
    }
    assert!(late.is_empty(), "not as it should be:\n{}", late.join("\n"));
}
