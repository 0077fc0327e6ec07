//! Help on one screen: `--help` shows the options that most users need, `--help-all` every one.

use clap::{Arg, ArgAction, Command};

use crate::help;

/// Options that `--help` shows of a command with many, by their long names. A command that is not
/// here has few options and shows all of them.
const SHOWN: [(&str, &[&str]); 13] = [
    (
        "prefill",
        &[
            "model",
            "documents",
            "query",
            "requests",
            "method",
            "ratio",
            "world-size",
            "chunk-store",
            "max-tokens",
            "json",
            "config",
        ],
    ),
    (
        "serve",
        &[
            "model",
            "method",
            "ratio",
            "world-size",
            "chunk-cache",
            "chunk-store",
            "listen",
            "api-key-file",
            "served-model-name",
            "max-running",
            "methods-allowed",
            "config",
        ],
    ),
    ("load", &["url", "model", "rate", "clients", "duration", "find-saturation", "form", "json", "plot", "config"]),
    (
        "compare",
        &[
            "model",
            "documents",
            "query",
            "request",
            "methods",
            "ratio",
            "world-size",
            "repeat",
            "json",
            "html",
            "config",
        ],
    ),
    (
        "bench",
        &[
            "model",
            "lengths",
            "worlds",
            "methods",
            "ratios",
            "caches",
            "repeats",
            "calibrate",
            "dry-run",
            "resume",
            "out",
            "config",
        ],
    ),
    (
        "quality",
        &[
            "model",
            "suite",
            "tasks",
            "samples",
            "methods",
            "ratios",
            "world-size",
            "dry-run",
            "resume",
            "out",
            "config",
        ],
    ),
    ("train kv-packet", &TRAINING),
    ("train lookahead", &TRAINING),
    ("train auxiliary", &TRAINING),
    (
        "plan",
        &[
            "model",
            "profile",
            "world",
            "tokens",
            "hit-rate",
            "methods",
            "slo-ttft",
            "requests-per-second",
            "trace",
            "gpus",
            "json",
            "config",
        ],
    ),
    ("store warm", &["model", "documents", "system", "chunk-store", "keep-per-chunk", "world-size", "json", "config"]),
    ("doctor", &["world-size", "backend", "min-busbw", "skip-checks", "chunk-store", "json", "config"]),
    ("launch", &["ranks", "hosts", "hostfile", "restarts", "dry-run", "launcher", "config"]),
];

const TRAINING: [&str; 9] = ["model", "suite", "tasks", "samples", "epochs", "out", "resume", "dry-run", "config"];

/// Gives every command `--help`, on one screen, and those with more options `--help-all`.
pub fn with_screens(command: Command) -> Command {
    screens(command, "")
}

fn screens(command: Command, path: &str) -> Command {
    let names: Vec<String> = command.get_subcommands().map(|inner| inner.get_name().to_owned()).collect();
    let command = names.iter().fold(command, |command, name| {
        let path = format!("{path} {name}");
        command.mut_subcommand(name, |inner| screens(inner, path.trim()))
    });
    let command = command.disable_help_flag(true).disable_help_subcommand(true);
    // Options of every command, such as --log, are in the program's own help and in --help-all.
    let action = if path.is_empty() { ArgAction::HelpLong } else { ArgAction::HelpShort };
    let short = Arg::new("help").short('h').long("help").action(action);
    let Some((_, shown)) = SHOWN.iter().find(|(name, _)| *name == path) else {
        return command.arg(short.help("Print this help"));
    };
    let hidden = |arg: Arg| {
        let is_shown = arg.is_positional() || arg.get_long().is_some_and(|long| shown.contains(&long));
        arg.hide_short_help(!is_shown)
    };
    let all = Arg::new("help-all").long("help-all").action(ArgAction::HelpLong);
    let long = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let output = help::output_of(path).map_or_else(String::new, |output| format!("{output}\n\n"));
    command
        .mut_args(hidden)
        .arg(short.help("Print the options that most users need"))
        .arg(all.help("Print every option, in full"))
        .after_help(format!("{output}All options: tributary {path} --help-all"))
        .after_long_help(long)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every option of the list is one of its command.
    #[test]
    fn shown_options_are_options_of_their_command() {
        let mut root = crate::command::declared();
        root.build();
        for (path, shown) in SHOWN {
            let command = path.split(' ').fold(&root, |command, name| command.find_subcommand(name).expect(path));
            for long in shown {
                let is_option = |arg: &&Arg| {
                    arg.get_long() == Some(long) || arg.get_visible_aliases().unwrap_or_default().contains(long)
                };
                assert!(command.get_arguments().any(|arg| is_option(&arg)), "{path} has no --{long}");
            }
        }
    }

    /// A screen of 50 lines and 100 columns.
    #[test]
    fn the_help_of_every_command_fits_on_a_screen() {
        fn check(command: &mut Command, path: &str) {
            let help = command.clone().term_width(100).render_help().to_string();
            let lines = help.lines().count();
            assert!(lines <= 50, "{path}: {lines} lines\n{help}");
            let names: Vec<String> = command.get_subcommands().map(|inner| inner.get_name().to_owned()).collect();
            for name in names {
                let inner = command.find_subcommand_mut(&name).expect("a command");
                check(inner, &format!("{path} {name}"));
            }
        }
        let mut root = crate::command::declared();
        root.build();
        check(&mut root, "tributary");
    }
}
