//! Silent ranks, and ranks that compute without progress: the rule of liveness, in every phase,
//! under every launcher, for processes and for threads. Built with the features `mpi` and
//! `failpoints`.

mod kit;

use std::process::Command;
use std::time::{Duration, Instant};

use kit::job::{Fault, Job, LONG_MS, signal};
use kit::strike::{
    HEARTBEAT, PHASES, SLACK, WORLD, arguments, held_in, only_rank_is_silent, starters, strike, strike_job, through,
};
use kit::{demo, request};
use rustix::process::Signal;

#[test]
fn a_stopped_rank_ends_the_job_in_every_phase_under_every_launcher() {
    // Ten phases of a middle rank, three of the first and the last; the launchers take turns.
    let phases = PHASES[1..].iter().map(|phase| (2, *phase));
    let cases: Vec<_> = phases.chain([(0, "recompute"), (3, "chunk_prefill"), (0, "decode")]).collect();
    assert_eq!(cases.len(), 13);
    for (number, (rank, phase)) in cases.into_iter().enumerate() {
        let (failpoint, (model, request)) = (held_in(phase), through(phase));
        let arguments = arguments(&model, &request, &[]);
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
fn a_rank_that_spins_in_a_layer_ends_the_job() {
    for phase in ["chunk_prefill", "vision"] {
        let (model, request) = through(phase);
        let began = Instant::now();
        // Busy, alive and never further: the third layer, or block of a tower, that rank 1 begins.
        let fault = Fault { rank: 1, failpoint: &format!("model::layer=2*off->delay({LONG_MS})") };
        let arguments = arguments(&model, &request, &["--collective-timeout", "2"]);
        let ended = Job::start(WORLD, Some(fault), &arguments).end();
        assert_eq!(ended.code, 75, "{:#?}", ended.errors);
        assert!(ended.at - began < Duration::from_secs(2) + SLACK + SLACK, "start and the timeout");
        let cause = ended.cause();
        assert!(cause.starts_with("tributary: rank 1 (process "), "{:#?}", ended.errors);
        assert!(cause.contains(&format!(") is stuck: it computes layer 2 in {phase} of request 1, 2.")), "{cause}");
        assert!(cause.ends_with("; a step may take 2s (--collective-timeout)"), "{cause}");
        assert_eq!(ended.causes(), 1, "{:#?}", ended.errors);
    }
}

#[test]
fn a_thread_that_spins_in_a_layer_ends_the_process() {
    let (model, request) = (demo(), request("hop2-0"));
    for world in ["1", "3"] {
        let arguments = arguments(&model, &request, &["--collective-timeout", "2", "--world-size", world]);
        let mut command = Command::new(env!("CARGO_BIN_EXE_tributary"));
        command.args(&arguments).env("FAILPOINTS", format!("model::layer=5*off->1*delay({LONG_MS})->off"));
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
    // Twenty times as slow as it would be and more, from the first layer on; the others wait longer
    // than the timeout.
    let fault = Fault { rank: 1, failpoint: "model::layer=sleep(400)" };
    let arguments = arguments(&model, &request, &["--collective-timeout", "1", "--max-tokens", "1"]);
    let began = Instant::now();
    let ended = Job::start(2, Some(fault), &[&arguments[..], &["--json"]].concat()).end();
    assert_eq!(ended.code, 0, "{:#?}", ended.errors);
    assert!(ended.at - began > Duration::from_secs(4), "it was slow");
    let report: serde_json::Value = serde_json::from_str(&ended.stdout).expect("JSON");
    assert!(report["notes"].to_string().contains("straggler: rank 1"), "{report}");
}

#[test]
fn a_rank_that_computes_one_step_for_longer_than_the_timeout_is_not_stuck() {
    let (model, request) = (demo(), request("hop2-0"));
    // The first twelve tiles take 4.8 s: a step of the first layer has several of them, and takes
    // longer than the timeout.
    let slow = "model::tile=12*sleep(400)->off";
    let arguments = arguments(&model, &request, &["--collective-timeout", "1", "--max-tokens", "1"]);
    let arguments = [&arguments[..], &["--json", "--method", "full"]].concat();
    let arguments: Vec<&str> = arguments.into_iter().filter(|&argument| argument != "--reorder").collect();
    let answer = |command: Command| {
        let began = Instant::now();
        let ended = Job::run(command).end();
        assert_eq!(ended.code, 0, "{:#?}", ended.errors);
        let report: serde_json::Value = serde_json::from_str(&ended.stdout).expect("JSON");
        (report["answer"].clone(), ended.at - began)
    };
    let threads = |failpoint: &str, world| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tributary"));
        command.args(&arguments).args(["--world-size", world]).env("FAILPOINTS", failpoint);
        command
    };
    let expected = answer(threads("", "1")).0;
    for world in ["1", "2"] {
        let (found, took) = answer(threads(slow, world));
        assert_eq!(found, expected, "{world} threads");
        assert!(took > Duration::from_secs(4), "it was slow: {took:?}");
    }
    // The prompt is on rank 0; the other one waits longer than the timeout.
    for (name, starter) in starters(2, &Fault { rank: 0, failpoint: slow }, &arguments) {
        assert_eq!(answer(starter).0, expected, "{name}");
    }
}

#[test]
fn a_rank_that_does_no_tile_any_more_is_stuck() {
    let (model, request) = (demo(), request("hop2-0"));
    let arguments = arguments(&model, &request, &["--collective-timeout", "2"]);
    let hangs = format!("model::tile=40*off->1*delay({LONG_MS})->off");
    let mut command = Command::new(env!("CARGO_BIN_EXE_tributary"));
    command.args(&arguments).args(["--world-size", "2"]).env("FAILPOINTS", &hangs);
    let mut all = vec![("threads", command)];
    all.extend(starters(2, &Fault { rank: 1, failpoint: &hangs }, &arguments));
    for (name, starter) in all {
        let began = Instant::now();
        let ended = Job::run(starter).end();
        assert_eq!(ended.code, 75, "{name}: {:#?}", ended.errors);
        assert!(ended.at - began < Duration::from_secs(2) + SLACK + SLACK, "{name}: start and the timeout");
        let cause = ended.cause();
        assert!(
            cause.contains(" is stuck: it computes layer ") && cause.ends_with(" (--collective-timeout)"),
            "{cause}"
        );
        assert_eq!(ended.causes(), 1, "{name}: {:#?}", ended.errors);
    }
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
    // One call of rank 1, any of them, gets lost on its way: no rank is silent, none computes, and
    // no message will come.
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

/// Every rank that is special, in every phase, under every launcher, with requests whose compute is
/// long: a table on standard error. `make faults` runs it.
#[test]
#[ignore = "it takes half an hour: make faults"]
fn the_table_of_stops() {
    const RANKS: usize = 3;
    const HEARTBEAT: Duration = Duration::from_secs(10);
    let [of_text, of_pictures] = ["dummy-25m", "dummy-vlm"];
    let model = |name: &str| kit::root().join("examples/models").join(name).display().to_string();
    let (of_text, of_pictures, with_pictures) = (model(of_text), model(of_pictures), kit::vision().1);
    let arguments = |phase: &str| {
        let request = match phase {
            "vision" => ["--model", &of_pictures, "--request", &with_pictures],
            _ => ["--model", &of_text, "--synthetic", "32x512+32"],
        };
        let others = ["--load-format", "dummy", "--reorder", "--max-tokens", "8", "--collective-timeout", "60"];
        [&["prefill"], &request[..], &others].concat().into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let mut rows = vec!["| launcher | rank | phase | seconds | exit code | line |".to_owned()];
    rows.push("| --- | --- | --- | --- | --- | --- |".to_owned());
    let phases = PHASES[1..].iter().copied().chain(["idle"]);
    let mut late = Vec::new();
    for (phase, rank) in phases.flat_map(|phase| (0..RANKS).map(move |rank| (phase, rank))) {
        // Idle ranks wait while rank 0's main thread is busy.
        let (held, failpoint) = match phase {
            "idle" => (0, format!("engine::request=sleep({LONG_MS})")),
            _ => (rank, held_in(phase)),
        };
        // Only ranks that follow have this place.
        if phase == "load" && rank == 0 {
            continue;
        }
        let fault = Fault { rank: held, failpoint: &failpoint };
        let arguments = arguments(phase);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
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
