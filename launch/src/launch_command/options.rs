//! The options of `launch`, and the launch that they ask for, checked as far as that can be done
//! without a launcher.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use tracing_subscriber::filter::LevelFilter;

use tributary_mpirun::hosts::Hosts;
use tributary_mpirun::line::{Wish, value_of};

/// The most ranks of a job.
const MAX_RANKS: usize = 4096;

/// Commands that ranks can run together, and that tell when they are complete.
const COMMANDS_OF_RANKS: [&str; 7] = ["prefill", "compare", "bench", "quality", "train", "doctor", "serve"];

/// Run a command on several ranks over MPI, on this machine or on several
#[derive(Debug, Args)]
pub struct LaunchArgs {
    /// Number of ranks
    #[arg(short = 'n', long, value_name = "N", required_unless_present = "exec_under")]
    pub(super) ranks: Option<usize>,
    /// Hosts with the number of ranks of each, such as a:2,b:2 [default: this machine, or the hosts
    /// that a batch system granted]
    #[arg(long, value_name = "HOST:SLOTS,..", help_heading = "Placement")]
    pub(super) hosts: Option<String>,
    /// File of hosts in Open MPI's format, one line `HOST slots=N` each
    #[arg(long, value_name = "FILE", conflicts_with = "hosts", help_heading = "Placement")]
    pub(super) hostfile: Option<PathBuf>,
    /// Allow more ranks than slots; not needed for more ranks than cores on this machine alone
    #[arg(long, help_heading = "Placement")]
    pub(super) oversubscribe: bool,
    /// Binding of each rank: core, numa, none, .. [default: --threads cores of its own, if there
    /// are enough]
    #[arg(long, value_name = "WHAT", help_heading = "Placement")]
    pub(super) bind_to: Option<String>,
    /// Placement of ranks, as for mpirun: slot, node, numa, ..
    #[arg(long, value_name = "HOW", help_heading = "Placement")]
    pub(super) map_by: Option<String>,
    /// Launcher that starts the ranks: mpirun, or srun inside a Slurm job
    #[arg(long, value_enum, default_value_t = LauncherChoice::Mpirun, help_heading = "Launcher")]
    pub(super) launcher: LauncherChoice,
    /// Path of mpirun, from Open MPI 4 or 5
    #[arg(long, value_name = "PATH", default_value = "mpirun", help_heading = "Launcher")]
    pub(super) mpirun: PathBuf,
    /// Argument passed on to mpirun or srun unchanged; may be repeated
    #[arg(long, value_name = "ARG", allow_hyphen_values = true, help_heading = "Launcher")]
    pub(super) mpirun_arg: Vec<String>,
    /// Environment variable for all ranks; may be repeated. Ranks also get LD_LIBRARY_PATH,
    /// RUST_BACKTRACE, FAILPOINTS and all variables that begin with TRIBUTARY_ or NCCL_
    #[arg(long, value_name = "NAME[=VALUE]", help_heading = "Launcher")]
    pub(super) env: Vec<String>,
    /// Maximum number of restarts after the job lost a rank, ran out of memory or missed a deadline
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) restarts: u32,
    /// Print the command line without running it
    #[arg(long)]
    pub(super) dry_run: bool,
    /// Print the command line that is run, and all messages of mpirun itself
    #[arg(long, short)]
    pub(super) verbose: bool,
    /// Become the command after `--`, and be told to end when the process with this ID ends
    #[arg(long, value_name = "PID", hide = true)]
    pub(super) exec_under: Option<u32>,
    /// Command of each rank, such as: prefill --model DIR --request FILE
    #[arg(trailing_var_arg = true, required = true, value_name = "COMMAND")]
    pub(super) command: Vec<String>,
}

/// Launcher of the ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LauncherChoice {
    /// mpirun of Open MPI
    Mpirun,
    /// srun of Slurm
    Srun,
}

/// The launch that the user asks for, checked as far as possible without a launcher.
pub fn wish(args: &LaunchArgs, program: &str) -> Result<Wish, String> {
    let ranks = args.ranks.unwrap_or(1);
    if !(1..=MAX_RANKS).contains(&ranks) {
        return Err(format!("-n {ranks}: at least 1 rank, at most {MAX_RANKS}"));
    }
    let hosts = match (&args.hosts, &args.hostfile) {
        (Some(list), _) => Hosts::from_list(list),
        (None, Some(file)) => Hosts::from_file(file),
        (None, None) => Ok(Hosts::default()),
    }?;
    if args.launcher == LauncherChoice::Srun && !(hosts.is_empty() && args.map_by.is_none()) {
        let refusal = "--hosts, --hostfile and --map-by are mpirun's; srun takes hosts and slots from its job";
        return Err(refusal.to_owned());
    }
    if !args.oversubscribe {
        hosts.check(ranks)?;
    }
    hosts.resolve()?;
    if let Some(name) = args.env.iter().find(|entry| entry.is_empty() || entry.starts_with('=')) {
        return Err(format!("--env {name}: write NAME or NAME=VALUE"));
    }
    let hostfile = args.hostfile.as_ref().map(|file| file.display().to_string());
    let command = command_of_rank(program, &args.command, ranks)?;
    if args.restarts > 0 && is_study(&command) && !command.iter().any(|word| word == "--resume") {
        let why = "a study that is begun again finds its own folder, or leaves what it has measured";
        return Err(format!("--restarts {}: {why}; give it --out DIR and --resume", args.restarts));
    }
    Ok(Wish {
        ranks,
        hosts,
        hostfile,
        oversubscribe: args.oversubscribe,
        bind_to: args.bind_to.clone(),
        map_by: args.map_by.clone(),
        env: args.env.clone(),
        extra: args.mpirun_arg.clone(),
        command,
    })
}

impl LaunchArgs {
    /// Passes the level of `--log` to the ranks too.
    pub fn log(&mut self, level: Option<LevelFilter>) {
        if let (Some(level), None) = (level, self.exec_under) {
            self.command.extend(["--log".to_owned(), level.to_string()]);
        }
    }
}

impl LaunchArgs {
    /// Looks into the file of options that the ranks' command names, before any rank is started:
    /// cores are dealt out by its `--threads`. `expanded` gives a command line with its file's
    /// additions.
    ///
    /// # Errors
    /// Fails as `expanded` does.
    pub fn look_into(
        &mut self,
        expanded: impl Fn(Vec<OsString>) -> Result<Option<Vec<OsString>>, String>,
    ) -> Result<(), String> {
        let names_file = |word: &String| ["--config", "--study"].contains(&word.split('=').next().unwrap_or_default());
        if self.exec_under.is_some() || !self.command.iter().any(names_file) {
            return Ok(());
        }
        let words = std::iter::once("tributary").chain(self.command.iter().map(String::as_str)).map(OsString::from);
        let Some(expanded) = expanded(words.collect())? else { return Ok(()) };
        let expanded: Vec<String> = expanded.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        if let (None, Some(threads)) = (value_of(&self.command, "--threads"), value_of(&expanded, "--threads")) {
            self.command.extend(["--threads".to_owned(), threads.to_owned()]);
        }
        Ok(())
    }
}

/// Whether a rank's command, after the program's name, is a study or an evaluation, which keeps its
/// results in a folder.
fn is_study(command: &[String]) -> bool {
    let name = command.iter().skip(1).find(|word| COMMANDS_OF_RANKS.contains(&word.as_str()));
    name.is_some_and(|name| name == "bench" || name == "quality")
}

/// The command of each rank, with the backend and the number of ranks. A study determines the
/// number itself: its `--worlds` can be no others.
fn command_of_rank(program: &str, command: &[String], ranks: usize) -> Result<Vec<String>, String> {
    let known = |word: &String| COMMANDS_OF_RANKS.contains(&word.as_str());
    let Some(name) = command.iter().position(known) else {
        let first = command.first().map(String::as_str).unwrap_or_default();
        return Err(format!("`{first}` is nothing that ranks do together; known are {}", COMMANDS_OF_RANKS.join(", ")));
    };
    let count = ranks.to_string();
    let is_study = command[name] == "bench";
    if let Some(worlds) = value_of(command, "--worlds").filter(|_| is_study)
        && worlds.split(',').any(|world| world.trim() != count)
    {
        return Err(format!("-n {count}: the command says --worlds {worlds}; leave that out, or give the same number"));
    }
    let worlds = || value_of(command, "--worlds").filter(|_| !is_study);
    let size = value_of(command, "--world-size").or_else(|| value_of(command, "--world")).or_else(worlds);
    if let Some(size) = size.filter(|size| *size != count) {
        return Err(format!(
            "-n {count}: the command says --world-size {size}; leave that out, or give the same number"
        ));
    }
    let mut all = vec![program.to_owned()];
    // Of `train` the next word is a command too.
    let after = name + 1 + usize::from(command[name] == "train" && name + 1 < command.len());
    all.extend_from_slice(&command[..after]);
    if value_of(command, "--backend").is_none() {
        all.extend(["--backend", "mpi"].map(str::to_owned));
    }
    if size.is_none() && !is_study {
        all.extend(["--world-size".to_owned(), count]);
    }
    all.extend_from_slice(&command[after..]);
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    fn command(text: &str) -> Result<String, String> {
        command_of_rank("/t", &words(text), 4).map(|command| command.join(" "))
    }

    #[test]
    fn ranks_are_told_how_many_they_are() {
        let told = "--backend mpi --world-size 4";
        assert_eq!(command("prefill --model m"), Ok(format!("/t prefill {told} --model m")));
        assert_eq!(command("serve --model m"), Ok(format!("/t serve {told} --model m")));
        assert_eq!(command("train kv-packet --lr 1"), Ok(format!("/t train kv-packet {told} --lr 1")));
        assert_eq!(command("--log info doctor"), Ok(format!("/t --log info doctor {told}")));
        assert_eq!(command("prefill --world-size=4"), Ok("/t prefill --backend mpi --world-size=4".to_owned()));
        assert_eq!(command("prefill --world 4"), Ok("/t prefill --backend mpi --world 4".to_owned()));
        assert_eq!(command("prefill --backend nccl"), Ok("/t prefill --world-size 4 --backend nccl".to_owned()));
        assert_eq!(command("bench --config s.toml"), Ok("/t bench --backend mpi --config s.toml".to_owned()));
        assert_eq!(command("bench --worlds 4"), Ok("/t bench --backend mpi --worlds 4".to_owned()));
        assert!(command("bench --worlds 2,4").is_err_and(|error| error.contains("-n 4") && error.contains("2,4")));
        assert!(command("prefill --world-size 3").is_err_and(|error| error.contains("-n 4") && error.contains('3')));
        for none in ["--version", "launch -n 2 --", "/bin/sh"] {
            assert!(command(none).is_err_and(|error| error.contains("known are prefill")), "{none}");
        }
    }
}
