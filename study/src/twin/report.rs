//! Result as an object for programs: times in milliseconds, memory in bytes.

use schemars::JsonSchema;
use serde::Serialize;
use tributary_charts::statistics::{P95_SAMPLES, P99_SAMPLES, percentile, percentile_interval, sorted};
use tributary_planner::forecast::Profile;

use super::fit::Fit;
use super::group::{Outcome, Usage};
use super::limit::Edge;
use super::range::Range;
use super::{Answer, Cell, Question};

/// Name and version of a replay as JSON (`docs/schemas/twin.v1.json`). A field that goes, or means
/// something else, makes another version.
pub const SCHEMA: &str = "tributary.twin/1";

/// Everything that was found.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Report {
    /// Name and version of this schema.
    #[schemars(extend("const" = SCHEMA))]
    pub schema: &'static str,
    /// Always true: no number here was measured but those of `fit`.
    pub predicted: bool,
    /// Notes for a reader of the numbers.
    pub notes: Vec<String>,
    /// The model, as asked for.
    pub model: String,
    /// The machine of each group.
    pub profile: Profile,
    /// The fit of that machine to a service that has answered this replay, if one has.
    pub fit: Option<Fit>,
    /// The replayed requests.
    pub replayed: TraceRow,
    /// The tokens that chunks are prefilled after: `system`, `head`, or a number after the head.
    pub chunk_prefix: String,
    /// Bound of the 95th percentile of the time to first token, if one was asked for.
    pub slo_ttft_ms: Option<f64>,
    /// One entry a method and number of GPUs.
    pub rows: Vec<TwinRow>,
    /// Simulated time over the time that the replays of all rows took, each on one core; the search
    /// for limits is not counted.
    pub times_real_time: f64,
}

/// Replayed requests.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct TraceRow {
    /// File or folder.
    pub path: String,
    /// Its format.
    pub format: &'static str,
    /// Number of requests.
    pub requests: usize,
    /// Number of requests that were not in the order of their times, and were sorted.
    pub unordered: usize,
    /// Divisor of its times.
    pub speed: f64,
    /// Seconds from the first request to the last, divided by that.
    pub seconds: f64,
    /// Mean tokens of a prompt, without the head.
    pub mean_prompt_tokens: f64,
    /// Mean tokens of an answer.
    pub mean_output_tokens: f64,
}

/// One method on one number of GPUs.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct TwinRow {
    /// The method with its options.
    pub method: String,
    /// Whether the method equals a full prefill but for rounding.
    pub exact: bool,
    /// GPUs of all groups; ranks on a machine without.
    pub gpus: usize,
    /// Number of groups.
    pub groups: usize,
    /// Number of ranks of each.
    pub world: usize,
    /// Number of answered requests.
    pub answered: usize,
    /// Number of requests that are longer than the model's context.
    pub too_long: usize,
    /// Number of requests for which a rank has not the memory.
    pub no_memory: usize,
    /// Number of requests that found the queue full.
    pub queue_full: usize,
    /// Time to first token from a request's arrival at the service.
    pub ttft_ms: TwinPercentiles,
    /// The same with every time as far off as the profile says that it may be; absent where nothing
    /// was answered.
    pub ttft_range_ms: Option<Range>,
    /// The part of it in the queue.
    pub queue_ms: TwinPercentiles,
    /// Mean time of a step of decoding; absent without one.
    pub mean_step_ms: Option<f64>,
    /// Source of the prompts' tokens.
    pub tokens: TokensRow,
    /// Shares of the groups' time, from the first request to the last token.
    pub busy: BusyRow,
    /// Seconds from the first request to the last token.
    pub seconds: f64,
    /// Most requests that waited for one group.
    pub most_waiting: usize,
    /// Most sequences in decoding on one group.
    pub most_running: usize,
    /// Most of them that paused for lack of memory.
    pub most_paused: usize,
    /// Chunks and pieces of prompts that went from ranks' memories to make room.
    pub evicted: u64,
    /// Bytes of chunks in the fullest rank's memory at the end.
    pub cached_bytes: u64,
    /// What breaks first as the trace comes faster; absent where nothing was answered.
    pub limit: Option<Edge>,
}

/// Percentiles of times by nearest rank, where there are enough samples.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
pub struct TwinPercentiles {
    /// The median.
    pub p50: Option<f64>,
    /// From 30 samples on.
    pub p95: Option<f64>,
    /// From 100 samples on.
    pub p99: Option<f64>,
    /// Lower bound of a 95 % interval of p99.
    pub p99_low: Option<f64>,
    /// Upper bound; absent where there are too few samples for one.
    pub p99_high: Option<f64>,
    /// The largest.
    pub max: Option<f64>,
}

/// Tokens of all answered prompts by their source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub struct TokensRow {
    /// All of them.
    pub prompt: usize,
    /// From ranks' memories.
    pub memory: usize,
    /// From a store.
    pub store: usize,
    /// Neither: computed, or combined from computed rows.
    pub computed: usize,
}

/// Shares of time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
pub struct BusyRow {
    /// In prefills.
    pub prefill: f64,
    /// In steps of decoding.
    pub decode: f64,
    /// In neither.
    pub idle: f64,
}

impl Answer {
    /// The whole for programs.
    pub fn report(&self) -> Report {
        let Question { model, profile, chunk_prefix, slo_s, .. } = &self.question;
        Report {
            schema: SCHEMA,
            predicted: true,
            notes: self.notes(),
            model: model.clone(),
            profile: profile.clone(),
            fit: self.fit,
            replayed: trace(&self.question),
            chunk_prefix: chunk_prefix.to_string(),
            slo_ttft_ms: slo_s.map(|slo_s| 1e3 * slo_s),
            rows: self.cells.iter().map(row).collect(),
            times_real_time: self.factor(),
        }
    }
}

fn trace(question: &Question) -> TraceRow {
    let Question { path, trace, speed, .. } = question;
    let count = trace.requests.len();
    let mean = |sum: usize| sum as f64 / count as f64;
    TraceRow {
        path: path.clone(),
        format: trace.format,
        requests: count,
        unordered: trace.unordered,
        speed: *speed,
        seconds: trace.requests.last().map_or(0.0, |last| last.at_s / speed),
        mean_prompt_tokens: mean(trace.requests.iter().map(tributary_load::TraceRequest::prompt_tokens).sum()),
        mean_output_tokens: mean(trace.requests.iter().map(|request| request.output_tokens).sum()),
    }
}

fn row(cell: &Cell) -> TwinRow {
    let replayed = &cell.replayed;
    let most = |of: fn(&Usage) -> usize| replayed.usage.iter().map(of).max().unwrap_or(0);
    let (steps, decode_s) =
        replayed.usage.iter().fold((0, 0.0), |(steps, sum), usage| (steps + usage.steps, sum + usage.decode_s));
    let (prefill, decode) = replayed.busy();
    let sum = |of: fn(&super::caches::Hits) -> usize| replayed.answered().map(|answered| of(&answered.hits)).sum();
    let (prompt, memory, store) = (sum(|hits| hits.prompt), sum(|hits| hits.memory), sum(|hits| hits.store));
    TwinRow {
        method: cell.method.clone(),
        exact: cell.service.reading.settings.method.is_exact(),
        gpus: cell.groups * cell.service.world,
        groups: cell.groups,
        world: cell.service.world,
        answered: replayed.answered().count(),
        too_long: replayed.count(Outcome::TooLong),
        no_memory: replayed.count(Outcome::Memory),
        queue_full: replayed.count(Outcome::QueueFull),
        ttft_ms: percentiles(&replayed.ttft_s()),
        ttft_range_ms: cell.range,
        queue_ms: percentiles(&sorted(&replayed.answered().map(|answered| answered.queue_s).collect::<Vec<_>>())),
        mean_step_ms: (steps > 0).then(|| 1e3 * decode_s / steps as f64),
        tokens: TokensRow { prompt, memory, store, computed: prompt - memory - store },
        busy: BusyRow { prefill, decode, idle: 1.0 - prefill - decode },
        seconds: replayed.seconds,
        most_waiting: most(|usage| usage.waiting),
        most_running: most(|usage| usage.running),
        most_paused: most(|usage| usage.paused),
        evicted: replayed.evicted,
        cached_bytes: replayed.cached_bytes,
        limit: cell.edge,
    }
}

/// Percentiles in milliseconds of seconds in ascending order.
fn percentiles(sorted_s: &[f64]) -> TwinPercentiles {
    let count = sorted_s.len();
    let of = |least: usize, share: f64| (count >= least).then(|| 1e3 * percentile(sorted_s, share));
    let (low, high) = if count >= P99_SAMPLES { percentile_interval(sorted_s, 0.99) } else { (None, None) };
    TwinPercentiles {
        p50: of(1, 0.5),
        p95: of(P95_SAMPLES, 0.95),
        p99: of(P99_SAMPLES, 0.99),
        p99_low: low.map(|seconds| 1e3 * seconds),
        p99_high: high.map(|seconds| 1e3 * seconds),
        max: sorted_s.last().map(|seconds| 1e3 * seconds),
    }
}
