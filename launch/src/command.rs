//! The command line: parse, run, and report a failure in one line.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use tracing_subscriber::filter::LevelFilter;
use tributary_engine::{launcher, reap, refuse, tokenizer_trial};
use tributary_protocol::exit;
use tributary_system::program;

use crate::bench::{BenchArgs, bench};
use crate::compare::{CompareArgs, compare};
use crate::config_file::{self, Parsed, Refusal};
use crate::doctor::{DoctorCommand, doctor};
use crate::failure::usage_line;
use crate::help::{self, EXIT_CODES};
use crate::help_screen::with_screens;
use crate::launch_command::{LaunchArgs, launch};
use crate::load::{LoadArgs, load};
use crate::methods::{MethodsArgs, methods};
use crate::plan_command::{PlanArgs, plan};
use crate::prefill::{PrefillArgs, prefill};
use crate::quality::{QualityArgs, quality};
use crate::ranks;
use crate::reference::{CompletionsArgs, ManArgs, completions, man};
use crate::serve::{ServeArgs, serve};
use crate::stdout::{all_of, print};
use crate::store_command::{StoreCommand, store};
use crate::train::{TrainArgs, train};

/// Prefill long-context requests on a group of ranks. Chunks are prefilled independently, the query
/// selects the few tokens that depend on other chunks, and only those are recomputed: the first
/// token comes early
#[derive(Debug, Parser)]
#[command(name = "tributary", version, after_help = EXIT_CODES)]
struct Cli {
    /// Log level on standard error: off, error, warn, info, debug; failures are always printed
    /// [default: warn]
    #[arg(
        long,
        global = true,
        value_name = "LEVEL",
        env = "TRIBUTARY_LOG",
        hide_env_values = true,
        hide_short_help = true
    )]
    log: Option<LevelFilter>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    #[command(allow_negative_numbers = true)]
    Prefill(Box<PrefillArgs>),
    #[command(allow_negative_numbers = true)]
    Serve(Box<ServeArgs>),
    /// Load-test an OpenAI-compatible server, this one or another, and report latency percentiles
    Load(LoadArgs),
    #[command(allow_negative_numbers = true)]
    Compare(Box<CompareArgs>),
    #[command(allow_negative_numbers = true)]
    Bench(Box<BenchArgs>),
    #[command(allow_negative_numbers = true)]
    Quality(Box<QualityArgs>),
    #[command(allow_negative_numbers = true)]
    Train(Box<TrainArgs>),
    #[command(allow_negative_numbers = true)]
    Plan(Box<PlanArgs>),
    Methods(MethodsArgs),
    Store(Box<StoreCommand>),
    Doctor(Box<DoctorCommand>),
    Launch(Box<LaunchArgs>),
    Completions(CompletionsArgs),
    Man(ManArgs),
    /// End a silent process on behalf of a process that exits because of it
    #[command(name = reap::COMMAND, hide = true)]
    Reap(ReapArgs),
    /// Read a model's tokenizer within limits, before another process reads it
    #[command(name = tokenizer_trial::COMMAND, hide = true)]
    TryTokenizer(TrialArgs),
}

/// The tokenizer to try.
#[derive(Debug, Clone, Args)]
struct TrialArgs {
    /// Folder of the model
    folder: PathBuf,
}

/// The process to end.
#[derive(Debug, Clone, Args)]
struct ReapArgs {
    /// Process ID
    pid: u32,
    /// Start time of the process, in kernel ticks since boot; another process with the same ID is
    /// left alone
    started_ticks: u64,
}

/// Runs the command of this process.
pub fn main() -> ExitCode {
    option_env!("TRIBUTARY_REVISION").into_iter().for_each(program::built_from);
    // Does nothing in a program without failpoints.
    let _scenario = fail::has_failpoints().then(fail::FailScenario::setup);
    tokenizer_trial::answered_here();
    let description = description();
    let matches = match config_file::parse(&description, std::env::args_os().collect()) {
        Ok(Parsed::Run(matches)) => matches,
        Ok(Parsed::Print(text)) => return once(|| print(&text)),
        Err(Refusal::Clap(error)) => return show(&error),
        Err(Refusal::Line(line)) => refuse(&line, exit::USAGE),
    };
    let cli = match Cli::from_arg_matches(&matches) {
        Ok(cli) => cli,
        Err(error) => return show(&error),
    };
    start_log(cli.log);
    match cli.command {
        Command::Prefill(args) => prefill(&args),
        Command::Serve(args) => serve(&args),
        Command::Load(args) => once(|| load(&args)),
        Command::Compare(args) => compare(&args),
        Command::Bench(args) => bench(&args),
        Command::Quality(args) => quality(&args, |what| once(what), &|words| config_file::matched(&description, words)),
        Command::Train(args) => train(&args),
        Command::Plan(args) => plan(&args),
        Command::Methods(args) => once(|| methods(&args)),
        Command::Store(args) => store(&args, |work| once(work)),
        Command::Doctor(args) => doctor(&args),
        Command::Completions(args) => once(|| completions(&declared(), &args)),
        Command::Man(args) => once(|| man(declared(), &args)),
        Command::TryTokenizer(TrialArgs { folder }) => ExitCode::from(tokenizer_trial::run(&folder)),
        Command::Reap(ReapArgs { pid, started_ticks }) => ExitCode::from(reap::reap(pid, started_ticks)),
        Command::Launch(mut args) => {
            args.log(cli.log);
            if let Err(line) = args.look_into(|words| config_file::expanded(&description, words)) {
                refuse(&line, exit::USAGE);
            }
            ExitCode::from(launch(&args))
        }
    }
}

/// The commands and their options.
pub(crate) fn declared() -> clap::Command {
    with_screens(help::with_ends(config_file::with_options(Cli::command())))
}

/// The same with clap's additions: options that all commands have are in each.
fn description() -> clap::Command {
    let mut description = declared();
    description.build();
    description
}

/// Prints or writes something once, and not once a rank.
fn once(what: impl FnOnce() -> anyhow::Result<()>) -> ExitCode {
    let done = if launcher().is_none_or(|launcher| launcher.rank == 0) { what() } else { Ok(()) };
    done.map_or_else(|error| ranks::refuse(&error), |()| ExitCode::SUCCESS)
}

/// Starts the log on standard error.
fn start_log(level: Option<LevelFilter>) {
    let level = level.unwrap_or(LevelFilter::WARN);
    let log = tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).with_max_level(level);
    // A line that cannot be written is lost, and nothing else: words about it would go to the same
    // place, and panic there.
    log.log_internal_errors(false).init();
}

/// Help and version as clap prints them; anything else in one line.
fn show(error: &clap::Error) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            // Once, not once a rank.
            let is_first = launcher().is_none_or(|launcher| launcher.rank == 0);
            if is_first { once(|| all_of(error.print())) } else { ExitCode::SUCCESS }
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            ExitCode::from(exit::USAGE)
        }
        _ => refuse(&usage_line(error), exit::USAGE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The commands that a user can run, with the names of those around them.
    fn walk<'a>(command: &'a clap::Command, name: &str, found: &mut Vec<(String, &'a clap::Command)>) {
        for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set() && inner.get_name() != "help") {
            let name = format!("{name} {}", inner.get_name());
            if !inner.is_subcommand_required_set() {
                found.push((name.trim().to_owned(), inner));
            }
            walk(inner, &name, found);
        }
    }

    #[test]
    fn every_command_with_options_takes_a_file_of_them() {
        let (description, mut commands) = (description(), Vec::new());
        walk(&description, "", &mut commands);
        assert!(commands.len() > 20, "{}", commands.len());
        let has = |command: &clap::Command, id: &str| command.get_arguments().any(|arg| arg.get_id() == id);
        let (with, without): (Vec<_>, Vec<_>) =
            commands.into_iter().partition(|(_, command)| has(command, "config") && has(command, "print-config"));
        for (name, command) in &without {
            let of_all = |arg: &&clap::Arg| !["help", "version", "log"].contains(&arg.get_id().as_str());
            let own = command.get_opts().filter(of_all).filter(|arg| !arg.is_hide_set()).count();
            assert_eq!(own, 0, "{name} has options and takes no --config");
        }
        let without: Vec<&str> = without.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(without, ["quality score", "completions", "man"]);
        let with: Vec<&str> = with.iter().map(|(name, _)| name.as_str()).collect();
        assert!(["methods", "store ls", "store warm", "train auxiliary"].iter().all(|name| with.contains(name)));
    }
}
