//! A method and its options as users write them, `NAME[:KEY[=VALUE]]..`: one spelling for the command line, files, HTTP, reports and
//! studies.
//!
//! Only the first `=` of an option splits. A value is bare, without `:`, `,`, brackets and blanks, or stands in brackets, which balance:
//! `relay:ratio=0.3:evict=[snapkv:window=16]:keep=128`. A printed spec has its options in the order of the table.

mod options;

use std::fmt;
use std::str::FromStr;

use tributary_protocol::{Choice, Descriptor, Importance, OrderFor};

pub use self::options::{MethodOption, OPTIONS, exchange as exchange_named, layers as layer_range};
use crate::plan::RequestSettings;

/// Bytes of a spec at most.
const LONGEST: usize = 1024;

/// A method with its options.
#[derive(Clone)]
pub struct MethodSpec {
    /// The method.
    pub method: &'static Descriptor,
    /// Rows of the table and their values, in its order.
    options: Vec<(&'static MethodOption, String)>,
}

impl MethodOption {
    /// The options that make a difference to a method.
    pub fn of(method: &Descriptor) -> impl Iterator<Item = &'static MethodOption> {
        OPTIONS.iter().filter(|option| option.is_taken_by(method))
    }

    fn is_taken_by(&self, method: &Descriptor) -> bool {
        self.choice.is_none_or(|choice| method.takes(choice))
    }

    fn find(key: &str) -> Option<&'static Self> {
        OPTIONS.iter().find(|option| option.key == key)
    }
}

impl MethodSpec {
    /// A method with no options of its own.
    pub fn bare(method: &'static Descriptor) -> Self {
        Self { method, options: Vec::new() }
    }

    /// Whether it names an option.
    pub fn has(&self, key: &str) -> bool {
        self.options.iter().any(|(option, _)| option.key == key)
    }

    /// Settings with this method and its own options; all else stays, whether the method takes it or not.
    #[must_use]
    pub fn set(&self, mut settings: RequestSettings) -> RequestSettings {
        settings.method = self.method;
        for (option, value) in &self.options {
            (option.set)(&mut settings, value).expect("the value was read before");
        }
        settings
    }

    /// Settings with this method, and its own options in the place of theirs. Theirs stay where the method takes them: a reorder is
    /// dropped for a method that does not ask the query, an order for the selection alone for one that moves nothing, and a compression
    /// of chunks for one that cannot have it, unless the spec names them.
    #[must_use]
    pub fn apply(&self, mut settings: RequestSettings, importance: Importance) -> RequestSettings {
        settings.method = self.method;
        if !self.method.takes(Choice::Reorder) {
            settings.reorder = None;
        }
        if self.has("reorder") {
            settings.reorder = settings.reorder.or(Some(importance));
        }
        let order_for = std::mem::replace(&mut settings.order_for, OrderFor::All);
        settings = self.set(settings.without_idle_compression());
        if self.has("order-for") {
            return settings;
        }
        settings.order_for = order_for;
        settings.without_idle_order()
    }

    fn add(&mut self, key: &str, value: Option<&str>) -> Result<(), String> {
        let keys = || MethodOption::of(self.method).map(|option| option.key).collect::<Vec<_>>();
        let known =
            |what: &str| format!("{what}{}; {} takes {}", nearest(key, keys()), self.method.name, keys().join(", "));
        let option = MethodOption::find(key).ok_or_else(|| known("unknown option"))?;
        if !option.is_taken_by(self.method) {
            return Err(known("makes no difference to this method"));
        }
        if self.has(key) {
            return Err("stands there twice".into());
        }
        let value = match (value, option.value) {
            (None, "") => "",
            (Some(_), "") => return Err("takes no value".into()),
            (None | Some(""), _) => return Err(format!("needs a value: {}", option.value)),
            (Some(value), _) => unbracketed(value)?,
        };
        let mut settings = RequestSettings::default();
        (option.set)(&mut settings, value)?;
        self.options.push((option, (option.shown)(&settings)));
        Ok(())
    }
}

impl FromStr for MethodSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.len() > LONGEST {
            return Err(format!("a method with its options has at most {LONGEST} bytes"));
        }
        let mut parts = spec_parts(text)?.into_iter();
        let name = parts.next().unwrap_or_default();
        let unknown = || {
            format!(
                "unknown method `{name}`{}; known are {}",
                nearest(name, Descriptor::names()),
                Descriptor::names().join(", ")
            )
        };
        let method = Descriptor::find(name).ok_or_else(unknown)?;
        let mut spec = Self::bare(method);
        for part in parts {
            let (key, value) = part.split_once('=').map_or((part, None), |(key, value)| (key, Some(value)));
            spec.add(key, value).map_err(|why| format!("{name}: {key}: {why}"))?;
        }
        let place = |option: &MethodOption| OPTIONS.iter().position(|other| other.key == option.key);
        spec.options.sort_by_key(|(option, _)| place(option));
        Ok(spec)
    }
}

impl fmt::Display for MethodSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.method.name)?;
        for (option, value) in &self.options {
            match value.contains([':', ',', '[', ']', ' ']) {
                _ if option.value.is_empty() => write!(f, ":{}", option.key)?,
                true => write!(f, ":{}=[{value}]", option.key)?,
                false => write!(f, ":{}={value}", option.key)?,
            }
        }
        Ok(())
    }
}

impl fmt::Debug for MethodSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MethodSpec({self})")
    }
}

impl PartialEq for MethodSpec {
    fn eq(&self, other: &Self) -> bool {
        self.to_string() == other.to_string()
    }
}

impl Eq for MethodSpec {}

/// The parts of a spec: those between colons that stand in no brackets.
///
/// # Errors
/// Returns an error if brackets do not balance.
pub fn spec_parts(text: &str) -> Result<Vec<&str>, String> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0_usize, 0);
    for (at, letter) in text.char_indices() {
        match letter {
            '[' => depth += 1,
            ']' => depth = depth.checked_sub(1).ok_or("a bracket is closed that was not opened")?,
            ':' if depth == 0 => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    if depth > 0 { Err("a bracket is not closed".into()) } else { Ok(parts) }
}

/// A value without the brackets around it.
fn unbracketed(value: &str) -> Result<&str, String> {
    if let Some(inner) = value.strip_prefix('[').and_then(|value| value.strip_suffix(']')) {
        return Ok(inner);
    }
    match value.find([',', '[', ']', ' ']) {
        Some(_) => Err("a value with a comma, a bracket or a blank stands in brackets".into()),
        None => Ok(value),
    }
}

/// The name that may have been meant, as part of a message.
fn nearest(found: &str, names: Vec<&'static str>) -> String {
    let near = names.into_iter().map(|name| (strsim::osa_distance(found, name), name)).min();
    near.filter(|(distance, _)| *distance <= 2).map_or_else(String::new, |(_, name)| format!(" (`{name}`?)"))
}

#[cfg(test)]
mod tests;
