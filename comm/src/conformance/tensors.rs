//! Checks of the collectives that carry tensors.

use candle_core::{DType, Device, Tensor};

use super::data::{Ledger, Tag, expect, tensor};
use super::outcome::{Check, count_of, others, said};
use crate::{Collective, Communicator};

/// The properties that all tensors of a call share.
#[derive(Clone, Copy)]
pub(super) struct Form<'a> {
    pub(super) row_dims: &'static [usize],
    pub(super) dtype: DType,
    /// The device they are sent from.
    pub(super) device: &'a Device,
}

impl Form<'_> {
    pub(super) fn row_bytes(self) -> usize {
        self.row_dims.iter().product::<usize>() * self.dtype.size_in_bytes()
    }

    pub(super) fn make(self, tag: Tag, rows: usize) -> Result<Tensor, String> {
        tensor(tag, rows, self.row_dims, self.dtype, self.device).map_err(|error| error.to_string())
    }

    pub(super) fn expect(self, found: &Tensor, tag: Tag, rows: usize) -> Check {
        expect(found, tag, rows, self.row_dims, self.dtype)
    }
}

/// Every rank's tensor to every rank.
pub(super) fn all_gather(
    comm: &mut dyn Communicator,
    ledger: &mut Ledger,
    step: u64,
    form: Form<'_>,
    rows: &[usize],
) -> Check {
    let (me, world) = (comm.rank(), comm.size());
    let send = form.make(Tag { step, source: me, target: 0 }, rows[me])?;
    let received = said(comm.all_gather_v(&send, rows))?;
    ledger.count(Collective::AllGather, rows[me] * form.row_bytes() * (world - 1), others(rows, me) * form.row_bytes());
    count_of("all-gather", received.len(), world)?;
    for (source, found) in received.iter().enumerate() {
        form.expect(found, Tag { step, source, target: 0 }, rows[source])?;
    }
    Ok(())
}

/// Rank s sends `table[(s + r) mod world]` rows to rank r: uneven both ways.
pub(super) fn all_to_all(
    comm: &mut dyn Communicator,
    ledger: &mut Ledger,
    step: u64,
    form: Form<'_>,
    table: &[usize],
) -> Check {
    let (me, world) = (comm.rank(), comm.size());
    let both: Vec<usize> = (0..world).map(|other| table[(me + other) % world]).collect();
    let send: Result<Vec<Tensor>, String> =
        (0..world).map(|target| form.make(Tag { step, source: me, target }, both[target])).collect();
    let received = said(comm.all_to_all_v(&send?, &both))?;
    let moved_bytes = others(&both, me) * form.row_bytes();
    ledger.count(Collective::AllToAll, moved_bytes, moved_bytes);
    count_of("all-to-all", received.len(), world)?;
    for (source, found) in received.iter().enumerate() {
        form.expect(found, Tag { step, source, target: me }, both[source])?;
    }
    Ok(())
}

/// A ring in each distance, that to oneself included.
pub(super) fn ring(
    comm: &mut dyn Communicator,
    ledger: &mut Ledger,
    step: u64,
    form: Form<'_>,
    rows: &[usize],
) -> Check {
    let (me, world) = (comm.rank(), comm.size());
    for distance in 0..world {
        let to = (me + distance) % world;
        let from = (me + world - distance) % world;
        let send = form.make(Tag { step, source: me, target: to }, rows[me])?;
        let pending = said(comm.start_exchange(&send, to, from, rows[from]))?;
        let received = said(comm.wait(pending))?;
        let counted = if distance == 0 { (0, 0) } else { (rows[me], rows[from]) };
        let row_bytes = form.row_bytes();
        ledger.count(Collective::Exchange, counted.0 * row_bytes, counted.1 * row_bytes);
        count_of("exchange", received.len(), 1)?;
        form.expect(&received[0], Tag { step, source: from, target: me }, rows[from])?;
    }
    Ok(())
}

/// Two calls in flight, waited for in reverse.
pub(super) fn out_of_order(
    comm: &mut dyn Communicator,
    ledger: &mut Ledger,
    step: u64,
    form: Form<'_>,
    rows: &[usize],
) -> Check {
    let (me, world) = (comm.rank(), comm.size());
    let (to, from) = ((me + 1) % world, (me + world - 1) % world);
    let first = form.make(Tag { step, source: me, target: to }, rows[me])?;
    let second = form.make(Tag { step: step + 1, source: me, target: 0 }, rows[me])?;
    let pending_first = said(comm.start_exchange(&first, to, from, rows[from]))?;
    let pending_second = said(comm.start_all_gather_v(&second, rows))?;
    let gathered = said(comm.wait(pending_second))?;
    let exchanged = said(comm.wait(pending_first))?;
    let row_bytes = form.row_bytes();
    let counted = if world == 1 { (0, 0) } else { (rows[me], rows[from]) };
    ledger.count(Collective::Exchange, counted.0 * row_bytes, counted.1 * row_bytes);
    let sent_rows = rows[me] * (world - 1);
    ledger.count(Collective::AllGather, sent_rows * row_bytes, others(rows, me) * row_bytes);
    count_of("all-gather", gathered.len(), world)?;
    count_of("exchange", exchanged.len(), 1)?;
    form.expect(&exchanged[0], Tag { step, source: from, target: me }, rows[from])?;
    for (source, found) in gathered.iter().enumerate() {
        form.expect(found, Tag { step: step + 1, source, target: 0 }, rows[source])?;
    }
    Ok(())
}
