//! The file `report.json`: all measurements of a study, with the facts that a reader needs to trust
//! or to repeat it.
//!
//! Times are in milliseconds on the coordinator's clock (time to first token) or on a rank's own
//! clock from the arrival of the plan (spans). Bytes are payload that tensor collectives brought
//! from other ranks, control messages excluded.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tributary_charts::statistics;

use crate::busy::Busy;

/// Name and version of this schema (`docs/schemas/study.v1.json`); a program that does not know it
/// must not read the file.
pub const SCHEMA: &str = "tributary.study/1";

/// One study.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Study {
    /// Name and version of this schema.
    #[schemars(extend("const" = SCHEMA))]
    pub schema: String,
    /// Provenance of the numbers.
    pub provenance: Provenance,
    /// Design of the study.
    pub design: Design,
    /// One entry a point of the sweep, in the order of the design.
    pub points: Vec<Point>,
    /// Load of rank 0's host: one entry for each time that the study was started or resumed; empty
    /// in studies of earlier builds.
    #[serde(default)]
    pub busy: Vec<Busy>,
}

/// Provenance of the numbers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Provenance {
    /// When the study began, RFC 3339, UTC.
    pub began: String,
    /// The command line, word by word.
    pub command: Vec<String>,
    /// Version of the program.
    pub version: String,
    /// Commit it was built from, where known; with the suffix `-dirty` if files differed.
    pub revision: Option<String>,
    /// First 16 digits of the hash of the program.
    pub build: String,
    /// Host of rank 0.
    pub host: String,
    /// System and kernel.
    pub system: String,
    /// The processor, as it names itself.
    pub cpu: String,
    /// Cores that this process may use.
    pub cores: usize,
    /// Instructions of products and attention, such as AVX-512 or AMX-BF16.
    pub instruction_set: String,
    /// Memory of the host in bytes.
    pub memory_bytes: u64,
    /// Accelerators, if any computed.
    pub accelerators: Vec<String>,
    /// Carrier of messages between ranks, with its version.
    pub backend: String,
    /// 256-bit hash of config and weights, hexadecimal.
    pub model_hash: String,
    /// Machine profile of the predictions.
    pub profile: String,
    /// Ranks of that profile, all of which worked when it was measured; 0 without one.
    #[serde(default)]
    pub profile_ranks: usize,
}

/// Design of the study.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Design {
    /// The model folder as the user named it.
    pub model: String,
    /// Folder of the auxiliary model, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auxiliary_model: Option<String>,
    /// Folder of the draft model of evictions, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub draft_model: Option<String>,
    /// The folders of its adapters.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub adapters: Vec<String>,
    /// `safetensors`, or `dummy, seed N`.
    pub load_format: String,
    /// Type of numbers.
    pub dtype: String,
    /// Type of keys and values, where it is another: `fp8`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub kv_dtype: String,
    /// Kernels that compute: `auto` or `plain`.
    #[serde(default)]
    pub kernels: String,
    /// Device of the ranks: `cpu` or `cuda`.
    #[serde(default)]
    pub device: String,
    /// Threads a rank.
    pub threads: usize,
    /// Tokens a chunk.
    pub chunk_tokens: usize,
    /// Tokens of the query.
    pub query_tokens: usize,
    /// Context lengths in tokens.
    pub lengths: Vec<usize>,
    /// Pictures after the tokens of each context, `COUNTxWIDTHxHEIGHT` in pixels; empty without.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub images: String,
    /// Numbers of ranks.
    pub worlds: Vec<usize>,
    /// Methods with their options, as asked for.
    pub methods: Vec<String>,
    /// Ratios; a method's own ratio takes precedence. Empty: each method's own.
    pub ratios: Vec<f64>,
    /// States of the chunk cache.
    pub caches: Vec<Cache>,
    /// Runs that were not counted, a point.
    pub warmups: usize,
    /// Runs that were counted, a point.
    pub repeats: usize,
    /// Seed of weights, tokens and the order of runs.
    pub seed: u64,
}

impl Design {
    /// Whether the model's weights were drawn at random: then its attention is as good as even.
    pub fn has_random_weights(&self) -> bool {
        self.load_format.starts_with("dummy")
    }
}

/// Share of a request's context that comes from the chunk cache.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Cache {
    /// Nothing.
    Cold,
    /// This share of the chunks, above 0 and below 1.
    Partial(f64),
    /// Everything, from the ranks' memory.
    Warm,
    /// Everything, from the store, whose files the system may keep in memory.
    Disk,
    /// Everything, from the store, whose files were dropped from the system's memory before each
    /// run.
    #[serde(rename = "disk-dropped")]
    DiskDropped,
}

impl Cache {
    /// Whether the context comes from the store.
    pub fn is_stored(self) -> bool {
        matches!(self, Cache::Disk | Cache::DiskDropped)
    }
}

impl fmt::Display for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cache::Cold => f.write_str("cold"),
            Cache::Partial(share) => write!(f, "{share} warm"),
            Cache::Warm => f.write_str("warm"),
            Cache::Disk => f.write_str("disk"),
            Cache::DiskDropped => f.write_str("disk-dropped"),
        }
    }
}

/// One point of the sweep.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Point {
    /// Unique in the study, made of everything below up to `cache`; used by `--resume`.
    pub id: String,
    /// The method with its options, as asked for.
    pub method: String,
    /// Whether it equals full prefill but for rounding.
    pub exact: bool,
    /// Context tokens.
    pub context_tokens: usize,
    /// Number of ranks.
    pub world: usize,
    /// Share of the context that is recomputed; absent for exact methods.
    pub ratio: Option<f64>,
    /// Exchange between ranks during recompute; absent for exact methods and one rank.
    pub exchange: Option<String>,
    /// State of the chunk cache; cold for methods that do not use it.
    pub cache: Cache,
    /// Whether more threads computed than there are cores: such times are functional only.
    pub shares_cores: bool,
    /// Every counted run, in the order in which they ran.
    pub samples: Vec<Sample>,
    /// Runs that failed. They are listed, not dropped.
    pub failures: Vec<Failure>,
    /// Summary of the samples; absent without samples.
    pub summary: Option<Summary>,
    /// Prediction of the planner.
    pub predicted: Prediction,
    /// Difference from full prefill of the same request; absent where full prefill was not part of
    /// the study.
    pub accuracy: Option<Accuracy>,
}

/// One counted run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Sample {
    /// Number of the run in the whole study: the order was random.
    pub run: usize,
    /// Time to first token.
    pub ttft_ms: f64,
    /// The same without query pass and first token, estimated; for comparison with numbers
    /// published on that clock.
    pub paper_clock_ms: f64,
    /// Phases on the critical path, in their order.
    pub phases: Vec<PhaseTime>,
    /// Rest of the time to first token.
    pub unaccounted_ms: f64,
    /// One entry a rank.
    pub ranks: Vec<RankSample>,
    /// Chunks taken from the chunk cache, all ranks together.
    pub cache_hits: usize,
    /// Bytes of keys and values that came from the store.
    #[serde(default)]
    pub stored_bytes: u64,
    /// Largest resident memory of rank 0's process so far, in bytes.
    pub peak_memory_bytes: u64,
    /// Time of the run with everything that it started, such as ranks; absent in studies of earlier
    /// builds.
    #[serde(default)]
    pub wall_ms: Option<f64>,
    /// Time of processors that the study's processes on rank 0's host took meanwhile, in the
    /// kernel's ticks of 10 ms; absent where none went by.
    #[serde(default)]
    pub cpu_ms: Option<f64>,
    /// Share of that host's processors that other processes and virtual machines took meanwhile;
    /// absent in runs too short for the kernel's ticks.
    #[serde(default)]
    pub others_share: Option<f64>,
}

/// A phase and its length.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PhaseTime {
    /// Its name.
    pub phase: String,
    /// Its length.
    pub ms: f64,
    /// Part of it spent waiting for other ranks; 0 in predictions.
    #[serde(default)]
    pub waited_ms: f64,
}

/// One rank's part in a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RankSample {
    /// Which rank.
    pub rank: usize,
    /// Its phases, one after the other.
    pub spans: Vec<SpanTime>,
    /// Bytes received until the first token.
    pub received_bytes: u64,
    /// Bytes by the formula for this run's selection.
    pub formula_bytes: u64,
    /// Time spent in calls and waits for other ranks until the first token: the exposed
    /// communication.
    pub waited_ms: f64,
}

/// One phase on one rank.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SpanTime {
    /// Its name.
    pub phase: String,
    /// From the arrival of the plan to its start.
    pub start_ms: f64,
    /// Its length.
    pub ms: f64,
    /// Part of it that the rank waited for others.
    pub waited_ms: f64,
}

/// A run that failed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Failure {
    /// Number of the run in the whole study.
    pub run: usize,
    /// Why.
    pub cause: String,
    /// Exit code of the cause.
    pub exit_code: u8,
}

/// Summary of a point's samples.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Summary {
    /// Number of samples.
    pub count: usize,
    /// The middle one, or the mean of the two in the middle.
    pub median_ttft_ms: f64,
    /// Bounds of the interval that `interval` names.
    pub ci95_ttft_ms: (f64, f64),
    /// `ci95`: a 95 % confidence interval of the median. `range`: the least and the largest of
    /// fewer than 6 samples. Empty in studies of before it was kept.
    #[serde(default)]
    pub interval: String,
    /// Mean.
    pub mean_ttft_ms: f64,
    /// The least.
    pub min_ttft_ms: f64,
    /// The largest.
    pub max_ttft_ms: f64,
    /// 95th percentile; absent below 30 samples.
    pub p95_ttft_ms: Option<f64>,
    /// 99th percentile; absent below 100 samples.
    pub p99_ttft_ms: Option<f64>,
}

/// Kind of the bounds of `samples` samples: `range` or `ci95`.
pub fn interval_kind(samples: usize) -> &'static str {
    if samples < statistics::INTERVAL_SAMPLES { "range" } else { "ci95" }
}

/// Summary of a point's samples, times to first token in milliseconds; none without samples.
pub fn summary(ttft_ms: &[f64]) -> Option<Summary> {
    let statistics::Summary { count, median, ci95, mean, min, max, p95, p99 } = statistics::summary(ttft_ms)?;
    Some(Summary {
        count,
        median_ttft_ms: median,
        ci95_ttft_ms: ci95,
        interval: interval_kind(count).to_owned(),
        mean_ttft_ms: mean,
        min_ttft_ms: min,
        max_ttft_ms: max,
        p95_ttft_ms: p95,
        p99_ttft_ms: p99,
    })
}

/// Prediction of the planner.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Prediction {
    /// Time to first token; 0 without a profile of this number of ranks.
    pub ttft_ms: f64,
    /// Lower bound of its interval, by the errors of the profile's rates; 0 where no time is
    /// predicted.
    #[serde(default)]
    pub ttft_low_ms: f64,
    /// The most.
    #[serde(default)]
    pub ttft_high_ms: f64,
    /// Its phases.
    pub phases: Vec<PhaseTime>,
    /// FLOPs of all ranks together.
    pub total_flops: f64,
    /// FLOPs on the critical path: per phase the most loaded rank's.
    pub critical_flops: f64,
    /// Bytes received until the first token, all ranks together, with the selection spread evenly.
    pub received_bytes: u64,
    /// Memory at the worst moment, all ranks of a host and the weights together.
    pub memory_bytes: u64,
}

/// Difference from full prefill of the same request.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Accuracy {
    /// Largest absolute difference of a first-token logit.
    pub max_logit_difference: f64,
    /// Kullback-Leibler divergence of the first token's distribution, in nats.
    pub kl_nats: f64,
    /// Whether the likeliest first token is the same.
    pub top1_agrees: bool,
}
