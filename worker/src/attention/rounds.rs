//! The two halves of a round of attention over a distributed cache: queries go to the keys, partial results come back and
//! merge.

use candle_core::{DType, Tensor};
use tributary_comm::{Communicator, Pending};
use tributary_kernels::{Partial, Positions, merge};

use crate::error::Result;

/// Starts giving every rank every rank's queries; rank r contributes `counts[r]` rows, sent in the model's dtype.
pub(super) fn start_queries(
    comm: &mut dyn Communicator,
    q: &Tensor,
    counts: &[usize],
    dtype: DType,
) -> Result<Pending> {
    Ok(comm.start_all_gather_v(&q.to_dtype(dtype)?, counts)?)
}

/// Ends what [`start_queries`] started: all ranks' queries in rank order, f32.
pub(super) fn all_queries(comm: &mut dyn Communicator, pending: Pending) -> Result<Tensor> {
    Ok(join(&comm.wait(pending)?)?.to_dtype(DType::F32)?)
}

/// Where the last `count` of some rows stand.
pub(super) fn last_of(at: &Positions, count: usize) -> Positions {
    if count == at.len() {
        return at.clone();
    }
    let rows: Vec<u32> = (at.len() - count..at.len()).map(|row| row as u32).collect();
    at.select(&rows)
}

/// Queries of each rank in the last layer of a prompt: its last row's, on the last rank.
pub(super) fn only_last(world: usize) -> Vec<usize> {
    (1..=world).map(|rank| usize::from(rank == world)).collect()
}

/// The tensors one below the other.
pub(super) fn join(parts: &[Tensor]) -> Result<Tensor> {
    let filled: Vec<&Tensor> = parts.iter().filter(|part| part.dims()[0] > 0).collect();
    match (filled.as_slice(), parts) {
        ([], [first, ..]) => Ok(first.clone()),
        ([one], _) => Ok((*one).clone()),
        (several, _) => Ok(Tensor::cat(several, 0)?),
    }
}

/// Sends every rank the part of `all` (this rank's keys, all ranks' queries) that belongs to its queries, and merges what
/// the other ranks found for this rank's. Partials travel in the model's dtype, their log-sum-exp in f32.
pub(super) fn bring_home(
    comm: &mut dyn Communicator,
    all: &Partial,
    counts: &[usize],
    dtype: DType,
) -> Result<Partial> {
    let (rank, size) = (comm.rank(), comm.size());
    if size == 1 {
        return Ok(all.clone());
    }
    let home = vec![counts[rank]; size];
    let out = comm.start_all_to_all_v(&split(&all.out.to_dtype(dtype)?, counts)?, &home)?;
    let lse = comm.start_all_to_all_v(&split(&all.lse, counts)?, &home)?;
    let out = comm.wait(out)?;
    let lse = comm.wait(lse)?;
    merge_all(out, lse)
}

/// Cuts a tensor into runs of `counts` rows.
pub(super) fn split(tensor: &Tensor, counts: &[usize]) -> Result<Vec<Tensor>> {
    let mut from = 0;
    let cut = |&count: &usize| {
        let part = tensor.narrow(0, from, count)?;
        from += count;
        Ok(part)
    };
    counts.iter().map(cut).collect()
}

/// Merges partial results over disjoint keys, in the order given.
pub(super) fn merge_all(out: Vec<Tensor>, lse: Vec<Tensor>) -> Result<Partial> {
    let part =
        |(out, lse): (Tensor, Tensor)| -> Result<Partial> { Ok(Partial { out: out.to_dtype(DType::F32)?, lse }) };
    let mut parts = out.into_iter().zip(lse).map(part);
    let first = parts.next().expect("a world has at least one rank")?;
    parts.try_fold(first, |merged, part| Ok(merge(&merged, &part?)?))
}
