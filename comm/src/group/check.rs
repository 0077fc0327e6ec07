//! Checks of a rank's own arguments before it makes a call. Wrong arguments end the group.

use candle_core::Tensor;

use super::call::Form;
use super::{Endpoint, Member};
use crate::{Collective, Error, Result};

impl<E: Endpoint> Member<E> {
    /// Ends the group because this rank's own arguments are wrong.
    pub(super) fn refuse(&self, sequence: u64, found: impl Into<String>, expected: impl Into<String>) -> Error {
        let rank = self.endpoint.rank();
        let (found, expected) = (found.into(), expected.into());
        let error = Error::Mismatch { sequence, rank, found, other: rank, expected };
        self.endpoint.kill(error)
    }

    /// Form and rows of a tensor to send, with contiguous data.
    pub(super) fn pack(&self, sequence: u64, kind: Collective, tensor: &Tensor) -> Result<(Form, usize, Tensor)> {
        self.endpoint.alive()?;
        let Some(form) = Form::of(tensor) else {
            let found = format!("{} of a scalar", kind.name());
            return Err(self.refuse(sequence, found, "a tensor with rows"));
        };
        match tensor.contiguous() {
            Ok(packed) => Ok((form, tensor.dims()[0], packed)),
            Err(error) => Err(self.endpoint.kill(error.into())),
        }
    }

    /// Ends the group if a list has not one entry a rank.
    pub(super) fn one_a_rank(&self, sequence: u64, kind: Collective, what: &str, count: usize) -> Result<()> {
        let world = self.endpoint.world();
        if count == world {
            return Ok(());
        }
        let found = format!("{} with {count} {what}", kind.name());
        Err(self.refuse(sequence, found, format!("one a rank, {world}")))
    }

    /// Ends the group if this number is not that of a rank.
    pub(super) fn is_rank(&self, sequence: u64, kind: Collective, rank: usize) -> Result<()> {
        let world = self.endpoint.world();
        if rank < world {
            return Ok(());
        }
        let found = format!("{} with rank {rank}", kind.name());
        Err(self.refuse(sequence, found, format!("a rank below {world}")))
    }
}
