//! The rows of a report that are filled from the ranks' own reports.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;
use tributary_comm::Traffic;
use tributary_protocol::{DeviceMemory, RankReport};

/// One rank's part.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct RankRow {
    /// The rank.
    pub rank: usize,
    /// Whether the first token was drawn here.
    pub drew_first_token: bool,
    /// Rows computed in the prefill of chunks, or of the whole prompt.
    pub prefilled_rows: usize,
    /// Rows computed in the recompute pass, the query's included.
    pub recomputed_rows: usize,
    /// Time spent in calls and waits for other ranks, until the first token.
    pub waited_ms: f64,
    /// Payload bytes of tensors from other ranks, until the first token.
    pub tensor_bytes_received: u64,
    /// Its phases in sequence, on its own clock.
    pub spans: Vec<SpanRow>,
    /// The memory of its device; absent on a CPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_memory: Option<DeviceMemoryRow>,
}

/// The memory pool of a device's tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub struct DeviceMemoryRow {
    /// Bytes in tensors after the answer: weights, chunk caches, keys and values of the request.
    pub used_bytes: u64,
    /// Maximum bytes in tensors at once since the process began.
    pub high_bytes: u64,
    /// Bytes that the pool has taken from the device.
    pub reserved_bytes: u64,
    /// Bytes in message buffers between ranks, in addition to the pool.
    pub message_bytes: u64,
}

/// One phase on one rank.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct SpanRow {
    /// The phase.
    pub phase: &'static str,
    /// Time from the arrival of the plan to its start.
    pub start_ms: f64,
    /// Its length, waiting included.
    pub ms: f64,
    /// Part of it spent waiting for other ranks.
    pub waited_ms: f64,
}

/// Traffic of one kind of collective.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, JsonSchema)]
pub struct BytesRow {
    /// Number of calls on the busiest rank.
    pub calls: u64,
    /// Bytes to other ranks, all ranks together.
    pub sent_bytes: u64,
    /// Bytes from other ranks, all ranks together.
    pub received_bytes: u64,
    /// Bytes from other ranks, on the rank that received most.
    pub max_rank_received_bytes: u64,
    /// Time in calls and waits, on the rank that waited longest.
    pub max_rank_waited_ms: f64,
}

/// Work of the chunk cache, all ranks together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ChunkCacheRow {
    /// `cold` (no chunk came from it), `partial` or `warm` (all chunks did). For a method that
    /// reuses prefixes, chunks here are the pieces of the whole prompt.
    pub state: &'static str,
    /// Chunks taken from it.
    pub hits: usize,
    /// Tokens of those chunks.
    pub hit_tokens: usize,
    /// Number of chunks that were expected in it and were gone.
    pub misses: usize,
    /// Entries added, the prefix of each rank included.
    pub stored: usize,
    /// Entries dropped to make room.
    pub evicted: usize,
    /// Bytes of keys and values in it afterwards.
    pub used_bytes: u64,
    /// Chunks from the store behind it, if there is one.
    pub store: ChunkStoreRow,
}

/// The chunks of a request that lay in the store and not in a rank's memory, all ranks together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ChunkStoreRow {
    /// Number of chunks loaded from it: some of the chunk cache's hits.
    pub loaded: usize,
    /// Tokens of those chunks.
    pub loaded_tokens: usize,
    /// Bytes of keys and values of those chunks.
    pub loaded_bytes: u64,
    /// Number of chunks computed because computing is faster.
    pub recomputed: usize,
    /// Number of chunks whose read had begun and whose data turned out to be unusable; they were
    /// computed alone.
    pub spoilt: usize,
}

/// The row of a rank.
pub(super) fn rank_row(report: &RankReport) -> RankRow {
    let spans = report.spans.iter().map(|span| SpanRow {
        phase: span.phase.name(),
        start_ms: ms(span.start_s),
        ms: ms(span.seconds),
        waited_ms: ms(span.waited_s),
    });
    RankRow {
        rank: report.rank,
        drew_first_token: report.drew_first_token,
        prefilled_rows: report.prefilled_rows,
        recomputed_rows: report.recomputed_rows,
        waited_ms: ms(report.traffic.waited_s()),
        tensor_bytes_received: report.traffic.tensor_bytes_received(),
        spans: spans.collect(),
        device_memory: report.device_memory.map(
            |DeviceMemory { used_bytes, high_bytes, reserved_bytes, message_bytes }| DeviceMemoryRow {
                used_bytes,
                high_bytes,
                reserved_bytes,
                message_bytes,
            },
        ),
    }
}

/// Work of all ranks' chunk caches for a request of which `chunks` entries may come from them.
pub fn chunk_cache(chunks: usize, reports: &[RankReport]) -> ChunkCacheRow {
    let add = |sum: ChunkCacheRow, report: &RankReport| {
        let cache = &report.chunk_cache;
        ChunkCacheRow {
            hits: sum.hits + cache.hits,
            hit_tokens: sum.hit_tokens + cache.hit_tokens,
            misses: sum.misses + cache.misses,
            stored: sum.stored + cache.stored.len(),
            evicted: sum.evicted + cache.evicted.len(),
            used_bytes: sum.used_bytes + cache.used_bytes,
            store: ChunkStoreRow {
                loaded: sum.store.loaded + cache.from_store.loaded,
                loaded_tokens: sum.store.loaded_tokens + cache.from_store.loaded_tokens,
                loaded_bytes: sum.store.loaded_bytes + cache.from_store.loaded_bytes,
                recomputed: sum.store.recomputed + cache.from_store.computed,
                spoilt: sum.store.spoilt + cache.from_store.spoilt,
            },
            ..sum
        }
    };
    let sum = reports.iter().fold(ChunkCacheRow::default(), add);
    assert!(sum.hits <= chunks, "{} of {chunks} chunks came from the chunk cache", sum.hits);
    let state = match sum.hits {
        0 => "cold",
        hits if hits == chunks => "warm",
        _ => "partial",
    };
    ChunkCacheRow { state, ..sum }
}

/// Traffic of each kind of collective, all ranks together.
pub(super) fn bytes<'a>(ranks: impl Iterator<Item = &'a Traffic>) -> BTreeMap<&'static str, BytesRow> {
    let mut rows: BTreeMap<&'static str, BytesRow> = BTreeMap::new();
    for (kind, entry) in ranks.flat_map(|traffic| &traffic.entries) {
        let row = rows.entry(kind.name()).or_default();
        row.calls = row.calls.max(entry.calls);
        row.sent_bytes += entry.sent_bytes;
        row.received_bytes += entry.received_bytes;
        row.max_rank_received_bytes = row.max_rank_received_bytes.max(entry.received_bytes);
        row.max_rank_waited_ms = row.max_rank_waited_ms.max(ms(entry.waited_s));
    }
    rows
}

/// A time in the unit of the report.
pub(super) fn ms(seconds: f64) -> f64 {
    1000.0 * seconds
}
