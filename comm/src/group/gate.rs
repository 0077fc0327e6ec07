//! Control points among ranks: each rank arrives at a point and waits for the word, which is given
//! once all have arrived.
//!
//! The process of rank 0 gives the word, because the coordinator's signals arrive there.
//! Numbers of points only grow; each order of the coordinator begins a run of its own, so that
//! ranks are in step again after each.

use tributary_protocol::Word;

use crate::link::Signals;

/// Which point each rank has come to, and the word that was given last.
pub struct Gate {
    /// One entry a rank.
    pub arrived: Vec<u64>,
    pub word: Option<(u64, Word)>,
    /// What the coordinator wants, in the process of rank 0, and the request in progress.
    pub signals: Option<Signals>,
    pub request: u64,
}

impl Gate {
    pub fn new(world: usize) -> Self {
        Self { arrived: vec![0; world], word: None, signals: None, request: 0 }
    }

    /// The word of the point to which all have come, where it has not been given yet.
    pub fn decide(&mut self) -> Option<(u64, Word)> {
        let number = self.arrived.iter().copied().min().unwrap_or(0);
        if self.arrived.iter().any(|&arrived| arrived != number) || self.word.is_some_and(|(given, _)| given >= number)
        {
            return None;
        }
        self.word = Some((number, word(self.signals.as_ref(), self.request)));
        self.word
    }

    /// The ranks that have not come to a point.
    pub fn missing(&self, number: u64) -> Vec<usize> {
        (0..self.arrived.len()).filter(|&rank| self.arrived[rank] < number).collect()
    }
}

/// The word for a request. A cancelled one does not halt.
pub fn word(signals: Option<&Signals>, request: u64) -> Word {
    match signals {
        Some(signals) if signals.is_cancelled(request) => Word::Cancel,
        Some(signals) if signals.take_halt(request) => Word::Halt,
        _ => Word::Continue,
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
        gate.signals = Some(worker.signals().clone());
        (gate.request, gate.arrived) = (0, vec![6, 6]);
        coordinator.signals().halt(0);
        assert_eq!((gate.decide(), gate.decide()), (Some((6, Word::Halt)), None), "once for all ranks");
        gate.arrived = vec![7, 7];
        coordinator.signals().cancel(0);
        assert_eq!(gate.decide(), Some((7, Word::Cancel)));
    }
}
