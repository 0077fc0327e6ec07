//! Ranks on several hosts, which are namespaces of this machine with real TCP between them: the
//! same answers as in one process, and hosts and ranks that are lost. Built with the features `mpi`
//! and `failpoints`.

mod kit;

use std::path::Path;
use std::time::{Duration, Instant};

use kit::hosts::{Hosts, NAMES, hosts};
use kit::job::{Ended, Fault, Job, LONG_MS};
use kit::{demo, dump, request, tributary};

/// Longest silence of a process where a host is cut off.
const HEARTBEAT: Duration = Duration::from_secs(3);

/// Longest time of a job's end beyond the timeout.
const SLACK: Duration = Duration::from_secs(5);

/// Time that a process may go on after the job's end.
const LEFT: Duration = Duration::from_secs(3);

/// A prefill that passes through every phase, with `heartbeat` seconds of allowed silence.
fn arguments<'a>(model: &'a str, request: &'a str, heartbeat_s: &'a str) -> Vec<&'a str> {
    let mut all = vec!["prefill", "--model", model, "--request", request, "--reorder", "--max-tokens", "8"];
    all.extend(["--heartbeat-timeout", heartbeat_s, "--start-timeout", "10"]);
    all
}

#[test]
fn hosts_change_no_token_and_no_logit() {
    let Some(hosts) = hosts(3) else { return };
    let (model, request) = (demo(), request("hop2-0"));
    let methods: [&[&str]; 5] = [
        &["--method", "infoflow"],
        &["--method", "infoflow:exchange=pass-q:reorder"],
        &["--method", "relay"],
        &["--method", "ring"],
        &["--method", "all-gather"],
    ];
    let folder = tempfile::tempdir().expect("a folder");
    for slots in [&[2, 2][..], &[1, 1, 1]] {
        let world = slots.iter().sum::<usize>().to_string();
        for method in methods {
            let prefill = |dump: &str| -> Vec<String> {
                let base = ["prefill", "--json", "--model", &model, "--request", &request, "--max-tokens", "6"];
                let all = [&base[..], method, &["--world-size", &world, "--dump", dump]].concat();
                all.into_iter().map(str::to_owned).collect()
            };
            let place = |name: &str| folder.path().join(format!("{name} {slots:?} {}", method.join(" ")));
            let (alone, apart) = (place("alone"), place("apart"));
            let arguments = prefill(&alone.display().to_string());
            let output = tributary(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            let before = hosts.received_bytes(1);
            let arguments = prefill(&apart.display().to_string());
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            let ended = Job::start_with(hosts.mpirun(slots), None, &arguments).end();
            assert_eq!(ended.code, 0, "{:#?}", ended.errors);
            let received_bytes = hosts.received_bytes(1) - before;
            let error = dump::same(&apart, &alone);
            println!("{slots:?} {method:?}: logits differ by {error:.1e}, {received_bytes} bytes to {}", NAMES[1]);
            assert!(error < 1e-4, "{slots:?} {method:?}: {error:e}");
            let report: serde_json::Value = serde_json::from_str(&ended.stdout).expect("JSON");
            let backend = report["settings"]["backend"].as_str().expect("a text");
            assert!(backend.starts_with("mpi (Open MPI v"), "{backend}");
            assert!(backend.ends_with(&format!("), {} hosts", slots.len())), "{backend}");
            // Keys and values of a rank's share of 500 tokens, at least: they came over the
            // network.
            assert!(received_bytes > 300_000, "{slots:?} {method:?}: {received_bytes} bytes");
        }
    }
}

#[test]
fn the_doctor_sees_every_host() {
    let Some(hosts) = hosts(2) else { return };
    let doctor = ["doctor", "--sizes", "1MiB", "--repeat", "2"];
    let ended = Job::start_with(hosts.mpirun(&[2, 2]), None, &doctor).end();
    assert_eq!(ended.code, 0, "{:#?}", ended.errors);
    let text = &ended.stdout;
    let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    for (rank, host, local_rank) in [("0", "ash", "0"), ("1", "ash", "1"), ("2", "birch", "0"), ("3", "birch", "1")] {
        assert!(rows.iter().any(|row| row.starts_with(&[rank, host, local_rank])), "rank {rank}: {text}");
    }
    assert!(text.contains("10.78.0.1/24") && text.contains("10.78.0.2/24"), "{text}");
    assert!(text.contains("collectives: every check passed on 4 ranks"), "{text}");
}

/// Runs a job by `tributary launch` with `slots` ranks on each host, holds one rank in a phase, and
/// there calls `with` with the rank's process. Gives the end, and the times from there to the ends
/// of the job and of each host's ranks.
fn strike(
    hosts: &Hosts,
    slots: &[usize],
    (rank, phase): (usize, &str),
    with: impl FnOnce(u32),
) -> (Ended, Duration, Vec<Duration>) {
    let (model, request, heartbeat_s) = (demo(), request("hop2-0"), HEARTBEAT.as_secs().to_string());
    let failpoint = format!("worker::{phase}=sleep({LONG_MS})");
    let arguments = arguments(&model, &request, &heartbeat_s);
    let mut job = Job::run(hosts.launch(slots, Some(Fault { rank, failpoint: &failpoint }), &arguments));
    let pid = job.enters(rank, phase);
    std::thread::sleep(Duration::from_millis(200));
    with(pid);
    let struck = Instant::now();
    let (ended, gone) = std::thread::scope(|scope| {
        let gone = scope.spawn(|| all_gone(hosts, slots.len(), struck));
        (job.end(), gone.join().expect("no panic"))
    });
    let took = ended.at - struck;
    println!("rank {rank} in {phase} on {slots:?}: exit {} after {took:.1?}: {:?}", ended.code, ended.errors);
    println!("no ranks any more after {gone:.1?} on {:?}", &NAMES[..slots.len()]);
    (ended, took, gone)
}

/// Time from `since` to the end of each host's ranks; [`Duration::MAX`] for ranks that outlived the
/// limit.
fn all_gone(hosts: &Hosts, count: usize, since: Instant) -> Vec<Duration> {
    let mut gone = vec![None; count];
    while gone.contains(&None) && since.elapsed() < HEARTBEAT + SLACK + LEFT {
        for (host, gone) in gone.iter_mut().enumerate() {
            if gone.is_none() && hosts.ranks(host) == 0 {
                *gone = Some(since.elapsed());
            }
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    gone.into_iter().map(|gone| gone.unwrap_or(Duration::MAX)).collect()
}

#[test]
fn a_host_that_is_cut_off_ends_the_job_in_time() {
    let Some(hosts) = hosts(2) else { return };
    // Rank that the failpoint holds: one of the lost host, and one of the other.
    for (rank, phase) in [(2, "probe"), (1, "recompute")] {
        let (ended, took, gone) = strike(&hosts, &[2, 2], (rank, phase), |_| hosts.cut(1));
        assert_eq!(ended.code, 75, "{:#?}", ended.errors);
        assert!(took < HEARTBEAT + SLACK, "{took:?}");
        let cause = ended.cause();
        assert_eq!(ended.errors.first().map(String::as_str), Some(cause), "the cause comes first");
        assert!(cause.starts_with("tributary: rank 2 (process "), "{cause}");
        assert!(cause.contains(" on birch) and rank 3 (process "), "{cause}");
        assert!(cause.contains(" on birch) have been silent for 3s; rank 2 said last that it "), "{cause}");
        assert!(cause.contains(&format!(" in {phase}")) || cause.contains(&format!(", {phase})")), "{cause}");
        for (host, gone) in gone.iter().enumerate() {
            assert!(*gone < HEARTBEAT + SLACK, "{}: {gone:?}", NAMES[host]);
        }
        // Of the host that was lost nothing is left but Open MPI's daemon in its shell, which waits
        // for the network.
        let left = hosts.processes(1);
        println!("left on {}: {left:?}", NAMES[1]);
        assert!(left.iter().all(|name| ["sh", "orted"].contains(&name.as_str())), "{left:?}");
        assert!(hosts.processes(0).is_empty(), "{:?}", hosts.processes(0));
        hosts.heal(1);
        println!("it ends {:.1?} after the network is back", until_quiet(&hosts, 1));
    }
}

/// Time until no rank runs on a host any more.
fn until_quiet(hosts: &Hosts, host: usize) -> Duration {
    let began = Instant::now();
    while !hosts.processes(host).is_empty() {
        assert!(began.elapsed() < Duration::from_secs(15), "{:?}", hosts.processes(host));
        std::thread::sleep(Duration::from_millis(50));
    }
    began.elapsed()
}

#[test]
fn a_network_that_comes_back_in_time_is_survived() {
    let Some(hosts) = hosts(2) else { return };
    let (model, request) = (demo(), request("hop2-0"));
    let arguments = [&arguments(&model, &request, "20")[..], &["--json"]].concat();
    let fault = Fault { rank: 2, failpoint: "worker::probe=sleep(300)" };
    let mut job = Job::run(hosts.launch(&[2, 2], Some(fault), &arguments));
    job.enters(2, "probe");
    hosts.cut(1);
    std::thread::sleep(Duration::from_millis(1500));
    hosts.heal(1);
    let ended = job.end();
    assert_eq!(ended.code, 0, "{:#?}", ended.errors);
    let report: serde_json::Value = serde_json::from_str(&ended.stdout).expect("JSON");
    let alone = kit::json(&[&arguments[..], &["--world-size", "4"]].concat());
    assert_eq!(report["token_ids"], alone["token_ids"]);
    assert!(report["ttft_ms"].as_f64().expect("a time") > 1400.0, "{report}");
}

#[test]
fn a_rank_killed_on_another_host_is_named() {
    let Some(hosts) = hosts(2) else { return };
    // The other rank of its host sees it die; and where there is none, mpirun's daemon.
    let cases: [(&[usize], usize, &str); 2] =
        [(&[2, 2], 2, "tributary: rank 2 (process "), (&[1, 1], 1, "tributary: rank 1 on birch (pid ")];
    for (slots, rank, beginning) in cases {
        let (ended, took, gone) = strike(&hosts, slots, (rank, "probe"), |pid| hosts.signal(1, pid, "KILL"));
        assert_eq!(ended.code, 69, "{:#?}", ended.errors);
        assert!(took < SLACK, "{took:?}");
        let first = ended.errors.first().map_or("", String::as_str);
        assert!(first.starts_with(beginning) && first.contains("birch"), "{:#?}", ended.errors);
        assert!(gone.iter().all(|gone| *gone < SLACK), "{gone:?}");
        for host in 0..2 {
            until_quiet(&hosts, host);
        }
    }
}

#[test]
fn a_model_that_one_host_lacks_ends_all() {
    let Some(hosts) = hosts(2) else { return };
    let (model, request) = (demo(), request("hop2-0"));
    hosts.sh(1, &format!("mount -t tmpfs tmpfs '{model}'"));
    let began = Instant::now();
    // The request is in the model's folder, but only the first host reads it.
    let ended = Job::run(hosts.launch(&[1, 1], None, &arguments(&model, &request, "3"))).end();
    assert_eq!(ended.code, 64, "{:#?}", ended.errors);
    // A rank that sees the other's end before its own prints MPI's words for it; ours come once,
    // and first.
    assert_eq!(ended.causes(), 1, "{:#?}", ended.errors);
    assert!(ended.errors[0].starts_with("tributary: rank 1: cannot read "), "{:#?}", ended.errors);
    assert!(ended.at - began < Duration::from_secs(20));
    until_quiet(&hosts, 1);
}

#[test]
fn a_host_that_nobody_knows_is_refused() {
    let Some(hosts) = hosts(1) else { return };
    let mut launch = hosts.on(0, env!("CARGO_BIN_EXE_tributary"));
    launch.args(["launch", "-n", "2", "--hosts", "nosuch:2", "--", "prefill", "--model", "m"]);
    let ended = Job::run(launch).end();
    assert_eq!(ended.code, 64, "{:#?}", ended.errors);
    assert_eq!(ended.errors.len(), 1, "{:#?}", ended.errors);
    assert!(ended.cause().starts_with("tributary: unknown host nosuch: "), "{:#?}", ended.errors);
    assert!(ended.stdout.is_empty(), "{}", ended.stdout);
}

#[test]
fn hosts_take_everything_with_them() {
    let Some(hosts) = hosts(1) else { return };
    // It outlives the shell that starts it, as a daemon would.
    hosts.sh(0, "sleep 300 >/dev/null 2>&1 &");
    let number = hosts.number(0, "sleep").expect("it runs");
    drop(hosts);
    let began = Instant::now();
    while Path::new(&format!("/proc/{number}")).exists() {
        assert!(began.elapsed() < LEFT, "process {number} is left");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn the_host_with_least_memory_counts() {
    let Some(hosts) = hosts(2) else { return };
    let (model, request) = (demo(), request("hop2-0"));
    let prefill = ["prefill", "--model", &model, "--request", &request, "--chunk-cache", "off"];
    let mib = |count: u64| count << 20;
    // Less than a program takes; room for program and weights, and not for the request; room for
    // all.
    for (bytes, code, who) in [(mib(30), 71, "the weights need"), (mib(36), 71, "the request needs"), (mib(400), 0, "")]
    {
        let failpoint = format!("engine::memory=return({bytes})");
        let ended = Job::run(hosts.launch(&[1, 1], Some(Fault { rank: 1, failpoint: &failpoint }), &prefill)).end();
        println!("{bytes} bytes on {}: exit {}: {:?}", NAMES[1], ended.code, ended.errors);
        assert_eq!(ended.code, code, "{:#?}", ended.errors);
        if code != 0 {
            let cause = ended.cause();
            assert!(cause.contains(who) && cause.contains(" are available to rank 1; "), "{:#?}", ended.errors);
            assert_eq!(ended.causes(), 1, "{:#?}", ended.errors);
        }
    }
}
