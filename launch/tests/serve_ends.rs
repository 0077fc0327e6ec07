//! End of a service on processes, by `tributary launch` and by a bare mpirun; and the answers to
//! its clients when ranks fail, processes and threads. Built with the features `mpi` and
//! `failpoints`; `OPENMPI5` names a folder with Open MPI 5, and tests of processes run with both.

mod kit;

use std::time::{Duration, Instant};

use kit::http::{self, Response, Stream};
use kit::job::{launchers, launches};
use kit::server::{Ended, Server, body, streamed};
use rustix::process::Signal;
use serde_json::Value;

/// The answer of a service without a signal.
fn expected(max_tokens: usize) -> String {
    let server = Server::start(&["--world-size", "2"]);
    let answer = server.answer(&body("hop2-0", max_tokens));
    server.ends_well();
    answer
}

/// Checks that new requests are refused.
fn turns_away(server: &Server, name: &str) {
    server.refuses();
    let late = body("vt2-0", 1).to_string();
    let turned_away = http::send(&server.address, "POST /v1/chat/completions", Some(&late));
    assert!(turned_away.is_none_or(|response| response.status == 503), "{name}");
}

#[test]
fn a_launched_service_that_is_told_to_end_answers_what_it_has_begun() {
    let expected = expected(1500);
    for with in [Signal::TERM, Signal::INT] {
        for (name, launch) in launches(2) {
            let server = Server::launch(launch, &[]);
            let mut stream = server.stream(&body("hop2-0", 1500));
            stream.event().expect("an event");
            server.signal(with);
            turns_away(&server, name);
            let (text, events) = streamed(stream);
            assert_eq!(text, expected, "{name}");
            assert_eq!(events[events.len() - 1]["choices"][0]["finish_reason"], "length", "{name}");
            let Ended { code, errors } = server.end();
            assert_eq!((code, errors.as_str()), (Some(0), ""), "{name}, {with:?}");
        }
    }
}

/// Longest time of the next test's services for their end, and of a launcher beyond it on a busy
/// machine.
const DRAIN: [&str; 4] = ["--drain-timeout", "2", "--collective-timeout", "300"];
const LAUNCHER: Duration = Duration::from_secs(3);

#[test]
fn a_drain_ends_at_its_time_while_ranks_are_in_a_layer_that_takes_a_minute() {
    let fails = "model::layer=sleep(60000)";
    let mut services: Vec<(&str, Server)> = Vec::new();
    for (name, mut launch) in launches(2) {
        launch.env("FAILPOINTS", fails).args(["--mpirun-arg", "-x", "--mpirun-arg", "FAILPOINTS"]);
        services.push((name, Server::launch(launch, &DRAIN)));
    }
    for (name, mut launcher) in launchers(2) {
        launcher.env("FAILPOINTS", fails).args(["-x", "FAILPOINTS"]);
        services.push((name, Server::start_with(launcher, &DRAIN)));
    }
    for (number, (name, server)) in services.into_iter().enumerate() {
        let mut stream = server.stream(&body("hop2-0", 100));
        server.becomes("tributary_requests_running", 1.0);
        let began = Instant::now();
        if number < launches(2).len() {
            server.terminate()
        } else {
            server.signal_launcher(Signal::USR1)
        }
        while let Some(event) = stream.event() {
            assert!(!event.contains("[DONE]"), "{name}: {event}");
        }
        let Ended { code, errors } = server.end();
        let took = began.elapsed();
        assert!(errors.lines().all(|line| line.starts_with("mpirun: Forwarding signal ")), "{name}: {errors}");
        assert_eq!(code, Some(0), "{name}: {errors}");
        assert!(took > Duration::from_millis(1900), "{name}: {took:?}");
        assert!(took < Duration::from_secs(4) + LAUNCHER, "{name}: {took:?}");
        println!("{name}: ended after {took:.1?}");
    }
}

#[test]
fn a_second_signal_ends_a_launched_service_at_once() {
    for (name, launch) in launches(2) {
        let server = Server::launch(launch, &[]);
        let mut stream = server.stream(&body("hop2-0", 3000));
        stream.event().expect("an event");
        server.terminate();
        server.refuses();
        let began = Instant::now();
        server.terminate();
        let Ended { code, errors } = server.end();
        assert_eq!((code, errors.as_str()), (Some(143), "tributary: ended by SIGTERM\n"), "{name}");
        assert!(began.elapsed() < Duration::from_secs(10), "{name}: {:?}", began.elapsed());
    }
}

#[test]
fn a_signal_that_mpirun_passes_on_ends_a_service_in_order() {
    let expected = expected(1500);
    for (name, launcher) in launchers(2) {
        let server = Server::start_with(launcher, &[]);
        let mut stream = server.stream(&body("hop2-0", 1500));
        stream.event().expect("an event");
        server.signal_launcher(Signal::USR1);
        turns_away(&server, name);
        assert_eq!(streamed(stream).0, expected, "{name}");
        let Ended { code, errors } = server.end();
        // Open MPI 4 says that it passes the signal on.
        assert!(errors.lines().all(|line| line.starts_with("mpirun: Forwarding signal ")), "{name}: {errors}");
        assert_eq!(code, Some(0), "{name}: {errors}");
    }
}

/// Clients of a service whose ranks fail: one of a stream, and two that wait for whole answers, one
/// of which may run. `fail` makes the ranks fail when they are there; gives the service's end.
fn ends_with_clients(server: Server, fail: impl FnOnce(&Server)) -> Ended {
    let mut stream = server.stream(&body("hop2-0", 3000));
    stream.event().expect("an event");
    std::thread::scope(|scope| {
        let whole: Vec<_> = ["vt2-0", "hop2-1"].map(|name| scope.spawn(|| server.chat(&body(name, 3000)))).into();
        fail(&server);
        whole.into_iter().for_each(|whole| refused(&whole.join().expect("an answer")));
    });
    ends_with_an_error(stream);
    server.end()
}

/// Checks that a whole answer is an error in OpenAI's form.
fn refused(response: &Response) {
    assert_eq!(response.status, 503, "{}", response.body);
    assert!(response.header("retry-after").is_some());
    is_error(&response.json());
}

fn is_error(object: &Value) {
    let error = &object["error"];
    assert_eq!(error["type"], "server_error", "{object}");
    assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()), "{object}");
}

/// Checks that a stream's last event is an error, not the end of an answer.
fn ends_with_an_error(stream: Stream) {
    let events = stream.events();
    let last = events.last().expect("an event");
    is_error(&serde_json::from_str(last).unwrap_or_else(|error| panic!("{error}: {last}")));
}

#[test]
fn clients_hear_of_a_rank_that_panics() {
    // In its first step of decoding every rank sleeps, and meanwhile the others come; in the next
    // one after a prefill one panics.
    let failpoint = "worker::decode=2*sleep(1500)->1*panic->off";
    let server = Server::start_with_fault(failpoint, &["--world-size", "2", "--max-running", "2"]);
    let Ended { code, errors } = ends_with_clients(server, |_| {});
    assert_eq!(code, Some(70), "{errors}");
    assert!(errors.contains("tributary: a bug: the rank's thread panicked\n"), "{errors}");
}

#[test]
fn clients_hear_of_a_rank_that_is_stuck() {
    let failpoint = "worker::decode=2*sleep(1500)->1*sleep(40000)->off";
    let options = ["--world-size", "2", "--max-running", "2", "--collective-timeout", "2"];
    let server = Server::start_with_fault(failpoint, &options);
    let Ended { code, errors } = ends_with_clients(server, |_| {});
    assert_eq!(code, Some(75), "{errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
}

/// Kills rank 1 when two requests run and one waits.
fn kill_rank_1(server: &Server) {
    server.becomes("tributary_requests_running", 2.0);
    server.becomes("tributary_requests_waiting", 1.0);
    kit::job::signal(server.pid(1), Signal::KILL);
}

#[test]
fn clients_hear_of_a_process_that_is_killed() {
    for (name, launcher) in launchers(2) {
        let server = Server::start_with(launcher, &["--max-running", "2"]);
        let Ended { code, errors } = ends_with_clients(server, kill_rank_1);
        assert_eq!(code, Some(137), "{name}: bare mpirun reports the killed rank: {errors}");
        assert!(errors.contains("tributary: rank 1 (process "), "{name}: {errors}");
    }
    for (name, launch) in launches(2) {
        let server = Server::launch(launch, &["--max-running", "2"]);
        let Ended { code, errors } = ends_with_clients(server, kill_rank_1);
        assert_eq!(code, Some(69), "{name}: {errors}");
        let first = errors.lines().next().unwrap_or_default();
        assert!(first.starts_with("tributary: rank 1 (process ") && first.ends_with(" has died"), "{name}: {errors}");
    }
}
