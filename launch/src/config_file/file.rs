//! The file of `--config`: its keys are checked against those of all commands, and those of one
//! command become arguments.

use std::path::Path;

use clap::error::{ContextKind, ContextValue};
use clap::{Arg, ArgAction, Command};
use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use super::options::{COMMANDS, found, options, table_of};
use crate::help;

/// Entries of a file for one command.
pub struct File {
    /// One entry an option.
    pub entries: Vec<Entry>,
}

/// An option in the file.
pub struct Entry {
    /// The option's name within clap.
    pub id: String,
    /// Its long names.
    names: Vec<String>,
    /// The arguments that say the same; none where that is the default.
    pub words: Vec<String>,
    /// File and line.
    pub place: String,
}

impl Entry {
    /// Whether the option has this long name.
    pub fn is_called(&self, name: &str) -> bool {
        self.names.iter().any(|own| own == name)
    }
}

/// Context of reading a file.
struct Reader<'a> {
    shown: String,
    text: &'a str,
    command: &'a Command,
    name: &'a str,
}

impl File {
    /// Reads a file's entries for the command `name`. The whole file is checked, entries for other
    /// commands too.
    ///
    /// # Errors
    /// Returns one line if the file cannot be read, is no TOML, or has an impossible key or type of
    /// value.
    pub fn read(path: &Path, command: &Command, name: &str) -> Result<Self, String> {
        let shown = path.display().to_string();
        let text = std::fs::read_to_string(path)
            .map_err(|error| format!("--config {shown}: {error}; name a readable TOML file"))?;
        let reader = Reader { shown, text: &text, command, name };
        let table = DeTable::parse(&text).map_err(|error| {
            let cause = error.message().lines().map(str::trim).collect::<Vec<_>>().join("; ");
            reader.refusal(error.span().map_or(0, |span| span.start), &cause)
        })?;
        let (mut common, mut own) = (Vec::new(), Vec::new());
        for (key, value) in table.get_ref() {
            match value.get_ref() {
                DeValue::Table(entries) => {
                    for (names, found) in reader.tables(key, entries)? {
                        if names == name {
                            own = found;
                        }
                    }
                }
                _ => common.extend(reader.common(key, value)?),
            }
        }
        reader.once(&common)?;
        common.retain(|entry| own.iter().all(|nearer: &Entry| nearer.id != entry.id));
        own.append(&mut common);
        Ok(Self { entries: own })
    }
}

impl Reader<'_> {
    /// One line about a place of the file.
    fn refusal(&self, at: usize, what: &str) -> String {
        format!("{}: {what}", self.place(at))
    }

    fn place(&self, at: usize) -> String {
        let before = self.text.get(..at.min(self.text.len())).unwrap_or(self.text);
        format!("{}, line {}", self.shown, before.matches('\n').count() + 1)
    }

    /// A key at the top: of every command that has such an option, and at least one must.
    fn common(&self, key: &Spanned<DeString<'_>>, value: &Spanned<DeValue<'_>>) -> Result<Option<Entry>, String> {
        let word = key.get_ref();
        let (mut own, mut known) = (None, false);
        for name in COMMANDS {
            let Some(arg) = option(found(self.command, name), word) else { continue };
            let entry = self.entry(arg, key, value);
            known = true;
            if name == self.name {
                own = Some(entry?);
            }
        }
        if known {
            return Ok(own);
        }
        self.no_methods_own(key.span().start, word)?;
        let others = COMMANDS.into_iter().filter(|name| *name != self.name);
        let near = std::iter::once(self.name).chain(others).find_map(|name| self.nearest(name, word));
        let near = near.map_or_else(|| "see `tributary --help`".to_owned(), |near| format!("the nearest is `{near}`"));
        Err(self.refusal(key.span().start, &format!("no command has an option `{word}`; {near}")))
    }

    /// Refuses a key that was an option of a command and is a method's now, with the words to
    /// write.
    fn no_methods_own(&self, at: usize, word: &str) -> Result<(), String> {
        match help::instead_of(&format!("--{word}")) {
            Some(instead) => Err(self.refusal(at, &format!("`{word}`: {instead}"))),
            None => Ok(()),
        }
    }

    /// The entries of a command's own table, or of the tables of its commands, each with the
    /// command's names.
    fn tables(
        &self,
        key: &Spanned<DeString<'_>>,
        entries: &DeTable<'_>,
    ) -> Result<Vec<(&'static str, Vec<Entry>)>, String> {
        let name = key.get_ref();
        let inner = |key: &Spanned<DeString<'_>>| inner(name, key.get_ref());
        if let Some(names) = COMMANDS.into_iter().find(|names| *names == name.as_ref()) {
            let mut tables = vec![(names, self.table(names, entries)?)];
            for (key, value) in entries {
                if let (Some(names), DeValue::Table(entries)) = (inner(key), value.get_ref()) {
                    tables.push((names, self.table(names, entries)?));
                }
            }
            return Ok(tables);
        }
        let refused = |key: &Spanned<DeString<'_>>, near: String| {
            let what = format!("no command with options is called `{}`; the nearest is `{near}`", key.get_ref());
            Err(self.refusal(key.span().start, &what))
        };
        let inside = COMMANDS.into_iter().filter(|known| known.split_once(' ').is_some_and(|(outer, _)| outer == name));
        let inside: Vec<String> = inside.map(table_of).collect();
        if inside.is_empty() {
            let all = || COMMANDS.map(table_of).join(", ");
            return refused(key, self.nearest_command(name).unwrap_or_else(all));
        }
        let mut tables = Vec::new();
        for (key, value) in entries {
            match (inner(key), value.get_ref()) {
                (Some(names), DeValue::Table(entries)) => tables.push((names, self.table(names, entries)?)),
                _ => return refused(key, inside.join(", ")),
            }
        }
        Ok(tables)
    }

    /// The entries of a table, but for the tables of the command's own commands.
    fn table(&self, names: &str, entries: &DeTable<'_>) -> Result<Vec<Entry>, String> {
        let mut own = Vec::new();
        for (key, value) in entries {
            let word = key.get_ref();
            if inner(names, word).is_some() && matches!(value.get_ref(), DeValue::Table(_)) {
                continue;
            }
            let Some(arg) = option(found(self.command, names), word) else {
                self.no_methods_own(key.span().start, word)?;
                let near = self.nearest(names, word);
                let near = near.map_or_else(
                    || format!("see `tributary {names} --help`"),
                    |near| format!("the nearest is `{near}`"),
                );
                return Err(self.refusal(key.span().start, &format!("`{names}` has no option `{word}`; {near}")));
            };
            own.push(self.entry(arg, key, value)?);
        }
        self.once(&own)?;
        Ok(own)
    }

    /// Checks that no option is given by two of its names.
    fn once(&self, entries: &[Entry]) -> Result<(), String> {
        let twice = |(index, entry): (usize, &Entry)| {
            entries[..index]
                .iter()
                .any(|other| other.id == entry.id)
                .then(|| format!("{}: {} are one option; give it once", entry.place, entry.names.join(" and ")))
        };
        entries.iter().enumerate().find_map(twice).map_or(Ok(()), Err)
    }

    fn entry(&self, arg: &Arg, key: &Spanned<DeString<'_>>, value: &Spanned<DeValue<'_>>) -> Result<Entry, String> {
        let at = key.span().start;
        let words =
            words(arg, value.get_ref()).map_err(|what| self.refusal(at, &format!("`{}` {what}", key.get_ref())))?;
        let names = arg.get_long_and_visible_aliases().unwrap_or_default();
        Ok(Entry {
            id: arg.get_id().to_string(),
            names: names.into_iter().map(str::to_owned).collect(),
            words,
            place: self.place(at),
        })
    }

    /// The option of a command that is called most like a word, as clap itself would suggest it.
    fn nearest(&self, name: &str, word: &str) -> Option<String> {
        let words = std::iter::once("tributary").chain(name.split(' ')).map(str::to_owned);
        let error = self.command.clone().try_get_matches_from(words.chain([format!("--{word}=")])).err()?;
        match error.get(ContextKind::SuggestedArg)? {
            ContextValue::String(near) => near.trim_start_matches('-').split([' ', '=']).next().map(str::to_owned),
            _ => None,
        }
    }

    /// The command that is called most like a word.
    fn nearest_command(&self, word: &str) -> Option<String> {
        let error = self.command.clone().try_get_matches_from(["tributary", word]).err()?;
        match error.get(ContextKind::SuggestedSubcommand)? {
            ContextValue::String(near) => Some(near.clone()),
            ContextValue::Strings(all) => all.iter().find(|near| COMMANDS.contains(&near.as_str())).cloned(),
            _ => None,
        }
    }
}

/// The option of a command by one of its long names.
fn option<'a>(command: &'a Command, word: &str) -> Option<&'a Arg> {
    options(command).find(|arg| arg.get_long_and_visible_aliases().is_some_and(|names| names.contains(&word)))
}

/// The arguments for a key and its value; none where that is the default.
fn words(arg: &Arg, value: &DeValue<'_>) -> Result<Vec<String>, String> {
    let long = arg.get_long().unwrap_or_default();
    if matches!(arg.get_action(), ArgAction::SetTrue) {
        return match value {
            DeValue::Boolean(true) => Ok(vec![format!("--{long}")]),
            DeValue::Boolean(false) => Ok(Vec::new()),
            other => Err(format!("is a switch: true or false, not {}", kind(other))),
        };
    }
    let takes_many = matches!(arg.get_action(), ArgAction::Append);
    let texts = match value {
        // An option whose value may be left out.
        DeValue::Boolean(true) if arg.get_num_args().is_some_and(|count| count.min_values() == 0) => {
            return Ok(vec![format!("--{long}")]);
        }
        DeValue::Array(values) if takes_many && !values.is_empty() => {
            values.iter().map(|value| scalar(value.get_ref())).collect()
        }
        value => scalar(value).map(|text| vec![text]),
    };
    let wanted = if takes_many { "a text, a number, or a list of such" } else { "a text or a number" };
    let texts = texts.ok_or_else(|| format!("takes {wanted}, not {}", kind(value)))?;
    let is_default = arg.get_default_values().iter().eq(texts.iter());
    Ok(if is_default { Vec::new() } else { texts.iter().map(|text| format!("--{long}={text}")).collect() })
}

/// A text or a number as it would be typed.
fn scalar(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(number) if number.radix() == 10 => Some(number.as_str().to_owned()),
        DeValue::Integer(number) => {
            i64::from_str_radix(number.as_str(), number.radix()).ok().map(|number| number.to_string())
        }
        DeValue::Float(number) => Some(number.as_str().to_owned()),
        _ => None,
    }
}

fn kind(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a text",
        DeValue::Integer(_) | DeValue::Float(_) => "a number",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(values) if values.is_empty() => "an empty list",
        DeValue::Array(_) => "such a list",
        DeValue::Table(_) => "a table",
    }
}

/// One of [`COMMANDS`] that is a command of another one.
fn inner(outer: &str, name: &str) -> Option<&'static str> {
    COMMANDS.into_iter().find(|known| known.split_once(' ') == Some((outer, name)))
}
