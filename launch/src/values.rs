//! Values of options: seconds of a deadline, sizes of memory, lists of methods.

use std::fmt::Display;
use std::str::FromStr;

use clap::builder::RangedU64ValueParser;
use tributary_methods::spec_list;
use tributary_system::size::{GIB, Size};

/// The most seconds of a deadline: 30 days. More would be none, and clocks overflow somewhere
/// beyond.
const MAX_SECONDS: u64 = 30 * 24 * 60 * 60;

/// The seconds of a deadline.
pub fn seconds() -> RangedU64ValueParser {
    clap::value_parser!(u64).range(1..=MAX_SECONDS)
}

/// The largest memory that can be asked for: 1 EiB, so that a sum over a few ranks is still a
/// number of bytes.
const MAX_BYTES: u64 = 1 << 60;

/// A size of memory in bytes.
pub fn size(text: &str) -> Result<u64, String> {
    match text.parse().map(Size::bytes).map_err(|error| error.to_string())? {
        0 => Err(format!("`{text}` is no memory at all")),
        bytes if bytes <= MAX_BYTES => Ok(bytes),
        _ => Err(format!("`{text}` is more than any machine has: at most {} GiB", MAX_BYTES / GIB)),
    }
}

/// A size, or `off`.
pub fn chunk_cache(text: &str) -> Result<u64, String> {
    match text {
        "off" => Ok(0),
        text => size(text),
    }
}

/// Methods in one argument: its entries, at commas outside brackets.
#[derive(Debug, Clone, PartialEq)]
pub struct List<S>(Vec<S>);

impl<S: Clone> List<S> {
    /// The entries of all arguments of an option.
    pub fn all(lists: &[Self]) -> Vec<S> {
        lists.iter().flat_map(|list| &list.0).cloned().collect()
    }
}

/// A list of methods.
pub fn list<S: FromStr<Err: Display>>(text: &str) -> Result<List<S>, String> {
    let entries = spec_list(text)?.into_iter().map(str::parse);
    entries.collect::<Result<_, _>>().map(List).map_err(|why: S::Err| why.to_string())
}
