//! Eviction as users specify it: size of the remainder, method, and scope (a prompt or every
//! chunk).

use std::fmt;
use std::str::FromStr;

use super::methods::{Eviction, EvictionDescriptor};

/// Rows that each KV head keeps of a prompt in a layer, the mean over layers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Keep {
    /// This number of rows.
    Rows(usize),
    /// This percentage of the prompt's rows (prefix, context and query), rounded down, one at
    /// least.
    Percent(f64),
}

impl FromStr for Keep {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is no number of rows, such as 128, and no percentage, such as 30%");
        match text.strip_suffix('%') {
            Some(percent) => percent.parse().map(Keep::Percent).map_err(|_| wrong()),
            None => text.parse().map(Keep::Rows).map_err(|_| wrong()),
        }
    }
}

impl Keep {
    /// Number of rows that it keeps of `rows`; may exceed `rows`.
    pub fn of(self, rows: usize) -> usize {
        match self {
            Keep::Rows(kept) => kept,
            Keep::Percent(percent) => ((percent / 100.0 * rows as f64 + 1e-9).floor() as usize).max(1),
        }
    }
}

impl fmt::Display for Keep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Keep::Rows(rows) => write!(f, "{rows}"),
            Keep::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

impl FromStr for Eviction {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = EvictionDescriptor::find(name).map(|entry| entry.method);
        found.ok_or_else(|| format!("`{name}` is no way to evict; known are {}", EvictionDescriptor::names()))
    }
}

/// An eviction method with its window: `METHOD` or `METHOD:window=N`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EvictChoice {
    /// The method.
    pub method: Eviction,
    /// Number of last prompt rows whose attention counts; the method's own default where absent.
    pub window: Option<usize>,
}

impl FromStr for EvictChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, window) = match text.split_once(':') {
            None => (text, None),
            Some((name, option)) => {
                let window =
                    option.strip_prefix("window=").ok_or("an eviction method has the option window=N alone")?;
                (name, Some(window.parse().map_err(|_| "window: needs a whole number")?))
            }
        };
        match window {
            Some(0) => Err("window: must be 1 or more".to_owned()),
            window => Ok(Self { method: name.parse()?, window }),
        }
    }
}

impl fmt::Display for EvictChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.method.descriptor().name)?;
        self.window.map_or(Ok(()), |window| write!(f, ":window={window}"))
    }
}

/// Tokens of every chunk that each KV head of each layer keeps before the chunk is cached: `N` or
/// `N%`, optionally followed by a colon and the method.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KeepPerChunk {
    /// Number or percentage of tokens to keep.
    pub keep: Keep,
    /// Method that chooses the tokens.
    pub method: Eviction,
}

impl FromStr for KeepPerChunk {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (keep, method) = match text.split_once(':') {
            None => (text, Eviction::SnapKv),
            Some((keep, name)) => {
                let wrong =
                    || format!("`{name}` compresses no chunk; known are {}", EvictionDescriptor::names_for_chunks());
                let found = EvictionDescriptor::find(name).filter(|entry| entry.compresses_chunks());
                (keep, found.ok_or_else(wrong)?.method)
            }
        };
        let this = Self { keep: keep.parse()?, method };
        let wrong = |range: &str| format!("`{text}` must be {range}");
        match this.keep {
            Keep::Rows(0) => Err(wrong("at least 1 token")),
            Keep::Percent(percent) if !(percent > 0.0 && percent <= 100.0) => Err(wrong("above 0% and at most 100%")),
            _ => Ok(this),
        }
    }
}

impl fmt::Display for KeepPerChunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.keep)?;
        if self.method == Eviction::SnapKv { Ok(()) } else { write!(f, ":{}", self.method.descriptor().name) }
    }
}
