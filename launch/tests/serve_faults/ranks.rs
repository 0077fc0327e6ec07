//! Ranks that die, stop or fail with eight requests in flight, in every phase and in decoding.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;

use crate::crowd::{Got, Right, stalls};
use crate::kit::job::{Fault, signal};
use crate::kit::server::{Ended, SELF_TEST, Server, body};
use crate::kit::{http, vision};

/// Phases in which a rank is struck. Before the first of them no request is possible.
const PHASES: [&str; 8] =
    ["dispatch", "chunk_prefill", "reorder", "probe", "select", "recompute", "first_token", "decode"];

/// Requests in flight.
const CLIENTS: usize = 8;

/// Longest time of an end beyond the time in which a silent rank is noticed.
const SLACK: Duration = Duration::from_secs(8);

/// Longest silence of a rank, in seconds.
const HEARTBEAT_S: u64 = 2;

/// Options under which a request passes through every phase, and some are decoded while others
/// wait.
const OPTIONS: [&str; 5] = ["--reorder", "--max-running", "4", "--heartbeat-timeout", "2"];

fn right() -> Right {
    let server = Server::start(&[&OPTIONS[..3], &["--world-size", "2"]].concat());
    let right = Right::of(&server);
    server.ends_well();
    right
}

/// Strike against a rank that a failpoint holds.
enum Strike {
    /// It gets this signal.
    Signal(Signal),
    /// Nothing: the failpoint itself is the failure.
    None,
}

/// Runs a service whose rank 1 has this failpoint, strikes it when all ranks wait, and checks the
/// outcome for its clients and for itself.
fn strike(right: &Right, what: &str, failpoint: &str, with: Strike, exit_code: i32) {
    strike_with(&OPTIONS, (right, what), failpoint, with, exit_code);
}

fn strike_with(options: &[&str], (right, what): (&Right, &str), failpoint: &str, with: Strike, exit_code: i32) {
    let server = Server::launch_with_fault(2, &Fault { rank: 1, failpoint }, options);
    let (crowd, mut struck) = (right.asked(&server.address, CLIENTS), Instant::now());
    if let Strike::Signal(number) = with {
        stalls(&server);
        struck = Instant::now();
        signal(server.pid(1), number);
    }
    let clients = crowd.end();
    let ended = server.end();
    let took = clients.at.saturating_duration_since(struck);
    println!("{what}: {}; the last after {:.1} s; exit {:?}", clients.row(), took.as_secs_f64(), ended.code);
    assert!(took < Duration::from_secs(HEARTBEAT_S) + SLACK, "{what}: {took:?}");
    assert_eq!(ended.code, Some(exit_code), "{what}: {}", ended.errors);
    assert_eq!(clients.count(|got| got == Got::Cut), 0, "{what}: rank 0 tells everybody: {clients:?}");
    assert!(clients.count(|got| matches!(got, Got::Error(_))) > 0, "{what}: somebody was in flight: {clients:?}");
}

/// What [`strike`] does, to a service whose model reads pictures, in the phase of its towers.
fn strike_vision(right: &Right, what: &str, failpoint: &str, with: Strike, exit_code: i32) {
    let (model, _) = vision();
    let options = [&OPTIONS[..], &["--model", &model, "--served-model-name", "demo"]].concat();
    strike_with(&options, (right, what), failpoint, with, exit_code);
}

fn right_of_pictures() -> Right {
    let (model, _) = vision();
    let server = Server::start(&["--model", &model, "--served-model-name", "demo", "--reorder", "--world-size", "2"]);
    let right = Right::of_pictures(&server);
    server.ends_well();
    right
}

/// A failpoint in a phase, after three passes through it.
fn in_phase(phase: &str, action: &str) -> String {
    format!("worker::{phase}=3*off->1*{action}->off")
}

#[test]
fn a_rank_that_is_killed() {
    let right = right();
    for phase in PHASES {
        let failpoint = in_phase(phase, "sleep(60000)");
        strike(&right, &format!("killed in {phase}"), &failpoint, Strike::Signal(Signal::KILL), 69);
    }
}

#[test]
fn a_rank_that_is_stopped() {
    let right = right();
    for phase in PHASES {
        let failpoint = in_phase(phase, "sleep(60000)");
        strike(&right, &format!("stopped in {phase}"), &failpoint, Strike::Signal(Signal::STOP), 75);
    }
}

#[test]
fn a_rank_that_fails() {
    let right = right();
    for phase in PHASES {
        let failpoint = in_phase(&format!("{phase}::error"), "return");
        strike(&right, &format!("an error in {phase}"), &failpoint, Strike::None, 70);
    }
}

#[test]
fn a_rank_that_dies_stops_or_fails_while_its_tower_runs() {
    let right = right_of_pictures();
    let held = in_phase("vision", "sleep(60000)");
    strike_vision(&right, "killed in vision", &held, Strike::Signal(Signal::KILL), 69);
    strike_vision(&right, "stopped in vision", &held, Strike::Signal(Signal::STOP), 75);
    let fails = in_phase("vision::error", "return");
    strike_vision(&right, "an error in vision", &fails, Strike::None, 70);
    // In the middle of a tower: its blocks are layers too.
    let block = "model::layer=20*off->1*sleep(60000)->off";
    strike_vision(&right, "killed in a block", block, Strike::Signal(Signal::KILL), 69);
}

#[test]
fn one_request_without_finite_logits_fails_alone() {
    let right = right();
    // Each token drawn passes here on its owner; the one that fails is somewhere in the middle.
    let failpoint = "worker::logits=9*off->1*return->off";
    let server = Server::launch_with_fault(2, &Fault { rank: 1, failpoint }, &OPTIONS);
    let clients = right.asked(&server.address, CLIENTS).end();
    println!("logits that are not finite: {}", clients.row());
    assert_eq!(clients.count(|got| got == Got::Whole), CLIENTS - 1, "{clients:?}");
    assert_eq!(clients.count(|got| matches!(got, Got::Error(_))), 1, "{clients:?}");
    let again = right.asked(&server.address, CLIENTS).end();
    assert_eq!(again.count(|got| got == Got::Whole), CLIENTS, "{again:?}");
    server.ends_well();
}

#[test]
fn a_service_whose_ranks_compute_nonsense_is_not_ready_until_they_do_not() {
    // The tests at the start draw at most twenty tokens, four a method; one of the next is
    // corrupted.
    let failpoint = "worker::logits=21*off->1*return->off";
    let server = Server::start_with_fault(failpoint, &["--world-size", "2", SELF_TEST, "1"]);
    let becomes = |status: u16| {
        let began = Instant::now();
        loop {
            let ready = server.get("/ready");
            if ready.status == status {
                return ready.body;
            }
            assert!(began.elapsed() < Duration::from_secs(30), "/ready stays {}: {}", ready.status, ready.body);
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    assert_eq!(becomes(200), "ready\n");
    let reason = becomes(503);
    assert!(reason.contains("logits hold NaN or infinite values"), "{reason}");
    assert_eq!(becomes(200), "ready\n");
    server.ends_well();
}

/// Options under which a long prompt halts often.
const HALTING: [&str; 6] = ["--max-gap", "0", "--prefill-slice", "64", "--heartbeat-timeout", "2"];

/// A stream, and a long prompt whose prefill halts for it; rank 1 is held in a step within a halt.
/// The stream's own first step passes the failpoint once, and then each halt does.
fn within_a_halt(failpoint: &str, options: &[&str], strike: impl FnOnce(&Server)) -> (Ended, String) {
    let options = [&HALTING[..], options].concat();
    let server = Server::launch_with_fault(2, &Fault { rank: 1, failpoint }, &options);
    let mut talk = body("hop2-0", 800);
    talk["ignore_eos"] = true.into();
    let mut stream = server.stream(&talk);
    stream.event().expect("its first token");
    let text = "hugo stays in the house . ".repeat(500);
    let messages = [json!({"role": "user", "content": text})];
    let long = json!({"messages": messages, "max_tokens": 1, "tributary": {"method": "ring"}});
    let prompt = http::open(&server.address, "/v1/chat/completions", &long);
    strike(&server);
    let ended = server.end();
    drop(prompt);
    let last = stream.events().pop().unwrap_or_default();
    assert!(last.contains("server_error"), "the stream hears of it: {last}");
    (ended, failpoint.to_owned())
}

#[test]
fn a_rank_that_is_lost_within_a_step_of_a_halted_prefill() {
    let kills = |server: &Server| {
        std::thread::sleep(Duration::from_millis(1500));
        signal(server.pid(1), Signal::KILL);
    };
    let (ended, what) = within_a_halt("worker::decode=4*off->1*sleep(60000)->off", &[], kills);
    assert_eq!(ended.code, Some(69), "{what}: {}", ended.errors);
    let (ended, what) =
        within_a_halt("worker::decode=4*off->1*sleep(60000)->off", &["--collective-timeout", "2"], |_| {});
    assert_eq!(ended.code, Some(75), "{what}: {}", ended.errors);
    assert!(ended.errors.contains("decode"), "{what}: the phase of the step: {}", ended.errors);
    let (ended, what) = within_a_halt("worker::decode::error=4*off->1*return->off", &[], |_| {});
    assert_eq!(ended.code, Some(70), "{what}: {}", ended.errors);
}
