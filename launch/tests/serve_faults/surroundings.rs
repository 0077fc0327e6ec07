//! Failures around a service: the disk under its log is full, the clock steps.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::crowd::{Got, Right};
use crate::kit::server::{SELF_TEST, Server};

/// A library that shows a process another time: Debian's `libfaketime`.
const FAKE_TIME: [&str; 2] =
    ["/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1", "/usr/lib/aarch64-linux-gnu/faketime/libfaketimeMT.so.1"];

fn all_are_answered(right: &Right, server: &Server, what: &str) {
    let clients = right.asked(&server.address, 8).end();
    assert_eq!(clients.count(|got| got == Got::Whole), 8, "{what}: {clients:?}");
}

#[test]
fn a_log_that_cannot_be_written() {
    let quiet = Server::start(&["--world-size", "2"]);
    let right = Right::of(&quiet);
    quiet.ends_well();
    let full = File::options().write(true).open("/dev/full").expect("Linux has it");
    let server = Server::start_logging("debug", full, &["--world-size", "2"]);
    all_are_answered(&right, &server, "a full disk under the log");
    println!("a full disk under the log: 8 of 8 whole");
    server.terminate();
    assert_eq!(server.code(), Some(0));
}

/// Has a process see this time from now on.
fn step(file: &Path, to: &str) {
    std::fs::write(file, format!("{to}\n")).expect("written");
}

#[test]
fn a_clock_that_steps() {
    let Some(library) = FAKE_TIME.iter().map(PathBuf::from).find(|path| path.exists()) else {
        assert!(std::env::var_os("CI").is_none(), "libfaketime is missing: run `make test`");
        return crate::kit::skipped("a clock that steps: Debian's libfaketime is missing");
    };
    let folder = tempfile::tempdir().expect("a folder");
    let clock = folder.path().join("clock");
    step(&clock, "+0");
    let mut command = Command::new(env!("CARGO_BIN_EXE_tributary"));
    // Only the time of day steps: the clock that counts from the start of a machine does not.
    command.env("LD_PRELOAD", library).env("FAKETIME_TIMESTAMP_FILE", &clock);
    command.env("FAKETIME_DONT_FAKE_MONOTONIC", "1").env("FAKETIME_NO_CACHE", "1");
    let server = Server::start_as(command, &["--world-size", "2", "--request-timeout", "60", SELF_TEST, "1"]);
    let right = Right::of(&server);
    let created = |server: &Server| {
        let answer = server.chat(&crate::kit::server::body("hop2-0", 2)).json();
        answer["created"].as_i64().expect("a time")
    };
    let before = created(&server);
    for by in ["+36000", "-36000", "+0"] {
        step(&clock, by);
        all_are_answered(&right, &server, by);
        assert_eq!(server.get("/ready").status, 200, "{by}");
        let ttft = server.chat(&crate::kit::server::body("hop2-0", 2)).json()["metrics"]["ttft_ms"].as_f64();
        assert!(ttft.is_some_and(|ms| (0.0..60_000.0).contains(&ms)), "{by}: {ttft:?} ms");
        if by == "+36000" {
            assert!(created(&server) - before > 30_000, "the process sees the clock step");
        }
    }
    println!("clock steps of 10 h forth and back: all answered");
    server.ends_well();
}
