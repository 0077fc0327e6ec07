//! Checks of calls that are started together.

use candle_core::Tensor;

use super::data::{Ledger, Tag};
use super::outcome::{Check, count_of, others, said};
use super::tensors::Form;
use crate::{Collective, Communicator, Pending, Start};

/// Tags that one check takes.
pub(super) const STEPS: u64 = 7;

/// The tensors of one start: an exchange round the ring, a gather, rows for everyone, a gather of
/// no rows.
struct Batch {
    step: u64,
    exchange: Tensor,
    gather: Tensor,
    to_all: Vec<Tensor>,
    nothing: Tensor,
}

/// Rows of all ranks as this one sees them.
struct Table<'a> {
    rows: &'a [usize],
    /// Rows to and from each rank in an all-to-all.
    both: Vec<usize>,
    none: Vec<usize>,
    to: usize,
    from: usize,
}

/// Starts four calls of several kinds together, one of them without rows, then two, then one. All
/// are in flight at once, and the waits take another order, across the starts.
pub(super) fn together(
    comm: &mut dyn Communicator,
    ledger: &mut Ledger,
    step: u64,
    form: Form<'_>,
    rows: &[usize],
) -> Check {
    let (me, world) = (comm.rank(), comm.size());
    let table = Table {
        rows,
        both: (0..world).map(|other| rows[(me + other) % world]).collect(),
        none: vec![0; world],
        to: (me + 1) % world,
        from: (me + world - 1) % world,
    };
    let first = batch(comm, step, form, &table)?;
    let second = batch(comm, step + 4, form, &table)?;
    if !said(comm.start_together(&[]))?.is_empty() {
        return Err("a start of no calls gives calls".to_owned());
    }
    let [exchange, gather, to_all, nothing] = started(comm, &first.starts(&table))?;
    let [late_gather, late_exchange] = started(comm, &[second.starts(&table)[1], second.starts(&table)[0]])?;
    let alone = said(comm.start_all_to_all_v(&second.to_all, &table.both))?;
    second.expect_gathered(comm, ledger, form, &table, late_gather)?;
    let empty = said(comm.wait(nothing))?;
    ledger.count(Collective::AllGather, 0, 0);
    count_of("gather of no rows", empty.len(), world)?;
    for (source, found) in empty.iter().enumerate() {
        form.expect(found, Tag { step: step + 3, source, target: 0 }, 0)?;
    }
    first.expect_to_all(comm, ledger, form, &table, to_all)?;
    second.expect_to_all(comm, ledger, form, &table, alone)?;
    first.expect_exchanged(comm, ledger, form, &table, exchange)?;
    first.expect_gathered(comm, ledger, form, &table, gather)?;
    second.expect_exchanged(comm, ledger, form, &table, late_exchange)
}

fn batch(comm: &dyn Communicator, step: u64, form: Form<'_>, table: &Table<'_>) -> Result<Batch, String> {
    let source = comm.rank();
    let part = |target: usize| form.make(Tag { step: step + 2, source, target }, table.both[target]);
    Ok(Batch {
        step,
        exchange: form.make(Tag { step, source, target: table.to }, table.rows[source])?,
        gather: form.make(Tag { step: step + 1, source, target: 0 }, table.rows[source])?,
        to_all: (0..comm.size()).map(part).collect::<Result<_, String>>()?,
        nothing: form.make(Tag { step: step + 3, source, target: 0 }, 0)?,
    })
}

fn started<const N: usize>(comm: &mut dyn Communicator, starts: &[Start<'_>]) -> Result<[Pending; N], String> {
    let pending = said(comm.start_together(starts))?;
    pending.try_into().map_err(|pending: Vec<Pending>| format!("{N} calls started, {} given", pending.len()))
}

impl Batch {
    fn starts<'a>(&'a self, table: &'a Table<'_>) -> [Start<'a>; 4] {
        let (to, from) = (table.to, table.from);
        [
            Start::Exchange { send: &self.exchange, to, from, rows: table.rows[from] },
            Start::AllGather { send: &self.gather, rows: table.rows },
            Start::AllToAll { send: &self.to_all, rows: &table.both },
            Start::AllGather { send: &self.nothing, rows: &table.none },
        ]
    }

    fn expect_exchanged(
        &self,
        comm: &mut dyn Communicator,
        ledger: &mut Ledger,
        form: Form<'_>,
        table: &Table<'_>,
        pending: Pending,
    ) -> Check {
        let (me, from) = (comm.rank(), table.from);
        let received = said(comm.wait(pending))?;
        let counted = if comm.size() == 1 { (0, 0) } else { (table.rows[me], table.rows[from]) };
        ledger.count(Collective::Exchange, counted.0 * form.row_bytes(), counted.1 * form.row_bytes());
        count_of("exchange", received.len(), 1)?;
        form.expect(&received[0], Tag { step: self.step, source: from, target: me }, table.rows[from])
    }

    fn expect_gathered(
        &self,
        comm: &mut dyn Communicator,
        ledger: &mut Ledger,
        form: Form<'_>,
        table: &Table<'_>,
        pending: Pending,
    ) -> Check {
        let (me, world) = (comm.rank(), comm.size());
        let received = said(comm.wait(pending))?;
        let sent_bytes = table.rows[me] * (world - 1) * form.row_bytes();
        ledger.count(Collective::AllGather, sent_bytes, others(table.rows, me) * form.row_bytes());
        count_of("all-gather", received.len(), world)?;
        for (source, found) in received.iter().enumerate() {
            form.expect(found, Tag { step: self.step + 1, source, target: 0 }, table.rows[source])?;
        }
        Ok(())
    }

    fn expect_to_all(
        &self,
        comm: &mut dyn Communicator,
        ledger: &mut Ledger,
        form: Form<'_>,
        table: &Table<'_>,
        pending: Pending,
    ) -> Check {
        let me = comm.rank();
        let received = said(comm.wait(pending))?;
        let moved_bytes = others(&table.both, me) * form.row_bytes();
        ledger.count(Collective::AllToAll, moved_bytes, moved_bytes);
        count_of("all-to-all", received.len(), comm.size())?;
        for (source, found) in received.iter().enumerate() {
            form.expect(found, Tag { step: self.step + 2, source, target: me }, table.both[source])?;
        }
        Ok(())
    }
}
