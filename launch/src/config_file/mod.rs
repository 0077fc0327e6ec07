//! `--config FILE.toml`: options from a file. Its entries become arguments before the typed ones,
//! and all are parsed once more, so that a value from the file is checked as if it had been typed.
//! No options are listed here: they come from clap's own description of the command.
//!
//! An entry that equals its option's default adds nothing, so that the output of `--print-config`
//! can be read again without conflicts between default options.

mod file;
mod options;
mod print;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{ArgMatches, Command};

use self::file::{Entry, File};
pub use self::options::CONFIG;
pub use self::options::with_options;
use self::options::{PRINT, called, found, options_of};
use crate::failure::usage_line;

/// Result of a command line.
pub enum Parsed {
    /// A command to run.
    Run(ArgMatches),
    /// A text to print instead.
    Print(String),
}

/// Why nothing is run.
pub enum Refusal {
    /// An error of clap; a request for help is one too.
    Clap(clap::Error),
    /// One line.
    Line(String),
}

impl From<clap::Error> for Refusal {
    fn from(error: clap::Error) -> Self {
        Self::Clap(error)
    }
}

/// Reads a command line, the program's name first, and the file that it names.
///
/// # Errors
/// Returns an error if clap refuses the options, or if a file cannot be read or has an impossible
/// key or value.
pub fn parse(command: &Command, arguments: Vec<OsString>) -> Result<Parsed, Refusal> {
    let typed = match typed(command, &arguments)? {
        Typed::Whole(matches) => return Ok(Parsed::Run(matches)),
        Typed::WithFile(typed) => typed,
    };
    let (name, options) = called(&typed).expect("a command with options");
    let added = added(command, name, options, &arguments)?;
    let all = joined(name, arguments, &added);
    let parsed = command.clone().try_get_matches_from(&all);
    if !options.get_flag(PRINT) {
        return parsed.map(Parsed::Run).map_err(|error| explained(error, &added));
    }
    let matches = match parsed {
        // Missing options are visible in the output.
        Err(error) if error.kind() == ErrorKind::MissingRequiredArgument => lenient(command, &all)?,
        other => other.map_err(|error| explained(error, &added))?,
    };
    let options = options_of(&matches, name).expect("the same command");
    Ok(Parsed::Print(print::print(found(command, name), name, options, &added)))
}

/// A command line with its file's additions; nothing if it names none.
///
/// # Errors
/// Fails as [`parse`] does, in one line.
pub fn expanded(command: &Command, arguments: Vec<OsString>) -> Result<Option<Vec<OsString>>, String> {
    let line = |refusal| match refusal {
        Refusal::Clap(error) => usage_line(&error),
        Refusal::Line(line) => line,
    };
    let typed = typed(command, &arguments).map_err(|error| usage_line(&error))?;
    let Typed::WithFile(typed) = typed else { return Ok(None) };
    let (name, options) = called(&typed).expect("a command with options");
    let added = added(command, name, options, &arguments).map_err(line)?;
    Ok(Some(joined(name, arguments, &added)))
}

/// The options of a command line and of the file that it names.
///
/// # Errors
/// Fails as [`parse`] does, in one line.
pub fn matched(command: &Command, arguments: Vec<OsString>) -> Result<ArgMatches, String> {
    let all = expanded(command, arguments.clone())?.unwrap_or(arguments);
    command.clone().try_get_matches_from(all).map_err(|error| usage_line(&error))
}

/// Typed command line, before any file is read.
enum Typed {
    /// It names no file: this is all there is.
    Whole(ArgMatches),
    /// It names a file, or asks for the values in force. Options that must be there may be missing.
    WithFile(ArgMatches),
}

fn typed(command: &Command, arguments: &[OsString]) -> Result<Typed, clap::Error> {
    let matches = match command.clone().try_get_matches_from(arguments) {
        Err(error) if error.kind() == ErrorKind::MissingRequiredArgument => {
            let matches = lenient(command, arguments)?;
            return if asks(&matches) { Ok(Typed::WithFile(matches)) } else { Err(error) };
        }
        other => other?,
    };
    Ok(if asks(&matches) { Typed::WithFile(matches) } else { Typed::Whole(matches) })
}

fn lenient(command: &Command, arguments: &[OsString]) -> Result<ArgMatches, clap::Error> {
    /// Commands of commands do not take it from those outside.
    fn all(command: Command) -> Command {
        command.ignore_errors(true).mut_subcommands(all)
    }
    all(command.clone()).try_get_matches_from(arguments)
}

/// Whether a command line has something for this module.
fn asks(matches: &ArgMatches) -> bool {
    called(matches).is_some_and(|(_, options)| options.contains_id(CONFIG) || options.get_flag(PRINT))
}

/// Arguments that the file adds to the typed ones.
fn added(command: &Command, name: &str, options: &ArgMatches, arguments: &[OsString]) -> Result<Vec<Entry>, Refusal> {
    let Some(path) = options.get_one::<PathBuf>(CONFIG) else { return Ok(Vec::new()) };
    let file = File::read(path, command, name).map_err(Refusal::Line)?;
    let is_given = |entry: &Entry| {
        // After an error, clap may have left later words unread; the words themselves are all
        // there.
        let stands = |word: &OsString| {
            word.to_str()
                .and_then(|word| word.strip_prefix("--")?.split('=').next())
                .is_some_and(|word| entry.is_called(word))
        };
        let source = options.value_source(&entry.id);
        matches!(source, Some(ValueSource::CommandLine | ValueSource::EnvVariable))
            || arguments.iter().take_while(|word| *word != "--").any(stands)
    };
    Ok(file.entries.into_iter().filter(|entry| !is_given(entry)).collect())
}

/// The arguments with those of the file after the command's names. No option before the names has a
/// value that is such a name.
fn joined(names: &str, mut arguments: Vec<OsString>, added: &[Entry]) -> Vec<OsString> {
    let after = |from: usize, name: &str| {
        let place = arguments[from..].iter().position(|word| word == name);
        place.map_or(arguments.len(), |index| from + index + 1)
    };
    let at = names.split(' ').fold(1, after);
    arguments.splice(at..at, added.iter().flat_map(|entry| entry.words.iter().map(OsString::from)));
    arguments
}

/// An error that names the file where something from it is in the way.
fn explained(error: clap::Error, added: &[Entry]) -> Refusal {
    let named = [ContextKind::InvalidArg, ContextKind::PriorArg].into_iter().filter_map(|kind| error.get(kind));
    let words = named.flat_map(|value| match value {
        ContextValue::String(word) => vec![word.clone()],
        ContextValue::Strings(words) => words.clone(),
        _ => Vec::new(),
    });
    let names: Vec<String> = words
        .map(|word| word.trim_start_matches('-').split([' ', '=', '<', '[']).next().unwrap_or_default().to_owned())
        .collect();
    let mut told = added.iter().filter(|entry| !entry.words.is_empty());
    match told.find(|entry| names.iter().any(|name| entry.is_called(name))) {
        Some(entry) => Refusal::Line(format!("{}: {}", entry.place, usage_line(&error))),
        None => Refusal::Clap(error),
    }
}
