//! The chunks of a request on their ranks: from the chunk cache, or prefilled after the head.

use candle_core::{DType, Tensor};
use tributary_kernels::cuda;
use tributary_model::Progress;
use tributary_protocol::{KeptRows, Phase, Plan};

use super::arrivals::Arrivals;
use super::stock::{Stock, chunk_identity, chunks_of, head_identity, lead_identity};
use crate::attention::{ChunkPrefill, OutgoingRows, Replication};
use crate::context::Context;
use crate::error::Result;
use crate::kv::{Block, KvCache, LayerRows};
use crate::models::Models;

/// This rank's chunks, and the other ranks' in flight.
pub struct Chunks {
    /// The cache, without the other ranks' chunks until they have been [received](Self::receive).
    pub cache: KvCache,
    /// The other ranks' chunks in flight, under `replicate`.
    pub replication: Option<Replication>,
    /// This rank's chunks that are being read from the store.
    pub arrivals: Arrivals,
}

/// Takes this rank's warm chunks from the chunk cache and runs the others packed in one batch,
/// after the prefix. Of a method that prefills no chunk, the prefix alone. Chunks in the store
/// behind the cache are read meanwhile, layer by layer, ahead of the passes that need them.
///
/// Under `replicate`, every rank's keys and values are sent to every rank, unless no row sees them.
/// Each layer is sent while the next is computed. If the plan calls all chunks warm and a probe
/// follows, they are sent after that probe's messages. The plan alone decides which. A rank whose
/// cache misses a chunk that the plan calls warm computes it first, and makes the same calls.
///
/// # Errors
/// Returns an error if a kernel or the communicator fails.
pub fn prefill(cx: &mut Context<'_>, plan: &Plan) -> Result<Chunks> {
    cx.enter(Phase::ChunkPrefill, plan)?;
    let size = cx.comm.size();
    let mut stock = Stock::look_up(cx, plan)?;
    let replicates = plan.replicates_stale() && size > 1;
    let mut replication = replicates.then(|| Replication::new(plan.held_counts(size)));
    let (parts, slices) = (stock.parts(plan), plan.slices_behind_probes(cx.models.main.config().layers));
    let at_once = replication.as_mut().filter(|_| slices.is_none());
    let outgoing = at_once.map(|replication| OutgoingRows { comm: &mut *cx.comm, replication, parts });
    let sources = stock.missing_sources(plan);
    let mut compressed = None;
    let math = cx.math.sliced(plan.chunk_slices(size));
    let batch = match &stock.head {
        Some(head) if sources.is_empty() => {
            let points = plan.chunk_points(cx.models.main.config().layers);
            send_cached(&cx.models, outgoing, (head, &mut stock.arrivals), (&math.progress, points))?;
            Block::default()
        }
        _ => {
            let (at, before) = (stock.missing_positions(plan), stock.before(plan));
            let rows = stock.missing_rows(plan);
            let sends = outgoing.is_some();
            let count = cx.models.main.config().layers;
            // A rank that lacks a chunk called warm computes it without the others' knowledge.
            let math = if plan.chunk_points(count) > 0 { math } else { math.alone() };
            let compression = plan.compresses().then(|| stock.compression(plan, &at, count));
            let mut attention = ChunkPrefill::new(math, at, before).sending(outgoing).compressing(compression);
            let embedded = cx.models.embed(&sources)?;
            let mut nothing = Arrivals::default();
            // Chunks that are read are sent together with those that are computed.
            let arrivals = if sends { &mut stock.arrivals } else { &mut nothing };
            arrivals.chunks(&cx.models, embedded, &mut attention)?;
            let (layers, compression) = attention.into_parts();
            if let Some(compression) = compression {
                compressed = Some(compression.into_blocks());
                Block::of(&rows[..stock.prefix_rows_missing(plan)], layers).complete(count)
            } else {
                Block::of(rows, layers).complete(count)
            }
        }
    };
    cx.prefilled_rows = sources.len();
    let (mut cache, mut arrivals) = stock.filled(plan, &batch, compressed)?;
    if plan.compresses() {
        // Their rows are known after all of it has arrived.
        arrivals.wait_for_all(cx)?;
        cache.own = std::mem::take(&mut cache.own).into_iter().map(Block::arrived).collect();
    }
    if let (Some(replication), Some(slices)) = (&mut replication, slices) {
        replication.hold(cache.own.clone(), cache.prefix.clone(), slices);
    }
    Ok(Chunks { cache, replication, arrivals })
}

/// Copies the chunks and the prefix, piece by piece, that this rank has computed into its chunk
/// cache.
///
/// # Errors
/// Returns an error if a copy fails.
pub fn keep(cx: &mut Context<'_>, plan: &Plan, cache: &KvCache) -> Result<()> {
    if !plan.keep_chunks || !plan.method.in_chunks() {
        return Ok(());
    }
    let space = cx.chunk_cache.space().clone();
    let identity = head_identity(&space, plan, cx.rank());
    let head = match plan.lead.is_empty() {
        true => cache.prefix.clone(),
        false => cache.prefix.narrow(0, plan.head_tokens())?,
    };
    cx.chunk_cache.keep(space.prefix(plan.head()), &head, identity)?;
    for rows in plan.lead_rows() {
        let identity = lead_identity(&space, plan, &rows, cx.rank());
        let piece = cache.prefix.narrow(rows.start as usize, rows.len())?;
        cx.chunk_cache.keep(identity.key, &piece, identity)?;
    }
    assert_eq!(chunks_of(plan, cx.rank()).count(), cache.own.len(), "blocks of this rank's chunks");
    for (chunk, block) in chunks_of(plan, cx.rank()).zip(&cache.own) {
        let identity = chunk_identity(&space, plan, chunk);
        cx.chunk_cache.keep(identity.key, block, identity)?;
    }
    Ok(())
}

impl Chunks {
    /// Waits for the other ranks' chunks. This rank's may still be arriving from the store if none
    /// of them is sent.
    ///
    /// # Errors
    /// Returns an error if the communicator fails.
    pub fn receive(self, cx: &mut Context<'_>, plan: &Plan) -> Result<(KvCache, Arrivals)> {
        let (mut cache, mut arrivals, rank) = (self.cache, self.arrivals, cx.rank());
        let Some(replication) = self.replication else { return Ok((cache, arrivals)) };
        arrivals.wait_for_all(cx)?;
        let received = replication.finish(cx.comm)?;
        let held = if plan.compresses() { Some(held_by_all(cx, plan, &cache)?) } else { None };
        for (other, layers) in received.into_iter().enumerate().filter(|&(other, _)| other != rank) {
            let block = match &held {
                Some(held) => Block::of_layers(&held[other][..], layers),
                None => Block::of(plan.kept_by(other), layers),
            };
            cache.others.push(block.complete(cx.models.main.config().layers));
        }
        Ok((cache, arrivals))
    }
}

/// The context rows that each rank holds, layer by layer, on every rank. Every rank calls it.
fn held_by_all(cx: &mut Context<'_>, plan: &Plan, cache: &KvCache) -> Result<Vec<Vec<LayerRows>>> {
    let config = cx.models.main.config();
    let (width, counts) = (config.layers * config.kv_heads, plan.held_counts(cx.comm.size()));
    let held = counts[cx.rank()];
    let mut numbers = vec![0; held * width];
    for column in 0..width {
        let rows =
            cache.own.iter().flat_map(|block| block.rows_of_head(column / config.kv_heads, column % config.kv_heads));
        rows.enumerate().for_each(|(place, &row)| numbers[place * width + column] = row);
    }
    let device = cx.models.main.device();
    let own = match held {
        0 => cuda::nothing((0, width), DType::U32, device)?,
        _ => Tensor::from_vec(numbers, (held, width), device)?,
    };
    let parts = cx.comm.all_gather_v(&own, &counts)?;
    let of_rank = |part: Tensor| -> Result<Vec<LayerRows>> {
        let rows = if part.dim(0)? == 0 { Vec::new() } else { cuda::download(&part)?.to_vec2::<u32>()? };
        let of_head = |column: usize| rows.iter().map(|row| row[column]).collect();
        let of_layer =
            |layer: usize| (0..config.kv_heads).map(|head| of_head(layer * config.kv_heads + head)).collect();
        Ok((0..config.layers).map(|layer| LayerRows::of_heads(of_layer(layer))).collect())
    };
    parts.into_iter().map(of_rank).collect()
}

/// The context rows that each KV head of each layer holds, ascending, if chunks were compressed and
/// the numbers are requested. Every rank calls it.
///
/// # Errors
/// Returns an error if the communicator fails.
pub fn kept_rows(cx: &mut Context<'_>, plan: &Plan, cache: &KvCache) -> Result<Option<KeptRows>> {
    if !plan.compresses() || !plan.returns.scores {
        return Ok(None);
    }
    let ranks = held_by_all(cx, plan, cache)?;
    let (layers, kv_heads) = (cx.models.main.config().layers, cx.models.main.config().kv_heads);
    let of_head = |layer: usize, head: usize| -> Vec<u32> {
        let mut rows: Vec<u32> = ranks.iter().flat_map(|held| held[layer].of_head(head).iter().copied()).collect();
        rows.sort_unstable();
        rows
    };
    let of_layer = |layer: usize| (0..kv_heads).map(|head| of_head(layer, head)).collect();
    Ok(Some(KeptRows((0..layers).map(of_layer).collect())))
}

/// Sends the layers of a rank that computes nothing. The `head` gives the width of a row if it
/// has no chunk either.
fn send_cached(
    models: &Models<'_>,
    outgoing: Option<OutgoingRows<'_>>,
    (head, arrivals): (&Block, &mut Arrivals),
    (progress, points): (&Progress, usize),
) -> Result<()> {
    let Some(mut outgoing) = outgoing else { return Ok(progress.idle_layers(points)?) };
    for (layer, (k, v)) in head.layers.iter().enumerate() {
        arrivals.wait(layer + 1, models)?;
        // The other ranks send a layer after its first products.
        if layer < points {
            progress.idle_slices()?;
        }
        outgoing.layer(layer, k, v)?;
        if layer < points {
            progress.idle_rest_of_layer()?;
        }
    }
    Ok(())
}
