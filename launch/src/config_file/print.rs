//! `--print-config`: every option's value, with where it comes from, as a file that `--config`
//! reads again.

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};

use super::file::Entry;
use super::options::{options, table_of};

/// All options of a command as a TOML table.
pub fn print(command: &Command, names: &str, matches: &ArgMatches, added: &[Entry]) -> String {
    let mut text = format!("[{}]\n", table_of(names));
    for arg in options(command) {
        let name = arg.get_long().unwrap_or_default();
        text += &match value(arg, matches) {
            Some(value) => format!("{name} = {value} # {}\n", source(arg, matches, added)),
            None => format!("# {name}: not given\n"),
        };
    }
    text
}

/// A value as TOML; none where there is none.
fn value(arg: &Arg, matches: &ArgMatches) -> Option<String> {
    let id = arg.get_id().as_str();
    if matches!(arg.get_action(), ArgAction::SetTrue) {
        return Some(matches.get_flag(id).to_string());
    }
    matches.value_source(id)?;
    let texts: Vec<String> =
        matches.get_raw(id)?.map(|text| toml(&without_credentials(&text.to_string_lossy()))).collect();
    match (arg.get_action(), texts.as_slice()) {
        (ArgAction::Append, texts) => Some(format!("[{}]", texts.join(", "))),
        (_, [text]) => Some(text.clone()),
        // An option that was given without the value that it may have.
        _ => Some(true.to_string()),
    }
}

/// A plain text; of a URL without the user and the password that it may hold.
fn without_credentials(text: &str) -> String {
    let parts = text.split_once("://").and_then(|(scheme, rest)| {
        let host = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let at = rest[..host].rfind('@')?;
        Some((scheme, &rest[at..]))
    });
    parts.map_or_else(|| text.to_owned(), |(scheme, rest)| format!("{scheme}://***{rest}"))
}

/// A number where the text is one as TOML writes it, else a string.
fn toml(text: &str) -> String {
    let is_integer = text.parse().is_ok_and(|number: i64| number.to_string() == text);
    let is_float = text.parse().is_ok_and(|number: f64| number.is_finite() && format!("{number:?}") == text);
    if is_integer || (is_float && text.contains('.')) {
        return text.to_owned();
    }
    // TOML reads JSON's quoted strings.
    serde_json::Value::from(text).to_string()
}

fn source(arg: &Arg, matches: &ArgMatches, added: &[Entry]) -> String {
    let id = arg.get_id().as_str();
    match (added.iter().find(|entry| entry.id == id), matches.value_source(id)) {
        (Some(entry), _) => entry.place.clone(),
        (None, Some(ValueSource::CommandLine)) => "command line".to_owned(),
        (None, Some(ValueSource::EnvVariable)) => "environment".to_owned(),
        _ => "default".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_of_a_url_are_not_printed() {
        for (text, printed) in [
            ("s3://user:secret@bucket/prefix", "s3://***@bucket/prefix"),
            ("http://a:b@c@host?x=1", "http://***@host?x=1"),
            ("s3://bucket/a@b", "s3://bucket/a@b"),
            ("me@example.com", "me@example.com"),
            ("examples/models/demo", "examples/models/demo"),
        ] {
            assert_eq!(without_credentials(text), printed);
        }
    }
}
