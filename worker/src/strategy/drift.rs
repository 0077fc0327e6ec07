//! Drift of context rows from their cached state.
//! They run through the first layers at their global positions with the whole context visible, on
//! any rank. In each layer after the first their keys or values are compared with the cache.
//! CacheBlend, section 4, compares values in the first layer with a difference, with gradual
//! filtering over several. KVShare weights the difference with the attention that the rows pay each
//! other there.

use candle_core::{DType, Tensor};
use tributary_comm::Communicator;
use tributary_kernels::{Distance, cuda, distance, from_eight_bits};
use tributary_methods::{Candidates, top_rows};
use tributary_model::Qkv;
use tributary_protocol::{Drift, DriftOf, DriftScore, Exchange, Layout, Plan};

use super::agree::agree;
use super::chunks::Chunks;
use super::recompute;
use crate::attention::{CachedLayers, DriftPass, cached_rows};
use crate::context::{Context, Math};
use crate::error::{Error, Result};
use crate::kv::View;
use crate::placement::Placement;

/// The drift of every candidate as `drift` defines it, one number a context row, the same on every
/// rank. If several layers are measured, also the rows that went on from the first of them.
/// Stale rows that are held back are sent after the cached ones.
///
/// # Errors
/// Returns an error if a kernel or the communicator fails, or if distances are not finite.
pub(super) fn measure(
    cx: &mut Context<'_>,
    plan: &Plan,
    chunks: &mut Chunks,
    candidates: &Candidates,
    order: &[u32],
    drift: Drift,
) -> Result<(Vec<f32>, Vec<u32>)> {
    let placement = cx.placement(plan, order, Layout::Global)?;
    let kept: Vec<Vec<u32>> = (0..cx.comm.size()).map(|rank| plan.kept_by(rank)).collect();
    let counts: Vec<usize> = kept.iter().map(Vec::len).collect();
    let mut cached = set_out(cx, chunks, &counts, drift)?;
    let prefix = chunks.cache.view_of_prefix(&placement);
    let homes = recompute::homes(cx, plan, &placement, (&candidates.rows, Vec::new()), Exchange::Replicate);
    let mut hidden = recompute::embed(cx, plan, &homes)?;
    let (mut rows, rank) = (homes.context, cx.rank());
    let (model, math) = (cx.models.main, cx.math.clone());
    let mut stayed = Vec::new();
    for (layer, left) in std::iter::once(None).chain(drift.left(plan.budget).into_iter().map(Some)).enumerate() {
        let found = math.progress.layer(layer, || -> Result<_> {
            // In the last layer no row attends, unless attention counts.
            let asking = if layer < drift.layers || drift.score == DriftScore::Attended { hidden.len() } else { 0 };
            let mut qkv = model.qkv_in_slices(layer, &hidden, asking)?;
            let there = cached.next(cx.comm)?;
            if let Some(left) = left {
                let own = distances(&qkv, &there, &kept, &rows[rank], drift)?;
                let distances = gather(cx, candidates, &rows, &own)?;
                if layer == drift.layers {
                    let mut pass = pass_of(cx.comm, (&math, &placement, &prefix, &kept));
                    let scores = match drift.score {
                        DriftScore::Squared => distances,
                        DriftScore::Attended => {
                            weighed(distances, &mut pass, layer, (&qkv, &there[0]), &rows, candidates)?
                        }
                    };
                    return Ok(Some((scores, Drift::longest_first(&stayed))));
                }
                let all: Vec<u32> = rows.concat();
                let score = |row: u32| distances[(row - candidates.first_row) as usize];
                let best = agree(cx, (rank == 0).then(|| top_rows(&all, score, left)))?;
                let stay = places_in(&rows[rank], &best);
                rows.iter_mut().for_each(|rows| rows.retain(|row| best.binary_search(row).is_ok()));
                assert_eq!(rows.iter().map(Vec::len).sum::<usize>(), best.len(), "rows that go on from layer {layer}");
                (hidden, qkv) = (hidden.select(&stay)?, selected(&qkv, &stay)?);
                stayed.push(best);
            }
            let mut attention = pass_of(cx.comm, (&math, &placement, &prefix, &kept));
            let attended = attention.attend(layer, qkv, &rows, &there, layer > 0)?;
            hidden = model.finish_in_slices(layer, hidden.clone(), attended)?;
            Ok(None)
        })?;
        if let Some(found) = found {
            return Ok(found);
        }
    }
    Err(Error::Bug("drift is measured in one layer at least"))
}

/// One layer of the pass.
fn pass_of<'a>(
    comm: &'a mut dyn Communicator,
    (math, placement, prefix, kept): (&'a Math, &'a Placement, &'a View, &'a [Vec<u32>]),
) -> DriftPass<'a> {
    DriftPass { math, comm, placement, prefix, kept }
}

/// Sends the cached state of the measured layers to every rank, and after it, as a whole, the stale
/// rows that are held back.
fn set_out(cx: &mut Context<'_>, chunks: &mut Chunks, counts: &[usize], drift: Drift) -> Result<CachedLayers> {
    let needed = if chunks.replication.is_some() { cx.models.main.config().layers } else { drift.layers + 1 };
    chunks.arrivals.wait(needed, &cx.models)?;
    let cached = CachedLayers::start(cx.comm, &chunks.cache, counts, drift)?;
    if let Some(replication) = &mut chunks.replication {
        replication.next_slice(cx.comm)?;
    }
    Ok(cached)
}

/// The distances of this rank's `rows` from their cached state, `[rows]` f32. Cached values follow
/// the keys if both are present.
fn distances(qkv: &Qkv, cached: &[Vec<Tensor>], kept: &[Vec<u32>], rows: &[u32], drift: Drift) -> Result<Tensor> {
    let (new, cached) = match drift.of {
        DriftOf::Keys => (&qkv.k, &cached[0]),
        DriftOf::Values => (&qkv.v, &cached[cached.len() - 1]),
    };
    let old = match rows.is_empty() {
        true => new.clone(),
        false => cached_rows(cached, kept, rows)?,
    };
    let by = match drift.score {
        DriftScore::Squared => Distance::Squared,
        DriftScore::Attended => Distance::Absolute,
    };
    let [new, old] = [new, &old].map(|x| from_eight_bits(x, DType::F32));
    Ok(distance(&new?, &old?, by)?)
}

/// The distances, each times the attention that its row receives from all `rows` of all ranks in
/// this layer.
fn weighed(
    mut distances: Vec<f32>,
    pass: &mut DriftPass<'_>,
    layer: usize,
    (qkv, cached_keys): (&Qkv, &[Tensor]),
    rows: &[Vec<u32>],
    candidates: &Candidates,
) -> Result<Vec<f32>> {
    let all = rows.concat();
    let paid = pass.paid(layer, qkv, rows, cached_keys)?;
    let mut received = vec![0.0; all.len()];
    for part in pass.comm.all_gather_v(&paid, &vec![all.len(); rows.len()])? {
        let part = cuda::download(&part)?.to_vec1::<f32>()?;
        assert_eq!(part.len(), all.len(), "attention that a rank's rows pay");
        received.iter_mut().zip(part).for_each(|(sum, part)| *sum += part);
    }
    if !received.iter().all(|sum| sum.is_finite()) {
        return Err(Error::NotFinite { what: "attention to context rows", rank: pass.comm.rank() });
    }
    for (row, received) in all.into_iter().zip(received) {
        distances[(row - candidates.first_row) as usize] *= received;
    }
    Ok(distances)
}

/// Every rank's distances on every rank, one a context row in the request's own order; 0 for rows
/// that no rank has.
fn gather(cx: &mut Context<'_>, candidates: &Candidates, rows: &[Vec<u32>], own: &Tensor) -> Result<Vec<f32>> {
    let counts: Vec<usize> = rows.iter().map(Vec::len).collect();
    let parts = cx.comm.all_gather_v(own, &counts)?;
    let mut all = vec![0.0; candidates.context];
    for (rows, part) in rows.iter().zip(parts) {
        assert_eq!(part.elem_count(), rows.len(), "distances of a rank's rows");
        for (&row, distance) in rows.iter().zip(cuda::download(&part)?.to_vec1::<f32>()?) {
            all[(row - candidates.first_row) as usize] = distance;
        }
    }
    match all.iter().all(|distance| distance.is_finite()) {
        true => Ok(all),
        false => Err(Error::NotFinite { what: "distances from the cache", rank: cx.rank() }),
    }
}

/// Places in `rows` of those rows that are in `stay`, which is ascending.
fn places_in(rows: &[u32], stay: &[u32]) -> Vec<u32> {
    let stays = |&place: &u32| stay.binary_search(&rows[place as usize]).is_ok();
    (0..rows.len() as u32).filter(stays).collect()
}

fn selected(qkv: &Qkv, places: &[u32]) -> Result<Qkv> {
    let pick = |x: &Tensor| tributary_kernels::gather(x, places);
    Ok(Qkv { q: pick(&qkv.q)?, k: pick(&qkv.k)?, v: pick(&qkv.v)? })
}
