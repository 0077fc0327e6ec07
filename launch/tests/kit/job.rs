//! Jobs of several processes under mpirun, watched line by line, with faults injected on one rank.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// The longest that a test waits for anything.
const PATIENCE: Duration = Duration::from_secs(60);

/// Wait of a rank in a failpoint, so that a test can act: longer than any deadline in these tests.
pub const LONG_MS: u64 = 40_000;

/// Place of a fault: one rank, one failpoint.
pub struct Fault<'a> {
    /// The rank.
    pub rank: usize,
    /// A failpoint with its action, such as `worker::probe=sleep(1000)`.
    pub failpoint: &'a str,
}

/// A running job.
pub struct Job {
    child: Child,
    lines: Receiver<String>,
    seen: Vec<String>,
    /// A text that no other process has among its arguments.
    mark: String,
}

/// A job that has ended.
pub struct Ended {
    /// mpirun's exit code, as a shell sees it.
    pub code: i32,
    /// Its standard output.
    pub stdout: String,
    /// Lines of standard error that are not of the log.
    pub errors: Vec<String>,
    /// When it ended.
    pub at: Instant,
}

/// An mpirun of `world` ranks on this machine.
pub fn mpirun(world: usize) -> Command {
    let mut command = Command::new("mpirun");
    command.args(["-n", &world.to_string(), "--oversubscribe", "--bind-to", "none"]);
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    command.env("OMPI_MCA_mpi_yield_when_idle", "1");
    command
}

/// A folder for the session's files of an mpirun of Open MPI 5. A killed mpirun does not remove
/// them, and another one with its process number does not start on them.
fn sessions() -> PathBuf {
    let folder = tempfile::Builder::new().prefix("sessions-").tempdir_in(env!("CARGO_TARGET_TMPDIR"));
    folder.expect("a folder").keep()
}

/// The MPIs to test with: mpirun's of the path, and Open MPI 5 where `OPENMPI5` says.
pub fn launchers(world: usize) -> Vec<(&'static str, Command)> {
    let mut all = vec![("Open MPI of the path", mpirun(world))];
    let Some(folder) = std::env::var_os("OPENMPI5").map(PathBuf::from) else {
        assert!(std::env::var_os("CI").is_none(), "OPENMPI5 is not set: run `make test`");
        super::skipped("Open MPI 5: OPENMPI5 is not set; `make test` installs it");
        return all;
    };
    let mut five = Command::new(folder.join("bin/mpirun"));
    five.args(["--allow-run-as-root", "-n", &world.to_string(), "--map-by", ":OVERSUBSCRIBE", "--bind-to", "none"]);
    // Before existing entries: an emulated GPU's libraries, perhaps.
    let mut libraries = vec![folder.join("lib")];
    libraries.extend(std::env::var_os("LD_LIBRARY_PATH").iter().flat_map(std::env::split_paths));
    five.env("PRTE_MCA_prte_local_tmpdir_base", sessions());
    five.env("LD_LIBRARY_PATH", std::env::join_paths(libraries).expect("no colon in a folder's name"));
    all.push(("Open MPI 5", five));
    all
}

/// The same by `tributary launch`, of `world` ranks on this machine.
pub fn launches(world: usize) -> Vec<(&'static str, Command)> {
    let with = |(name, mpirun): (&'static str, Command)| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tributary"));
        command.args(["launch", "-n", &world.to_string(), "--mpirun"]).arg(mpirun.get_program());
        // It gives mpirun a folder for its session's files itself.
        let own = |name: &std::ffi::OsStr| name == "PRTE_MCA_prte_local_tmpdir_base";
        command.envs(mpirun.get_envs().filter_map(|(name, value)| Some((name, value?))).filter(|(name, _)| !own(name)));
        (name, command)
    };
    launchers(world).into_iter().map(with).collect()
}

/// Whether there is an mpirun. Where there is none the test is skipped with a message; under
/// continuous integration that is a failure.
pub fn has_mpirun() -> bool {
    let found = Command::new("mpirun").arg("--version").output().is_ok();
    if !found {
        assert!(std::env::var_os("CI").is_none(), "no mpirun: run `make cuda-test`");
        super::skipped("no mpirun; `make cuda-test` installs it");
    }
    found
}

/// A shell a rank that gives one of them its failpoints, and becomes the program that follows.
pub fn shell(fault: Option<&Fault<'_>>) -> [String; 4] {
    let script = match fault {
        Some(Fault { rank, failpoint }) => {
            format!("[ $OMPI_COMM_WORLD_RANK = {rank} ] && export FAILPOINTS='{failpoint}'; exec \"$@\"")
        }
        None => "exec \"$@\"".to_owned(),
    };
    ["sh".to_owned(), "-c".to_owned(), script, "sh".to_owned()]
}

/// A `tributary launch` of `world` ranks on this machine, with a fault on one of them.
pub fn launch_with_fault(world: usize, fault: &Fault<'_>, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tributary"));
    command.args(["launch", "-n", &world.to_string()]);
    // mpirun's own arguments come right before the command: the last of them can wrap it.
    for argument in shell(Some(fault)) {
        command.args(["--mpirun-arg", &argument]);
    }
    command.arg("--").args(arguments);
    command
}

impl Job {
    /// Starts this program with `arguments` on `world` ranks.
    pub fn start(world: usize, fault: Option<Fault<'_>>, arguments: &[&str]) -> Self {
        Self::start_with(mpirun(world), fault, arguments)
    }

    /// Starts this program with `arguments` after a launcher's own.
    pub fn start_with(mut launcher: Command, fault: Option<Fault<'_>>, arguments: &[&str]) -> Self {
        launcher.args(shell(fault.as_ref())).arg(env!("CARGO_BIN_EXE_tributary")).args(arguments);
        Self::run(launcher)
    }

    /// Starts this program with `arguments` by `tributary launch` with its `options`; all ranks
    /// have the failpoint.
    pub fn launch(failpoint: &str, options: &[&str], arguments: &[&str]) -> Self {
        let mut launcher = Command::new(env!("CARGO_BIN_EXE_tributary"));
        launcher.arg("launch").args(options).arg("--").args(arguments).env("FAILPOINTS", failpoint);
        Self::run(launcher)
    }

    /// Starts a whole line.
    pub fn run(mut launcher: Command) -> Self {
        let mark = format!("--mark-{}-{:?}", std::process::id(), Instant::now()).replace([' ', '{', '}', ':', ','], "");
        launcher.env("TRIBUTARY_TEST_MARK", &mark).env("XDG_CACHE_HOME", env!("CARGO_TARGET_TMPDIR"));
        launcher.env("TRIBUTARY_LOG", "debug").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = launcher.spawn().expect("the launcher starts");
        let (sender, lines) = channel();
        let errors = child.stderr.take().expect("piped");
        std::thread::spawn(move || {
            for line in BufReader::new(errors).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self { child, lines, seen: Vec::new(), mark }
    }

    /// Waits until a rank enters a phase; its process.
    pub fn enters(&mut self, rank: usize, phase: &str) -> u32 {
        let (rank, phase) = (format!("rank={rank} "), format!("phase=\"{phase}\""));
        let began = Instant::now();
        loop {
            let rest = PATIENCE.saturating_sub(began.elapsed());
            let Ok(line) = self.lines.recv_timeout(rest) else {
                panic!("{rank} never enters {phase}: {:#?}", self.seen);
            };
            let found = line.contains("enters") && line.contains(&rank) && line.contains(&phase);
            self.seen.push(line.clone());
            if found {
                let pid = line.split("pid=").nth(1).and_then(|rest| rest.split(' ').next()?.parse().ok());
                return pid.expect("the log names the process");
            }
        }
    }

    /// mpirun's own process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the job's end.
    pub fn end(mut self) -> Ended {
        let began = Instant::now();
        let status = loop {
            match self.child.try_wait().expect("it is our child") {
                Some(status) => break status,
                None if began.elapsed() > PATIENCE => {
                    let _ = self.child.kill();
                    panic!("no end after {PATIENCE:?}: {:#?}", self.rest());
                }
                None => std::thread::sleep(Duration::from_millis(10)),
            }
        };
        let at = Instant::now();
        let mut stdout = String::new();
        self.child.stdout.take().expect("piped").read_to_string(&mut stdout).expect("text");
        let errors = self.rest().into_iter().filter(|line| !is_log(line)).collect();
        let code = std::os::unix::process::ExitStatusExt::signal(&status)
            .map_or(status.code().unwrap_or(-1), |signal| 128 + signal);
        let ended = Ended { code, stdout, errors, at };
        self.no_orphans();
        ended
    }

    fn rest(&mut self) -> Vec<String> {
        self.seen.extend(self.lines.iter());
        std::mem::take(&mut self.seen)
    }

    /// No process of the job is left, a moment after its end.
    fn no_orphans(&self) {
        let began = Instant::now();
        loop {
            let left = processes_with(&self.mark);
            if left.is_empty() {
                return;
            }
            assert!(began.elapsed() < Duration::from_secs(3), "processes {left:?} are left");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Ended {
    /// The first line of all that are not of the log.
    pub fn first_line(&self) -> &str {
        self.errors.iter().find(|line| !line.trim().is_empty()).map_or("", String::as_str)
    }

    /// Number of our lines with a cause.
    pub fn causes(&self) -> usize {
        self.errors.iter().filter(|line| line.starts_with("tributary: ")).count()
    }

    /// Our first line, which has the cause. A bare mpirun writes its own lines before and after.
    pub fn cause(&self) -> &str {
        self.errors.iter().find(|line| line.starts_with("tributary: ")).map_or("", String::as_str)
    }
}

/// Whether a line is the log's: a time, a level.
fn is_log(line: &str) -> bool {
    [" DEBUG ", " INFO ", " WARN "].iter().any(|level| line.contains(level))
}

/// Processes that have this text in their environment: number and arguments.
fn processes_with(mark: &str) -> Vec<(u32, String)> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let look = |pid: u32| {
        let read = |file: &str| std::fs::read(Path::new("/proc").join(pid.to_string()).join(file)).unwrap_or_default();
        let marked = read("environ").windows(mark.len()).any(|window| window == mark.as_bytes());
        marked.then(|| (pid, String::from_utf8_lossy(&read("cmdline")).replace('\0', " ")))
    };
    pids.filter_map(look).collect()
}

/// Sends a real signal.
pub fn signal(pid: u32, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).expect("a process number")).expect("not 0");
    rustix::process::kill_process(pid, signal).expect("the process is there");
}
