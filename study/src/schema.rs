//! The file `report.json`: everything a study measured, with what a reader needs to trust it or to repeat it.
//!
//! Times are in milliseconds on the coordinator's clock (time to first token) or on a rank's own clock from the arrival of the
//! plan (spans). Bytes are payload that tensor collectives brought from other ranks, control messages excluded.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tributary_charts::statistics;

use crate::busy::Busy;

/// Name and version of this schema (`docs/schemas/study.v1.json`); a program that does not know it must not read the file.
pub const SCHEMA: &str = "tributary.study/1";

/// One study.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Study {
    /// Name and version of this schema.
    #[schemars(extend("const" = SCHEMA))]
    pub schema: String,
    /// Where the numbers come from.
    pub provenance: Provenance,
    /// What was asked for.
    pub design: Design,
    /// One entry a point of the sweep, in the order of the design.
    pub points: Vec<Point>,
    /// How busy the host of rank 0 was: one entry a time that the study was begun or gone on with; empty in studies of before it was kept.
    #[serde(default)]
    pub busy: Vec<Busy>,
}

/// Where the numbers come from.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Provenance {
    /// When the study began, RFC 3339, UTC.
    pub began: String,
    /// The command line, word by word.
    pub command: Vec<String>,
    /// Version of the program.
    pub version: String,
    /// Commit it was built from, where known; `-dirty` behind it if files differed.
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
    /// Widest vector instructions in use, such as avx512.
    pub instruction_set: String,
    /// Memory of the host in bytes.
    pub memory_bytes: u64,
    /// Accelerators, if any computed.
    pub accelerators: Vec<String>,
    /// What carried messages between ranks, with its version.
    pub backend: String,
    /// 256-bit hash of config and weights, hexadecimal.
    pub model_hash: String,
    /// The machine profile behind the predictions.
    pub profile: String,
    /// Ranks of that profile, all of which worked when it was measured; 0 without one.
    #[serde(default)]
    pub profile_ranks: usize,
}

/// What was asked for.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Design {
    /// The model folder as the user named it.
    pub model: String,
    /// The folder of the model beside it, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auxiliary_model: Option<String>,
    /// The folder of the model that writes what evictions listen to, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub draft_model: Option<String>,
    /// The folders of its adapters.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub adapters: Vec<String>,
    /// `safetensors`, or `dummy, seed N`.
    pub load_format: String,
    /// Type of numbers.
    pub dtype: String,
    /// Kernels that compute: `auto` or `plain`.
    #[serde(default)]
    pub kernels: String,
    /// Where ranks compute: `cpu` or `cuda`.
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
    /// Numbers of ranks.
    pub worlds: Vec<usize>,
    /// Methods with their options, as asked for.
    pub methods: Vec<String>,
    /// Ratios; what a method says itself stands before them. Empty: each method's own.
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

/// How much of a request's context comes from the chunk cache.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Cache {
    /// Nothing.
    Cold,
    /// This share of the chunks, above 0 and below 1.
    Partial(f64),
    /// Everything, from the ranks' memory.
    Warm,
    /// Everything, from the store behind it, whose files the system may keep in memory.
    Disk,
    /// Everything, from the store, whose files the system was told to forget before each run.
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
    /// Unique in the study, made of everything below up to `cache`; what `--resume` goes by.
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
    /// What ranks send each other during recompute; absent for exact methods and one rank.
    pub exchange: Option<String>,
    /// State of the chunk cache; cold for exact methods, which do not use it.
    pub cache: Cache,
    /// Whether more threads computed than there are cores: such times are functional only.
    pub shares_cores: bool,
    /// Every counted run, in the order in which they ran.
    pub samples: Vec<Sample>,
    /// Runs that failed. They are listed, not dropped.
    pub failures: Vec<Failure>,
    /// What the samples come to; absent without samples.
    pub summary: Option<Summary>,
    /// What the planner predicted.
    pub predicted: Prediction,
    /// Difference from full prefill of the same request; absent where full prefill was not part of the study.
    pub accuracy: Option<Accuracy>,
}

/// One counted run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Sample {
    /// Number of the run in the whole study: the order was random.
    pub run: usize,
    /// Time to first token.
    pub ttft_ms: f64,
    /// The same without query pass and first token, estimated; for comparison with numbers published on that clock.
    pub paper_clock_ms: f64,
    /// Phases on the critical path, in their order.
    pub phases: Vec<PhaseTime>,
    /// What is left of the time to first token.
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
    /// How long the run took with all that it started, such as ranks; absent in studies of before it was kept.
    #[serde(default)]
    pub wall_ms: Option<f64>,
    /// Time of processors that the study's processes on rank 0's host took meanwhile, in the kernel's ticks of 10 ms; absent where none went by.
    #[serde(default)]
    pub cpu_ms: Option<f64>,
    /// Share of that host's processors that other processes and virtual machines took meanwhile; absent in runs too short for the kernel's ticks.
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
    /// How long of it was spent waiting for other ranks; 0 where it is predicted.
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
    /// What the formula gives for this run's selection.
    pub formula_bytes: u64,
    /// Time spent in calls and waits for other ranks until the first token: the exposed communication.
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
    /// How long of it the rank waited for others.
    pub waited_ms: f64,
}

/// A run that failed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Failure {
    /// Number of the run in the whole study.
    pub run: usize,
    /// Why.
    pub cause: String,
    /// The exit code that stands for the cause.
    pub exit_code: u8,
}

/// What the samples of a point come to.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Summary {
    /// Number of samples.
    pub count: usize,
    /// The middle one, or the mean of the two in the middle.
    pub median_ttft_ms: f64,
    /// Bounds of the interval that `interval` names.
    pub ci95_ttft_ms: (f64, f64),
    /// `ci95`: a 95 % confidence interval of the median. `range`: the least and the largest of fewer than 6 samples. Empty in studies of before
    /// it was kept.
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

/// What the bounds of so many samples are: `range` or `ci95`.
pub fn interval_kind(samples: usize) -> &'static str {
    if samples < statistics::INTERVAL_SAMPLES { "range" } else { "ci95" }
}

/// What the samples of a point come to, times to first token in milliseconds; none without samples.
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

/// What the planner predicted.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Prediction {
    /// Time to first token; 0 where the profile is not of so many ranks, or there is none.
    pub ttft_ms: f64,
    /// The least that it may be, by what the profile's rates may be off by; 0 where no time is predicted.
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
