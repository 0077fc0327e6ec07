//! The chunks of a request on the ranks that the plan gave them to: from the chunk cache, or prefilled behind the prefix.

use tributary_kernels::{Positions, SHARED};
use tributary_protocol::{ChunkKey, Exchange, Phase, Plan, Source};

use crate::attention::{ChunkPrefill, ChunkRows, OutgoingRows, Replication};
use crate::context::Context;
use crate::error::Result;
use crate::kv::{Block, KvCache, View};
use crate::model::embed;

/// This rank's chunks, and the other ranks' on their way here.
pub struct Chunks {
    /// The cache, without the other ranks' chunks until they have been [received](Self::receive).
    pub cache: KvCache,
    /// The other ranks' chunks on their way, under `replicate`.
    pub replication: Option<Replication>,
}

/// The blocks that this rank has of a request, chunk by chunk. They share storage with the chunk cache.
struct Stock {
    prefix: Option<Block>,
    /// This rank's chunks, ascending, and their blocks where the chunk cache has them.
    chunks: Vec<(usize, Option<Block>)>,
}

/// Takes this rank's warm chunks from the chunk cache and runs the others packed in one batch; under `replicate`, every
/// rank's keys and values set out for every rank: each layer while the next is computed, or, if the plan calls all chunks
/// warm and a probe follows, behind that probe's messages. The plan alone decides which: a rank whose cache misses a chunk
/// that the plan calls warm computes it first, and makes the same calls.
///
/// # Errors
/// Kernels' and communicator's.
pub fn prefill(cx: &mut Context<'_>, plan: &Plan) -> Result<Chunks> {
    cx.enter(Phase::ChunkPrefill, plan)?;
    let size = cx.comm.size();
    let stock = Stock::look_up(cx, plan);
    let replicates = plan.exchange == Exchange::Replicate && size > 1;
    let mut replication = replicates.then(|| Replication::new(plan.kept_counts(size)));
    let (parts, slices) = (stock.parts(plan), plan.slices_behind_probes(cx.models.main.config().layers));
    let at_once = replication.as_mut().filter(|_| slices.is_none());
    let outgoing = at_once.map(|replication| OutgoingRows { comm: &mut *cx.comm, replication, parts });
    let sources = stock.missing_sources(plan);
    let batch = match &stock.prefix {
        Some(prefix) if sources.is_empty() => {
            send_cached(outgoing, prefix)?;
            Block::default()
        }
        prefix => {
            let (at, before) = (stock.missing_positions(plan), seen_by_all(prefix.as_ref()));
            let layers = Vec::new();
            let mut attention = ChunkPrefill { math: cx.math.clone(), at, before, asked: 0, layers, outgoing };
            cx.models.main.prompt(embed(cx.models.main, &sources, &cx.models.adapters)?, &mut attention)?;
            let block = Block::of(stock.missing_rows(plan), attention.layers);
            block.complete(cx.models.main.config().layers)
        }
    };
    cx.prefilled_rows = sources.len();
    let cache = stock.filled(plan, &batch)?;
    if let (Some(replication), Some(slices)) = (&mut replication, slices) {
        replication.hold(cache.own.clone(), cache.prefix.clone(), slices);
    }
    Ok(Chunks { cache, replication })
}

/// Copies the chunks and the prefix that this rank has computed into its chunk cache.
///
/// # Errors
/// The copies'.
pub fn keep(cx: &mut Context<'_>, plan: &Plan, cache: &KvCache) -> Result<()> {
    if !plan.keep_chunks || plan.method.selection().is_none() {
        return Ok(());
    }
    cx.chunk_cache.keep(cx.chunk_cache.space().prefix(&plan.prefix), &cache.prefix)?;
    assert_eq!(chunks_of(plan, cx.rank()).count(), cache.own.len(), "blocks of this rank's chunks");
    for (chunk, block) in chunks_of(plan, cx.rank()).zip(&cache.own) {
        cx.chunk_cache.keep(key(cx, plan, chunk), block)?;
    }
    Ok(())
}

impl Chunks {
    /// Waits for the other ranks' chunks.
    ///
    /// # Errors
    /// The communicator's.
    pub fn receive(self, cx: &mut Context<'_>, plan: &Plan) -> Result<KvCache> {
        let (mut cache, rank) = (self.cache, cx.rank());
        let Some(replication) = self.replication else { return Ok(cache) };
        let received = replication.finish(cx.comm)?;
        for (other, layers) in received.into_iter().enumerate().filter(|&(other, _)| other != rank) {
            let block = Block::of(plan.kept_by(other), layers);
            cache.others.push(block.complete(cx.models.main.config().layers));
        }
        Ok(cache)
    }
}

impl Stock {
    /// Asks the chunk cache for what the plan calls warm, and for the prefix if anything is.
    fn look_up(cx: &mut Context<'_>, plan: &Plan) -> Self {
        let (mut chunks, model_layers) = (Vec::new(), cx.models.main.config().layers);
        let chunk_rows = plan.chunk_rows();
        for chunk in chunks_of(plan, cx.rank()) {
            let key = plan.chunks[chunk].warm.then(|| key(cx, plan, chunk));
            let layers = key.and_then(|key| cx.chunk_cache.get(&key));
            let rows: Vec<u32> = chunk_rows[chunk].clone().collect();
            chunks.push((chunk, layers.map(|layers| Block::of(rows, layers).complete(model_layers))));
        }
        let any_warm = plan.chunks.iter().any(|chunk| chunk.warm);
        let prefix_key = any_warm.then(|| cx.chunk_cache.space().prefix(&plan.prefix));
        let prefix = prefix_key.and_then(|key| cx.chunk_cache.get_prefix(&key));
        let rows: Vec<u32> = (0..plan.prefix_tokens() as u32).collect();
        Self { prefix: prefix.map(|layers| Block::of(rows, layers).complete(model_layers)), chunks }
    }

    fn missing(&self) -> impl Iterator<Item = usize> + '_ {
        self.chunks.iter().filter(|(_, block)| block.is_none()).map(|&(chunk, _)| chunk)
    }

    /// Rows of the prefix that the batch begins with.
    fn missing_prefix<'a>(&self, plan: &'a Plan) -> &'a [u32] {
        if self.prefix.is_some() { &[] } else { &plan.prefix }
    }

    fn missing_sources(&self, plan: &Plan) -> Vec<Source> {
        let chunks = self.missing().flat_map(|chunk| plan.chunks[chunk].sources());
        self.missing_prefix(plan).iter().map(|&id| Source::Token(id)).chain(chunks).collect()
    }

    fn missing_rows(&self, plan: &Plan) -> Vec<u32> {
        let prefix = 0..self.missing_prefix(plan).len() as u32;
        let chunks = plan.chunk_rows();
        prefix.chain(self.missing().flat_map(|chunk| chunks[chunk].clone())).collect()
    }

    /// LOCAL layout of the batch: the prefix, seen by all, then each chunk right after the prefix, in a segment of its own.
    fn missing_positions(&self, plan: &Plan) -> Positions {
        let prefix = plan.prefix_tokens() as u32;
        let mut places: Vec<u32> = (0..self.missing_prefix(plan).len() as u32).collect();
        let mut segments = vec![SHARED; places.len()];
        for chunk in self.missing() {
            let length = plan.chunks[chunk].rows();
            places.extend(prefix..prefix + length as u32);
            segments.extend(std::iter::repeat_n(chunk as u32, length));
        }
        Positions::new(places.clone(), places, segments)
    }

    /// Where each of this rank's chunks is: in the chunk cache, or a run of the batch.
    fn parts(&self, plan: &Plan) -> Vec<ChunkRows> {
        let mut from = self.missing_prefix(plan).len();
        let part = |(chunk, block): &(usize, Option<Block>)| match block {
            Some(block) => ChunkRows::Cached(block.clone()),
            None => {
                let count = plan.chunks[*chunk].rows();
                from += count;
                ChunkRows::Fresh { from: from - count, count }
            }
        };
        self.chunks.iter().map(part).collect()
    }

    /// The cache, now that the batch has the rest.
    fn filled(self, plan: &Plan, batch: &Block) -> Result<KvCache> {
        let parts = self.parts(plan);
        let own = parts.into_iter().map(|part| match part {
            ChunkRows::Cached(block) => Ok(block),
            ChunkRows::Fresh { from, count } => batch.narrow(from, count),
        });
        let own = own.collect::<Result<_>>()?;
        let prefix = match self.prefix {
            Some(block) => block,
            None => batch.narrow(0, plan.prefix_tokens())?,
        };
        Ok(KvCache { prefix, own, ..KvCache::default() })
    }
}

/// The layers of a rank that computes nothing. Its `prefix` says how wide a row is where it has no chunk either.
fn send_cached(outgoing: Option<OutgoingRows<'_>>, prefix: &Block) -> Result<()> {
    let Some(mut outgoing) = outgoing else { return Ok(()) };
    for (layer, (k, v)) in prefix.layers.iter().enumerate() {
        outgoing.layer(layer, k, v)?;
    }
    Ok(())
}

/// A prefix that is there already: at its places, seen by every segment.
fn seen_by_all(prefix: Option<&Block>) -> View {
    let Some(block) = prefix else { return View::default() };
    let places: Vec<u32> = block.rows().to_vec();
    View::of(block.clone(), Positions::new(places.clone(), places, vec![SHARED; block.rows().len()]))
}

fn key(cx: &Context<'_>, plan: &Plan, chunk: usize) -> ChunkKey {
    cx.chunk_cache.space().chunk(&plan.prefix, &plan.chunks[chunk].ids, &plan.chunks[chunk].extra())
}

/// Numbers of a rank's chunks, ascending.
fn chunks_of(plan: &Plan, rank: usize) -> impl Iterator<Item = usize> + '_ {
    plan.chunks.iter().enumerate().filter(move |(_, chunk)| chunk.rank == rank).map(|(index, _)| index)
}
