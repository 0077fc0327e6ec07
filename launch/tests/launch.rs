//! `tributary launch`: its refusals before anything starts, the lines it builds, ends of jobs, and
//! its templates.
//!
//! mpirun is played by shell scripts here, so that every end can be had on any machine; ranks over
//! a real one are tested where the backend is.

#[path = "launch/ends.rs"]
mod ends;
#[allow(dead_code)] // no model is run here
mod kit;
#[path = "launch/lines.rs"]
mod lines;
#[path = "launch/templates.rs"]
mod templates;

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tributary_mpirun::flavour::{Flavour, of_this_program};

const OPEN_MPI_4: &str = "mpirun (Open MPI) 4.1.4\n\nReport bugs to http://www.open-mpi.org/community/help/";
const OPEN_MPI_5: &str = "mpirun (Open MPI) 5.0.11\n\nReport bugs to https://www.open-mpi.org/community/help/";
const HYDRA: &str = "HYDRA build details:\n    Version:                                 4.0.2";

/// A folder with an `mpirun` that says it is of this version, and otherwise prints variable A and
/// its arguments, one a line. A shell writes it: this process has threads that start others, which
/// must not inherit a file open for writing.
fn fake_mpirun(version: &str) -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let body =
        "#!/bin/sh\nif [ \"$1\" = --version ]; then cat \"$0.version\"; exit 0; fi\nprintf '%s\\n' \"A=$A\" \"$@\"\n";
    let write = "printf '%s' \"$2\" > \"$1\" && chmod +x \"$1\" && printf '%s\\n' \"$3\" > \"$1.version\"";
    let path = folder.path().join("mpirun");
    let written = Command::new("/bin/sh").args(["-c", write, "sh"]).arg(&path).args([body, version]).status();
    assert!(written.expect("a shell").success());
    folder
}

/// Runs `launch` where `mpirun` is the one in this folder, outside of any batch system.
fn launch(mpirun: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tributary"));
    command.arg("launch").args(arguments).env("PATH", format!("{}:/usr/bin:/bin", mpirun.display()));
    for name in ["SLURM_JOB_ID", "PBS_NODEFILE", "LSB_HOSTS", "PE_HOSTFILE", "TRIBUTARY_LAUNCH_ID"] {
        command.env_remove(name);
    }
    command.output().expect("the command starts")
}

/// Runs `launch`, which must refuse in one line.
fn refused(version: &str, arguments: &[&str], exit_code: i32, says: &[&str]) {
    let folder = fake_mpirun(version);
    let output = launch(folder.path(), arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(exit_code), "{arguments:?}: {errors}");
    assert_eq!(errors.lines().count(), 1, "{arguments:?}: {errors}");
    assert!(errors.starts_with("tributary: "), "{errors}");
    for part in says {
        assert!(errors.contains(part), "{arguments:?}: `{part}` is not in: {errors}");
    }
    assert!(output.stdout.is_empty(), "{arguments:?}: something was started");
}

#[test]
fn hosts_that_cannot_be() {
    let with = |options: &[&str], says: &[&str]| {
        refused(OPEN_MPI_4, &[options, &["--", "prefill", "--model", "m"]].concat(), 64, says);
    };
    with(&["-n", "2", "--hosts", "no-such-host.invalid:2"], &["unknown host no-such-host.invalid"]);
    with(&["-n", "5", "--hosts", "localhost:4"], &["-n 5", "4 slots on localhost:4", "--oversubscribe"]);
    with(&["-n", "3", "--hosts", "localhost"], &["-n 3", "localhost:SLOTS"]);
    with(&["-n", "1", "--hosts", "localhost:0"], &["0 slots"]);
    with(&["-n", "1", "--hosts", "localhost:1,localhost:1"], &["twice"]);
    with(&["-n", "1", "--hostfile", "/no/such/file"], &["/no/such/file"]);
    with(&["-n", "1", "--hosts", "localhost:1", "--hostfile", "x"], &["--hosts", "--hostfile"]);
    with(&["-n", "0"], &["-n 0", "at least 1", "at most 4096"]);
    with(&["-n", "18446744073709551615"], &["at most 4096"]);
    with(&[], &["--ranks"]);
}

#[test]
fn commands_that_cannot_be() {
    let with = |options: &[&str], says: &[&str]| refused(OPEN_MPI_4, &[&["-n", "2"], options].concat(), 64, says);
    with(&["--", "prefill", "--world-size", "3"], &["-n 2", "--world-size 3"]);
    with(&["--", "launch", "-n", "2"], &["`launch`", "prefill"]);
    with(&["--hots", "localhost:2", "prefill"], &["--hots"]);
    with(&["--env", "=x", "--", "prefill"], &["--env =x"]);
    with(&["--launcher", "srun", "--hosts", "localhost:2", "--", "prefill"], &["srun", "--hosts"]);
    with(&["--launcher", "pigeon", "--", "prefill"], &["pigeon", "srun"]);
    with(&[], &["COMMAND"]);
}

#[test]
fn a_study_runs_on_the_ranks_that_are_started() {
    let folder = fake_mpirun(OPEN_MPI_4);
    let file = folder.path().join("s.toml");
    std::fs::write(&file, "threads = 2\nlengths = [\"4k\"]\n").expect("written");
    let file = file.display().to_string();
    let study = ["bench", "--study", &file, "--out", "o", "--resume"];
    let output = launch(folder.path(), &[&["-n", "2", "--restarts", "1", "--dry-run", "--"], &study[..]].concat());
    let line = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(line.contains(&format!(" bench --backend mpi --study {file} --out o --resume --threads 2")), "{line}");
    assert!(!line.contains("--world-size"), "bench has no such option: {line}");
    let with = |options: &[&str], says: &[&str]| refused(OPEN_MPI_4, &[&["-n", "2"], options].concat(), 64, says);
    with(&["--", "bench", "--worlds", "1,2"], &["-n 2", "--worlds 1,2"]);
    with(&["--restarts", "1", "--", "bench", "--out", "o"], &["--restarts 1", "--resume"]);
    with(&["--restarts", "1", "--", "quality", "--out", "o"], &["--restarts 1", "--resume"]);
    with(&["--", "quality", "--worlds", "3"], &["-n 2", "--world-size 3"]);
    let output = launch(folder.path(), &["-n", "2", "--dry-run", "--", "quality", "--suite", "hops"]);
    let line = String::from_utf8_lossy(&output.stdout);
    assert!(line.contains(" quality --backend mpi --world-size 2 --suite hops"), "{line}");
}

#[test]
fn launchers_that_do_not_fit() {
    let command = ["-n", "2", "--", "prefill"];
    refused(HYDRA, &command, 78, &["MPICH", "Open MPI 4 or 5"]);
    refused("Intel(R) MPI Library for Linux* OS, Version 2021.9", &command, 78, &["Intel", "Open MPI 4 or 5"]);
    refused("mpirun (Open MPI) 3.1.3", &command, 78, &["3.1.3", "Open MPI 4 or 5"]);
    refused("teapot 1.0", &command, 78, &["`teapot 1.0`"]);
    let missing = ["-n", "2", "--mpirun", "/no/such/mpirun", "--", "prefill"];
    refused(OPEN_MPI_4, &missing, 78, &["/no/such/mpirun", "install Open MPI"]);
    let dry = ["-n", "2", "--dry-run", "--mpirun", "/no/such/mpirun", "--", "prefill"];
    refused(OPEN_MPI_4, &dry, 78, &["/no/such/mpirun"]);
}

#[test]
fn a_program_of_another_mpi() {
    let command = ["-n", "2", "--", "prefill"];
    match of_this_program() {
        Err(error) => {
            assert!(error.contains("--features mpi"), "{error}");
            refused(OPEN_MPI_4, &command, 78, &["--features mpi"]);
        }
        Ok(Flavour::OpenMpi { major: 4, .. }) => refused(OPEN_MPI_5, &command, 78, &["5.0.11", "Open MPI 4"]),
        Ok(library) => refused(OPEN_MPI_4, &command, 78, &["4.1.4", &library.to_string()]),
    }
}

#[test]
fn a_dry_run_prints_a_line_that_a_shell_can_run() {
    let folder = fake_mpirun(OPEN_MPI_4);
    let options = ["-n", "2", "--dry-run", "--env", "A=it's $HOME", "--mpirun-arg", "--mca", "--mpirun-arg", "a b"];
    let command = ["--", "prefill", "--model", "a  model", "--query", "\"why?\""];
    let output = launch(folder.path(), &[&options[..], &command].concat());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
    let line = String::from_utf8(output.stdout).expect("text");
    assert_eq!(line.lines().count(), 1, "{line}");
    let path = format!("{}:/usr/bin:/bin", folder.path().display());
    let played = Command::new("/bin/sh").args(["-c", &line]).env("PATH", path).output().expect("a shell");
    let played = String::from_utf8(played.stdout).expect("text");
    assert!(played.starts_with("A=it's $HOME\n"), "{played}");
    let program = env!("CARGO_BIN_EXE_tributary");
    let end = ["prefill", "--backend", "mpi", "--world-size", "2", "--model", "a  model", "--query", "\"why?\"", ""];
    let expected = [&["-x", "A", "--mca", "a b", program][..], &end].concat().join("\n");
    assert!(played.ends_with(&expected), "{played}");
}

#[test]
fn each_open_mpi_has_its_own_options() {
    let line = |version: &str, options: &[&str]| {
        let folder = fake_mpirun(version);
        let output = launch(folder.path(), &[options, &["--dry-run", "prefill", "--model", "m"]].concat());
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("text")
    };
    let four = line(OPEN_MPI_4, &["-n", "4096"]);
    assert!(four.contains(" --oversubscribe --bind-to none "), "{four}");
    assert!(four.starts_with("OMPI_MCA_mpi_yield_when_idle=1 mpirun "), "{four}");
    let five = line(OPEN_MPI_5, &["-n", "4096"]);
    assert!(five.contains(" --map-by :OVERSUBSCRIBE --bind-to none "), "{five}");
    let bound = line(OPEN_MPI_5, &["-n", "1"]);
    assert!(bound.contains(" --map-by 'slot:PE=1' --bind-to core "), "{bound}");
    let hosts = line(OPEN_MPI_4, &["-n", "3", "--hosts", "localhost:1,127.0.0.2:2"]);
    assert!(hosts.contains(" --host 'localhost:1,127.0.0.2:2' --bind-to none "), "{hosts}");
}

#[test]
fn a_launcher_whose_parent_is_killed_is_told_to_end() {
    // A killed parent does not end its child; the child must end on its own, and report the signal.
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str| folder.path().join(name).display().to_string();
    let child = "trap 'echo told > \"$1\"; exit' TERM; echo ready > \"$2\"; while :; do sleep 0.05; done";
    let parent = "\"$0\" launch --exec-under $$ -- /bin/sh -c \"$3\" sh \"$1\" \"$2\" & wait";
    let mut parent = Command::new("/bin/sh")
        .args(["-c", parent, env!("CARGO_BIN_EXE_tributary"), &file("told"), &file("ready"), child])
        .stdin(Stdio::null())
        .spawn()
        .expect("a shell");
    wait_for(Path::new(&file("ready")));
    parent.kill().expect("it is ours");
    parent.wait().expect("it has ended");
    wait_for(Path::new(&file("told")));
}

/// Waits for a file to have a line.
fn wait_for(path: &Path) {
    let began = Instant::now();
    while !std::fs::read_to_string(path).is_ok_and(|text| text.ends_with('\n')) {
        assert!(began.elapsed() < Duration::from_secs(20), "{} has not come", path.display());
        std::thread::sleep(Duration::from_millis(10));
    }
}
