//! `tributary load`: the options that its crate declares, as clap has them, and its result.

use std::io::IsTerminal;

use clap::error::Error;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use tributary_load::{OPTIONS, Options};

use crate::failure::Coded;
use crate::stdout::print;

/// Typed options. They are a table of the crate that reads them; here they only become clap's.
#[derive(Debug)]
pub struct LoadArgs(ArgMatches);

impl Args for LoadArgs {
    fn augment_args(command: Command) -> Command {
        OPTIONS.iter().fold(command, |command, option| {
            let arg = Arg::new(option.name).long(option.name).help(option.help);
            command.arg(match option.value {
                Some(value) => arg.value_name(value).default_value(option.default),
                None => arg.action(ArgAction::SetTrue),
            })
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for LoadArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        Ok(Self(matches.clone()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        self.0 = matches.clone();
        Ok(())
    }
}

/// Runs the load and prints its result.
pub fn load(LoadArgs(matches): &LoadArgs) -> anyhow::Result<()> {
    let given = |name: &str| match matches.try_get_one::<bool>(name) {
        Ok(is_set) => is_set.is_some_and(|is_set| *is_set).then(String::new),
        Err(_) => matches.get_one::<String>(name).cloned(),
    };
    let failed = |error: tributary_load::Error| Coded { exit_code: error.exit_code(), reason: error.to_string() };
    let options = Options::read(&given).map_err(failed)?;
    if let Some(lines) = tributary_load::offline(&options).map_err(failed)? {
        return print(&lines);
    }
    let tell = &mut |line: &str| {
        if std::io::stderr().is_terminal() {
            eprintln!("{line}");
        }
    };
    let report = tributary_load::run(&options, tell).map_err(failed)?;
    print(&if options.json { tributary_load::json(&report) } else { tributary_load::text(&report) })
}
