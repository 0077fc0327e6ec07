//! The ranks of this run: threads of this process, or processes of which this is one.

pub mod agreement;
mod discover;
mod identity;
mod process;
pub mod reap;
mod room;
mod watch;

use std::io::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use signal_hook::consts::SIGTERM;
use signal_hook::iterator::Signals;
use tributary_comm::{mpi, nccl};

pub use self::discover::launcher;
pub use self::identity::{Identity, program_hash};
pub use self::process::{Process, Serving};
pub use self::room::{Room, narrowest};
use crate::args::GroupArgs;
use crate::failure::{exit_code, one_line};
use crate::mpirun::marker;

/// How long a process that fails before it serves leaves the word to rank 0, which may fail alike: longer than a launcher
/// takes to end the others.
const FIRST_WORD: Duration = Duration::from_secs(3);

/// How long a rank that has failed may take to say why, before others end.
const LAST_WORD: Duration = Duration::from_secs(1);

/// Where the ranks are.
pub enum Ranks {
    /// Threads of this process, started when they are needed.
    Threads {
        /// How many, where a method does not say otherwise.
        world: usize,
    },
    /// This process is one of them.
    Process(Box<Process>),
}

impl Ranks {
    /// Finds out which, and meets the others.
    ///
    /// # Errors
    /// What [`discover::by_mpi`] refuses; MPI's.
    fn find(run: &GroupArgs) -> anyhow::Result<Self> {
        if run.allow_shared_gpu {
            // Now: the process has one thread yet. A build without NCCL has nothing to allow.
            match nccl::allow_shared_gpu() {
                Ok(()) | Err(tributary_comm::Error::NotBuilt { .. }) => {}
                Err(error) => return Err(tributary_worker::Error::from(error).into()),
            }
        }
        let launcher = launcher();
        let built = mpi::library_version().map(drop).map_err(|error| error.to_string());
        if discover::by_mpi(run.backend, run.world_size, launcher.as_ref(), built)?
            && let Some(launcher) = launcher
        {
            return Ok(Self::Process(Box::new(Process::find(launcher, run)?)));
        }
        Ok(Self::Threads { world: run.world_size.unwrap_or(1) })
    }

    /// Number of ranks, where a method does not say otherwise.
    pub fn world(&self) -> usize {
        match self {
            Ranks::Threads { world } => *world,
            Ranks::Process(process) => process.facts.size,
        }
    }

    /// How many of a group of `world` ranks are on this host.
    pub fn here(&self, world: usize) -> usize {
        match self {
            Ranks::Threads { .. } => world,
            Ranks::Process(process) => process.facts.local_size,
        }
    }

    /// How many of a group of `world` ranks are in this process.
    pub fn in_process(&self, world: usize) -> usize {
        match self {
            Ranks::Threads { .. } => world,
            Ranks::Process(_) => 1,
        }
    }

    /// Whether this process has the coordinator.
    pub fn leads(&self) -> bool {
        match self {
            Ranks::Threads { .. } => true,
            Ranks::Process(process) => process.leads(),
        }
    }

    /// What carries messages between ranks, for reports.
    pub fn backend(&self) -> String {
        match self {
            Ranks::Threads { .. } => "local".to_owned(),
            Ranks::Process(process) => {
                let library = process.facts.library.split(',').next().unwrap_or_default();
                let mut hosts: Vec<_> = process.facts.peers.iter().map(|peer| (&peer.host, &peer.system)).collect();
                hosts.sort_unstable();
                hosts.dedup();
                match hosts.len() {
                    1 => format!("mpi ({library})"),
                    count => format!("mpi ({library}), {count} hosts"),
                }
            }
        }
    }
}

/// Runs a command on the ranks: `body` is called in every process, once all have met. Says what went wrong, and ends the
/// others with this process.
pub fn run(run: &GroupArgs, body: impl FnOnce(&mut Ranks) -> anyhow::Result<()>) -> ExitCode {
    let mut ranks = match Ranks::find(run) {
        Ok(ranks) => ranks,
        Err(error) => return refuse(&one_line(&error), exit_code(&error)),
    };
    match (body(&mut ranks), &ranks) {
        (Ok(()), _) => {
            if ranks.leads() {
                marker::completed();
            }
            ExitCode::SUCCESS
        }
        (Err(error), Ranks::Process(process)) => process.fail(&error),
        (Err(error), Ranks::Threads { .. }) => refuse(&one_line(&error), exit_code(&error)),
    }
}

/// Says in one line why this process ends before it has met others. All processes of a launcher get the same arguments: if
/// rank 0 finds the same fault, its line is enough.
pub fn refuse(line: &str, exit_code: u8) -> ExitCode {
    let rank = launcher().map_or(0, |launcher| launcher.rank);
    if rank == 0 || !told_to_end_within(FIRST_WORD) {
        say(rank, line, exit_code);
    }
    // Threads of MPI may hang: they must not be waited for.
    std::process::exit(exit_code.into())
}

/// Whether SIGTERM comes in that time: then another rank has said enough. The signal's own exit code would be taken for the
/// job's, because srun gives the largest.
fn told_to_end_within(limit: Duration) -> bool {
    let Ok(mut signals) = Signals::new([SIGTERM]) else {
        std::thread::sleep(limit);
        return false;
    };
    let began = Instant::now();
    while began.elapsed() < limit {
        if signals.pending().next().is_some() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    false
}

/// Ends this process because of another rank's failure, which is told there: the first process to end makes the launcher end
/// all others, so the one that has something to say goes first.
fn end_quietly(exit_code: u8) -> ! {
    std::thread::sleep(LAST_WORD);
    std::process::exit(exit_code.into())
}

/// One line on standard error (a table has more), and the marker for `tributary launch`. If that cannot be written, the exit
/// code alone must do.
fn say(rank: usize, line: &str, exit_code: u8) {
    let named = rank == 0 || line.starts_with("rank ");
    let text = if named { format!("tributary: {line}\n") } else { format!("tributary: rank {rank}: {line}\n") };
    let _ = std::io::stderr().write_all(text.as_bytes());
    marker::failed(rank, exit_code);
}
