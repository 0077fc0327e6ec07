//! Which commands and which of their options may stand in a file, and the options that name the file itself.

use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};

/// The option that names a file.
pub const CONFIG: &str = "config";
/// The option that prints what is in force.
pub const PRINT: &str = "print-config";

/// The commands that take options from a file; a command of a command has both names.
pub const COMMANDS: [&str; 13] = [
    "prefill",
    "serve",
    "compare",
    "bench",
    "quality",
    "plan",
    "doctor",
    "launch",
    "load",
    "store warm",
    "train kv-packet",
    "train lookahead",
    "train auxiliary",
];

const LONG_HELP: &str = "\
Reads options from a TOML file. Its keys are the options' long names: world-size = 4, chunk-cache = \"4GiB\", reorder = true, \
methods = [\"full\", \"ring\"]. Keys at the top are for every command that has such an option; those of a table such as [serve] or [train.kv-packet] are for that \
command alone, and stand before the others. The command line stands before the environment, that before the file, and that before \
defaults; a switch that the file sets cannot be unset by the command line. Paths are relative to the current directory, wherever the file \
is. Under `tributary launch` every rank reads the file that stands behind its command, on its own host.";

/// Adds the options of this module to every command that has them.
pub fn with_options(command: Command) -> Command {
    let add = |command: Command| {
        let config = Arg::new(CONFIG).long(CONFIG).value_name("FILE.toml").value_parser(value_parser!(PathBuf));
        // A study is nothing but options from a file.
        let config = if command.get_name() == "quality" { config.visible_alias("study") } else { config };
        let print = Arg::new(PRINT).long(PRINT).action(ArgAction::SetTrue);
        let short = "Read options from a file; the command line and the environment stand before it";
        command.next_help_heading("Configuration").arg(config.help(short).long_help(LONG_HELP)).arg(
            print.help("Print every option's value, with where it comes from, as a file for --config; do nothing else"),
        )
    };
    COMMANDS.into_iter().fold(command, |command, names| match names.split_once(' ') {
        None => command.mut_subcommand(names, add),
        Some((outer, inner)) => command.mut_subcommand(outer, |outer| outer.mut_subcommand(inner, add)),
    })
}

/// The description of one of [`COMMANDS`].
pub fn found<'a>(command: &'a Command, names: &str) -> &'a Command {
    names.split(' ').fold(command, |command, name| command.find_subcommand(name).expect("clap has found it"))
}

/// Which of [`COMMANDS`] a command line calls, and its options there.
pub fn called(matches: &ArgMatches) -> Option<(&'static str, &ArgMatches)> {
    COMMANDS.into_iter().find_map(|names| Some((names, options_of(matches, names)?)))
}

/// The options of one of [`COMMANDS`], if the command line calls it.
pub fn options_of<'a>(matches: &'a ArgMatches, names: &str) -> Option<&'a ArgMatches> {
    names.split(' ').try_fold(matches, |matches, name| matches.subcommand_matches(name))
}

/// The name of one of [`COMMANDS`] as that of a table.
pub fn table_of(names: &str) -> String {
    names.replace(' ', ".")
}

/// The options of a command that can stand in a file, in their order.
pub fn options(command: &Command) -> impl Iterator<Item = &Arg> {
    let elsewhere = |arg: &&Arg| !["help", "version", CONFIG, PRINT].contains(&arg.get_id().as_str());
    command.get_arguments().filter(|arg| arg.get_long().is_some() && !arg.is_hide_set()).filter(elsewhere)
}
