//! Parts of an evaluation by the sources of its texts. Methods are chosen and calibrated on the
//! requests of one part of the sources, and reported on those of the other.

use schemars::JsonSchema;
use serde::Serialize;

use crate::error::{Error, Result};

/// A part of the sources.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Part {
    /// Every source.
    #[default]
    All,
    /// The sources on which methods are chosen and calibrated.
    Selection,
    /// The others, on which they are reported.
    Report,
}

impl Part {
    /// The name on the command line and in files.
    pub fn name(self) -> &'static str {
        match self {
            Part::All => "all",
            Part::Selection => "selection",
            Part::Report => "report",
        }
    }
}

/// A part, and the salt of the hash that divides the sources.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Split {
    /// The part.
    pub part: Part,
    /// The salt; unused where the part is everything.
    pub salt: String,
}

impl Split {
    /// Checks that there is a salt where one is needed.
    ///
    /// # Errors
    /// Returns an error if a part is asked for without a salt.
    pub fn check(&self) -> Result<()> {
        match self.part != Part::All && self.salt.is_empty() {
            true => Err(Error::usage(format!("--split {}: it needs --split-salt TEXT", self.part.name()))),
            false => Ok(()),
        }
    }

    /// Whether a source belongs to the part, by its hash. `kind` keeps sources of different kinds
    /// apart.
    pub fn has(&self, kind: &str, source: &str) -> bool {
        match self.part {
            Part::All => true,
            Part::Selection => self.number(kind, source).is_multiple_of(2),
            Part::Report => self.number(kind, source) % 2 == 1,
        }
    }

    /// The half of a few sources that belongs to the part: those with the lower hashes are for
    /// selection. Neither part is empty where there are two sources.
    pub fn half<T>(&self, kind: &str, sources: Vec<T>, name: impl Fn(&T) -> String) -> Vec<T> {
        if self.part == Part::All {
            return sources;
        }
        let mut numbers: Vec<u64> = sources.iter().map(|source| self.number(kind, &name(source))).collect();
        numbers.sort_unstable();
        let first_of_report = numbers.get(numbers.len().div_ceil(2)).copied().unwrap_or(u64::MAX);
        let is_in = |source: &T| {
            let is_in_report = self.number(kind, &name(source)) >= first_of_report;
            is_in_report == (self.part == Part::Report)
        };
        sources.into_iter().filter(is_in).collect()
    }

    /// The seed of the requests: another one for each part, so that numbers drawn for one part are
    /// not those of the other.
    pub fn seed(&self, seed: u64) -> u64 {
        match self.part {
            Part::All => seed,
            part => self.number("seed", &format!("{} {seed}", part.name())),
        }
    }

    fn number(&self, kind: &str, source: &str) -> u64 {
        let mut hash = blake3::Hasher::new();
        for text in [self.salt.as_str(), kind, source] {
            hash.update(&(text.len() as u64).to_le_bytes()).update(text.as_bytes());
        }
        let mut first = [0; 8];
        first.copy_from_slice(&hash.finalize().as_bytes()[..8]);
        u64::from_le_bytes(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(part: Part, salt: &str) -> Split {
        Split { part, salt: salt.to_owned() }
    }

    #[test]
    fn a_source_is_in_one_part_and_the_salt_decides() {
        let names: Vec<String> = (0..200).map(|number| format!("title {number}")).collect();
        let of = |part, salt: &str| -> Vec<bool> {
            names.iter().map(|name| split(part, salt).has("article", name)).collect()
        };
        let (selection, report) = (of(Part::Selection, "a"), of(Part::Report, "a"));
        assert!(selection.iter().zip(&report).all(|(one, other)| one != other));
        let count = selection.iter().filter(|is_in| **is_in).count();
        assert!((70..130).contains(&count), "{count}");
        assert_ne!(selection, of(Part::Selection, "b"));
        assert!(of(Part::All, "a").iter().all(|is_in| *is_in));
    }

    #[test]
    fn halves_of_few_sources_are_even() {
        for count in 2..9usize {
            let names: Vec<String> = (0..count).map(|number| format!("name {number}")).collect();
            let of = |part| split(part, "salt").half("name", names.clone(), String::clone);
            let (selection, report) = (of(Part::Selection), of(Part::Report));
            assert_eq!((selection.len(), report.len()), (count.div_ceil(2), count / 2));
            let mut both = [selection, report].concat();
            both.sort();
            assert_eq!(both, names);
            assert_eq!(of(Part::All), names);
        }
    }

    #[test]
    fn a_part_needs_a_salt_and_has_a_seed_of_its_own() {
        assert!(split(Part::All, "").check().is_ok() && split(Part::Report, "x").check().is_ok());
        let said = split(Part::Report, "").check().unwrap_err().to_string();
        assert_eq!(said, "--split report: it needs --split-salt TEXT");
        let seeds = [Part::All, Part::Selection, Part::Report].map(|part| split(part, "x").seed(7));
        assert_eq!(seeds[0], 7);
        assert!(seeds[1] != seeds[2] && seeds[1] != 7);
        assert_eq!([Part::All, Part::Selection, Part::Report].map(Part::name), ["all", "selection", "report"]);
    }
}
