//! Makes this rank's part of a call with tensors from the call's arguments. Wrong arguments end the
//! group.

use candle_core::Tensor;

use super::call::{Call, Contribution, Payload};
use super::{Endpoint, Member};
use crate::{Collective, Result, Start};

impl<E: Endpoint> Member<E> {
    /// This rank's part of the call that will have the number `sequence`.
    pub(super) fn prepare(&self, sequence: u64, start: Start<'_>) -> Result<Contribution> {
        match start {
            Start::Exchange { send, to, from, rows } => {
                self.is_rank(sequence, Collective::Exchange, to)?;
                self.is_rank(sequence, Collective::Exchange, from)?;
                let (form, send_rows, packed) = self.pack(sequence, Collective::Exchange, send)?;
                Ok(one(Call::Exchange { form, send_rows, to, from, rows }, packed))
            }
            Start::AllGather { send, rows } => {
                self.one_a_rank(sequence, Collective::AllGather, "row counts", rows.len())?;
                let (form, send_rows, packed) = self.pack(sequence, Collective::AllGather, send)?;
                let own_rows = rows[self.endpoint.rank()];
                if send_rows != own_rows {
                    let found = format!("all-gather of {send_rows} rows");
                    return Err(self.refuse(sequence, found, format!("{own_rows} rows")));
                }
                Ok(one(Call::AllGather { form, rows: rows.to_vec() }, packed))
            }
            Start::AllToAll { send, rows } => self.prepare_all_to_all(sequence, send, rows),
        }
    }

    fn prepare_all_to_all(&self, sequence: u64, send: &[Tensor], rows: &[usize]) -> Result<Contribution> {
        self.one_a_rank(sequence, Collective::AllToAll, "tensors", send.len())?;
        self.one_a_rank(sequence, Collective::AllToAll, "row counts", rows.len())?;
        let pack = |tensor| self.pack(sequence, Collective::AllToAll, tensor);
        let packed = send.iter().map(pack).collect::<Result<Vec<_>>>()?;
        let form = packed[0].0.clone();
        if let Some((other, ..)) = packed.iter().find(|(other, ..)| *other != form) {
            let found = format!("all-to-all of {form} and {other}");
            return Err(self.refuse(sequence, found, "rows of one form"));
        }
        let send_rows = packed.iter().map(|(_, rows, _)| *rows).collect();
        let tensors = packed.into_iter().map(|(.., tensor)| Some(tensor)).collect();
        let call = Call::AllToAll { form, send_rows, rows: rows.to_vec() };
        Ok(Contribution { call, payload: Payload { tensors, bytes: None } })
    }
}

/// A call that hands over one tensor.
fn one(call: Call, tensor: Tensor) -> Contribution {
    Contribution { call, payload: Payload { tensors: vec![Some(tensor)], bytes: None } }
}
