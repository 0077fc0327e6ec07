//! Jobs whose ranks are struck by a signal in a phase, and the required outcomes.

use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::job::{Ended, Fault, Job, LONG_MS, launch_with_fault, launchers, shell, signal};
use super::{demo, request, vision};

/// Longest silence of a process in these tests, in seconds.
pub const HEARTBEAT_S: u64 = 2;
pub const HEARTBEAT: Duration = Duration::from_secs(HEARTBEAT_S);

/// Longest time of a job's end beyond the timeout.
pub const SLACK: Duration = Duration::from_secs(5);

/// Ranks of a job.
pub const WORLD: usize = 4;

/// Every phase that a rank passes through, start to decoding.
pub const PHASES: [&str; 11] = [
    "start",
    "load",
    "dispatch",
    "vision",
    "chunk_prefill",
    "reorder",
    "probe",
    "select",
    "recompute",
    "first_token",
    "decode",
];

/// A model and a request to it that passes through a phase: with pictures where that needs some.
pub fn through(phase: &str) -> (String, String) {
    if phase == "vision" { vision() } else { (demo(), request("hop2-0")) }
}

/// A prefill that passes through every phase, with options after it. The timeout of collectives is
/// long: a lost rank must be noticed long before it.
pub fn arguments<'a>(model: &'a str, request: &'a str, options: &[&'a str]) -> Vec<&'a str> {
    let mut all = vec!["prefill", "--model", model, "--request", request, "--reorder", "--max-tokens", "8"];
    all.extend(["--collective-timeout", "60", "--heartbeat-timeout", "2", "--start-timeout", "5"]);
    // Later options count.
    for pair in options.chunks(2) {
        match all.iter().position(|known| *known == pair[0]) {
            Some(place) => all[place + 1] = pair[1],
            None => all.extend(pair),
        }
    }
    all
}

/// A failpoint that holds a rank in a phase.
pub fn held_in(phase: &str) -> String {
    match phase {
        "start" | "load" => format!("engine::{phase}=sleep({LONG_MS})"),
        _ => format!("worker::{phase}=sleep({LONG_MS})"),
    }
}

/// Runs a job whose `rank` is held in `phase` by a failpoint, and sends it a signal there; the end
/// and how long it took.
pub fn strike(rank: usize, phase: &str, with: Signal) -> (Ended, Duration) {
    strike_at(Fault { rank, failpoint: &held_in(phase) }, rank, phase, with)
}

pub fn strike_at(fault: Fault<'_>, rank: usize, phase: &str, with: Signal) -> (Ended, Duration) {
    let (model, request) = through(phase);
    let job = Job::start(WORLD, Some(fault), &arguments(&model, &request, &[]));
    strike_job(job, rank, phase, with)
}

/// Sends a signal to a rank of a job as soon as it is in a phase; the end and how long it took.
pub fn strike_job(mut job: Job, rank: usize, phase: &str, with: Signal) -> (Ended, Duration) {
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

/// One line of ours, which names this rank alone as silent, with its process, its host and the
/// phase that it was in.
pub fn only_rank_is_silent(rank: usize, phase: &str, ended: &Ended) {
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

/// The ways to start a job of `world` ranks, with a fault on one of them.
pub fn starters(world: usize, fault: &Fault<'_>, arguments: &[&str]) -> Vec<(&'static str, Command)> {
    let mut all = launchers(world);
    for (_, launcher) in &mut all {
        launcher.args(shell(Some(fault))).arg(env!("CARGO_BIN_EXE_tributary")).args(arguments);
    }
    all.push(("tributary launch", launch_with_fault(world, fault, arguments)));
    all
}
