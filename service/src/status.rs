//! `GET /v1/status`: the state of the service, for people and pages. Numbers only, never the text
//! of a request.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use tributary_planner::outlook::{Kind, Pace};
use tributary_protocol::{Claim, METHODS, Method, Tier};

use crate::metrics::{Finished, Predictions, TierTotals, Totals};
use crate::shared::Shared;

/// Name and version of this form.
const SCHEMA: &str = "tributary.status/1";

/// State of the service.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct Status {
    /// Name and version of this form.
    schema: &'static str,
    /// `starting`, `serving`, `draining` or `failed`.
    state: &'static str,
    /// The model's name for clients.
    model: String,
    /// Whether the model reads pictures.
    reads_pictures: bool,
    /// The method of requests that name none, with its options.
    method: String,
    /// Tokens that chunks are prefilled after: `system`, `head`, or N more than the head.
    chunk_prefix: String,
    /// Ranks that serve together.
    world_size: usize,
    /// The methods that requests may name.
    methods: Vec<MethodStatus>,
    /// The ranks, in their order.
    ranks: Vec<RankStatus>,
    /// Requests that have not ended.
    requests: RequestCounts,
    /// The chunk caches of all ranks and their stores.
    chunk_cache: ChunkCacheStatus,
    /// Basis of the predicted times to first token in the metrics.
    predictions: Option<PredictionStatus>,
    /// The last requests that have ended, the newest first.
    recent: Vec<Finished>,
}

/// Basis of predicted times to first token.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct PredictionStatus {
    /// The profile that they start from; `assumed` where none was given.
    profile: String,
    /// Paces learned from answered requests, by phase and by the method's claim.
    learned: Vec<PaceStatus>,
}

/// Pace of a phase, learned from answered requests.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct PaceStatus {
    /// The phase.
    phase: &'static str,
    /// Whether it is that of methods that equal a full prefill but for rounding.
    exact: bool,
    /// Its time, as a multiple of the profile's.
    multiple: f64,
    /// Requests that taught it.
    requests: u64,
}

impl PredictionStatus {
    fn new(predictions: &Predictions) -> Self {
        let pace = |(kind, pace): (Kind, Pace)| PaceStatus {
            phase: kind.phase.name(),
            exact: kind.is_exact,
            multiple: pace.multiple,
            requests: pace.requests,
        };
        let learned = predictions.paces().into_iter().map(pace).collect();
        Self { profile: predictions.profile().to_owned(), learned }
    }
}

/// A method that requests may name.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct MethodStatus {
    /// Its name.
    name: &'static str,
    /// Its work in one line.
    summary: &'static str,
    /// Whether it equals a full prefill but for rounding.
    exact: bool,
    /// The share of the context that is recomputed where a request does not say; absent for methods
    /// that select nothing.
    default_ratio: Option<f64>,
}

/// A rank.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct RankStatus {
    /// Its number.
    rank: usize,
    /// Whether it is in the group and gives signs of life.
    up: bool,
    /// Since its last sign of life.
    heartbeat_age_seconds: f64,
    /// Number of sequences whose keys and values it holds.
    running_sequences: usize,
    /// Keys and values in its chunk cache.
    chunk_cache_used_bytes: u64,
}

/// Requests that have not ended.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct RequestCounts {
    /// Those that wait for their turn.
    waiting: usize,
    /// Those that the ranks are at.
    running: usize,
}

/// The chunk caches of all ranks and their stores.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct ChunkCacheStatus {
    /// Bytes of keys and values in the ranks' memory.
    used_bytes: u64,
    /// Chunks that were taken from any tier since the beginning.
    hits: u64,
    /// Chunks that were computed.
    misses: u64,
    /// The tiers that are there, the nearest first; none before the first prefill.
    tiers: Vec<TierStatus>,
}

/// A place where chunks are kept, since the beginning.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct TierStatus {
    /// `memory`, `disk` or `remote`.
    tier: &'static str,
    /// Bytes in it as of the last prefill; null where unknown.
    used_bytes: Option<u64>,
    /// Chunks that were there.
    hits: u64,
    /// Chunks that were looked for and not taken from there.
    misses: u64,
    /// Bytes that were read from there; 0 for the memory, which is not read.
    read_bytes: u64,
    /// Bytes that were written there.
    written_bytes: u64,
    /// Bytes of a chunk in a second of its being read, over the last reads; null before the first.
    read_bytes_per_second: Option<f64>,
    /// Number of chunks that were of no use or were not written, by the reason.
    errors: BTreeMap<&'static str, u64>,
}

impl ChunkCacheStatus {
    fn new(totals: &Totals) -> Self {
        let tier = |(tier, totals): (&Tier, &TierTotals)| TierStatus {
            tier: tier.name(),
            used_bytes: totals.used_bytes,
            hits: totals.hits,
            misses: totals.misses,
            read_bytes: totals.read_bytes,
            written_bytes: totals.written_bytes,
            read_bytes_per_second: totals.read_bytes_per_s(),
            errors: totals.errors.clone(),
        };
        let hits = totals.tiers.values().map(|tier| tier.hits).sum();
        let looked = totals.tiers.get(&Tier::Memory).map_or(0, |memory| memory.hits + memory.misses);
        Self {
            used_bytes: totals.used_bytes.iter().sum(),
            hits,
            misses: looked.saturating_sub(hits),
            tiers: totals.tiers.iter().map(tier).collect(),
        }
    }
}

/// Answers with the state of the service.
pub async fn status(State(shared): State<Shared>) -> Json<Status> {
    Json(of(&shared))
}

fn of(shared: &Shared) -> Status {
    let Shared { client, model, metrics, limits, .. } = shared;
    let settings = client.settings();
    let (totals, pulses, sequences) = (metrics.totals(), client.pulses().read(), client.desk().tally().sequences());
    let described = |method: &&'static Method| MethodStatus {
        name: method.name,
        summary: method.summary,
        exact: method.claim == Claim::Exact,
        default_ratio: method.ratio.map(|usual| settings.ratio.unwrap_or(usual)),
    };
    let rank = |rank: usize| {
        let pulse = pulses.get(rank);
        RankStatus {
            rank,
            up: pulse.is_some_and(|pulse| pulse.is_up),
            heartbeat_age_seconds: pulse.map_or(0.0, |pulse| pulse.age.as_secs_f64()),
            running_sequences: sequences.get(rank).copied().unwrap_or(0),
            chunk_cache_used_bytes: totals.used_bytes.get(rank).copied().unwrap_or(0),
        }
    };
    Status {
        schema: SCHEMA,
        state: metrics.state(),
        model: model.to_string(),
        reads_pictures: client.pictures().is_some(),
        method: settings.spec().to_string(),
        chunk_prefix: client.chunk_prefix().to_string(),
        world_size: settings.world,
        methods: METHODS
            .iter()
            .filter(|method| limits.methods.allows(method) && client.offers(method))
            .map(described)
            .collect(),
        ranks: (0..settings.world).map(rank).collect(),
        requests: RequestCounts { waiting: client.desk().waiting(), running: client.desk().running() },
        chunk_cache: ChunkCacheStatus::new(&totals),
        predictions: metrics.predictions().as_ref().map(PredictionStatus::new),
        recent: metrics.recent(),
    }
}
