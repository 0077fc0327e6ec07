//! Whether all ranks mean the same: the first thing that they tell each other after the start.
//!
//! Facts travel as text, so that ranks of different versions can at least see that they differ.

use std::time::Duration;

use tributary_comm::Communicator;
use tributary_protocol::Phase;

use crate::disagreement::Disagreement;
use crate::error::Result;

/// Facts that must be equal on all ranks: name and value.
pub type AgreementFacts = Vec<(&'static str, String)>;

/// Compares all ranks' facts. Every rank calls it; rank 0 sees how they differ, the others see the
/// group's end.
///
/// # Errors
/// Returns a [`Disagreement`] on rank 0, and an error if the group fails.
pub fn agree(comm: &mut dyn Communicator, facts: &AgreementFacts, limit: Duration) -> Result<()> {
    comm.set_deadline(Phase::Start, limit);
    let mine: String = facts.iter().map(|(name, value)| format!("{name}={value}\n")).collect();
    let all = comm.gather_bytes(0, mine.into_bytes())?;
    let leads = comm.rank() == 0;
    if leads && let Some(disagreement) = Disagreement::between(&all) {
        return Err(disagreement.into());
    }
    comm.broadcast_bytes(0, leads.then(Vec::new))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use tributary_comm::local::seats;

    use super::*;

    fn facts(model: &str) -> AgreementFacts {
        vec![("build", "0.1.0".to_owned()), ("model", model.to_owned())]
    }

    #[test]
    fn ranks_that_agree_go_on_and_others_get_a_table() {
        let meet = |models: &[&str]| -> Vec<std::result::Result<(), String>> {
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
}
