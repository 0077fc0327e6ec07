//! Table of all metrics: name, kind, description, labels with all their values, and bounds of
//! buckets. Only metrics of this table are exported.

use super::labels::Values::{self, Given, Ranks, Words};
use super::labels::{
    CACHE, CLAIMS, COLLECTIVES, DIRECTIONS, ERROR_TYPES, EVICTIONS, FAILURES, FATES, FEATURE_SOURCES, INTEGRITY,
    LOOKUPS, METHODS, OCCUPATIONS, OUTCOMES, PHASES, POOLS, RANK_PHASES, SOURCES, STAGES, STATES, STORE_ERRORS,
    STORE_OPERATIONS, STORE_TIERS, TIERS,
};

/// A metric.
#[derive(Debug)]
pub struct Metric {
    /// Name, in base units; only counters end in `_total`.
    pub name: &'static str,
    /// Its kind.
    pub kind: Kind,
    /// One sentence or more.
    pub help: &'static str,
    /// Names of its labels, and their values.
    pub labels: &'static [(&'static str, Values)],
    /// Whether only jobs have it, which no service runs.
    pub only_jobs: bool,
}

/// The kind of a metric.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    /// A number that goes up and down.
    Gauge,
    /// A number that grows, by whole numbers.
    Counter,
    /// A number that grows, by fractions.
    Seconds,
    /// Observations, in buckets with these upper bounds.
    Histogram(&'static [f64]),
}

/// Bounds of a request's times, in seconds.
const REQUEST: &[f64] = &[
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0,
    45.0, 60.0, 90.0, 120.0, 180.0, 300.0, 600.0, 1200.0,
];

/// Bounds of a phase's time, in seconds.
const A_PHASE: &[f64] = &[0.001, 0.01, 0.05, 0.25, 1.0, 2.0, 5.0, 20.0, 60.0, 600.0];

/// Bounds of a step's time, in seconds.
const STEP: &[f64] = &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// Bounds of the time in a call between ranks, in seconds.
const CALL: &[f64] = &[0.00001, 0.0001, 0.0005, 0.0025, 0.01, 0.1, 1.0, 10.0];

/// Bounds of the time that a chunk takes to be read from a store or written there, in seconds.
const STORED: &[f64] = &[0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];

/// Bounds of the slowest over the mean.
const IMBALANCE: &[f64] = &[1.05, 1.2, 1.5, 2.0, 4.0];

/// Bounds of a share.
const SHARE: &[f64] = &[0.0, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0];

const RANK: (&str, Values) = ("rank", Ranks);
const METHOD: (&str, Values) = ("method", METHODS);
const EVICTION: (&str, Values) = ("eviction", EVICTIONS);
const COLLECTIVE: (&str, Values) = ("collective", COLLECTIVES);
const OF_CACHE: (&str, Values) = ("cache", Words(CACHE));
const PHASE: (&str, Values) = ("phase", PHASES);
const RANK_PHASE: (&str, Values) = ("phase", RANK_PHASES);
const TIER: (&str, Values) = ("tier", TIERS);
const STORE_TIER: (&str, Values) = ("tier", STORE_TIERS);
const REASON: (&str, Values) = ("reason", Words(FAILURES));

/// Names the metrics, and lists them in this order.
macro_rules! metrics {
    ($($item:ident: $kind:expr, $name:literal, [$($label:expr),*], $help:literal $(, $only_jobs:literal)?;)*) => {
        $(
            #[doc = $help]
            pub static $item: Metric = Metric {
                name: concat!("tributary_", $name),
                kind: $kind,
                help: $help,
                labels: &[$($label),*],
                only_jobs: false $(|| $only_jobs)?,
            };
        )*

        /// Every metric.
        pub static TABLE: &[&Metric] = &[$(&$item),*];
    };
}

use Kind::{Counter, Gauge, Histogram, Seconds};

metrics! {
    BUILD_INFO: Gauge, "build_info", [("version", Given), ("revision", Given)],
        "Always 1; version, and commit of the build where known.";
    STATE: Gauge, "state", [("state", Words(STATES))],
        "1 for the process's state, 0 for the others.";
    WORLD_SIZE: Gauge, "world_size", [], "Ranks that compute together.";
    RANK_UP: Gauge, "rank_up", [RANK], "1 if the rank is in the group and gives signs of life.";
    HEARTBEAT_AGE: Gauge, "heartbeat_age_seconds", [RANK],
        "Time since the rank's last sign of life: a heartbeat of its process, or progress of its thread; 0 while a thread waits for others.";
    REQUESTS: Counter, "requests_total", [METHOD, ("outcome", Words(OUTCOMES))],
        "Ended requests, by method and outcome.";
    REQUEST_ERRORS: Counter, "request_errors_total", [("error_type", Words(ERROR_TYPES))],
        "Requests whose client got an error, by its kind.";
    REQUESTS_CANCELLED: Counter, "requests_cancelled_total", [("stage", Words(STAGES))],
        "Requests that were dropped before their end: their client left or their time was over while they waited, were prefilled or decoded, or their client read too slowly.";
    REQUESTS_RUNNING: Gauge, "requests_running", [], "Requests in prefill or decoding.";
    REQUESTS_PAUSED: Gauge, "requests_paused", [],
        "Requests being decoded whose next token waits for memory, until another one has ended.";
    REQUESTS_WAITING: Gauge, "requests_waiting", [], "Requests that wait for their turn.";
    RUNNING_SEQUENCES: Gauge, "running_sequences", [RANK],
        "Sequences, in decoding or held for other programs, of whose keys and values the rank has a part.";
    HELD_SEQUENCES: Gauge, "held_sequences", [], "Prompts whose keys and values are held for other programs.";
    HANDED_OVER_BYTES: Counter, "handed_over_bytes_total", [], "Bytes of keys and values that other programs have read.";
    DECODER_REQUESTS: Counter, "decoder_requests_total", [("outcome", Words(OUTCOMES))],
        "Answers that another server decodes (--decode-at), by outcome.";
    KEPT_SEQUENCES: Gauge, "kept_sequences", [], "Sequences of answered requests that stay for later turns of their conversations.";
    GROUP_SECONDS: Seconds, "group_seconds_total", [("work", OCCUPATIONS)],
        "Time of the group of ranks by its work: prefills, steps of decoding, other orders, or idle. Orders and the coordinator's own work for them count; the sum is the group's age.";
    TIME_TO_FIRST_TOKEN: Histogram(REQUEST), "time_to_first_token_seconds", [METHOD, OF_CACHE],
        "Time from a request's acceptance to its first token.";
    PREDICTED_TIME_TO_FIRST_TOKEN: Histogram(REQUEST), "predicted_time_to_first_token_seconds", [METHOD, OF_CACHE],
        "Predicted time of the same requests, without queue time: by the profile and earlier requests; in a service without a profile by earlier requests alone.";
    LEARNED_PACE: Gauge, "predicted_pace_ratio", [("claim", Words(CLAIMS)), PHASE],
        "Time of a phase as a multiple of the profile's, learned from answered requests; 0 before the first one, and without a profile.";
    REQUEST_QUEUE_TIME: Histogram(REQUEST), "request_queue_time_seconds", [], "Queue time of a request.";
    REQUEST_DURATION: Histogram(REQUEST), "request_duration_seconds", [],
        "Time from a request's acceptance to the end of its answer.";
    PHASE_DURATION: Histogram(A_PHASE), "phase_duration_seconds", [PHASE],
        "Phases of the time to first token, on the critical path.";
    PHASE_IMBALANCE: Histogram(IMBALANCE), "phase_imbalance_ratio", [RANK_PHASE],
        "Compute time of a phase on the slowest rank over its mean over the ranks, a request each; 1 is even.";
    PROMPT_TOKENS: Counter, "prompt_tokens_total", [("source", Words(SOURCES))],
        "Rows of prompts: computed, taken from the chunk cache, recomputed, taken from an earlier turn of the conversation.";
    SELECTED_TOKENS: Counter, "selected_tokens_total", [], "Context tokens that were selected to be recomputed.";
    SELECTION_CANDIDATE_TOKENS: Counter, "selection_candidate_tokens_total", [],
        "Context tokens that could have been selected.";
    RECOMPUTE_RATIO: Histogram(SHARE), "recompute_ratio", [],
        "Share of a request's context that was recomputed, by methods that select.";
    EVICTION_DURATION: Histogram(STEP), "eviction_duration_seconds", [EVICTION],
        "Time of an eviction between an answer's first token and its second, on the slowest rank.";
    EVICTION_KV_BYTES: Counter, "eviction_kv_bytes_total", [EVICTION, ("fate", Words(FATES))],
        "Bytes of keys and values of the prompts of evictions: those that decoding keeps, and those that are freed.";
    PICTURES: Counter, "pictures_total", [], "Pictures of answered requests.";
    PICTURE_TOKENS: Counter, "picture_tokens_total", [], "Tokens of prompts that are places of pictures.";
    PICTURE_FEATURES: Counter, "picture_features_total", [("source", Words(FEATURE_SOURCES))],
        "Different pictures of a request, by the source of their features: computed by a vision tower, or cached.";
    PICTURE_DECODE_SECONDS: Seconds, "picture_decode_seconds_total", [],
        "Time in which pictures of answered requests were decoded and resized.";
    PICTURE_TOWER_SECONDS: Seconds, "picture_tower_seconds_total", [RANK],
        "Time that the rank spent in the vision phase, waits for other ranks left out.";
    GENERATED_TOKENS: Counter, "generated_tokens_total", [], "Tokens of answers.";
    DECODE_STEP_DURATION: Histogram(STEP), "decode_step_duration_seconds", [],
        "Time of a decoding step, all sequences together, on the slowest rank.";
    INTER_TOKEN_LATENCY: Histogram(STEP), "inter_token_latency_seconds", [],
        "Time from a token of an answer to the next one, other requests' prefills between them included.";
    CHUNK_CACHE_LOOKUPS: Counter, "chunk_cache_lookups_total", [TIER, ("result", Words(LOOKUPS))],
        "Chunks of prefills that may take them from the chunk cache, by what each tier had. All are looked up in memory; the misses are looked up on disk, where there is a store: its hits, misses, corrupt and incompatible chunks are together the misses of memory. A miss on disk is a chunk that was in no tier, could not be read, came from the remote tier, or was computed because that is faster.";
    CHUNK_CACHE_EVICTIONS: Counter, "chunk_cache_evictions_total", [TIER],
        "Chunks that were dropped to make room, from the chunk caches of all ranks and from their stores.";
    CHUNK_CACHE_USED: Gauge, "chunk_cache_used_bytes", [RANK, TIER], "Memory: keys and values in the rank's chunk cache. Disk: files of its store, on the first of the ranks that share it.";
    CHUNK_STORE_READ: Counter, "chunk_store_read_bytes_total", [STORE_TIER], "Bytes of chunks that were read from stores.";
    CHUNK_STORE_WRITTEN: Counter, "chunk_store_written_bytes_total", [STORE_TIER], "Bytes of chunks that were written to stores.";
    CHUNK_STORE_OPERATION_DURATION: Histogram(STORED), "chunk_store_operation_duration_seconds",
        [STORE_TIER, ("operation", STORE_OPERATIONS)],
        "Time of reading a chunk from a store or writing it there; several are read at once.";
    CHUNK_STORE_ERRORS: Counter, "chunk_store_errors_total", [STORE_TIER, ("reason", STORE_ERRORS)],
        "Chunks in stores that were of no use, or were not written, by the reason.";
    DEVICE_MEMORY_USED: Gauge, "device_memory_used_bytes", [RANK, ("pool", Words(POOLS))],
        "Memory of the rank after its last prefill. On a GPU: in tensors, taken from the device for them, and buffers of messages. On CPUs: resident memory of the rank's process, which ranks that are threads share.";
    RANK_PHASE_SECONDS: Seconds, "rank_phase_seconds_total", [RANK, RANK_PHASE],
        "Time that the rank spent in a phase, waits for other ranks included.";
    RANK_SLOWEST: Counter, "rank_slowest_total", [RANK, RANK_PHASE],
        "Requests in which the rank computed longest in a phase.";
    COLLECTIVE_BYTES: Counter, "collective_bytes_total", [RANK, COLLECTIVE, ("direction", Words(DIRECTIONS))],
        "Payload that a rank sent and received for requests, with any outcome.";
    COLLECTIVE_DURATION: Histogram(CALL), "collective_duration_seconds", [COLLECTIVE],
        "Time that a rank spent in a call or its wait: the mean over a request's calls of a kind until the first token, one observation a rank and request.";
    COLLECTIVE_FAILURES: Counter, "collective_failures_total", [COLLECTIVE, REASON],
        "Calls between ranks that ended their group.";
    RANK_FAILURES: Counter, "rank_failures_total", [REASON], "Failures that ended a group of ranks.";
    INTEGRITY_FAILURES: Counter, "integrity_failures_total", [("artifact", Words(INTEGRITY.0)), ("kind", Words(INTEGRITY.1))],
        "Damaged data that was detected and not used.";
    TRAINING_LOSS: Gauge, "training_loss", [], "Mean loss of the samples of a training's last step; 0 before it, and in other jobs.", true;
    TRAINING_GRADIENT_NORM: Gauge, "training_gradient_norm", [],
        "Norm of the gradient of a training's last step, before clipping.", true;
    TRAINING_STEPS: Counter, "training_steps_total", [], "Steps that a training has taken in this process.", true;
    JOB_PROGRESS: Gauge, "job_progress_ratio", [], "Finished share of the job, from 0 to 1.", true;
    JOB_INFO: Gauge, "job_info", [("command", Given), ("study", Given)], "Always 1; name of the job.", true;
}
