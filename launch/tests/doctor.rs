//! `doctor` on groups of threads: the report of a healthy group, and of groups whose collectives
//! are bent on purpose.

#[path = "doctor/options.rs"]
mod options;
#[path = "doctor/rendering.rs"]
mod rendering;
#[path = "doctor/verdict.rs"]
mod verdict;
#[path = "doctor/warnings.rs"]
mod warnings;

use std::thread;
use std::time::Duration;

use candle_core::Tensor;
use clap::Parser;
use tributary::doctor::{Checks, DoctorArgs, Report, Site, Unfit, examine};
use tributary_comm::local::{Local, Seat, seats};
use tributary_comm::{Aside, Communicator, Liveness, Pending, Points, Result, Start, Traffic};
use tributary_protocol::Phase;

const THREADS: usize = 2;
const LAUNCHER: &str = "threads of this process";

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    doctor: DoctorArgs,
}

/// Three runs of two small sizes, unless the options say otherwise.
fn args(options: &[&str]) -> DoctorArgs {
    let mut all = vec!["doctor", "--repeat", "3"];
    if !options.contains(&"--sizes") {
        all.extend(["--sizes", "1000B,64KiB"]);
    }
    all.extend(options);
    Cli::try_parse_from(all).expect("good options").doctor
}

/// Result of each rank, in rank order.
type Outcomes = Vec<anyhow::Result<Option<Report>>>;

/// Examines a group, each rank's communicator wrapped.
fn outcomes<C: Communicator>(world: usize, options: &[&str], wrap: impl Fn(Local) -> C + Sync) -> Outcomes {
    let args = args(options);
    let rank = |seat: Seat| {
        let mut comm = wrap(seat.take());
        examine(&args, THREADS, LAUNCHER, &Site::host(), &mut comm)
    };
    thread::scope(|scope| {
        let threads: Vec<_> = seats(world).into_iter().map(|seat| scope.spawn(|| rank(seat))).collect();
        threads.into_iter().map(|thread| thread.join().expect("the rank does not panic")).collect()
    })
}

/// Examines a group that gets through; only rank 0 has a report.
fn report<C: Communicator>(world: usize, options: &[&str], wrap: impl Fn(Local) -> C + Sync) -> Report {
    let mut reports: Vec<Option<Report>> =
        outcomes(world, options, wrap).into_iter().map(|outcome| outcome.expect("no rank fails")).collect();
    assert!(reports.drain(1..).all(|report| report.is_none()), "only rank 0 reports");
    reports[0].take().expect("rank 0 reports")
}

/// A communicator that does one thing wrong or otherwise, and passes on all else.
struct Bent {
    inner: Local,
    how: How,
}

/// Kind of tampering.
#[derive(Clone, Copy)]
enum How {
    /// Ranks say that they are processes of their own.
    Processes,
    /// This rank receives tensors of zeros.
    Zeros { on: usize },
    /// This rank's bytes are no message.
    Garbage { on: usize },
}

fn bend(how: How) -> impl Fn(Local) -> Bent {
    move |inner| Bent { inner, how }
}

impl Communicator for Bent {
    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn size(&self) -> usize {
        self.inner.size()
    }

    fn liveness(&self) -> Liveness {
        self.inner.liveness()
    }

    fn points(&self) -> Points {
        self.inner.points()
    }

    fn finish_started(&mut self) -> Result<()> {
        self.inner.finish_started()
    }

    fn set_deadline(&mut self, phase: Phase, deadline: Duration) {
        self.inner.set_deadline(phase, deadline);
    }

    fn start_together(&mut self, starts: &[Start<'_>]) -> Result<Vec<Pending>> {
        self.inner.start_together(starts)
    }

    fn wait(&mut self, pending: Pending) -> Result<Vec<Tensor>> {
        let received = self.inner.wait(pending)?;
        match self.how {
            How::Zeros { on } if on == self.rank() => received.iter().map(|tensor| Ok(tensor.zeros_like()?)).collect(),
            _ => Ok(received),
        }
    }

    fn broadcast_bytes(&mut self, root: usize, bytes: Option<Vec<u8>>) -> Result<Vec<u8>> {
        self.inner.broadcast_bytes(root, bytes)
    }

    fn gather_bytes(&mut self, root: usize, bytes: Vec<u8>) -> Result<Vec<Vec<u8>>> {
        let rank = self.rank();
        let bytes = match (self.how, serde_json::from_slice::<serde_json::Value>(&bytes)) {
            (How::Processes, Ok(mut facts)) if facts.get("pid").is_some() => {
                facts["pid"] = (1000 + rank).into();
                facts.to_string().into_bytes()
            }
            (How::Garbage { on }, _) if on == rank => b"{".to_vec(),
            _ => bytes,
        };
        self.inner.gather_bytes(root, bytes)
    }

    fn barrier(&mut self) -> Result<()> {
        self.inner.barrier()
    }

    fn abort(&mut self, cause: &str, exit_code: u8) {
        self.inner.abort(cause, exit_code);
    }

    fn start_lap(&mut self) -> usize {
        self.inner.start_lap()
    }

    fn laps(&mut self) -> Vec<Traffic> {
        self.inner.laps()
    }

    fn set_aside(&mut self) -> Aside {
        self.inner.set_aside()
    }

    fn take_up(&mut self, aside: Aside) {
        self.inner.take_up(aside);
    }

    fn reset_traffic(&mut self) {
        self.inner.reset_traffic();
    }
}

#[test]
fn a_group_of_threads_is_described() {
    for world in [3, 4] {
        let report = report(world, &[], |comm| comm);
        assert_eq!((report.world, &report.launcher[..], report.one_process), (world, LAUNCHER, true));
        assert_eq!(report.checks, Checks::Passed);
        let [host] = &report.hosts[..] else { panic!("one host: {:?}", report.hosts) };
        assert_eq!((&host.ranks, host.processes), (&(0..world).collect(), 1));
        for (rank, row) in report.ranks.iter().enumerate() {
            assert_eq!((row.rank, row.local_rank, row.threads), (rank, rank, THREADS));
            assert_eq!((row.pid, &row.host), (std::process::id(), &host.name));
            assert!(!row.cores.is_empty(), "{row:?}");
        }
        assert_eq!(report.verdict(), Ok(()));
        let text = report.render();
        assert!(text.contains(&format!("collectives: every check passed on {world} ranks\n")), "{text}");
        assert!(text.contains("without a copy"), "{text}");
        // Fit, with warnings or without: the test's machine may have few cores.
        let last = text.lines().last().expect("a line");
        assert!(last.starts_with("fit"), "{last}");
    }
}

#[test]
fn every_run_of_every_size_is_kept() {
    let report = report(3, &["--skip-checks"], |comm| comm);
    assert_eq!(report.checks, Checks::LeftOut);
    let sizes: Vec<u64> = report.all_gathers.iter().map(|result| result.size_bytes.bytes()).collect();
    assert_eq!(sizes, [1000, 64 << 10], "1000 bytes are no equal parts");
    for result in &report.all_gathers {
        assert_eq!((result.runs_ms.len(), result.wrong_values), (3, 0), "{result:?}");
        assert!(result.runs_ms.iter().all(|&time_ms| time_ms > 0.0), "{result:?}");
        assert_eq!((result.algorithm_gb_per_s, result.bus_gb_per_s), (None, None), "nothing is copied");
    }
}

#[test]
fn one_rank_alone_has_nothing_to_measure() {
    let alone = report(1, &[], |comm| comm);
    assert_eq!((alone.checks.clone(), alone.all_gathers.len()), (Checks::Passed, 0));
    assert_eq!(alone.verdict(), Ok(()));
    assert!(alone.render().contains("one rank has nothing to measure"), "{}", alone.render());
    let unfit = report(1, &["--min-busbw", "1"], |comm| comm).verdict().unwrap_err();
    assert_eq!(unfit.exit_code, 78, "{unfit}");
}

#[test]
fn processes_have_a_bandwidth_and_a_gate() {
    let measured = report(4, &["--skip-checks"], bend(How::Processes));
    assert!(!measured.one_process);
    for result in &measured.all_gathers {
        let (algorithm, bus) = (result.algorithm_gb_per_s.expect("a speed"), result.bus_gb_per_s.expect("a speed"));
        assert!(algorithm > 0.0 && (bus - 0.75 * algorithm).abs() < 1e-9 * algorithm, "{result:?}");
    }
    let gated = |demand: &str| report(4, &["--skip-checks", "--min-busbw", demand], bend(How::Processes)).verdict();
    assert_eq!(gated("1e-9"), Ok(()));
    let unfit = gated("1e9").unwrap_err();
    assert_eq!(unfit.exit_code, 78);
    assert!(unfit.reason.starts_with("the bus bandwidth of a 64 KiB all-gather is "), "{unfit}");
}

#[test]
fn what_fits_no_memory_is_left_out_on_all_ranks() {
    let report = report(3, &["--sizes", "4000000GiB,8B,2000000GiB"], bend(How::Processes));
    let sizes: Vec<u64> = report.all_gathers.iter().map(|result| result.size_bytes.bytes()).collect();
    assert_eq!(sizes, [8], "one rank has nothing to send");
    assert_eq!(report.left_out.len(), 2);
    assert!(report.left_out[0].reason.contains("are free"), "{:?}", report.left_out);
    assert_eq!(report.verdict(), Ok(()));
}

#[test]
fn wrong_collectives_are_found_on_any_rank() {
    for on in 0..3 {
        let mut outcomes = outcomes(3, &[], bend(How::Zeros { on }));
        let others = outcomes.split_off(1);
        let report = outcomes.remove(0).expect("rank 0 has a report").expect("rank 0 has a report");
        let Checks::Failed(what) = &report.checks else { panic!("rank {on} is bent: {:?}", report.checks) };
        assert!(what.contains("value 0 is 0, not "), "rank {on}: {what}");
        assert_eq!(what.contains(&format!("rank {on} gave up")), on != 0, "{what}");
        assert!(report.all_gathers.is_empty() && report.ranks.len() == 3);
        let unfit = report.verdict().unwrap_err();
        assert_eq!((unfit.exit_code, unfit.reason), (70, format!("collectives: {what}")));
        assert!(report.render().contains("collectives: FAILED: "), "{}", report.render());
        for outcome in others {
            let error = outcome.unwrap_err();
            let unfit: &Unfit = error.downcast_ref().expect("its own kind of error");
            assert_eq!(unfit.exit_code, 70, "{unfit}");
        }
    }
}

#[test]
fn wrong_values_are_counted_where_checks_are_left_out() {
    let report = report(3, &["--skip-checks"], bend(How::Zeros { on: 2 }));
    // Of 250 and of 16384 values, only rank 0's first is zero.
    let wrong: Vec<u64> = report.all_gathers.iter().map(|result| result.wrong_values).collect();
    assert_eq!(wrong, [249, 16383]);
    assert_eq!(report.verdict().unwrap_err().exit_code, 70);
}

#[test]
fn facts_that_cannot_be_read_name_their_rank() {
    let outcomes = outcomes(3, &[], bend(How::Garbage { on: 2 }));
    let errors: Vec<String> = outcomes.into_iter().map(|outcome| format!("{:#}", outcome.unwrap_err())).collect();
    assert!(errors[0].starts_with("facts of rank 2: "), "{errors:?}");
    assert!(errors[1..].iter().all(|error| error.contains("rank 0 left")), "{errors:?}");
}

#[test]
fn json_has_everything() {
    let value = serde_json::to_value(report(3, &[], bend(How::Processes))).expect("JSON");
    let fields = [
        "schema",
        "version",
        "launcher",
        "world",
        "one_process",
        "ranks",
        "hosts",
        "warnings",
        "checks",
        "between_gpus",
        "latency",
        "all_gathers",
        "left_out",
        "min_busbw_gb_per_s",
        "unfit",
    ];
    let found: Vec<&String> = value.as_object().expect("an object").keys().collect();
    assert_eq!(found, fields);
    assert_eq!(value["ranks"][2]["local_rank"], 2);
    assert_eq!(value["hosts"][0]["processes"], 3);
    assert_eq!((&value["between_gpus"], &value["latency"]["rank_bytes"]), (&serde_json::Value::Null, &256.into()));
    assert!(value["all_gathers"][1]["bus_gb_per_s"].as_f64().is_some_and(|speed| speed > 0.0), "{value}");
}

#[test]
fn numbers_beyond_all_measure_are_refused() {
    let most = u64::MAX.to_string();
    let cases: [(&[&str], &str); 4] = [
        (&["--world-size", &most], "at most 4096"),
        (&["--threads", &most], "at most 4096"),
        (&["--collective-timeout", &most], "1..=2592000"),
        (&["--start-timeout", &most], "1..=2592000"),
    ];
    for (arguments, says) in cases {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_tributary"));
        let output = command.args(["doctor", "--skip-checks"]).args(arguments).output().expect("the command starts");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), errors.lines().count()), (Some(64), 1), "{arguments:?}: {errors}");
        assert!(errors.contains(says), "{arguments:?}: `{says}` is not in: {errors}");
    }
}
