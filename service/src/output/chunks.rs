//! Answer to a request for chunks ahead of use.

use serde::Serialize;
use tributary_engine::Kept;

use super::Usage;

/// Chunks that are there for later requests.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct ChunksAnswer {
    /// `chunks`.
    object: &'static str,
    /// The chunks, in the order of the documents.
    chunks: Vec<ChunkRow>,
    /// Numbers of tokens: the prefix and all chunks.
    usage: Usage,
    /// Cost of the request.
    metrics: ChunksMetrics,
}

/// A chunk.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct ChunkRow {
    /// Its number, from 0.
    index: usize,
    /// Its tokens.
    tokens: usize,
    /// The rank that keeps it.
    rank: usize,
}

/// Cost of chunks ahead of use.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct ChunksMetrics {
    /// Milliseconds from the request's acceptance to its end.
    total_ms: f64,
    /// Milliseconds of it that it waited for its turn.
    queue_ms: f64,
    /// `cold`, `partial` or `warm`: how much of it was there already.
    cache: &'static str,
    /// Rows that were computed, all ranks together; each rank computes the prefix for itself.
    computed_rows: usize,
    /// Entries that were added to the ranks' chunk caches, the prefix of each rank among them.
    stored: usize,
    /// Entries that were dropped there to make room.
    evicted: usize,
    /// Ranks.
    world_size: usize,
}

impl ChunksAnswer {
    /// Of chunks that were kept.
    pub fn of(kept: &Kept) -> Self {
        let Kept { planned, reports, queued, total } = kept;
        let cache = tributary_coordinator::report::chunk_cache(planned.plan.cacheable_count(), reports);
        let row = |(index, chunk): (usize, &tributary_protocol::Chunk)| ChunkRow {
            index,
            tokens: chunk.ids.len(),
            rank: chunk.rank,
        };
        let prompt = planned.plan.prefix_tokens() + planned.plan.context_tokens();
        let pictures = planned.plan.chunks.iter().flat_map(|chunk| &chunk.pictures);
        let images = pictures.map(tributary_protocol::Picture::rows).sum();
        Self {
            object: "chunks",
            chunks: planned.plan.chunks.iter().enumerate().map(row).collect(),
            usage: Usage::new(prompt, cache.hit_tokens, 0).with_images(images),
            metrics: ChunksMetrics {
                total_ms: 1000.0 * total.as_secs_f64(),
                queue_ms: 1000.0 * queued.as_secs_f64(),
                cache: cache.state,
                computed_rows: reports.iter().map(|report| report.prefilled_rows).sum(),
                stored: cache.stored,
                evicted: cache.evicted,
                world_size: reports.len(),
            },
        }
    }
}
