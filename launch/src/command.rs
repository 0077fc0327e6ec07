//! The command line: parse, run, and say in one line what went wrong.

use std::io::Write;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Parser, Subcommand};

use crate::compare::{CompareArgs, compare};
use crate::failure::{exit_code, one_line};
use crate::prefill::{PrefillArgs, prefill};

const EXIT_CODES: &str = "\
Exit codes: 0 done, 64 usage, 65 damaged model, 69 rank lost, 70 a bug, 71 out of memory, 74 disk, 75 deadline.";

/// Prefill of long-context requests on a group of ranks: chunks are prefilled on their own, the query picks the few tokens
/// that must know about other chunks, only those are recomputed, and the first token comes early
#[derive(Debug, Parser)]
#[command(name = "tributary", version, after_help = EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    #[command(after_help = EXIT_CODES, allow_negative_numbers = true)]
    Prefill(Box<PrefillArgs>),
    #[command(after_help = EXIT_CODES, allow_negative_numbers = true)]
    Compare(Box<CompareArgs>),
}

/// Runs the command of this process.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return refuse(&error),
    };
    let done = match cli.command {
        Command::Prefill(args) => prefill(&args),
        Command::Compare(args) => compare(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&one_line(&error));
            ExitCode::from(exit_code(&error))
        }
    }
}

/// Help and version as clap prints them; anything else in one line.
fn refuse(error: &clap::Error) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let _ = error.print();
            ExitCode::SUCCESS
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            ExitCode::from(64)
        }
        _ => {
            let text = error.to_string();
            let useful = |line: &&str| !line.is_empty() && !line.starts_with("Usage:") && !line.starts_with("For more");
            let lines: Vec<&str> = text.lines().map(str::trim).filter(useful).collect();
            let line = lines.join(" ");
            complain(line.trim_start_matches("error: "));
            ExitCode::from(64)
        }
    }
}

/// One line on standard error. If that cannot be written, the exit code alone must do.
fn complain(line: &str) {
    let _ = writeln!(std::io::stderr(), "tributary: {line}");
}
