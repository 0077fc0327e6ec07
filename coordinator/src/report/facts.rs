//! The resolved settings of a result.

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::Serialize;
use tributary_methods::{Kind, MethodOption};
use tributary_planner::Planned;
use tributary_protocol::deal::blocks;
use tributary_protocol::{Around, Evict, EvictionEvidence, OrderFor, Outcome, Plan, RankReport};

/// Facts of the process that the planner does not know.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Environment {
    /// The model folder, as the user named it.
    pub model: String,
    /// The folder of the model beside it, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auxiliary_model: Option<String>,
    /// The hash of that model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auxiliary_hash: Option<String>,
    /// The folder of the draft model of an eviction, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub draft_model: Option<String>,
    /// The hash of that model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub draft_hash: Option<String>,
    /// The folders of the model's adapters, and the number of each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub adapters: Vec<String>,
    /// Source of the weights: the folder, or a seed.
    pub load_format: String,
    /// Type of the numbers.
    pub dtype: String,
    /// Type of keys and values, if it is another.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_dtype: Option<String>,
    /// Kernels that compute.
    pub kernels: String,
    /// Device on which ranks compute.
    pub device: String,
    /// Bytes that weights, chunk caches and requests may take on each device; absent on a CPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_budget_bytes: Option<u64>,
    /// Backend of messages between ranks.
    pub backend: String,
    /// Threads of each rank.
    pub threads: usize,
    /// Places at which the context is cut.
    pub chunking: String,
    /// Number of tiles along each side that pictures are cut into, if they are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_tiles: Option<u8>,
    /// Causal order of the rows of such pictures: `raster` or `tile`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tile_order: Option<&'static str>,
    /// Text before the first chunk.
    pub prefix: String,
    /// Part of a prompt's prefix that chunks are prefilled after.
    pub chunk_prefix: String,
    /// Whether a chat template is used.
    pub template: String,
}

/// Rows of an adapter around every chunk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct PacketRows {
    /// The adapter's number, 16 hexadecimal digits.
    pub adapter: String,
    /// Rows before a chunk's tokens.
    pub head: u32,
    /// Rows after them.
    pub tail: u32,
}

impl From<Around> for PacketRows {
    fn from(Around { adapter, head, tail }: Around) -> Self {
        Self { adapter: format!("{adapter:016x}"), head, tail }
    }
}

/// Value of an option.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum OptionValue {
    /// The option is set.
    Flag(bool),
    /// A whole number.
    Count(usize),
    /// A number.
    Number(f64),
    /// A word, or a text in its own format.
    Text(String),
}

impl OptionValue {
    fn of(option: &MethodOption, value: &str) -> Self {
        let read = match option.kind {
            Kind::Flag => Some(Self::Flag(true)),
            Kind::Count(_) => value.parse().map(Self::Count).ok(),
            Kind::Number(..) => value.parse().map(Self::Number).ok(),
            Kind::Word(_) | Kind::Layers | Kind::Text(_) => None,
        };
        read.unwrap_or_else(|| Self::Text(value.to_owned()))
    }
}

impl fmt::Display for OptionValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(_) => Ok(()),
            Self::Count(count) => write!(f, " {count}"),
            Self::Number(number) => write!(f, " {number}"),
            Self::Text(text) => write!(f, " {text}"),
        }
    }
}

/// Rows of a sequence that is computed in blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub struct BlockRows {
    /// Rows of a block.
    pub block: usize,
    /// Rows of the anchor that all blocks see.
    pub anchor: usize,
    /// Maximum rows that each block passes on in a layer.
    pub passed: usize,
}

/// Every setting that shaped the result. Settings that a method does not have are absent.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct ResolvedSettings {
    /// Facts of the process.
    #[serde(flatten)]
    pub environment: Environment,
    /// The method's name.
    pub method: &'static str,
    /// Number of ranks.
    pub world: usize,
    /// Share of the context to recompute.
    pub ratio: f64,
    /// Maximum number of rows to recompute.
    pub budget: usize,
    /// Exchange during recompute; absent for exact methods.
    pub exchange: Option<&'static str>,
    /// Options of the method alone, with their values.
    pub options: BTreeMap<&'static str, OptionValue>,
    /// Whether chunks are reordered.
    pub reorder: bool,
    /// Importance by which they are reordered.
    pub importance: Option<&'static str>,
    /// Purpose of a new order of chunks, if it is not for everything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub order_for: Option<&'static str>,
    /// Whether the first chunk may be selected.
    pub include_first_chunk: bool,
    /// The trained rows around every chunk, if there are any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packets: Option<PacketRows>,
    /// Rows of blocks, if the sequence is computed in blocks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block_rows: Option<BlockRows>,
    /// Method that chooses the rows that decoding keeps of the prompt, unless it keeps all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evict: Option<&'static str>,
    /// Rows of the prompt that each KV head keeps, the mean over layers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep: Option<usize>,
    /// Last rows of the prompt whose attention chooses them, if the method has a window.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evict_window: Option<usize>,
    /// Maximum number of tokens to generate.
    pub max_tokens: usize,
    /// 0 takes the largest logit.
    pub temperature: f32,
    /// Draws from the smallest set of tokens with at least this probability.
    pub top_p: f32,
    /// Draws from this number of the largest logits; 0 for all.
    pub top_k: u32,
    /// Seed of every draw.
    pub seed: u64,
    /// Milliseconds that a rank may compute without progress, and that ranks may wait for each
    /// other.
    pub timeout_ms: u64,
}

impl ResolvedSettings {
    /// From the plan and the process.
    pub fn new(planned: &Planned, environment: &Environment) -> Self {
        let plan = &planned.plan;
        Self {
            environment: environment.clone(),
            method: plan.method.name(),
            world: planned.world,
            ratio: planned.ratio,
            budget: plan.budget,
            exchange: plan.method.selects().then(|| plan.exchange.name()),
            options: planned
                .options
                .iter()
                .map(|(option, value)| (option.key, OptionValue::of(option, value)))
                .collect(),
            reorder: plan.reorder.is_some(),
            importance: plan.reorder.map(|importance| importance.name()),
            order_for: (plan.order_for != OrderFor::All).then(|| plan.order_for.name()),
            packets: plan.chunks.first().and_then(|chunk| chunk.around).map(PacketRows::from),
            include_first_chunk: plan.include_first_chunk,
            block_rows: blocks(plan, planned.world).map(|blocks| BlockRows {
                block: blocks.block_rows,
                anchor: blocks.anchor.len(),
                passed: blocks.passed,
            }),
            evict: plan.evict.as_ref().map(|evict| evict.descriptor().name),
            keep: plan.evict.as_ref().map(|evict| evict.keep),
            evict_window: plan.evict.as_ref().filter(|evict| asks_window(evict)).map(Evict::window_rows),
            max_tokens: plan.max_tokens,
            temperature: plan.sampling.temperature,
            top_p: plan.sampling.top_p,
            top_k: plan.sampling.top_k,
            seed: plan.sampling.seed,
            timeout_ms: plan.timeout_ms,
        }
    }
}

/// Whether the rows of a window choose the kept rows.
fn asks_window(evict: &Evict) -> bool {
    evict.descriptor().evidence == EvictionEvidence::Window
}

/// Results of free probes.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct TraceRow {
    /// Rows that they measured.
    pub measured_rows: usize,
    /// Number of probes.
    pub rounds: usize,
    /// Whether chunks stand in another order than the request's.
    pub moved: bool,
    /// Whether they were left out because their positions would exceed the model's.
    pub left_out: bool,
    /// The largest net reading of another document's row by a row that matters to the query: its
    /// attention less the attention in the other direction; absent if none reaches α.
    pub sharpest: Option<f32>,
    /// The same among rows of documents after its own in the request, which is what moves
    /// documents.
    pub sharpest_behind: Option<f32>,
}

/// Readings of an auxiliary model for a method.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct AuxiliaryRow {
    /// Its prompts: the chunks that may be selected, or the whole one.
    pub prompts: usize,
    /// Tokens of all of them, each with the query.
    pub tokens: usize,
    /// Maximum number of tokens that it writes after each, if the rows that write them are read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub written: Option<u32>,
    /// Milliseconds that it ran, concurrently with other work or not.
    pub read_ms: f64,
    /// Rows of the budget that were not recomputed because they are too isolated.
    pub unspent_rows: usize,
}

/// Readings of an auxiliary model for a plan; `None` if there is none.
pub(super) fn auxiliary(plan: &Plan, outcome: &Outcome, reports: &[RankReport]) -> Option<AuxiliaryRow> {
    let auxiliary = plan.auxiliary.first().filter(|_| plan.budget > 0)?;
    Some(AuxiliaryRow {
        prompts: auxiliary.prompts.len(),
        tokens: auxiliary.prompts.iter().map(|prompt| prompt.ids.len()).sum(),
        written: Some(auxiliary.written).filter(|&written| written > 0),
        read_ms: 1e3 * reports.iter().map(|report| report.auxiliary_s).sum::<f64>(),
        unspent_rows: plan.budget.saturating_sub(outcome.selected.len()),
    })
}

impl AuxiliaryRow {
    /// The same as a note for readers.
    pub(super) fn note(&self) -> String {
        let Self { prompts, tokens, written, read_ms, unspent_rows } = *self;
        if let Some(written) = written {
            return format!(
                "the auxiliary model read the prompt, {tokens} tokens, and wrote at most {written} more in {read_ms:.2} ms; no chunk is \
                 prefilled, and rows that are not selected are left out"
            );
        }
        format!(
            "the auxiliary model read {prompts} documents, {tokens} tokens, in {read_ms:.2} ms beside their prefill; {unspent_rows} rows of \
             the budget are unspent"
        )
    }
}

/// Results of free probes for a plan; `None` if the method has no such probes.
pub(super) fn trace(plan: &Plan, outcome: &Outcome) -> Option<TraceRow> {
    plan.method.evidence()?.trace.filter(|_| plan.continues.is_none())?;
    Some(TraceRow {
        measured_rows: outcome.measured.len(),
        rounds: outcome.rounds.len(),
        moved: outcome.order != plan.request_order(),
        left_out: plan.traces().is_some() && outcome.rounds.is_empty(),
        sharpest: outcome.sharpest.any,
        sharpest_behind: outcome.sharpest.behind,
    })
}

impl TraceRow {
    /// The same as a note for readers; `None` if no probe was due.
    pub(super) fn note(&self) -> Option<String> {
        let Self { measured_rows, rounds, moved, left_out, sharpest, sharpest_behind: _ } = *self;
        if left_out {
            return Some("the free probe was left out: its positions reach beyond the model's".to_owned());
        }
        let probes = if rounds == 1 { "probe" } else { "probes" };
        let order = if moved { "documents were put in another order" } else { "documents stay in their order" };
        let sharp = sharpest.map_or("no reading between documents is sharp".to_owned(), |sharpest| {
            format!("the sharpest reading between documents is {sharpest:.2}")
        });
        (rounds > 0).then(|| format!("{rounds} free {probes} measured {measured_rows} rows; {sharp}; {order}"))
    }
}
