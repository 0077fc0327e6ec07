//! Whether all ranks mean the same: the first thing that they tell each other after the start.
//!
//! Facts travel as text, so that ranks of different versions can at least see that they differ.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use tributary_comm::Communicator;
use tributary_protocol::Phase;

/// What must be equal on all ranks: name and value.
pub type Facts = Vec<(&'static str, String)>;

/// Facts that differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disagreement {
    /// Their names, each with the ranks that have a value, by value.
    differing: Vec<(String, BTreeMap<String, Vec<usize>>)>,
}

impl Disagreement {
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

/// Compares all ranks' facts. Every rank calls it; rank 0 sees how they differ, the others see the group's end.
///
/// # Errors
/// A [`Disagreement`] on rank 0; a failure of the group.
pub fn agree(comm: &mut dyn Communicator, facts: &Facts, limit: Duration) -> anyhow::Result<()> {
    comm.set_deadline(Phase::Start, limit);
    let mine: String = facts.iter().map(|(name, value)| format!("{name}={value}\n")).collect();
    let all = comm.gather_bytes(0, mine.into_bytes()).map_err(tributary_worker::Error::from)?;
    let leads = comm.rank() == 0;
    if leads && let Some(disagreement) = compare(&all) {
        return Err(disagreement.into());
    }
    comm.broadcast_bytes(0, leads.then(Vec::new)).map_err(tributary_worker::Error::from)?;
    Ok(())
}

/// How the ranks' facts differ, if they do. A fact that a rank does not know has no value there.
fn compare(all: &[Vec<u8>]) -> Option<Disagreement> {
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
    (!differing.is_empty()).then_some(Disagreement { differing })
}

#[cfg(test)]
mod tests {
    use tributary_comm::local::seats;

    use super::*;

    fn facts(model: &str) -> Facts {
        vec![("build", "0.1.0".to_owned()), ("model", model.to_owned())]
    }

    #[test]
    fn ranks_that_agree_go_on_and_others_get_a_table() {
        let meet = |models: &[&str]| -> Vec<Result<(), String>> {
            std::thread::scope(|scope| {
                let rank = |(seat, model): (tributary_comm::local::Seat, &str)| {
                    let facts = facts(model);
                    scope.spawn(move || {
                        let mut comm = seat.take();
                        let outcome = agree(&mut comm, &facts, Duration::from_secs(5));
                        outcome.map_err(|error| {
                            comm.abort("the ranks do not agree", 78);
                            error.to_string()
                        })
                    })
                };
                let threads: Vec<_> = seats(models.len()).into_iter().zip(models.iter().copied()).map(rank).collect();
                threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
            })
        };
        assert_eq!(meet(&["a", "a", "a"]), [Ok(()), Ok(()), Ok(())]);
        let outcomes = meet(&["a", "a", "b"]);
        let table = "the ranks do not agree on model\n  model, ranks 0 1: a\n  model, rank 2: b";
        assert_eq!(outcomes[0], Err(table.to_owned()));
        assert!(outcomes[1].is_err() && outcomes[2].is_err(), "{outcomes:?}");
    }

    #[test]
    fn the_exit_code_tells_programs_from_settings() {
        let all = |lines: [&str; 2]| lines.map(|line| line.as_bytes().to_vec());
        let code = |lines| compare(&all(lines)).map(|found| found.exit_code());
        assert_eq!(code(["build=1\nmodel=a\n", "build=1\nmodel=a\n"]), None);
        assert_eq!(code(["build=1\nmodel=a\n", "build=1\nmodel=b\n"]), Some(78));
        assert_eq!(code(["build=1\nmodel=a\n", "build=2\nmodel=b\n"]), Some(76));
        assert_eq!(code(["build=1\n", "build=1\nnew=x\n"]), Some(78));
    }
}
