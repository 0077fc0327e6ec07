//! Ranks at the gate: they come to a control point, and wait for its word.

use tributary_protocol::Word;

use super::{Hub, Look, Patience, Verdict, Wait};
use crate::link::Signals;
use crate::{Collective, Result};

impl Hub {
    /// In the process of rank 0, words follow the signals given here.
    pub fn listen(&self, signals: Signals) {
        self.lock().gate.signals = Some(signals);
    }

    /// The coordinator's signals, if this process knows them.
    pub fn signals(&self) -> Option<Signals> {
        self.lock().gate.signals.clone()
    }

    /// Points from here on are those of this request.
    pub fn points_of(&self, request: u64) {
        self.lock().gate.request = request;
    }

    /// Notes that a rank has arrived at a point. Once all have, gives the word if this process
    /// gives words.
    pub fn arrive(&self, rank: usize, number: u64) -> Option<(u64, Word)> {
        let mut state = self.lock();
        state.gate.arrived[rank] = state.gate.arrived[rank].max(number);
        let word = state.gate.decide();
        drop(state);
        if word.is_some() {
            self.notify();
        }
        word
    }

    /// The word of a point has come from rank 0.
    pub fn hear(&self, number: u64, word: Word) {
        self.lock().gate.word = Some((number, word));
        self.notify();
    }

    /// Waits for the word of a point, given here or by rank 0 elsewhere.
    pub fn word(
        &self,
        (rank, number): (usize, u64),
        is_given_here: bool,
        patience: Patience,
        judge: &dyn Fn(&[usize], Patience) -> Verdict,
    ) -> Result<Word> {
        let wait = Wait { rank, operation: Collective::Barrier, sequence: number & u64::from(u32::MAX), patience };
        self.wait(wait, judge, |state| match state.gate.word {
            Some((given, word)) if given == number => Look::Done(word),
            _ if is_given_here => Look::Missing(state.gate.missing(number)),
            _ => Look::Missing(vec![0]),
        })
    }
}
