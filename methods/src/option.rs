//! One option of a method: its key, the values it takes, its default; and a set of chosen options.

use std::fmt;
use std::ops::{Bound, RangeBounds, RangeInclusive};
use std::str::FromStr;

use crate::prefill::Layers;

/// An option of a method, as a spec names it. One row; help, refusals and schemas follow from it.
#[derive(Debug)]
pub struct MethodOption {
    /// Key in a spec.
    pub key: &'static str,
    /// Form of its value; empty for an option that its key alone sets.
    pub value: &'static str,
    /// Values it takes.
    pub kind: Kind,
    /// Value where a spec does not name it.
    pub usual: Usual,
    /// Its effect in one line, with the unit.
    pub help: &'static str,
}

/// Values that an option takes.
#[derive(Debug)]
pub enum Kind {
    /// No value: the key alone sets it.
    Flag,
    /// A whole number in this range.
    Count(RangeInclusive<usize>),
    /// A finite number between these bounds.
    Number(Bound<f64>, Bound<f64>),
    /// One of these words.
    Word(&'static [&'static str]),
    /// A range of layers, `FIRST..END`, END exclusive.
    Layers,
    /// A text in its own format; the function returns its canonical form.
    Text(fn(&str) -> Result<String, String>),
}

/// Value of an option where a spec does not name it.
#[derive(Debug)]
pub enum Usual {
    /// This value.
    Value(&'static str),
    /// A value that follows from the method, the model or the request: in words, for help texts.
    Computed(&'static str),
    /// The option is off.
    Off,
}

/// A key has one row in the tables of options, so two options with one key are the same.
impl PartialEq for MethodOption {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl Eq for MethodOption {}

impl MethodOption {
    /// Its effect and its default, for help texts.
    pub fn described(&self) -> String {
        match self.usual {
            Usual::Value(value) => format!("{}; default {value}", self.help),
            Usual::Computed(words) => format!("{}; default {words}", self.help),
            Usual::Off => self.help.to_owned(),
        }
    }

    /// Whether a value, in its canonical form, is the default.
    pub fn is_default(&self, value: &str) -> bool {
        matches!(self.usual, Usual::Value(usual) if usual == value)
    }

    /// Writes it with a value, in canonical form, as in a spec.
    pub(crate) fn write(&self, value: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            Kind::Flag => write!(f, ":{}", self.key),
            _ if value.contains([':', ',', '[', ']', ' ']) => write!(f, ":{}=[{value}]", self.key),
            _ => write!(f, ":{}={value}", self.key),
        }
    }

    /// The canonical form of a value.
    ///
    /// # Errors
    /// Returns an error with the values that the option takes.
    pub fn read(&self, text: &str) -> Result<String, String> {
        match &self.kind {
            Kind::Flag => Ok(String::new()),
            Kind::Count(range) => {
                let count: usize = text.parse().map_err(|_| "needs a whole number".to_owned())?;
                let wanted = match (*range.start(), *range.end()) {
                    (least, usize::MAX) => format!("must be {least} or more"),
                    (least, most) => format!("must be from {least} to {most}"),
                };
                if range.contains(&count) { Ok(count.to_string()) } else { Err(wanted) }
            }
            Kind::Number(from, to) => number(text, *from, *to),
            Kind::Word(words) => match words.contains(&text) {
                true => Ok(text.to_owned()),
                false => Err(format!("`{text}` is none of {}", words.join(", "))),
            },
            Kind::Layers => {
                let Ok(Layers::Some(first, end)) = text.parse() else {
                    return Err(format!("`{text}` is not FIRST..END, such as 22..26"));
                };
                Ok(format!("{first}..{end}"))
            }
            Kind::Text(read) => read(text),
        }
    }
}

fn number(text: &str, from: Bound<f64>, to: Bound<f64>) -> Result<String, String> {
    let number: f64 = text.parse().ok().filter(|number: &f64| number.is_finite()).ok_or("needs a number")?;
    let wanted = match (from, to) {
        (Bound::Excluded(above), Bound::Included(most)) => format!("must be above {above} and at most {most}"),
        (Bound::Included(from), Bound::Included(to)) => format!("must be from {from} to {to}"),
        (Bound::Excluded(above), _) => format!("must be above {above}"),
        _ => "must be another number".to_owned(),
    };
    // Methods compute with f32, in which a tiny number is 0 and a large one is infinite.
    let narrow = number as f32;
    let fits = |number: f64| number.is_finite() && (from, to).contains(&number);
    if fits(number) && fits(f64::from(narrow)) { Ok(number.to_string()) } else { Err(wanted) }
}

/// Options with their values in canonical form, in the order of their insertion.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Options(Vec<(&'static MethodOption, String)>);

impl Options {
    /// Adds an option or gives it another value.
    ///
    /// # Errors
    /// Returns an error with the values that the option takes.
    pub fn set(&mut self, option: &'static MethodOption, value: &str) -> Result<(), String> {
        let value = option.read(value)?;
        match self.0.iter_mut().find(|(other, _)| *other == option) {
            Some((_, place)) => *place = value,
            None => self.0.push((option, value)),
        }
        Ok(())
    }

    /// Adds an option unless it is present.
    ///
    /// # Panics
    /// If the option does not take the value: an invalid default is a bug.
    pub fn set_default(&mut self, option: &'static MethodOption, value: &str) {
        if !self.has(option) {
            self.set(option, value).unwrap_or_else(|why| panic!("the default {value} of {}: {why}", option.key));
        }
    }

    /// Takes an option out, if it is present.
    pub fn remove(&mut self, option: &MethodOption) {
        self.0.retain(|(other, _)| *other != option);
    }

    /// Whether the option is present.
    pub fn has(&self, option: &MethodOption) -> bool {
        self.0.iter().any(|(other, _)| *other == option)
    }

    /// The value of an option, or its default; `None` without either.
    ///
    /// # Panics
    /// If values of the option are not of type `T`: only a bug can cause that.
    pub fn get<T: FromStr>(&self, option: &'static MethodOption) -> Option<T> {
        let chosen = self.0.iter().find(|(other, _)| *other == option).map(|(_, value)| value.as_str());
        let text = match (&option.usual, chosen) {
            (_, Some(chosen)) => chosen,
            (Usual::Value(value), None) => value,
            _ => return None,
        };
        match text.parse() {
            Ok(value) => Some(value),
            Err(_) => panic!("`{text}` is no value of the option {}", option.key),
        }
    }

    /// The value of an option that has a default.
    ///
    /// # Panics
    /// If it is absent without a default, or if its values are not of type `T`: only a bug can
    /// cause that.
    pub fn usual<T: FromStr>(&self, option: &'static MethodOption) -> T {
        self.get(option).unwrap_or_else(|| panic!("the option {} has no default", option.key))
    }

    /// The options and their values.
    pub fn iter(&self) -> impl Iterator<Item = (&'static MethodOption, &str)> {
        self.0.iter().map(|(option, value)| (*option, value.as_str()))
    }

    /// The same in the order of `options`.
    pub(crate) fn sort_by(&mut self, options: &[&'static MethodOption]) {
        self.0.sort_by_key(|(option, _)| options.iter().position(|other| other == option));
    }
}

/// As the options of a spec: `:KEY=VALUE:KEY`.
impl fmt::Display for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.iter().try_for_each(|(option, value)| option.write(value, f))
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Options({self})")
    }
}
