//! The chunks of a request on the ranks that the plan gave them to: from the chunk cache, or prefilled behind the prefix.

use tributary_protocol::{Exchange, Phase, Plan};

use super::arrivals::{Arrivals, seen_by_all};
use super::stock::{Stock, chunk_identity, chunks_of, prefix_identity};
use crate::attention::{ChunkPrefill, OutgoingRows, Replication};
use crate::context::Context;
use crate::error::Result;
use crate::kv::{Block, KvCache};
use crate::model::{Models, embed};

/// This rank's chunks, and the other ranks' on their way here.
pub struct Chunks {
    /// The cache, without the other ranks' chunks until they have been [received](Self::receive).
    pub cache: KvCache,
    /// The other ranks' chunks on their way, under `replicate`.
    pub replication: Option<Replication>,
    /// This rank's chunks that are being read from the store.
    pub arrivals: Arrivals,
}

/// Takes this rank's warm chunks from the chunk cache and runs the others packed in one batch, while those that the store behind it has
/// are read, layer by layer, ahead of the passes that look at them; under `replicate`, every
/// rank's keys and values set out for every rank: each layer while the next is computed, or, if the plan calls all chunks
/// warm and a probe follows, behind that probe's messages. The plan alone decides which: a rank whose cache misses a chunk
/// that the plan calls warm computes it first, and makes the same calls.
///
/// # Errors
/// Kernels' and communicator's.
pub fn prefill(cx: &mut Context<'_>, plan: &Plan) -> Result<Chunks> {
    cx.enter(Phase::ChunkPrefill, plan)?;
    let size = cx.comm.size();
    let mut stock = Stock::look_up(cx, plan)?;
    let replicates = plan.exchange == Exchange::Replicate && size > 1;
    let mut replication = replicates.then(|| Replication::new(plan.kept_counts(size)));
    let (parts, slices) = (stock.parts(plan), plan.slices_behind_probes(cx.models.main.config().layers));
    let at_once = replication.as_mut().filter(|_| slices.is_none());
    let outgoing = at_once.map(|replication| OutgoingRows { comm: &mut *cx.comm, replication, parts });
    let sources = stock.missing_sources(plan);
    let batch = match &stock.prefix {
        Some(prefix) if sources.is_empty() => {
            send_cached(&cx.models, outgoing, (prefix, &mut stock.arrivals))?;
            Block::default()
        }
        prefix => {
            let (at, before) = (stock.missing_positions(plan), seen_by_all(prefix.as_ref()));
            let rows = stock.missing_rows(plan);
            let (layers, sends) = (Vec::new(), outgoing.is_some());
            let mut attention = ChunkPrefill { math: cx.math.clone(), at, before, asked: 0, layers, outgoing };
            let embedded = embed(cx.models.main, &sources, &cx.models.adapters)?;
            if sends {
                // What is read goes out with what is computed.
                stock.arrivals.prompt(&cx.models, embedded, &mut attention)?;
            } else {
                cx.models.main.prompt(embedded, &mut attention)?;
            }
            let block = Block::of(rows, attention.layers);
            block.complete(cx.models.main.config().layers)
        }
    };
    cx.prefilled_rows = sources.len();
    let (cache, arrivals) = stock.filled(plan, &batch)?;
    if let (Some(replication), Some(slices)) = (&mut replication, slices) {
        replication.hold(cache.own.clone(), cache.prefix.clone(), slices);
    }
    Ok(Chunks { cache, replication, arrivals })
}

/// Copies the chunks and the prefix that this rank has computed into its chunk cache.
///
/// # Errors
/// The copies'.
pub fn keep(cx: &mut Context<'_>, plan: &Plan, cache: &KvCache) -> Result<()> {
    if !plan.keep_chunks || plan.method.selection().is_none() {
        return Ok(());
    }
    let space = cx.chunk_cache.space().clone();
    let identity = prefix_identity(&space, plan, cx.rank());
    cx.chunk_cache.keep(space.prefix(&plan.prefix), &cache.prefix, identity)?;
    assert_eq!(chunks_of(plan, cx.rank()).count(), cache.own.len(), "blocks of this rank's chunks");
    for (chunk, block) in chunks_of(plan, cx.rank()).zip(&cache.own) {
        let identity = chunk_identity(&space, plan, chunk);
        cx.chunk_cache.keep(identity.key, block, identity)?;
    }
    Ok(())
}

impl Chunks {
    /// Waits for the other ranks' chunks. This rank's may still be on their way from the store where none of them moves.
    ///
    /// # Errors
    /// The communicator's.
    pub fn receive(self, cx: &mut Context<'_>, plan: &Plan) -> Result<(KvCache, Arrivals)> {
        let (mut cache, mut arrivals, rank) = (self.cache, self.arrivals, cx.rank());
        let Some(replication) = self.replication else { return Ok((cache, arrivals)) };
        arrivals.wait_for_all(cx)?;
        let received = replication.finish(cx.comm)?;
        for (other, layers) in received.into_iter().enumerate().filter(|&(other, _)| other != rank) {
            let block = Block::of(plan.kept_by(other), layers);
            cache.others.push(block.complete(cx.models.main.config().layers));
        }
        Ok((cache, arrivals))
    }
}

/// The layers of a rank that computes nothing. Its `prefix` says how wide a row is where it has no chunk either.
fn send_cached(
    models: &Models<'_>,
    outgoing: Option<OutgoingRows<'_>>,
    (prefix, arrivals): (&Block, &mut Arrivals),
) -> Result<()> {
    let Some(mut outgoing) = outgoing else { return Ok(()) };
    for (layer, (k, v)) in prefix.layers.iter().enumerate() {
        arrivals.wait(layer + 1, models)?;
        outgoing.layer(layer, k, v)?;
    }
    Ok(())
}
