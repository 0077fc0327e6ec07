//! Cost and outcome of a request, as one object: for reading ([`Report::render`]) and for programs
//! (serde).

mod compressed;
mod evicted;
mod facts;
mod paper;
mod path;
mod pictures;
mod render;
mod rows;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;
use tributary_planner::{ModelShape, Planned};
use tributary_protocol::Plan;

use crate::dispatch::Answer;
use crate::intake::Prepared;

pub use self::compressed::CompressedRow;
pub use self::evicted::{EvictedRow, EvictionFormula};
pub use self::facts::{AuxiliaryRow, BlockRows, Environment, OptionValue, PacketRows, ResolvedSettings, TraceRow};
pub use self::path::PhaseRow;
pub use self::pictures::PicturesRow;
pub use self::rows::{BytesRow, ChunkCacheRow, ChunkStoreRow, DeviceMemoryRow, RankRow, SpanRow, chunk_cache};
use self::rows::{bytes, ms, rank_row};

/// Name and version of the report as JSON (`docs/schemas/prefill.v2.json`). A field that is
/// removed, or changes its meaning, requires another version.
pub const SCHEMA: &str = "tributary.prefill/2";

/// All facts of one answered request. Times in milliseconds, on the coordinator's clock or on the
/// ranks' own; bytes are payload.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Report {
    /// Name and version of this schema.
    #[schemars(extend("const" = SCHEMA))]
    pub schema: &'static str,
    /// Time from the request's acceptance to the arrival of the first token at the coordinator.
    pub ttft_ms: f64,
    /// The same without first token and query rows; the query's share of its pass is estimated from
    /// FLOPs. Only for comparison with numbers published on that clock.
    pub paper_clock_ms: f64,
    /// Time from the request's acceptance to the last report.
    pub total_ms: f64,
    /// The method's name.
    pub method: &'static str,
    /// Whether the method equals a full prefill up to rounding.
    pub exact: bool,
    /// Settings that shaped the result.
    pub settings: ResolvedSettings,
    /// The phases until the first token, in their order.
    pub phases: Vec<PhaseRow>,
    /// Rest of the time to first token: gaps between phases, and messages in transit.
    pub unaccounted_ms: f64,
    /// One entry a rank.
    pub ranks: Vec<RankRow>,
    /// Traffic until the first token, per collective.
    pub bytes: BTreeMap<&'static str, BytesRow>,
    /// Traffic after the first token, per collective.
    pub decode_bytes: BTreeMap<&'static str, BytesRow>,
    /// Predicted peak memory, all ranks and the weights together.
    pub predicted_memory_bytes: u64,
    /// Numbers of tokens.
    pub tokens: TokenCounts,
    /// The chunks, in the request's own order.
    pub chunks: ChunkRows,
    /// Work of the chunk cache, all ranks together.
    pub chunk_cache: ChunkCacheRow,
    /// The part that came from an earlier turn of the conversation, if the request went on from
    /// one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conversation: Option<ConversationRow>,
    /// The pictures, if the request has some.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pictures: Option<PicturesRow>,
    /// Chunk numbers in the order of the layout.
    pub order: Vec<u32>,
    /// Result of free probes, which decided the order of chunks, if there were any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace: Option<TraceRow>,
    /// Readings of the auxiliary model, if the method uses one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auxiliary: Option<AuxiliaryRow>,
    /// Compression of chunks before they were cached, if they did not keep everything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compressed: Option<CompressedRow>,
    /// Eviction of the prompt after the first token, if decoding does not keep all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evicted: Option<EvictedRow>,
    /// Numbers of the recomputed context rows, with chunks in the request's own order, if
    /// requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selected_rows: Option<Vec<u32>>,
    /// The text of the model's reasoning, where its answers have channels (gpt-oss).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<String>,
    /// The generated text, without that.
    pub answer: String,
    /// The generated tokens.
    pub token_ids: Vec<u32>,
    /// Notes for readers of the numbers.
    pub notes: Vec<String>,
}

/// Numbers of tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct TokenCounts {
    /// Tokens before the first chunk.
    pub prefix: usize,
    /// Those of them that chunks are prefilled without, at their end.
    pub lead: usize,
    /// Tokens of all chunks.
    pub context: usize,
    /// Tokens after the context.
    pub query: usize,
    /// Context tokens that were selected.
    pub selected: usize,
    /// Context tokens that could have been selected.
    pub candidates: usize,
    /// Rows computed in the recompute pass, all ranks together, the query's included.
    pub recomputed: usize,
    /// Generated tokens, the first included.
    pub generated: usize,
}

impl TokenCounts {
    fn new(plan: &Plan, answer: &Answer) -> Self {
        let outcome = &answer.outcome;
        Self {
            prefix: plan.prefix_tokens(),
            lead: plan.lead_tokens(),
            context: plan.context_tokens(),
            query: plan.query_tokens(),
            selected: outcome.selected.len(),
            candidates: outcome.candidates,
            recomputed: answer.reports.iter().map(|report| report.recomputed_rows).sum(),
            generated: outcome.tokens.len(),
        }
    }
}

/// Part of a prompt that came from the kept sequence of an earlier turn. Of a method that selects,
/// the selection of the first turn stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ConversationRow {
    /// Tokens of the prompt that were not computed: those that both turns share.
    pub reused_tokens: usize,
    /// Tokens after them.
    pub computed_tokens: usize,
}

impl ConversationRow {
    fn new(plan: &Plan) -> Option<Self> {
        let computed = plan.rows_after_kept()?;
        let around = plan.context_rows() - plan.context_tokens();
        Some(Self { reused_tokens: computed.start as usize - around, computed_tokens: computed.len() })
    }
}

/// The chunks, in the request's own order.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ChunkRows {
    /// Number of chunks.
    pub count: usize,
    /// Their lengths.
    pub tokens: Vec<usize>,
    /// The ranks that prefill and keep them.
    pub ranks: Vec<usize>,
}

impl Report {
    /// Mean time of a token after the first, without an eviction; `None` if only one was generated.
    pub fn token_ms(&self) -> Option<f64> {
        let after = self.tokens.generated.checked_sub(1).filter(|count| *count > 0)?;
        let evict_ms = self.evicted.as_ref().map_or(0.0, |evicted| evicted.ms);
        Some((self.total_ms - self.ttft_ms - evict_ms).max(0.0) / after as f64)
    }
}

/// The text of an answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Said {
    /// That of the model's reasoning, where its answers have channels.
    pub reasoning: Option<String>,
    /// The rest.
    pub answer: String,
}

/// The report of an answered request. `said` is the generated text, `prepared` has the notes made
/// on the way.
pub fn report(
    planned: &Planned,
    answer: &Answer,
    environment: &Environment,
    shape: &ModelShape,
    said: Said,
    prepared: &Prepared,
) -> Report {
    let (plan, outcome, mut notes) = (&planned.plan, &answer.outcome, prepared.notes.clone());
    assert_eq!(answer.reports.len(), planned.world, "reports of ranks");
    let critical = path::critical_path(answer);
    notes.extend((!plan.method.prefill.is_whole()).then(|| path::stragglers(answer)).into_iter().flatten());
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
        exact: plan.is_exact() && !shape.kv_in_eight_bits,
        settings: ResolvedSettings::new(planned, environment),
        phases: critical.phases,
        unaccounted_ms: critical.unaccounted_ms,
        ranks: answer.reports.iter().map(rank_row).collect(),
        bytes: bytes(answer.reports.iter().map(|report| &report.traffic)),
        decode_bytes: bytes(answer.reports.iter().map(|report| &report.decode_traffic)),
        predicted_memory_bytes: planned.memory_bytes,
        tokens: TokenCounts::new(plan, answer),
        chunks: ChunkRows {
            count: lengths.len(),
            tokens: lengths,
            ranks: plan.chunks.iter().map(|chunk| chunk.rank).collect(),
        },
        chunk_cache: match plan.continues {
            // All of the context is there.
            Some(_) => ChunkCacheRow { state: "warm", ..chunk_cache(0, &answer.reports) },
            None => chunk_cache(plan.cacheable_count(), &answer.reports),
        },
        conversation: ConversationRow::new(plan),
        pictures: PicturesRow::new(prepared, plan, &answer.reports, shape),
        order: outcome.order.clone(),
        trace: facts::trace(plan, outcome),
        auxiliary,
        compressed,
        evicted,
        selected_rows: None,
        reasoning: said.reasoning,
        answer: said.answer,
        token_ids: outcome.tokens.clone(),
        notes,
    }
}
