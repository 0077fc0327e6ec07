//! How a service on processes ends: told to, by `tributary launch` and by a bare mpirun. Built with the features `mpi` and
//! `failpoints`; `OPENMPI5` names a folder with Open MPI 5, and every test runs with both.

mod kit;

use std::time::{Duration, Instant};

use kit::http;
use kit::job::{launchers, launches};
use kit::server::{Ended, Server, body, streamed};
use rustix::process::Signal;

/// The answer of a service that nobody ends.
fn expected(max_tokens: usize) -> String {
    let server = Server::start(&["--world-size", "2"]);
    let answer = server.answer(&body("hop2-0", max_tokens));
    server.ends_well();
    answer
}

/// Whoever comes now is turned away.
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
