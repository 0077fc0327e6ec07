//! A method and its options as users write them, `NAME[:KEY[=VALUE]]..`: one spelling for the
//! command line, files, HTTP, reports and studies.
//!
//! Only the first `=` of an option splits. A value is bare, without `:`, `,`, brackets and blanks,
//! or stands in balanced brackets: `relay:ratio=0.3:evict=[snapkv:window=16]:keep=128`. A printed
//! spec has its options in the method's order, without defaults. A list of specs splits at commas
//! outside brackets.

use std::fmt;
use std::str::FromStr;

use crate::method::{InvalidOption, Method};
use crate::methods::METHODS;
use crate::model_facts::ModelFacts;
use crate::names::nearest;
use crate::option::{Kind, MethodOption, Options};
use crate::options::REQUEST;
use crate::planned::PlannedMethod;

/// Longest spec, in bytes.
const LONGEST: usize = 1024;

/// A method with its options.
#[derive(Debug, Clone)]
pub struct MethodSpec {
    /// The method.
    pub method: &'static Method,
    /// Its options, in the method's order.
    pub options: Options,
}

impl MethodSpec {
    /// A method without options.
    pub fn bare(method: &'static Method) -> Self {
        Self { method, options: Options::default() }
    }

    /// Whether it names an option.
    pub fn has(&self, option: &MethodOption) -> bool {
        self.options.has(option)
    }

    /// The same with its options in the method's order.
    #[must_use]
    pub fn in_order(mut self) -> Self {
        let order: Vec<_> = self.method.all_options().collect();
        self.options.sort_by(&order);
        self
    }

    /// The data that a plan carries of it, for a model.
    ///
    /// # Errors
    /// Returns an error if the model does not allow an option.
    pub fn planned(&self, model: ModelFacts) -> Result<PlannedMethod, InvalidOption> {
        Ok(PlannedMethod::new(self.method, self.options.clone(), model)?.0)
    }

    fn add(&mut self, key: &str, value: Option<&str>) -> Result<(), String> {
        let known = |what: &str| {
            let keys: Vec<_> = self.method.all_options().map(|option| option.key).collect();
            let near = nearest(key, keys.iter().copied());
            format!("{what}{near}; {} takes {}", self.method.name, keys.join(", "))
        };
        let Some(option) = self.method.all_options().find(|option| option.key == key) else {
            let is_known = METHODS.iter().any(|method| method.all_options().any(|option| option.key == key));
            return Err(known(if is_known { "makes no difference to this method" } else { "unknown option" }));
        };
        if self.has(option) {
            return Err("is given twice".into());
        }
        let value = match (value, &option.kind) {
            (None, Kind::Flag) => "",
            (Some(_), Kind::Flag) => return Err("takes no value".into()),
            (None | Some(""), _) => return Err(format!("needs a value: {}", option.value)),
            (Some(value), _) => unbracketed(value)?,
        };
        self.options.set(option, value)
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
        let method = Method::named(name)?;
        let mut spec = Self::bare(method);
        for part in parts {
            let (key, value) = part.split_once('=').map_or((part, None), |(key, value)| (key, Some(value)));
            spec.add(key, value).map_err(|why| format!("{name}: {key}: {why}"))?;
        }
        Ok(spec.in_order())
    }
}

/// The method and its options, except defaults. A default of an option that a request keeps in its
/// settings is told: it may stand against another value of the settings.
impl fmt::Display for MethodSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.method.name)?;
        let mut told =
            self.options.iter().filter(|(option, value)| REQUEST.contains(option) || !option.is_default(value));
        told.try_for_each(|(option, value)| option.write(value, f))
    }
}

/// Two specs are the same if they are written alike.
impl PartialEq for MethodSpec {
    fn eq(&self, other: &Self) -> bool {
        self.to_string() == other.to_string()
    }
}

impl Eq for MethodSpec {}

/// Parts of a spec: the texts between colons outside brackets.
///
/// # Errors
/// Returns an error if brackets do not balance.
pub fn spec_parts(text: &str) -> Result<Vec<&str>, String> {
    parts(text, ':')
}

/// Entries of a list of specs: the texts between commas outside brackets.
///
/// # Errors
/// Returns an error if brackets do not balance.
pub fn spec_list(text: &str) -> Result<Vec<&str>, String> {
    parts(text, ',')
}

/// The texts between marks outside brackets.
fn parts(text: &str, mark: char) -> Result<Vec<&str>, String> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0_usize, 0);
    for (at, letter) in text.char_indices() {
        match letter {
            '[' => depth += 1,
            ']' => depth = depth.checked_sub(1).ok_or("a bracket is closed that was not opened")?,
            _ if letter == mark && depth == 0 => {
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

#[cfg(test)]
#[path = "spec_tests.rs"]
mod tests;
