//! Checks of the collectives that carry bytes.

use super::data::{Ledger, Tag, bytes};
use super::outcome::{Check, count_of, others, said};
use crate::{Collective, Communicator};

/// Bytes of several lengths from and to every root, barriers between.
pub(super) fn control(comm: &mut dyn Communicator, ledger: &mut Ledger, first_step: u64) -> Check {
    let (me, world) = (comm.rank(), comm.size());
    let mut step = first_step;
    for root in 0..world {
        for length in [0, 1, 1000, 1 << 20] {
            let sent = bytes(Tag { step, source: root, target: 0 }, length);
            let mine = (me == root).then(|| sent.clone());
            let received = said(comm.broadcast_bytes(root, mine))?;
            let is_root = usize::from(me == root);
            let kind = Collective::BroadcastBytes;
            ledger.count(kind, is_root * length * (world - 1), (1 - is_root) * length);
            same_bytes("broadcast", &received, &sent)?;
            gather(comm, ledger, step + 1, root, length)?;
            said(comm.barrier())?;
            ledger.count(Collective::Barrier, 0, 0);
            step += 2;
        }
    }
    Ok(())
}

/// Rank r sends `length / (r + 1)` bytes to the root.
pub(super) fn gather(comm: &mut dyn Communicator, ledger: &mut Ledger, step: u64, root: usize, length: usize) -> Check {
    let (me, world) = (comm.rank(), comm.size());
    let lengths: Vec<usize> = (0..world).map(|rank| length / (rank + 1)).collect();
    let mine = bytes(Tag { step, source: me, target: root }, lengths[me]);
    let received = said(comm.gather_bytes(root, mine))?;
    if me != root {
        ledger.count(Collective::GatherBytes, lengths[me], 0);
        return count_of("gather away from the root", received.len(), 0);
    }
    ledger.count(Collective::GatherBytes, 0, others(&lengths, me));
    count_of("gather", received.len(), world)?;
    for (source, found) in received.iter().enumerate() {
        same_bytes("gather", found, &bytes(Tag { step, source, target: root }, lengths[source]))?;
    }
    Ok(())
}

fn same_bytes(what: &str, found: &[u8], wanted: &[u8]) -> Check {
    if found == wanted {
        return Ok(());
    }
    Err(format!("{what}: {} bytes that differ from the {} sent", found.len(), wanted.len()))
}
