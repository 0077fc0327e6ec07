//! A service that is asked without pause while its ranks are killed again and again, and starts
//! again each time. No answer is wrong, no client waits for ever, and nothing piles up: neither in
//! `tributary launch`, which lives through all of it, nor on the host. Two minutes, or as long as
//! `SOAK_SECONDS` says (`make soak`). Built with the features `mpi` and `failpoints`.

#[allow(dead_code)] // its clients ask one after the other
#[path = "serve_faults/crowd.rs"]
mod crowd;
mod kit;

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::spawn;
use std::time::{Duration, Instant};

use crowd::{Got, Right, ask_once};
use kit::held::Held;
use kit::http::send;
use kit::job::signal;
use kit::server::Server;
use rustix::process::Signal;

/// Kills, and requests at least, of a run of any length.
const KILLS: u32 = 20;
const REQUESTS: usize = 500;

/// Clients that ask without pause.
const CLIENTS: usize = 4;

/// The longest that a client may wait for the end of an answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// Counts of a run.
#[derive(Debug, Default)]
struct Counts {
    whole: AtomicUsize,
    errors: AtomicUsize,
    cut: AtomicUsize,
    over: AtomicBool,
}

/// Number of a folder's entries whose names begin with `prefix`.
fn entries(folder: &str, prefix: &str) -> usize {
    let all = std::fs::read_dir(Path::new(folder)).expect("a folder");
    all.filter_map(Result::ok).filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix)).count()
}

/// Asks without pause until it is over. A connection that is refused is tried again.
fn ask_always(right: &Right, address: &str, counts: &Counts, first: usize) {
    for number in (first..).step_by(CLIENTS) {
        if counts.over.load(Ordering::Relaxed) {
            return;
        }
        let began = Instant::now();
        let got = ask_once(right, address, number);
        assert!(began.elapsed() < PATIENCE, "a client waited for {:?} and got {got:?}", began.elapsed());
        let count = match got {
            Got::Whole => &counts.whole,
            Got::Error(_) => &counts.errors,
            Got::Cut => &counts.cut,
        };
        count.fetch_add(1, Ordering::Relaxed);
        if got != Got::Whole {
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

/// Waits until the service is ready, and is another one than that whose rank was struck: it may say
/// for a moment that it is.
fn is_back(server: &Server, address: &str, struck: Option<(usize, u32)>) {
    let began = Instant::now();
    let is_another = || struck.is_none_or(|(rank, pid)| server.noted_pid(rank).is_some_and(|now| now != pid));
    while !is_another() || send(address, "GET /ready", None).is_none_or(|response| response.status != 200) {
        assert!(began.elapsed() < Duration::from_secs(60), "it does not come back");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Prints the counts, and checks that nothing has piled up in `tributary launch`.
fn tell(began: Instant, strikes: usize, counts: &Counts, launcher: &[Held], leader: &BTreeMap<usize, Option<Held>>) {
    let of = |count: &AtomicUsize| count.load(Ordering::Relaxed);
    let (first, last) = (launcher[0], launcher[launcher.len() - 1]);
    println!(
        "{:.0} s, {strikes} strikes: {} whole answers, 0 wrong, {} errors, {} cut or refused, 0 hung; \
         tributary launch held {} files and {} KiB, then {} and {}",
        began.elapsed().as_secs_f64(),
        of(&counts.whole),
        of(&counts.errors),
        of(&counts.cut),
        first.files,
        first.resident_bytes >> 10,
        last.files,
        last.resident_bytes >> 10,
    );
    println!("rank 0 before each strike: {leader:?}");
    assert!(last.files <= first.files + 2, "files: {launcher:?}");
    assert!(last.resident_bytes <= first.resident_bytes + (8 << 20), "memory: {launcher:?}");
}

#[test]
fn a_service_that_is_killed_again_and_again() {
    let seconds = std::env::var("SOAK_SECONDS").map_or(110, |text| text.parse().expect("SOAK_SECONDS is a number"));
    let quiet = Server::start(&["--world-size", "2"]);
    let right = Right::of(&quiet);
    quiet.ends_well();
    let port = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address").port();
    let address = format!("127.0.0.1:{port}");
    let options = ["--listen", &address, "--max-running", "4", "--heartbeat-timeout", "3"];
    let server = Server::launch_with_restarts(1_000_000, &options);
    let (began, counts) = (Instant::now(), Arc::new(Counts::default()));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|first| {
            let (right, address, counts) = (right.clone(), address.clone(), Arc::clone(&counts));
            spawn(move || ask_always(&right, &address, &counts, first))
        })
        .collect();
    let shared_memory = entries("/dev/shm", "");
    let (mut launcher, mut leader, mut lives) = (Vec::new(), BTreeMap::new(), 0);
    let mut last = None;
    let period = Duration::from_secs(seconds) / KILLS;
    while began.elapsed() < Duration::from_secs(seconds) || counts.whole.load(Ordering::Relaxed) < REQUESTS {
        is_back(&server, &address, last);
        std::thread::sleep(period.saturating_sub(Duration::from_secs(2)).max(Duration::from_millis(500)));
        launcher.push(Held::by(server.leader()).expect("tributary launch lives"));
        leader.insert(lives, Held::by(server.pid(0)));
        // One rank after the other, and a stopped one now and then, which is missed after its
        // silence.
        let strike = if lives % 5 == 4 { Signal::STOP } else { Signal::KILL };
        let struck = server.pid(lives % 2);
        last = Some((lives % 2, struck));
        signal(struck, strike);
        lives += 1;
        let gone = Instant::now();
        while Path::new(&format!("/proc/{struck}")).exists() {
            assert!(gone.elapsed() < Duration::from_secs(30), "a struck rank stays");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    is_back(&server, &address, last);
    counts.over.store(true, Ordering::Relaxed);
    clients.into_iter().for_each(|client| client.join().expect("no wrong answer, and no client waits for ever"));
    tell(began, lives, &counts, &launcher, &leader);
    server.terminate();
    let ended = server.end();
    assert_eq!(ended.code, Some(0), "{}", ended.errors);
    assert!(entries("/dev/shm", "") <= shared_memory + 4, "shared memory is left");
}
