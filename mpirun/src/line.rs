//! The line that starts the ranks: a pure function of the user's wishes and of this machine's
//! facts.
//!
//! Options that do the same have other names in Open MPI 4 and 5; here is the one place that knows
//! both.
//!
//! `odls_base_sigkill_timeout` keeps its default on purpose. It gives ranks time between SIGTERM
//! and SIGKILL, in which a service could drain; SIGUSR1 asks a service to drain instead
//! (`supervise.rs`). Open MPI 4.1.4 waits for the whole timeout, several times over, for a stopped
//! rank (measured: with 10 s the end of a job with one stopped rank takes 19 s, without it 1 s).
//! Ranks of a command end at once on SIGTERM.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::process::Command;

use shlex::Quoter;

use crate::hosts::Hosts;
use tributary_engine::marker::LAUNCH_ID;

/// Variables that ranks on other hosts get too, where they are set.
const FORWARDED: [&str; 3] = ["FAILPOINTS", "LD_LIBRARY_PATH", "RUST_BACKTRACE"];
/// Prefixes of the names of further ones.
const FORWARDED_PREFIXES: [&str; 2] = ["NCCL_", "TRIBUTARY_"];

/// Makes ranks that wait give up their core, for those that compute.
const YIELD: &str = "OMPI_MCA_mpi_yield_when_idle";

/// Variables in which a batch system gives mpirun its hosts and slots.
const ALLOCATIONS: [&str; 4] = ["SLURM_JOB_ID", "PBS_NODEFILE", "LSB_HOSTS", "PE_HOSTFILE"];

/// Launcher of the ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Launcher {
    /// mpirun, of Open MPI 4 or 5.
    Mpirun {
        /// Its name or path.
        program: String,
        /// Open MPI's major version.
        major: u32,
    },
    /// Slurm's own.
    Srun,
}

/// Launch that the user asks for.
#[derive(Debug, Clone, Default)]
pub struct Wish {
    /// Number of ranks.
    pub ranks: usize,
    /// Hosts of the ranks.
    pub hosts: Hosts,
    /// The file that names the hosts, where one does.
    pub hostfile: Option<String>,
    /// Whether more ranks than slots are wanted.
    pub oversubscribe: bool,
    /// Binding of each rank; ours where absent.
    pub bind_to: Option<String>,
    /// Mapping of ranks to hosts and cores; ours where absent.
    pub map_by: Option<String>,
    /// Variables to forward: `NAME` or `NAME=VALUE`.
    pub env: Vec<String>,
    /// Arguments for the launcher, passed on unchanged.
    pub extra: Vec<String>,
    /// Command of each rank, with its arguments.
    pub command: Vec<String>,
}

/// Facts of this machine.
#[derive(Debug, Clone, Default)]
pub struct Here {
    /// Cores that may be used.
    pub cores: usize,
    /// Whether the user is root.
    pub is_root: bool,
    /// The machine's name.
    pub host: String,
    /// The environment.
    pub environment: BTreeMap<String, String>,
}

/// A command with its additions to the environment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Line {
    /// The program's name or path.
    pub program: String,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// Variables set for it.
    pub environment: BTreeMap<String, String>,
}

impl Line {
    /// The line, ready to be run as attempt `id`.
    pub fn command(&self, id: &str) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).envs(&self.environment).env(LAUNCH_ID, id);
        command
    }

    /// The same, run by `program`, which gets `arguments` and then the line.
    pub fn under(self, program: &str, arguments: &[String]) -> Self {
        let arguments = arguments.iter().cloned().chain([self.program]).chain(self.arguments).collect();
        Self { program: program.to_owned(), arguments, environment: self.environment }
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in &self.environment {
            write!(f, "{name}={} ", quoted(value))?;
        }
        f.write_str(&quoted(&self.program))?;
        self.arguments.iter().try_for_each(|argument| write!(f, " {}", quoted(argument)))
    }
}

/// A word as a POSIX shell must read it.
fn quoted(word: &str) -> Cow<'_, str> {
    Quoter::new().allow_nul(true).quote(word).expect("a quoter that takes NUL takes every text")
}

/// Builds the line that starts `wish` on this machine.
pub fn build(wish: &Wish, launcher: &Launcher, here: &Here) -> Line {
    match launcher {
        Launcher::Mpirun { program, major } => mpirun(wish, program, *major, here),
        Launcher::Srun => srun(wish),
    }
}

/// Relation of ranks and cores.
struct CoreUse {
    /// Whether the launcher must accept more ranks than slots.
    oversubscribed: bool,
    /// Ranks are known to share cores.
    crowded: bool,
    /// Whether every rank can have its own cores.
    roomy: bool,
}

impl CoreUse {
    fn new(wish: &Wish, here: &Here) -> Self {
        let granted = wish.hosts.is_empty() && ALLOCATIONS.iter().any(|name| here.environment.contains_key(*name));
        let local = !granted && wish.hosts.are_here(&here.host);
        let crowded = local && wish.ranks > here.cores;
        // Without hosts mpirun takes this machine's cores as slots; then more ranks than cores are
        // a usual thing to try.
        let oversubscribed = wish.oversubscribe || (crowded && wish.hosts.is_empty());
        let all_threads = wish.ranks.saturating_mul(threads(&wish.command));
        Self { oversubscribed, crowded, roomy: local && !oversubscribed && all_threads <= here.cores }
    }
}

fn mpirun(wish: &Wish, program: &str, major: u32, here: &Here) -> Line {
    let core_use = CoreUse::new(wish, here);
    let mut line = Line { program: program.to_owned(), ..Line::default() };
    if here.is_root {
        line.arguments.push("--allow-run-as-root".to_owned());
    }
    let mut option = |name: &str, value: &str| line.arguments.extend([name.to_owned(), value.to_owned()]);
    option("-n", &wish.ranks.to_string());
    match &wish.hostfile {
        Some(file) => option("--hostfile", file),
        None if wish.hosts.is_empty() => {}
        None => option("--host", &wish.hosts.to_string()),
    }
    line.arguments.extend(placement(wish, &core_use, major));
    if core_use.crowded || core_use.oversubscribed {
        line.environment.insert(YIELD.to_owned(), "1".to_owned());
    }
    forward(wish, here, &mut line);
    line.arguments.extend(wish.extra.iter().chain(&wish.command).cloned());
    line
}

/// Placement of ranks on cores. The user's choices are passed on, and mpirun then decides the rest.
fn placement(wish: &Wish, core_use: &CoreUse, major: u32) -> Vec<String> {
    let unsaid = wish.map_by.is_none() && wish.bind_to.is_none();
    let mut map_by = wish.map_by.clone();
    let mut bind_to = wish.bind_to.clone();
    let mut arguments = Vec::new();
    if unsaid && core_use.roomy {
        map_by = Some(format!("slot:PE={}", threads(&wish.command)));
        bind_to = Some("core".to_owned());
    } else if unsaid {
        bind_to = Some("none".to_owned());
    }
    if core_use.oversubscribed && major == 4 {
        arguments.push("--oversubscribe".to_owned());
    } else if core_use.oversubscribed {
        map_by = Some(format!("{}:OVERSUBSCRIBE", map_by.unwrap_or_default()));
    }
    for (name, value) in [("--map-by", map_by), ("--bind-to", bind_to)] {
        arguments.extend(value.into_iter().flat_map(|value| [name.to_owned(), value]));
    }
    arguments
}

/// Variables that ranks get: only those that are set, because mpirun complains of others. A value
/// goes into mpirun's own environment, so that no character of it can be taken for mpirun's syntax.
fn forward(wish: &Wish, here: &Here, line: &mut Line) {
    let set = here.environment.keys().map(String::as_str);
    let usual =
        |name: &&str| FORWARDED.contains(name) || FORWARDED_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    let mut names: Vec<&str> = set.filter(usual).collect();
    for entry in &wish.env {
        let name = match entry.split_once('=') {
            Some((name, value)) => {
                line.environment.insert(name.to_owned(), value.to_owned());
                name
            }
            None if here.environment.contains_key(entry) => entry,
            None => continue,
        };
        if !names.contains(&name) {
            names.push(name);
        }
    }
    line.arguments.extend(names.into_iter().flat_map(|name| ["-x".to_owned(), name.to_owned()]));
}

/// The line for srun, which forwards the whole environment, and gets hosts and slots from its job.
fn srun(wish: &Wish) -> Line {
    let mut line = Line { program: "srun".to_owned(), ..Line::default() };
    line.arguments = vec!["--mpi=pmix".to_owned(), "--kill-on-bad-exit=1".to_owned()];
    line.arguments.extend(["-n".to_owned(), wish.ranks.to_string()]);
    line.arguments.push(format!("--cpus-per-task={}", threads(&wish.command)));
    if wish.oversubscribe {
        line.arguments.push("--overcommit".to_owned());
        line.environment.insert(YIELD.to_owned(), "1".to_owned());
    }
    line.arguments.extend(wish.bind_to.iter().map(|bind_to| format!("--cpu-bind={bind_to}")));
    for (name, value) in wish.env.iter().filter_map(|entry| entry.split_once('=')) {
        line.environment.insert(name.to_owned(), value.to_owned());
    }
    line.arguments.extend(wish.extra.iter().chain(&wish.command).cloned());
    line
}

/// The value of an option in a command: `--NAME VALUE` or `--NAME=VALUE`.
pub fn value_of<'a>(command: &'a [String], option: &str) -> Option<&'a str> {
    command.iter().enumerate().find_map(|(index, word)| match word.strip_prefix(option)? {
        "" => command.get(index + 1).map(String::as_str),
        rest => rest.strip_prefix('='),
    })
}

/// Threads of each rank, as its command asks for; 1 where it does not. A number that is none is
/// left to the command itself.
fn threads(command: &[String]) -> usize {
    value_of(command, "--threads").and_then(|threads| threads.parse().ok()).filter(|&threads| threads > 0).unwrap_or(1)
}
