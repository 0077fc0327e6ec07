//! One collective call of the group: the parts of the ranks that have made it, and the failure when
//! two calls do not fit.

use std::sync::Arc;

use candle_core::Tensor;

use super::call::{Call, Contribution, Payload};
use crate::{Collective, Error};

/// One collective call.
pub struct Meeting {
    /// One entry a rank: its part, once it has made the call.
    pub made: Vec<Option<Contribution>>,
    /// Ranks that have got what they wait for, or have left.
    pub finished: Vec<bool>,
}

/// The first failure of the group.
pub struct Death {
    pub rank: usize,
    pub error: Error,
    /// The other rank of a mismatch, and the mismatch as it sees it.
    pub counterpart: Option<(usize, Error)>,
}

/// The data that a rank takes out of a finished call.
#[derive(Default)]
pub struct Received {
    pub tensors: Vec<Tensor>,
    pub bytes: Vec<Arc<Vec<u8>>>,
    /// Whether the device waits for the tensors, in its own order, instead of the rank's thread.
    pub on_device: bool,
}

impl Death {
    pub fn left(rank: usize) -> Self {
        let error = Error::Left { rank };
        Self { rank, error, counterpart: None }
    }

    pub fn seen_by(&self, rank: usize) -> Error {
        match (&self.counterpart, &self.error) {
            (_, error) if rank == self.rank => error.clone(),
            (Some((other, error)), _) if rank == *other => error.clone(),
            (_, Error::Aborted { .. } | Error::Left { .. }) => self.error.clone(),
            (_, error) => Error::Aborted { rank: self.rank, cause: error.to_string(), exit_code: error.exit_code() },
        }
    }
}

impl Meeting {
    pub fn new(world: usize) -> Self {
        Self { made: (0..world).map(|_| None).collect(), finished: vec![false; world] }
    }

    /// The ranks among `ranks` that have not made the call.
    pub fn absent(&self, ranks: impl IntoIterator<Item = usize>) -> Vec<usize> {
        ranks.into_iter().filter(|&rank| self.made[rank].is_none()).collect()
    }

    /// The kind of the call, as this rank has made it.
    pub fn kind_of(&self, rank: usize) -> Collective {
        self.made[rank].as_ref().expect("the rank has made the call").call.kind()
    }

    pub fn is_over(&self) -> bool {
        self.finished.iter().all(|&finished| finished)
    }

    /// The first rank whose call does not fit `call`, as a death; the rank itself is looked at too.
    pub fn mismatch(&self, rank: usize, sequence: u64, call: &Call) -> Option<Death> {
        let others = self.made.iter().enumerate();
        let others = others.filter_map(|(other, part)| Some((other, &part.as_ref()?.call)));
        let (other, theirs) = others.chain([(rank, call)]).find(|(other, theirs)| !call.fits(rank, theirs, *other))?;
        let (found, expected) = (call.to_string(), theirs.to_string());
        let seen_there =
            Error::Mismatch { sequence, rank: other, found: expected.clone(), other: rank, expected: found.clone() };
        let error = Error::Mismatch { sequence, rank, found, other, expected };
        Some(Death { rank, error, counterpart: Some((other, seen_there)) })
    }

    /// The data for `rank`. A tensor that has one receiver is moved out, so that nothing holds it
    /// any longer.
    pub fn take(&mut self, rank: usize) -> Received {
        let call = self.made[rank].as_ref().expect("the rank has made the call").call.clone();
        let (mut received, world) = (Received::default(), self.made.len());
        match call.clone() {
            Call::Exchange { from, .. } => received.tensors.extend(self.payload(from).tensors[0].take()),
            Call::AllGather { rows, .. } => {
                for source in 0..rows.len() {
                    received.tensors.extend(self.payload(source).tensors[0].clone());
                }
            }
            Call::AllToAll { rows, .. } => {
                for source in 0..rows.len() {
                    received.tensors.extend(self.payload(source).tensors[rank].take());
                }
            }
            Call::BroadcastBytes { root } => received.bytes.extend(self.payload(root).bytes.clone()),
            Call::GatherBytes { root } if root == rank => {
                for source in 0..self.made.len() {
                    received.bytes.extend(self.payload(source).bytes.take());
                }
            }
            Call::GatherBytes { .. } | Call::Barrier => {}
        }
        let found = (received.tensors.len(), received.bytes.len());
        assert_eq!(found, call.gives(rank, world), "tensors and bytes that rank {rank} gets of {call}");
        received
    }

    fn payload(&mut self, rank: usize) -> &mut Payload {
        &mut self.made[rank].as_mut().expect("a finished call has every needed part").payload
    }
}
