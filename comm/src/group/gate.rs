//! Control points among ranks: each rank arrives at a point and waits for the word, which is given
//! once all have arrived.
//!
//! The process of rank 0 gives the word, because the coordinator announces cancellations there.
//! Numbers of points only grow; each order of the coordinator begins a run of its own, so that
//! ranks are in step again after each.

use tributary_protocol::Word;

use crate::link::Cancels;

/// Which point each rank has come to, and the word that was given last.
pub struct Gate {
    /// One entry a rank.
    pub arrived: Vec<u64>,
    pub word: Option<(u64, Word)>,
    /// The coordinator's cancellations, in the process of rank 0, and the request in progress.
    pub cancels: Option<Cancels>,
    pub request: u64,
}

impl Gate {
    pub fn new(world: usize) -> Self {
        Self { arrived: vec![0; world], word: None, cancels: None, request: 0 }
    }

    /// The word of the point to which all have come, where it has not been given yet.
    pub fn decide(&mut self) -> Option<(u64, Word)> {
        let number = self.arrived.iter().copied().min().unwrap_or(0);
        if self.arrived.iter().any(|&arrived| arrived != number) || self.word.is_some_and(|(given, _)| given >= number)
        {
            return None;
        }
        self.word = Some((number, if self.is_cancelled(self.request) { Word::Cancel } else { Word::Continue }));
        self.word
    }

    fn is_cancelled(&self, request: u64) -> bool {
        self.cancels.as_ref().is_some_and(|cancels| cancels.is_cancelled(request))
    }

    /// The ranks that have not come to a point.
    pub fn missing(&self, number: u64) -> Vec<usize> {
        (0..self.arrived.len()).filter(|&rank| self.arrived[rank] < number).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_word_is_given_once_all_have_come() {
        let mut gate = Gate::new(2);
        gate.arrived[0] = 5;
        assert_eq!((gate.decide(), gate.missing(5)), (None, vec![1]));
        gate.arrived[1] = 5;
        assert_eq!(gate.decide(), Some((5, Word::Continue)));
        assert_eq!(gate.decide(), None, "once");
        let (coordinator, worker) = crate::link(1);
        gate.cancels = Some(worker.cancels().clone());
        (gate.request, gate.arrived) = (0, vec![6, 6]);
        coordinator.cancels().cancel(0);
        assert_eq!(gate.decide(), Some((6, Word::Cancel)));
    }
}
