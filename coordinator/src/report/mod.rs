//! What a request cost and what came of it, as one object: for reading ([`Report::render`]) and for programs (serde).

mod compressed;
mod evicted;
mod facts;
mod paper;
mod path;
mod render;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;
use tributary_comm::Traffic;
use tributary_protocol::{DeviceMemory, Prefill, RankReport};

use crate::dispatch::Answer;
use crate::{ModelShape, Planned};

pub use self::compressed::CompressedRow;
pub use self::evicted::{EvictedRow, EvictionFormula};
pub use self::facts::{AuxiliaryRow, Environment, PacketRows, ResolvedSettings, TraceRow};
pub use self::path::PhaseRow;

/// Name and version of the report as JSON (`docs/schemas/prefill.v1.json`). A field that goes, or means something else, makes another
/// version.
pub const SCHEMA: &str = "tributary.prefill/1";

/// Everything that is known about one answered request. Times in milliseconds, on the coordinator's clock or on the ranks'
/// own; bytes are payload.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Report {
    /// Name and version of this schema.
    #[schemars(extend("const" = SCHEMA))]
    pub schema: &'static str,
    /// From the request's acceptance to the first token in the coordinator's hands.
    pub ttft_ms: f64,
    /// The same without first token and query rows, whose share of the pass they ride in is estimated from FLOPs. Only for
    /// comparison with numbers published on that clock.
    pub paper_clock_ms: f64,
    /// From the request's acceptance to the last report.
    pub total_ms: f64,
    /// The method's name.
    pub method: &'static str,
    /// Whether the method equals a full prefill but for rounding.
    pub exact: bool,
    /// Everything that shaped the result.
    pub settings: ResolvedSettings,
    /// The phases until the first token, in their order.
    pub phases: Vec<PhaseRow>,
    /// What is left of the time to first token: gaps between phases, and messages on their way.
    pub unaccounted_ms: f64,
    /// One entry a rank.
    pub ranks: Vec<RankRow>,
    /// What moved until the first token, per collective.
    pub bytes: BTreeMap<&'static str, BytesRow>,
    /// What moved after the first token, per collective.
    pub decode_bytes: BTreeMap<&'static str, BytesRow>,
    /// Predicted memory at the worst moment, all ranks and the weights together.
    pub predicted_memory_bytes: u64,
    /// Numbers of tokens.
    pub tokens: TokenCounts,
    /// The chunks, in the request's own order.
    pub chunks: ChunkRows,
    /// What the chunk cache did, all ranks together.
    pub chunk_cache: ChunkCacheRow,
    /// Chunk numbers in the order of the layout.
    pub order: Vec<u32>,
    /// How chunks came into that order, where free probes followed what rows depend on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace: Option<TraceRow>,
    /// What the model beside the main one read, where the method has one read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auxiliary: Option<AuxiliaryRow>,
    /// What chunks kept before they were cached, where that is not everything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compressed: Option<CompressedRow>,
    /// What decoding does not keep of the prompt, where it does not keep all: the first token precedes that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evicted: Option<EvictedRow>,
    /// Numbers of the context rows that were recomputed, with chunks in the request's own order; where they were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selected_rows: Option<Vec<u32>>,
    /// The generated text.
    pub answer: String,
    /// The generated tokens.
    pub token_ids: Vec<u32>,
    /// What a reader of the numbers should know.
    pub notes: Vec<String>,
}

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

/// Numbers of tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct TokenCounts {
    /// Before the first chunk.
    pub prefix: usize,
    /// All chunks.
    pub context: usize,
    /// After the context.
    pub query: usize,
    /// Context tokens that were selected.
    pub selected: usize,
    /// Context tokens that could have been selected.
    pub candidates: usize,
    /// Rows computed in the recompute pass, all ranks together, the query's included.
    pub recomputed: usize,
    /// Generated, the first included.
    pub generated: usize,
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

/// The chunks, in the request's own order.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ChunkRows {
    /// How many.
    pub count: usize,
    /// Their lengths.
    pub tokens: Vec<usize>,
    /// The ranks that prefill and keep them.
    pub ranks: Vec<usize>,
}

impl Report {
    /// Time of a token behind the first, without an eviction: the mean; nothing where one token is all.
    pub fn token_ms(&self) -> Option<f64> {
        let behind = self.tokens.generated.checked_sub(1).filter(|count| *count > 0)?;
        let evict_ms = self.evicted.as_ref().map_or(0.0, |evicted| evicted.ms);
        Some((self.total_ms - self.ttft_ms - evict_ms).max(0.0) / behind as f64)
    }
}

/// The report of an answered request. `text` is the generated text, `notes` what came up on the way.
pub fn report(
    planned: &Planned,
    answer: &Answer,
    environment: &Environment,
    shape: &ModelShape,
    text: String,
    mut notes: Vec<String>,
) -> Report {
    let (plan, outcome) = (&planned.plan, &answer.outcome);
    assert_eq!(answer.reports.len(), planned.world, "reports of ranks");
    let critical = path::critical_path(answer);
    notes.extend((plan.method.prefill() != Prefill::Whole).then(|| path::stragglers(answer)).into_iter().flatten());
    notes.extend(facts::trace(plan, outcome).as_ref().and_then(TraceRow::note));
    let auxiliary = facts::auxiliary(plan, outcome, &answer.reports);
    notes.extend(auxiliary.as_ref().map(AuxiliaryRow::note));
    let compressed = compressed::compressed(plan, shape);
    notes.extend(compressed.as_ref().map(CompressedRow::note));
    let evicted = evicted::evicted(planned, &answer.reports, shape);
    notes.extend(evicted.as_ref().map(EvictedRow::note));
    let lengths: Vec<usize> = plan.chunks.iter().map(|chunk| chunk.ids.len()).collect();
    Report {
        schema: SCHEMA,
        ttft_ms: ms(answer.ttft.as_secs_f64()),
        paper_clock_ms: paper::paper_clock_ms(plan, answer, &critical.phases, shape),
        total_ms: ms(answer.total.as_secs_f64()),
        method: plan.method.name(),
        exact: plan.is_exact(),
        settings: ResolvedSettings::new(planned, environment),
        phases: critical.phases,
        unaccounted_ms: critical.unaccounted_ms,
        ranks: answer.reports.iter().map(rank_row).collect(),
        bytes: bytes(answer.reports.iter().map(|report| &report.traffic)),
        decode_bytes: bytes(answer.reports.iter().map(|report| &report.decode_traffic)),
        predicted_memory_bytes: planned.memory_bytes,
        tokens: TokenCounts {
            prefix: plan.prefix_tokens(),
            context: plan.context_tokens(),
            query: plan.query_tokens(),
            selected: outcome.selected.len(),
            candidates: outcome.candidates,
            recomputed: answer.reports.iter().map(|report| report.recomputed_rows).sum(),
            generated: outcome.tokens.len(),
        },
        chunks: ChunkRows {
            count: lengths.len(),
            tokens: lengths,
            ranks: plan.chunks.iter().map(|chunk| chunk.rank).collect(),
        },
        chunk_cache: chunk_cache(plan.chunks.len(), &answer.reports),
        order: outcome.order.clone(),
        trace: facts::trace(plan, outcome),
        auxiliary,
        compressed,
        evicted,
        selected_rows: None,
        answer: text,
        token_ids: outcome.tokens.clone(),
        notes,
    }
}

impl Report {
    /// The report for a reader: answer, times, bytes, tokens, in aligned columns. Ends with a line break.
    pub fn render(&self) -> String {
        render::render(self)
    }
}

fn rank_row(report: &RankReport) -> RankRow {
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

fn bytes<'a>(ranks: impl Iterator<Item = &'a Traffic>) -> BTreeMap<&'static str, BytesRow> {
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

fn ms(seconds: f64) -> f64 {
    1000.0 * seconds
}
