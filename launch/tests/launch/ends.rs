//! Ends of jobs: a shell plays mpirun's part, and the results are our exit code and standard error.

use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tributary_mpirun::attempts::{Series, run};
use tributary_mpirun::line::Line;
use tributary_mpirun::supervise::Limits;

use super::wait_for;

/// Says that the work is complete, as a rank does.
const COMPLETED: &str = "echo tributary-completed $TRIBUTARY_LAUNCH_ID >&2";

/// Facts of an end.
#[derive(Debug)]
struct End {
    exit_code: u8,
    stderr: String,
    seconds: f64,
}

/// Standard error, to be looked at.
#[derive(Clone, Default)]
struct Shown(Arc<Mutex<Vec<u8>>>);

impl Write for Shown {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("no writer has panicked").extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A job whose launcher is this script, with patience of half a second.
fn series(script: &str) -> Series {
    let half = Duration::from_millis(500);
    let line = Line {
        program: "/bin/sh".to_owned(),
        arguments: ["-c", script].map(str::to_owned).to_vec(),
        ..Line::default()
    };
    let limits = Limits { told: half, failed: half, completed: half, rest: Duration::from_secs(2), remark: half };
    Series { line, launcher: "mpirun".to_owned(), restarts: 0, verbose: false, limits }
}

/// Runs a job; each signal comes in as soon as its file is there, one after the other.
fn ended_by(series: &Series, signals: &[(&Path, i32)]) -> End {
    let (shown, began) = (Shown::default(), Instant::now());
    let mut signals = signals.iter().peekable();
    let mut interrupt = || signals.next_if(|(ready, _)| ready.exists()).map(|(_, number)| *number);
    let out: tributary_mpirun::supervise::Out = Arc::new(Mutex::new(Box::new(shown.clone())));
    let exit_code = run(series, &out, &mut interrupt).expect("a shell");
    let seconds = began.elapsed().as_secs_f64();
    let bytes = shown.0.lock().expect("no writer has panicked").clone();
    End { exit_code, stderr: String::from_utf8(bytes).expect("text"), seconds }
}

fn end(script: &str) -> End {
    ended_by(&series(script), &[])
}

fn dashed(text: &str) -> String {
    let dashes = "-".repeat(74);
    format!("echo {dashes} >&2; echo '{text}' >&2; echo {dashes} >&2")
}

fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

/// Waits until the process whose number is in this file is no more.
fn wait_for_end(pid_file: &Path) {
    let pid = std::fs::read_to_string(pid_file).expect("a number");
    let lives = || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
        stat.is_ok_and(|stat| !stat.contains(") Z "))
    };
    let began = Instant::now();
    while lives() {
        assert!(began.elapsed() < Duration::from_secs(5), "process {pid} is left");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn only_the_marker_is_success() {
    for status in [0, 1, 137] {
        let End { exit_code, stderr, .. } = end(&format!("echo noise >&2; {COMPLETED}; exit {status}"));
        assert_eq!((exit_code, stderr.as_str()), (0, "noise\n"), "status {status}");
    }
    let End { exit_code, stderr, .. } = end("exit 0");
    assert_eq!(exit_code, 69);
    assert_eq!(stderr, "tributary: mpirun ended without the work being complete\n");
    let End { exit_code, stderr, .. } = end("echo tributary-completed 0123456789abcdef >&2");
    assert_eq!(exit_code, 69, "another launch's marker: {stderr}");
}

#[test]
fn a_launcher_that_is_killed_leaves_no_files_of_its_session() {
    let seen = folder();
    let seen = seen.path().join("sessions");
    let lines = [
        "[ -d \"$PRTE_MCA_prte_local_tmpdir_base\" ] || exit 3".to_owned(),
        "mkdir -p $PRTE_MCA_prte_local_tmpdir_base/ompi.$$/left".to_owned(),
        format!("printf %s $PRTE_MCA_prte_local_tmpdir_base > {}; kill -9 $$", seen.display()),
    ];
    let End { stderr, .. } = end(&lines.join("; "));
    let folder = std::fs::read_to_string(&seen).expect("the launcher came as far as that");
    assert!(!Path::new(&folder).exists(), "{folder} is left: {stderr}");
}

#[test]
fn a_completed_job_whose_launcher_stays_is_a_success() {
    let End { exit_code, seconds, .. } = end(&format!("{COMPLETED}; sleep 60"));
    assert_eq!(exit_code, 0);
    assert!((0.5..10.0).contains(&seconds), "{seconds} s");
}

#[test]
fn what_a_rank_says_passes_and_counts() {
    let block = dashed("mpirun noticed that process rank 0 with PID 5 on node a exited on signal 9 (Killed).");
    let failed = "echo tributary-failed $TRIBUTARY_LAUNCH_ID";
    let script = format!(
        "echo 'tributary: rank 2: deadline' >&2; {failed} 75 2 >&2; {failed} 69 1 >&2; {block}; echo last >&2; exit 137"
    );
    let End { exit_code, stderr, .. } = end(&script);
    assert_eq!((exit_code, stderr.as_str()), (75, "tributary: rank 2: deadline\nlast\n"));
    let silent = end(&format!("{failed} 71 3 >&2; exit 1"));
    assert_eq!(silent.exit_code, 71);
    assert_eq!(silent.stderr, "tributary: out of memory, reported by rank 3 (exit code 71)\n");
    let bare = end("echo 'tributary: no such model' >&2; exit 64");
    assert_eq!((bare.exit_code, bare.stderr.as_str()), (64, "tributary: no such model\n"));
}

#[test]
fn a_killed_rank_is_named_first() {
    let block = dashed("mpirun noticed that process rank 2 with PID 123 on node X exited on signal 9 (Killed).");
    let script = format!("echo '[vm:7] Read -1' >&2; {block}; exit 137");
    let End { exit_code, stderr, .. } = end(&script);
    let line = "tributary: rank 2 on X (pid 123) was killed by signal 9\n";
    assert_eq!((exit_code, stderr), (69, format!("{line}[vm:7] Read -1\n")));
    let verbose = ended_by(&Series { verbose: true, ..series(&script) }, &[]);
    assert!(verbose.stderr.starts_with(line) && verbose.stderr.contains("mpirun noticed"), "{}", verbose.stderr);
    let unnamed = end("exit 139");
    assert_eq!(unnamed.exit_code, 69);
    assert!(unnamed.stderr.starts_with("tributary: a rank was killed by signal 11 "), "{}", unnamed.stderr);
}

#[test]
fn what_mpirun_refuses_is_told_and_shown() {
    let block = dashed("There are not enough slots available in the system.");
    let End { exit_code, stderr, .. } = end(&format!("{block}; exit 1"));
    assert_eq!(exit_code, 69);
    let first = "tributary: mpirun ended with status 1: There are not enough slots available in the system.\n-----";
    assert!(stderr.starts_with(first), "{stderr}");
    let warning = end(&format!("{}; {COMPLETED}", dashed("A warning.")));
    assert!(warning.exit_code == 0 && warning.stderr.contains("A warning."), "{warning:?}");
}

#[test]
fn remarks_of_the_library_are_not_held_for_long() {
    let End { exit_code, stderr, .. } = end(&format!("echo '[vm:7] remark' >&2; sleep 1; echo later >&2; {COMPLETED}"));
    assert_eq!((exit_code, stderr.as_str()), (0, "[vm:7] remark\nlater\n"));
}

#[test]
fn signals_to_us_end_the_job() {
    for (signal, exit_code, line) in
        [(2, 130, "tributary: ended by SIGINT\n"), (15, 143, "tributary: ended by SIGTERM\n")]
    {
        let folder = folder();
        let ready = folder.path().join("ready");
        let failed = "echo tributary-failed $TRIBUTARY_LAUNCH_ID 70 1 >&2";
        let script = format!("trap '{failed}; exit 1' TERM; : > {}; while :; do sleep 0.05; done", ready.display());
        let end = ended_by(&series(&script), &[(&ready, signal)]);
        assert_eq!((end.exit_code, end.stderr.as_str()), (exit_code, line));
        assert!(end.seconds < 5.0, "{end:?}");
    }
}

/// A launcher whose ranks serve, report it, and do this when they are asked to end; it writes to
/// `ready` when it serves.
fn service(ready: &Path, asked: &str) -> String {
    let serving = "echo tributary-serving $TRIBUTARY_LAUNCH_ID >&2";
    format!("trap '{asked}' USR1; {serving}; sleep 0.2; : > {}; while :; do sleep 0.05; done", ready.display())
}

/// Message of ranks that end in order.
const DRAINING: &str = "echo tributary-draining $TRIBUTARY_LAUNCH_ID >&2";

#[test]
fn a_service_is_asked_to_end_and_takes_its_time() {
    for signal in [2, 15] {
        let folder = folder();
        let ready = folder.path().join("ready");
        // Longer than a launcher may take after the signal to end.
        let script = service(&ready, &format!("{DRAINING}; sleep 1; {COMPLETED}; exit 0"));
        let end = ended_by(&series(&script), &[(&ready, signal)]);
        assert_eq!((end.exit_code, end.stderr.as_str()), (0, ""), "{end:?}");
        assert!(end.seconds > 1.0, "{end:?}");
    }
}

#[test]
fn a_second_signal_ends_a_service_at_once() {
    let folder = folder();
    let (ready, drains) = (folder.path().join("ready"), folder.path().join("drains"));
    let script = service(&ready, &format!("{DRAINING}; sleep 0.2; : > {}; sleep 60", drains.display()));
    let end = ended_by(&series(&script), &[(&ready, 15), (&drains, 2)]);
    assert_eq!((end.exit_code, end.stderr.as_str()), (130, "tributary: ended by SIGINT\n"));
    assert!(end.seconds < 10.0, "{end:?}");
}

#[test]
fn a_service_that_does_not_say_that_it_ends_is_ended() {
    let folder = folder();
    let ready = folder.path().join("ready");
    let end = ended_by(&series(&service(&ready, "sleep 60")), &[(&ready, 15)]);
    assert_eq!((end.exit_code, end.stderr.as_str()), (143, "tributary: ended by SIGTERM\n"));
    assert!((0.5..10.0).contains(&end.seconds), "{end:?}");
}

#[test]
fn a_service_that_fails_while_it_ends_says_why_and_is_not_started_again() {
    let folder = folder();
    let (ready, starts) = (folder.path().join("ready"), folder.path().join("starts"));
    let failed = "echo tributary: rank 1: gone >&2; echo tributary-failed $TRIBUTARY_LAUNCH_ID 69 1 >&2";
    let service = service(&ready, &format!("{DRAINING}; sleep 0.2; {failed}; exit 69"));
    let script = format!("echo >> {}; {service}", starts.display());
    let end = ended_by(&Series { restarts: 3, ..series(&script) }, &[(&ready, 15)]);
    assert_eq!((end.exit_code, end.stderr.as_str()), (69, "tributary: rank 1: gone\n"));
    assert_eq!(std::fs::read_to_string(&starts).expect("it was started"), "\n");
}

#[test]
fn a_launcher_that_ignores_sigterm_is_killed() {
    let folder = folder();
    let ready = folder.path().join("ready");
    let script = format!("trap '' TERM; : > {}; while :; do sleep 0.05; done", ready.display());
    let end = ended_by(&series(&script), &[(&ready, 15)]);
    assert_eq!((end.exit_code, end.stderr.as_str()), (143, "tributary: ended by SIGTERM\n"));
    assert!((0.5..10.0).contains(&end.seconds), "{end:?}");
}

#[test]
fn a_launcher_that_stays_after_a_failure_is_killed() {
    let reported = end("echo tributary-failed $TRIBUTARY_LAUNCH_ID 75 2 >&2; sleep 60");
    assert_eq!(reported.exit_code, 75);
    assert!((0.5..10.0).contains(&reported.seconds), "{reported:?}");
    let lost = end(&format!("{}; sleep 60", dashed("ORTE has lost communication with a remote daemon.")));
    assert_eq!(lost.exit_code, 69);
    assert!(lost.stderr.starts_with("tributary: host unknown was lost"), "{lost:?}");
    assert!((0.5..10.0).contains(&lost.seconds), "{lost:?}");
}

#[test]
fn no_process_is_left() {
    for last in ["exit 0", "kill -9 $$", "echo tributary-failed $TRIBUTARY_LAUNCH_ID 69 0 >&2; sleep 60"] {
        let folder = folder();
        let pid_file = folder.path().join("pid");
        // A rank has its own process group, and here it ignores all signals that can be ignored.
        let rank = format!("trap \"\" TERM HUP; echo $$ > {}; while :; do sleep 0.05; done", pid_file.display());
        let script =
            format!("setsid sh -c '{rank}' & while [ ! -s {} ]; do sleep 0.02; done; {last}", pid_file.display());
        let end = end(&script);
        assert_eq!(end.exit_code, 69, "{end:?}");
        wait_for(&pid_file);
        wait_for_end(&pid_file);
    }
}

#[test]
fn jobs_are_started_again_where_that_makes_sense() {
    let folder = folder();
    let count = folder.path().join("count");
    // Fails until it has been started as often as the first word says.
    let script = |needed: usize, status: usize| {
        let file = count.display();
        format!(
            "echo $TRIBUTARY_LAUNCH_ID >> {file}; [ $(wc -l < {file}) -ge {needed} ] && {COMPLETED} || exit {status}"
        )
    };
    let starts = |series: &Series| {
        let _ = std::fs::remove_file(&count);
        let end = ended_by(series, &[]);
        let ids = std::fs::read_to_string(&count).expect("it was started");
        let mut ids: Vec<&str> = ids.lines().collect();
        let starts = ids.len();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), starts, "each attempt has its own id");
        (starts, end)
    };
    let (count, end) = starts(&Series { restarts: 5, ..series(&script(3, 137)) });
    assert_eq!((count, end.exit_code), (3, 0), "{end:?}");
    assert!(end.stderr.contains("tributary: attempt 2 of 6 after: a rank was killed by signal 9"), "{end:?}");
    assert!(end.stderr.contains("tributary: attempt 3 of 6 after: "), "{end:?}");
    let (count, end) = starts(&Series { restarts: 1, ..series(&script(9, 75)) });
    assert_eq!((count, end.exit_code), (2, 75), "{end:?}");
    for status in [64, 65, 70, 74, 76, 78, 130, 143] {
        let (count, end) = starts(&Series { restarts: 3, ..series(&script(9, status)) });
        assert_eq!((count, usize::from(end.exit_code)), (1, status), "{end:?}");
    }
}
