//! The rows of a report that are filled from the ranks' own reports.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;
use tributary_comm::Traffic;
use tributary_protocol::{DeviceMemory, RankReport};

/// One rank's part.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct RankRow {
    /// Which rank.
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
    /// Its phases, one after the other, on its own clock.
    pub spans: Vec<SpanRow>,
    /// The memory of its device; absent on a CPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_memory: Option<DeviceMemoryRow>,
}

/// The pool that a device's tensors come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub struct DeviceMemoryRow {
    /// Bytes in tensors when the answer is out: weights, chunk caches, keys and values of the request.
    pub used_bytes: u64,
    /// The most that were in tensors at once since the process began.
    pub high_bytes: u64,
    /// Bytes that the pool has taken from the device.
    pub reserved_bytes: u64,
    /// Bytes that the buffers of messages between ranks take beside the pool.
    pub message_bytes: u64,
}

/// One phase on one rank.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct SpanRow {
    /// Which phase.
    pub phase: &'static str,
    /// From the arrival of the plan to its start.
    pub start_ms: f64,
    /// Its length, waiting included.
    pub ms: f64,
    /// The part spent waiting for other ranks.
    pub waited_ms: f64,
}

/// What one kind of collective moved.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, JsonSchema)]
pub struct BytesRow {
    /// Calls, as the busiest rank counts them.
    pub calls: u64,
    /// Bytes to other ranks, all ranks together.
    pub sent_bytes: u64,
    /// Bytes from other ranks, all ranks together.
    pub received_bytes: u64,
    /// Bytes from other ranks, the rank that received most.
    pub max_rank_received_bytes: u64,
    /// Time in calls and waits, the rank that waited longest.
    pub max_rank_waited_ms: f64,
}

/// What the chunk cache did, all ranks together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ChunkCacheRow {
    /// `cold` (nothing came from it), `partial` or `warm` (everything did).
    pub state: &'static str,
    /// Chunks taken from it.
    pub hits: usize,
    /// Tokens of those.
    pub hit_tokens: usize,
    /// Chunks that were expected in it and were gone.
    pub misses: usize,
    /// Entries added, the prefix of each rank among them.
    pub stored: usize,
    /// Entries dropped to make room.
    pub evicted: usize,
    /// Bytes of keys and values in it afterwards.
    pub used_bytes: u64,
    /// What came from the store behind it, where there is one.
    pub store: ChunkStoreRow,
}

/// The chunks of a request that lay in the store behind the chunk caches and not in a rank's memory, all ranks together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ChunkStoreRow {
    /// Chunks that were read there: some of the chunk cache's hits.
    pub loaded: usize,
    /// Tokens of those.
    pub loaded_tokens: usize,
    /// Bytes of keys and values of those.
    pub loaded_bytes: u64,
    /// Chunks that were computed because that is faster.
    pub recomputed: usize,
    /// Chunks that were being read and turned out to be of no use; they were computed alone.
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

/// What the chunk caches of all ranks did for a request of so many chunks.
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

/// What each kind of collective moved, all ranks together.
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
