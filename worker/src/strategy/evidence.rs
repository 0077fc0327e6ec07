//! Evidence for selectors: the attention of the query and of chosen rows. Every rank measures it
//! for its own context rows; it is then gathered, so that every rank has the same numbers for the
//! whole context.

use std::ops::Range;

use candle_core::{DType, Device, Tensor};
use tributary_kernels::cuda;
use tributary_model::Attention;
use tributary_protocol::{Evidence, Exchange, Heads, Layout, Plan, SamKv};

use super::chunks::Chunks;
use super::recompute;
use crate::attention::{PassQ, Placed, QueryProbe, Replication, SparseProbe};
use crate::context::Context;
use crate::error::{Error, Result};

/// The attention of the query, with chunks in `order`, measured as `evidence` defines it: one
/// number a context row. Stale rows that are held back are sent after its messages.
///
/// # Errors
/// Returns an error if a kernel or the communicator fails, or if scores are not finite.
pub(super) fn probe(
    cx: &mut Context<'_>,
    plan: &Plan,
    chunks: &mut Chunks,
    evidence: Evidence,
    order: &[u32],
) -> Result<Vec<f32>> {
    let measured = cx.math.scored(&evidence.layers.of(cx.models.main.config().layers)).len();
    let scores = look(cx, plan, chunks, evidence, order, None)?.sums;
    let mut scores = gather(cx, plan, &scores, measured)?;
    if evidence.heads == Heads::Sum {
        let heads = cx.models.main.config().heads as f32;
        scores.iter_mut().for_each(|score| *score *= heads); // kernels give the mean
    }
    Ok(scores)
}

/// The attention that this rank's context rows receive from the query's rows, `[rows]` f32.
pub(super) struct Paid {
    /// The sum over the scored layers.
    pub sums: Tensor,
    /// That of each scored layer, if requested.
    pub of_layers: Option<Vec<Tensor>>,
}

/// For each of the query's `rows` and each head the logarithm of what its attention is divided by,
/// `[rows, heads]` f32: a row that is `recency` rows before the last counts 1/e of that one.
fn fading(cx: &Context<'_>, rows: usize, recency: f32) -> Result<Tensor> {
    let (heads, device) = (cx.models.main.config().heads, cx.models.main.device());
    let before_last = (0..rows).rev().map(|before| before as f32 / recency);
    let numbers = before_last.flat_map(|fading| std::iter::repeat_n(fading, heads)).collect();
    Ok(from_host(numbers, device)?.reshape((rows, heads))?)
}

/// Runs the query's rows over the cache of all ranks, as `evidence` defines it; `of_layers`
/// receives their attention in each layer.
///
/// # Errors
/// Returns an error if a kernel or the communicator fails.
pub(super) fn look(
    cx: &mut Context<'_>,
    plan: &Plan,
    chunks: &mut Chunks,
    evidence: Evidence,
    order: &[u32],
    of_layers: Option<Vec<Tensor>>,
) -> Result<Paid> {
    let placement = cx.placement(plan, order, evidence.layout)?;
    let layers = evidence.layers.of(cx.models.main.config().layers);
    let measured_until = layers.end;
    let Chunks { cache, replication, arrivals } = chunks;
    // If documents are read one by one, the query sees their first and last rows on the way.
    let between = evidence.sparse.map_or_else(Vec::new, |sparse| between_ends(plan, sparse));
    let own = cache.view_of_own(&placement, &between);
    let own_rows = own.rows().count();
    let device = cx.models.main.device().clone();
    let query_rows: Vec<u32> = plan.query_rows().collect();
    let rows = cx.embed(&plan.query_sources())?;
    let held = replication.as_ref().map(Replication::needs);
    let fading = evidence.recency.map(|recency| fading(cx, query_rows.len(), recency)).transpose()?;
    let mut attention = QueryProbe {
        math: cx.math.clone(),
        comm: &mut *cx.comm,
        evidence,
        layers,
        at: placement.at(&query_rows),
        fading,
        prefix: cache.view_of_prefix(&placement),
        own,
        stale: replication.as_mut(),
        sums: None,
        of_layers,
    };
    if let Some(last) = measured_until.checked_sub(1) {
        // The slice after a layer's partials contains layers that the probe has not reached.
        let needs = |layer: usize| match &held {
            Some(needs) if layer < last => needs(layer + 1),
            _ => 0,
        };
        let run = |attention: &mut dyn Attention<Error = Error>| {
            let mut awaited = arrivals.awaited(&cx.models, &needs, attention);
            cx.models.main.up_to_attention(last, rows, &mut awaited)
        };
        if let Some(sparse) = evidence.sparse {
            let documents = cache.own.iter().map(|block| (block.clone(), placement.at(block.rows()))).collect();
            let mut reading = SparseProbe::new(attention, documents, sparse);
            run(&mut reading)?;
            return Ok(Paid {
                sums: reading.sums.map_or_else(|| from_host(Vec::new(), &device), Ok)?,
                of_layers: None,
            });
        }
        run(&mut attention)?;
    }
    let zeros = || from_host(vec![0.0; own_rows], &device);
    let sums = attention.sums.map_or_else(zeros, Ok)?;
    assert_eq!(sums.elem_count(), own_rows, "scores of this rank's context rows");
    Ok(Paid { sums, of_layers: attention.of_layers })
}

/// The context rows between the first and last ones of each chunk.
fn between_ends(plan: &Plan, sparse: SamKv) -> Vec<u32> {
    let between = |rows: Range<u32>| {
        let [head, tail] = sparse.always_of(rows.len());
        rows.start + head.end as u32..rows.start + tail.start as u32
    };
    plan.chunk_rows().into_iter().flat_map(between).collect()
}

/// The weighted attention of `rows` after their recompute at their global positions: one number a
/// context row.
///
/// # Errors
/// As [`probe`].
pub(super) fn pass(
    cx: &mut Context<'_>,
    plan: &Plan,
    chunks: &mut Chunks,
    order: &[u32],
    rows: &[u32],
    weights: &[f32],
) -> Result<Vec<f32>> {
    assert_eq!(rows.len(), weights.len(), "rows of a measuring pass and their weights");
    let placement = cx.placement(plan, order, Layout::Global)?;
    let homes = recompute::homes(cx, plan, &placement, (rows, Vec::new()), Exchange::PassQ);
    let mut of_row = vec![0.0; plan.total_rows()];
    rows.iter().zip(weights).for_each(|(&row, &weight)| of_row[row as usize] = weight);
    let weights = homes.all().iter().map(|&row| of_row[row as usize]).collect();
    let embedded = recompute::embed(cx, plan, &homes)?;
    let keepers = plan.keepers();
    let keeper = |row: u32| keepers[row as usize];
    let placed = Placed { cache: &chunks.cache, placement: &placement, hidden: rows };
    let pass = PassQ::new(cx.math.clone(), &mut *cx.comm, &homes, placed, &keeper);
    let mut attention = pass.measuring(weights);
    let mut awaited = chunks.arrivals.awaited(&cx.models, &|_| 0, &mut attention);
    cx.models.main.up_to_attention(cx.models.main.config().layers - 1, embedded, &mut awaited)?;
    of_row.fill(0.0);
    for (row, score) in attention.into_measured()? {
        of_row[row as usize] += score; // a row that is measured fresh got nothing where it is stale
    }
    let own: Vec<f32> = plan.kept_by(cx.rank()).iter().map(|&row| of_row[row as usize]).collect();
    let own = from_host(own, cx.models.main.device())?;
    gather(cx, plan, &own, 1)
}

/// Numbers of this rank on a device, `[len]` f32. A device cannot allocate zero bytes.
pub(super) fn from_host(numbers: Vec<f32>, device: &Device) -> Result<Tensor> {
    match numbers.len() {
        0 => Ok(cuda::nothing(0, DType::F32, device)?),
        count => Ok(Tensor::from_vec(numbers, count, device)?),
    }
}

/// Every rank's sums over `layers` layers (`[own rows]` f32) as means on every rank, one a context
/// row in the request's own order.
pub(super) fn gather(cx: &mut Context<'_>, plan: &Plan, own: &Tensor, layers: usize) -> Result<Vec<f32>> {
    let size = cx.comm.size();
    let rows: Vec<Vec<u32>> = (0..size).map(|rank| plan.kept_by(rank)).collect();
    let counts: Vec<usize> = rows.iter().map(Vec::len).collect();
    assert_eq!(counts.iter().sum::<usize>(), plan.context_rows(), "context rows of all ranks, {counts:?}");
    let parts = cx.comm.all_gather_v(own, &counts)?;
    let mut scores = vec![0.0; plan.context_rows()];
    let first = plan.prefix_tokens() as u32;
    for (rows, part) in rows.iter().zip(parts) {
        assert_eq!(part.elem_count(), rows.len(), "scores of a rank's context rows");
        for (&row, score) in rows.iter().zip(cuda::download(&part)?.to_vec1::<f32>()?) {
            scores[(row - first) as usize] = score / layers.max(1) as f32;
        }
    }
    match scores.iter().all(|score| score.is_finite()) {
        true => Ok(scores),
        false => Err(Error::NotFinite { what: "attention scores", rank: cx.rank() }),
    }
}
