//! The two halves of a round of attention over a distributed cache: queries go to the keys, partial
//! results return and merge.

use std::ops::Range;

use candle_core::{DType, Tensor};
use tributary_comm::{Communicator, Pending, Start};
use tributary_kernels::{self as kernels, Keys, Partial, Positions, add, cast};

use crate::error::Result;
use crate::layer_math::LayerMath;

/// Starts calls that belong together: a backend that pays for every start pays once.
pub(super) fn start_all<const N: usize>(comm: &mut dyn Communicator, starts: [Start<'_>; N]) -> Result<[Pending; N]> {
    let pending = comm.start_together(&starts)?;
    Ok(pending.try_into().expect("one call a start"))
}

/// Starts a gather of all ranks' queries on every rank; rank r contributes `counts[r]` rows, sent
/// in the model's dtype.
pub(super) fn start_queries(
    comm: &mut dyn Communicator,
    q: &Tensor,
    counts: &[usize],
    dtype: DType,
) -> Result<Pending> {
    Ok(comm.start_all_gather_v(&cast(q, dtype)?, counts)?)
}

/// Ends a gather of [`start_queries`] or one like it: all ranks' queries in rank order, in the
/// dtype of `own`. This rank's queries `own` did not travel, so they are not rounded.
pub(super) fn all_queries(comm: &mut dyn Communicator, pending: Pending, own: &Tensor) -> Result<Tensor> {
    let mut parts = comm.wait(pending)?;
    parts[comm.rank()] = own.clone();
    let wide = parts.iter().map(|part| Ok(cast(part, own.dtype())?)).collect::<Result<Vec<_>>>()?;
    join(&wide)
}

/// Positions of the last `count` of some rows.
pub(super) fn last_of(at: &Positions, count: usize) -> Positions {
    assert!(count <= at.len(), "the last {count} of {} rows", at.len());
    if count == at.len() {
        return at.clone();
    }
    let rows: Vec<u32> = (at.len() - count..at.len()).map(|row| row as u32).collect();
    at.select(&rows)
}

/// The tensors one below the other.
pub(super) fn join(parts: &[Tensor]) -> Result<Tensor> {
    let filled: Vec<&Tensor> = parts.iter().filter(|part| part.dims()[0] > 0).collect();
    match (filled.as_slice(), parts) {
        ([], [first, ..]) => Ok(first.clone()),
        ([one], _) => Ok((*one).clone()),
        (several, _) => Ok(kernels::join(several, 0)?),
    }
}

/// Sends every rank the part of `all` (this rank's keys, all ranks' queries) that belongs to its
/// queries, and merges the other ranks' partials for this rank's queries. Partials travel in the
/// model's dtype, their log-sum-exp in f32; partials that stay here are not rounded.
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
    let (out, lse) = (split(&cast(&all.out, dtype)?, counts)?, split(&all.lse, counts)?);
    let starts = [&out, &lse].map(|send| Start::AllToAll { send, rows: &home });
    let [out, lse] = start_all(comm, starts)?;
    let mut out = comm.wait(out)?;
    let lse = comm.wait(lse)?;
    out[rank] = split(&all.out, counts)?.swap_remove(rank);
    merge_all(out, lse, all.out.dtype())
}

/// Cuts a tensor into runs of `counts` rows.
pub(super) fn split(tensor: &Tensor, counts: &[usize]) -> Result<Vec<Tensor>> {
    assert_eq!(counts.iter().sum::<usize>(), tensor.dim(0)?, "rows of all parts, {counts:?}");
    let mut from = 0;
    let cut = |&count: &usize| {
        let part = tensor.narrow(0, from, count)?;
        from += count;
        Ok(part)
    };
    counts.iter().map(cut).collect()
}

/// Merges partial results over disjoint keys, in the order given and in `dtype`.
pub(super) fn merge_all(out: Vec<Tensor>, lse: Vec<Tensor>, dtype: DType) -> Result<Partial> {
    assert_eq!(out.len(), lse.len(), "outputs and log-sum-exps");
    let part = |(out, lse): (Tensor, Tensor)| -> Result<Partial> { Ok(Partial { out: cast(&out, dtype)?, lse }) };
    let parts = out.into_iter().zip(lse).map(part).collect::<Result<Vec<_>>>()?;
    let merged = kernels::merge_all(&parts.iter().collect::<Vec<_>>())?;
    Ok(merged.expect("a world has at least one rank"))
}

/// Attention of rows of which some, `apart`, have keys of their own, which differ from the other
/// rows' in their positions. In a pass with slices it is cut into slices, but for rows with keys of
/// their own. Every rank calls it at the same places.
pub(super) fn attend_apart(
    math: LayerMath<'_>,
    q: &Tensor,
    at: &Positions,
    keys: &[Keys],
    apart: Option<(Range<usize>, Vec<Keys>)>,
) -> Result<Partial> {
    let Some((rows, keys_apart)) = apart.filter(|(rows, _)| !rows.is_empty()) else {
        return math.attend_in_slices(q, at, keys);
    };
    let runs = [(0..rows.start, keys), (rows.clone(), &keys_apart), (rows.end..q.dim(0)?, keys)];
    let mut parts = Vec::new();
    for (run, keys) in runs.into_iter().filter(|(run, _)| !run.is_empty()) {
        let places: Vec<u32> = run.clone().map(|row| row as u32).collect();
        parts.push(math.attend(&q.narrow(0, run.start, run.len())?, &at.select(&places), keys)?);
    }
    math.math.progress.idle_slices()?;
    Ok(Partial::below_each_other(&parts)?)
}

/// One layer's scores on top of those before it: on the device, so that no layer waits for the
/// host.
pub(super) fn added(sums: Option<Tensor>, scores: Tensor) -> Result<Tensor> {
    match sums {
        Some(sums) => Ok(add(&sums, &scores)?),
        None => Ok(scores),
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;
    use crate::kit;

    /// A number with more digits than bf16 has.
    const FINE: f32 = 1.001;

    fn values(tensor: &Tensor) -> Vec<f32> {
        tensor.flatten_all().and_then(|flat| flat.to_vec1()).expect("f32")
    }

    #[test]
    fn only_what_travels_is_rounded() {
        kit::on_ranks(2, |comm| {
            let rank = comm.rank();
            let q = Tensor::full(FINE, (1, 1, 2), &Device::Cpu).expect("queries");
            let pending = start_queries(comm, &q, &[1, 1], DType::BF16).expect("started");
            let all = values(&all_queries(comm, pending, &q).expect("gathered"));
            let expected = if rank == 0 { [FINE, FINE, 1.0, 1.0] } else { [1.0, 1.0, FINE, FINE] };
            assert_eq!(all, expected, "queries on rank {rank}");

            // Rank 0 saw keys for both queries, rank 1 saw none.
            let lse = if rank == 0 { 0.5 } else { f32::NEG_INFINITY };
            let out = if rank == 0 { FINE } else { 0.0 };
            let part = Partial {
                out: Tensor::full(out, (2, 1, 2), &Device::Cpu).expect("outputs"),
                lse: Tensor::full(lse, (2, 1), &Device::Cpu).expect("lse"),
            };
            let home = bring_home(comm, &part, &[1, 1], DType::BF16).expect("home");
            assert_eq!(values(&home.out), if rank == 0 { [FINE; 2] } else { [1.0; 2] }, "partials on rank {rank}");
            assert_eq!(values(&home.lse), [0.5], "lse on rank {rank}");
        });
    }

    #[test]
    fn partials_come_home_to_their_own_rows() {
        // Rank r has r + 1 queries; of every query it finds its own number and the query's, with
        // the lse r.
        kit::on_ranks(3, |comm| {
            let rank = comm.rank();
            let counts = [1, 2, 3];
            let found: Vec<f32> = (0..6).map(|query| (10 * rank + query) as f32).collect();
            let part = Partial {
                out: Tensor::from_vec(found, (6, 1, 1), &Device::Cpu).expect("outputs"),
                lse: Tensor::full(rank as f32, (6, 1), &Device::Cpu).expect("lse"),
            };
            let home = bring_home(comm, &part, &counts, DType::F32).expect("home");
            let weights: Vec<f32> = (0..3).map(|rank| (rank as f32).exp()).collect();
            let mean = (10.0 * weights[1] + 20.0 * weights[2]) / weights.iter().sum::<f32>();
            let first: usize = counts[..rank].iter().sum();
            for (i, value) in values(&home.out).into_iter().enumerate() {
                let expected = mean + (first + i) as f32;
                assert!((value - expected).abs() < 1e-4, "row {i} of rank {rank}: {value}, not {expected}");
            }
        });
    }
}
