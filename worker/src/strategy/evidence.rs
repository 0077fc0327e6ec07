//! Evidence for selectors: the attention of the query and of chosen rows. Every rank measures it
//! for its own context rows; it is then gathered, so that every rank has the same numbers for the
//! whole context.

use std::ops::Range;

use candle_core::{DType, Device, Tensor};
use tributary_kernels::cuda;
use tributary_methods::Anchors;
use tributary_model::{Attention, Qkv};
use tributary_protocol::{Evidence, Exchange, Heads, Layout, Plan, SamKv, Score};

use super::chunks::Chunks;
use super::stock::chunks_of;
use super::{anchors, recompute};
use crate::attention::{PassQ, Placed, QueryProbe, Replication, SparseProbe};
use crate::context::Context;
use crate::error::{Error, Result};
use crate::kv::{Block, View};

/// The result of a probe.
pub(super) struct Probed {
    /// One number a context row; where anchors stand for chunks, that of its chunk.
    pub scores: Vec<f32>,
    /// The query's rows in the last scored layer, if they may look at chunks after it ([`within`]).
    pub asked: Option<Qkv>,
}

/// The attention of the query, with chunks in `order`, measured as `evidence` defines it. Stale
/// rows that are held back are sent after its messages.
///
/// # Errors
/// Returns an error if a kernel or the communicator fails, or if scores are not finite.
pub(super) fn probe(
    cx: &mut Context<'_>,
    plan: &Plan,
    chunks: &mut Chunks,
    evidence: Evidence,
    order: &[u32],
) -> Result<Probed> {
    let measured = cx.math.scored(&evidence.layers.of(cx.models.main.config().layers)).len();
    let Paid { sums, asked, .. } = look(cx, plan, chunks, evidence, order, None)?;
    if let Some(anchors) = evidence.anchors {
        return Ok(Probed { scores: of_chunks(cx, plan, &sums, anchors)?, asked });
    }
    let mut scores = gather(cx, plan, &sums, measured)?;
    if evidence.heads == Heads::Sum {
        let heads = cx.models.main.config().heads as f32;
        scores.iter_mut().for_each(|score| *score *= heads); // kernels give the mean
    }
    Ok(Probed { scores, asked: None })
}

/// The mean attention of the query's rows to the anchors of each chunk, given the sums over these
/// rows for this rank's anchors: one number a context row, that of its chunk.
fn of_chunks(cx: &mut Context<'_>, plan: &Plan, sums: &Tensor, anchors: Anchors) -> Result<Vec<f32>> {
    let sums = cuda::download(sums)?.to_vec1::<f32>()?;
    let (mut means, mut rest) = (Vec::new(), &sums[..]);
    for chunk in chunks_of(plan, cx.rank()) {
        let (of_chunk, after) = rest.split_at(anchors.of_chunk(plan.chunks[chunk].rows()));
        means.push(of_chunk.iter().sum::<f32>() / (of_chunk.len() * plan.query_tokens()).max(1) as f32);
        rest = after;
    }
    let own = from_host(means, cx.models.main.device())?;
    let of_ranks: Vec<Vec<usize>> = (0..cx.comm.size()).map(|rank| chunks_of(plan, rank).collect()).collect();
    let of_chunks = gathered(cx, &own, &of_ranks)?;
    let of_rows = plan.chunks.iter().zip(of_chunks).map(|(chunk, score)| std::iter::repeat_n(score, chunk.rows()));
    Ok(of_rows.flatten().collect())
}

/// The attention of the query's rows to all rows of the `wanted` chunks, given by first row and
/// length, in the last layer of a probe of anchors, which left the rows `asked`: one number a
/// context row, 0 for rows of other chunks. It is normalised over prefix, these chunks and query.
///
/// # Errors
/// As [`probe`].
pub(super) fn within(
    cx: &mut Context<'_>,
    plan: &Plan,
    chunks: &Chunks,
    (evidence, order): (Evidence, &[u32]),
    (asked, wanted): (Qkv, &[(u32, usize)]),
) -> Result<Vec<f32>> {
    let (cache, layers) = (&chunks.cache, evidence.layers.of(cx.models.main.config().layers));
    let placement = cx.placement(plan, order, evidence.layout)?;
    let is_wanted = |block: &&Block| {
        let rows = block.rows();
        wanted.iter().any(|(first, _)| rows.first() <= Some(first) && Some(first) <= rows.last())
    };
    let with = |view: View, block: &Block| view.and(View::of(block.clone(), placement.at(block.rows())));
    let own = cache.own.iter().filter(is_wanted).fold(View::default(), with);
    let rows: Vec<u32> = own.rows().collect();
    let query_rows: Vec<u32> = plan.query_rows().collect();
    let fading = evidence.recency.map(|recency| fading(cx, query_rows.len(), recency)).transpose()?;
    let seen = (cache.view_of_prefix(&placement), own);
    let of = (evidence, layers.clone());
    let probe = QueryProbe::new(cx.math.clone(), &mut *cx.comm, of, placement.at(&query_rows), seen);
    let mut attention = QueryProbe { fading, ..probe };
    attention.attend(layers.end - 1, asked)?;
    let sums = attention.sums.take().ok_or(Error::Bug("a probe scores the layer of its anchors"))?;
    let mut of_row = vec![0.0; plan.total_rows()];
    for (row, score) in rows.into_iter().zip(cuda::download(&sums)?.to_vec1::<f32>()?) {
        of_row[row as usize] = score;
    }
    let own: Vec<f32> = plan.kept_by(cx.rank()).iter().map(|&row| of_row[row as usize]).collect();
    let own = from_host(own, cx.models.main.device())?;
    gather(cx, plan, &own, 1)
}

/// The attention that this rank's context rows receive from the query's rows, `[rows]` f32.
pub(super) struct Paid {
    /// The sum over the scored layers.
    pub sums: Tensor,
    /// That of each scored layer, if requested.
    pub of_layers: Option<Vec<Tensor>>,
    /// The query's rows in the last scored layer.
    pub asked: Option<Qkv>,
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
/// receives their attention in each layer. Where anchors stand for chunks, the sums are those of
/// this rank's anchors, by [`Score::Mass`].
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
    let (own, score) = match evidence.anchors {
        Some(anchors) => {
            arrivals.wait(measured_until, &cx.models)?;
            (anchors::view(cx, cache, &placement, measured_until.saturating_sub(1), anchors)?, Score::Mass)
        }
        None => (cache.view_of_own(&placement, &between), evidence.score),
    };
    let own_rows = own.rows().count();
    let device = cx.models.main.device().clone();
    let query_rows: Vec<u32> = plan.query_rows().collect();
    let rows = cx.embed(&plan.query_sources())?;
    let held = replication.as_ref().map(Replication::needs);
    let fading = evidence.recency.map(|recency| fading(cx, query_rows.len(), recency)).transpose()?;
    let (of, seen) = ((Evidence { score, ..evidence }, layers), (cache.view_of_prefix(&placement), own));
    let probe = QueryProbe::new(cx.math.clone(), &mut *cx.comm, of, placement.at(&query_rows), seen);
    let mut attention = QueryProbe { fading, stale: replication.as_mut(), of_layers, ..probe };
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
            let sums = reading.sums.map_or_else(|| from_host(Vec::new(), &device), Ok)?;
            return Ok(Paid { sums, of_layers: None, asked: None });
        }
        run(&mut attention)?;
    }
    let zeros = || from_host(vec![0.0; own_rows], &device);
    let sums = attention.sums.map_or_else(zeros, Ok)?;
    assert_eq!(sums.elem_count(), own_rows, "scores of this rank's context rows");
    Ok(Paid { sums, of_layers: attention.of_layers, asked: attention.asked })
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
    let first = plan.prefix_tokens();
    let of_rank = |rank: usize| plan.kept_by(rank).into_iter().map(|row| row as usize - first).collect();
    let of_ranks: Vec<Vec<usize>> = (0..cx.comm.size()).map(of_rank).collect();
    let mut scores = gathered(cx, own, &of_ranks)?;
    assert_eq!(scores.len(), plan.context_rows(), "context rows of all ranks");
    scores.iter_mut().for_each(|score| *score /= layers.max(1) as f32);
    Ok(scores)
}

/// Every rank's numbers (`[own places]` f32) on every rank, each at its place: `of_ranks` has the
/// places of each rank's, which are all from 0 on.
fn gathered(cx: &mut Context<'_>, own: &Tensor, of_ranks: &[Vec<usize>]) -> Result<Vec<f32>> {
    let counts: Vec<usize> = of_ranks.iter().map(Vec::len).collect();
    let parts = cx.comm.all_gather_v(own, &counts)?;
    let mut scores = vec![0.0; counts.iter().sum()];
    for (places, part) in of_ranks.iter().zip(parts) {
        assert_eq!(part.elem_count(), places.len(), "numbers of a rank");
        for (&place, score) in places.iter().zip(cuda::download(&part)?.to_vec1::<f32>()?) {
            scores[place] = score;
        }
    }
    match scores.iter().all(|score| score.is_finite()) {
        true => Ok(scores),
        false => Err(Error::NotFinite { what: "attention scores", rank: cx.rank() }),
    }
}
