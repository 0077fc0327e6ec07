//! Disagreement of ranks: a table of the values of each rank.

use std::collections::BTreeMap;
use std::fmt;

/// Facts that differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disagreement {
    /// Their names, each with the ranks that have a value, by value.
    differing: Vec<(String, BTreeMap<String, Vec<usize>>)>,
}

impl Disagreement {
    /// Differences of the ranks' facts, if there are any. Each rank's facts are lines of
    /// `name=value`; a fact that a rank does not know has no value there.
    pub fn between(all: &[Vec<u8>]) -> Option<Self> {
        let mut names: Vec<String> = Vec::new();
        let mut values: BTreeMap<String, BTreeMap<usize, String>> = BTreeMap::new();
        for (rank, facts) in all.iter().enumerate() {
            for line in String::from_utf8_lossy(facts).lines() {
                let (name, value) = line.split_once('=').unwrap_or((line, ""));
                if !names.iter().any(|known| known == name) {
                    names.push(name.to_owned());
                }
                values.entry(name.to_owned()).or_default().insert(rank, value.to_owned());
            }
        }
        let mut differing = Vec::new();
        for name in names {
            let mut by_value: BTreeMap<String, Vec<usize>> = BTreeMap::new();
            for rank in 0..all.len() {
                let value = values[&name].get(&rank).cloned().unwrap_or_else(|| "none".to_owned());
                by_value.entry(value).or_default().push(rank);
            }
            if by_value.len() > 1 {
                differing.push((name, by_value));
            }
        }
        (!differing.is_empty()).then_some(Self { differing })
    }

    /// 76 if the ranks run different programs, else 78: they were set up differently.
    pub fn exit_code(&self) -> u8 {
        let skew = self.differing.iter().any(|(name, _)| matches!(name.as_str(), "protocol" | "build"));
        if skew { 76 } else { 78 }
    }
}

impl fmt::Display for Disagreement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.differing.iter().map(|(name, _)| name.as_str()).collect();
        write!(f, "the ranks do not agree on {}", names.join(", "))?;
        for (name, values) in &self.differing {
            let mut rows: Vec<(&Vec<usize>, &String)> = values.iter().map(|(value, ranks)| (ranks, value)).collect();
            rows.sort();
            for (ranks, value) in rows {
                let noun = if ranks.len() == 1 { "rank" } else { "ranks" };
                let ranks: Vec<String> = ranks.iter().map(usize::to_string).collect();
                write!(f, "\n  {name}, {noun} {}: {value}", ranks.join(" "))?;
            }
        }
        Ok(())
    }
}

impl std::error::Error for Disagreement {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_code_tells_programs_from_settings() {
        let all = |lines: [&str; 2]| lines.map(|line| line.as_bytes().to_vec());
        let code = |lines| Disagreement::between(&all(lines)).map(|found| found.exit_code());
        assert_eq!(code(["build=1\nmodel=a\n", "build=1\nmodel=a\n"]), None);
        assert_eq!(code(["build=1\nmodel=a\n", "build=1\nmodel=b\n"]), Some(78));
        assert_eq!(code(["build=1\nmodel=a\n", "build=2\nmodel=b\n"]), Some(76));
        assert_eq!(code(["build=1\n", "build=1\nnew=x\n"]), Some(78));
    }
}
