//! Running a launcher until it has ended, and seeing to it that it does.
//!
//! Its standard output is ours; its standard error goes through the filter. It has its own process
//! group, so that a Ctrl-C at the terminal reaches us alone and we choose the signal to send. In
//! every case, no process of the attempt remains on this host afterwards. The meaning of the end is
//! not decided here.

use std::io::{BufRead, BufReader, IsTerminal, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use tributary_engine::marker::Marker;

use crate::blocks::Says;
use crate::filter::{Filter, JobEvent};
use crate::outcome::{Ended, Status, ended_by, is_echo};
use crate::sweep::sweep;

/// Interval of looks at the launcher.
const POLL: Duration = Duration::from_millis(20);
/// Maximum number of queued events; beyond it reading waits.
const EVENTS_WAITING: usize = 256;
/// Maximum number of kept blocks.
const BLOCKS_KEPT: usize = 64;
/// Maximum bytes of held-back remarks.
const REMARK_BYTES: usize = 64 << 10;
/// Length at which an endless line is cut.
const LINE_BYTES: u64 = 64 << 10;

/// Times that the launcher has to end.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Time after the signal to end. For a service that is asked to end in order, the time until it
    /// confirms; its requests may then take longer.
    pub told: Duration,
    /// After a failure is known. mpirun needs up to 2.5 s to end ranks that are stopped, but waits
    /// much longer for a daemon on a host that was cut off; its daemons end their ranks when it is
    /// gone.
    pub failed: Duration,
    /// After the work is complete.
    pub completed: Duration,
    /// Time for reading its output, and for the end of a killed process.
    pub rest: Duration,
    /// Time for a rank to report in our words the failure that the MPI library has remarked on.
    pub remark: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self { told: seconds(5), failed: seconds(3), completed: seconds(30), rest: seconds(2), remark: seconds(2) }
    }
}

/// Job to run.
#[derive(Debug)]
pub struct Job {
    /// The launcher's command.
    pub command: Command,
    /// The launcher's name, for messages.
    pub launcher: String,
    /// The attempt, which ranks know from their environment.
    pub id: String,
}

/// Runs a job until it ends. `interrupt` gives a signal that came in since its last call. `out`
/// gets the part of standard error that is passed on. The last remarks are left to the caller, who
/// may know the cause and print it first.
///
/// # Errors
/// Returns an error if the command cannot be started or waited for.
pub fn supervise(
    job: Job,
    limits: Limits,
    out: &Out,
    interrupt: &mut dyn FnMut() -> Option<i32>,
) -> std::io::Result<Ended> {
    let Job { mut command, launcher, id } = job;
    // A process that is not in the terminal's foreground would be stopped when it reads from it.
    if std::io::stdin().is_terminal() {
        command.stdin(Stdio::null());
    }
    let sessions = own_sessions(&mut command)?;
    let (stderr, writer) = std::io::pipe()?;
    let (sender, events) = sync_channel(EVENTS_WAITING);
    let filter = Filter::new(&id);
    let (mut supervision, out) = (Supervision::new(launcher, limits, Arc::clone(out)), Arc::clone(out));
    // It ends with the last process that holds the pipe; those of the attempt are ended below.
    std::thread::Builder::new().name("stderr".to_owned()).spawn(move || listen(stderr, filter, &out, &sender))?;
    let mut child = command.stderr(writer).process_group(0).spawn()?;
    drop(command); // with its end of the pipe
    let status = supervision.until_ended(&mut child, &events, interrupt);
    sweep(&id);
    drop(sessions); // with what a killed launcher has left in it
    let status = status?;
    supervision.hear_the_rest(&events);
    Ok(Ended { status, ..supervision.ended })
}

/// Variable with the folder of the session's files of `mpirun` of Open MPI 5 on this host.
const SESSION_FOLDER: &str = "PRTE_MCA_prte_local_tmpdir_base";

/// Gives a launcher its own folder for its session's files, which is removed with the returned
/// value. A killed launcher does not remove its files. In a shared folder, the next Open MPI 5 with
/// the same process number fails to start on them ("The PMIx server's listener thread failed to
/// start"). Open MPI 4 starts on such files, and its ranks refuse to start with a folder given in
/// this way. A folder that the user has named is used.
fn own_sessions(command: &mut Command) -> std::io::Result<tempfile::TempDir> {
    let folder = tempfile::Builder::new().prefix("tributary-launch-").tempdir()?;
    if std::env::var_os(SESSION_FOLDER).is_none() {
        command.env(SESSION_FOLDER, folder.path());
    }
    Ok(folder)
}

/// Target of standard error, from several threads.
pub type Out = Arc<Mutex<Box<dyn Write + Send>>>;

/// State of the job so far, and the deadline.
struct Supervision {
    ended: Ended,
    limits: Limits,
    out: Out,
    /// Whether the ranks end in order when they are asked to.
    serves: bool,
    /// When the first of the held remarks came.
    remarked: Option<Instant>,
    kill_at: Option<Instant>,
    killed: bool,
}

impl Supervision {
    fn new(launcher: String, limits: Limits, out: Out) -> Self {
        let ended = Ended::stuck(launcher);
        Self { ended, limits, out, serves: false, remarked: None, kill_at: None, killed: false }
    }

    fn until_ended(
        &mut self,
        child: &mut Child,
        events: &Receiver<JobEvent>,
        interrupt: &mut dyn FnMut() -> Option<i32>,
    ) -> std::io::Result<Status> {
        let pid = Pid::from_child(child);
        loop {
            match events.recv_timeout(POLL) {
                Ok(event) => self.hear(event),
                Err(RecvTimeoutError::Timeout) => {}
                // Nothing is left to be heard: the launcher has closed its standard error, or is
                // about to end.
                Err(RecvTimeoutError::Disconnected) => std::thread::sleep(POLL),
            }
            self.show_remarks();
            if let Some(signal) = interrupt() {
                self.interrupted(signal, pid);
            }
            if let Some(status) = child.try_wait()? {
                return Ok(as_status(status));
            }
            match self.kill_at {
                Some(at) if at <= Instant::now() && self.killed => return Ok(Status::Stuck),
                Some(at) if at <= Instant::now() => {
                    // A group that is not there any more has ended, which the next look at it will
                    // tell.
                    let _ = kill_process_group(pid, Signal::KILL);
                    self.killed = true;
                    self.kill_at = Some(Instant::now() + self.limits.rest);
                }
                _ => {}
            }
        }
    }

    fn hear(&mut self, event: JobEvent) {
        match event {
            JobEvent::Marker(Marker::Completed) => {
                self.ended.completed = true;
                self.end_within(self.limits.completed);
            }
            JobEvent::Marker(Marker::Failed(failed)) => {
                // After a signal to us, reports of ranks are its consequence.
                let first =
                    self.ended.failed.is_none_or(|known| is_echo(known.exit_code) && !is_echo(failed.exit_code));
                if first && self.ended.interrupt.is_none() {
                    self.ended.failed = Some(failed);
                }
                self.end_within(self.limits.failed);
            }
            JobEvent::Marker(Marker::Serving) => self.serves = true,
            JobEvent::Marker(Marker::Draining) => self.drains(),
            JobEvent::Complaint => self.ended.complained = true,
            JobEvent::Remark(line) => {
                self.remarked.get_or_insert_with(Instant::now);
                self.ended.remarks.extend(line);
            }
            JobEvent::Block(block) => {
                if matches!(block.says(), Says::Lost(_)) {
                    self.end_within(self.limits.failed);
                }
                if self.ended.blocks.len() < BLOCKS_KEPT {
                    self.ended.blocks.push(block);
                }
            }
            JobEvent::End => {}
        }
    }

    /// Shows remarks that were held back long enough, or need not be held any more. If the other
    /// thread is writing, the next look does it: this thread must not wait for the reader of
    /// standard error.
    fn show_remarks(&mut self) {
        let Some(since) = self.remarked else { return };
        let many = self.ended.remarks.len() > REMARK_BYTES;
        if (self.ended.complained || many || since.elapsed() > self.limits.remark)
            && let Ok(mut out) = self.out.try_lock()
        {
            let _ = out.write_all(&self.ended.remarks).and_then(|()| out.flush());
            self.ended.remarks.clear();
            self.remarked = None;
        }
    }

    /// Handles a signal: the first one ends the job, or asks the ranks of a service to end in
    /// order; the second one ends it at once.
    fn interrupted(&mut self, signal: i32, pid: Pid) {
        let again = self.ended.interrupt.is_some() || self.ended.drains;
        self.ended.interrupt = Some(signal);
        if again {
            self.end_within(Duration::ZERO);
            return;
        }
        self.end_within(self.limits.told);
        // It cannot be another process: the launcher has not been waited for.
        if self.serves {
            // Launchers pass this one on to all ranks on all hosts, and live on.
            let _ = kill_process(pid, Signal::USR1);
            return;
        }
        let _ = kill_process(pid, Signal::TERM);
        // Printed now, it comes before the ranks' reports of their SIGTERM.
        if let Ok(mut out) = self.out.try_lock() {
            let _ = writeln!(out, "tributary: {}", ended_by(signal));
            self.ended.complained = true;
        }
    }

    /// The ranks end in order: that takes as long as their requests do, and is no interruption. A
    /// failure that is known already keeps its limit.
    fn drains(&mut self) {
        if self.killed {
            return;
        }
        self.ended.drains = true;
        if self.ended.interrupt.take().is_some() && self.ended.failed.is_none() && !self.ended.completed {
            self.kill_at = None;
        }
    }

    fn end_within(&mut self, limit: Duration) {
        let at = Instant::now() + limit;
        self.kill_at = Some(self.kill_at.map_or(at, |known| known.min(at)));
    }

    fn hear_the_rest(&mut self, events: &Receiver<JobEvent>) {
        let until = Instant::now() + self.limits.rest;
        while let Ok(event) = events.recv_timeout(until.saturating_duration_since(Instant::now())) {
            if event == JobEvent::End {
                return;
            }
            self.hear(event);
        }
    }
}

fn as_status(status: ExitStatus) -> Status {
    match (status.code(), status.signal()) {
        (Some(code), _) => Status::Exited(code),
        (None, Some(signal)) => Status::Killed(signal),
        (None, None) => Status::Stuck,
    }
}

/// Reads until the end. Reading goes on even when the receiver or standard error is gone, so that
/// no writer has to wait.
fn listen(stderr: impl Read, mut filter: Filter, out: &Out, events: &SyncSender<JobEvent>) {
    let mut reader = BufReader::new(stderr);
    let mut line = Vec::new();
    while matches!(reader.by_ref().take(LINE_BYTES).read_until(b'\n', &mut line), Ok(1..)) {
        let (passed, event) = filter.line(&line);
        let mut out = out.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = out.write_all(&passed).and_then(|()| out.flush());
        drop(out);
        if let Some(event) = event {
            let _ = events.send(event);
        }
        line.clear();
    }
    let rest = filter.end().map(JobEvent::Block);
    for event in rest.into_iter().chain([JobEvent::End]) {
        let _ = events.send(event);
    }
}
