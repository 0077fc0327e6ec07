//! Commands and options that may be in a file, and the options that name the file itself.

use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};

/// The option that names a file.
pub const CONFIG: &str = "config";
/// The option that prints the values in force.
pub const PRINT: &str = "print-config";

/// The commands that take options from a file, which are all that have options; a command of a
/// command has both names.
pub const COMMANDS: [&str; 19] = [
    "prefill",
    "serve",
    "compare",
    "bench",
    // Before the command that it belongs to, which is called too.
    "quality pool",
    "quality",
    "plan",
    "doctor",
    "launch",
    "load",
    "methods",
    "store warm",
    "store ls",
    "store verify",
    "store prune",
    "store stat",
    "train kv-packet",
    "train lookahead",
    "train auxiliary",
];

const LONG_HELP: &str = "\
Read options from a TOML file. Its keys are the options' long names: world-size = 4, chunk-cache = \"4GiB\", \
reorder = true, methods = [\"full\", \"ring\"]. Keys at the top apply to every command that has such an option; \
keys of a table such as [serve] or [train.kv-packet] apply to that command alone, and override those at the top. The command line \
overrides the environment, the environment the file, and the file the defaults; the command line cannot unset a \
switch that the file sets. Paths are relative to the current directory, not to the file. Under `tributary \
launch` every rank reads the file named after its command, on its own host.";

/// Adds the options of this module to every command that has them.
pub fn with_options(command: Command) -> Command {
    let add = |command: Command| {
        let config = Arg::new(CONFIG).long(CONFIG).value_name("FILE.toml").value_parser(value_parser!(PathBuf));
        // A study is nothing but options from a file.
        let is_study = ["bench", "quality"].contains(&command.get_name());
        let config = if is_study { config.visible_alias("study") } else { config };
        let print = Arg::new(PRINT).long(PRINT).action(ArgAction::SetTrue);
        let short = "Read options from a file; the command line and the environment override it";
        command
            .next_help_heading("Configuration")
            .arg(config.help(short).long_help(LONG_HELP))
            .arg(print.help("Print every option's value and its source, as a file for --config, and exit"))
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

/// The options of a command that can be in a file, in their order.
pub fn options(command: &Command) -> impl Iterator<Item = &Arg> {
    let elsewhere = |arg: &&Arg| !["help", "version", CONFIG, PRINT].contains(&arg.get_id().as_str());
    command.get_arguments().filter(|arg| arg.get_long().is_some() && !arg.is_hide_set()).filter(elsewhere)
}
