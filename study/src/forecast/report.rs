//! Predictions as an object for programs: times in milliseconds, memory and traffic in bytes.

use schemars::JsonSchema;
use serde::Serialize;
use tributary_planner::forecast::Profile;
use tributary_planner::forecast::overhead::Overhead;
use tributary_planner::outlook::{Crossing, Crossover, Forecast, Scenario};

use super::{Answer, Rival, TENSOR_PARALLEL, exchange};

/// Name and version of predictions as JSON (`docs/schemas/plan.v1.json`). A field that goes, or
/// means something else, makes another version.
pub const SCHEMA: &str = "tributary.plan/1";

/// Everything that was predicted.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Report {
    /// Name and version of this schema.
    #[schemars(extend("const" = SCHEMA))]
    pub schema: &'static str,
    /// Always true: no number here was measured.
    pub predicted: bool,
    /// Notes for a reader of the numbers.
    pub notes: Vec<String>,
    /// The model, as asked for.
    pub model: String,
    /// The machine.
    pub profile: Profile,
    /// Number of ranks.
    pub world: usize,
    /// Pictures of each request after its tokens of text; absent where there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pictures: Option<PicturesRow>,
    /// One entry a length, method and hit rate.
    pub points: Vec<PointRow>,
    /// One entry a length: rivals that do not run here, predicted by a formula. None where the
    /// model's heads cannot be cut over the ranks.
    pub rivals: Vec<RivalRow>,
    /// One entry a selective method and hit rate; none where no exact method was asked for.
    pub crossovers: Vec<CrossoverRow>,
}

/// Pictures of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub struct PicturesRow {
    /// Number of pictures.
    pub count: usize,
    /// Lines of the grid of each.
    pub lines: u32,
    /// Places in a line.
    pub columns: u32,
    /// Tokens of all of them, the two marks around each included.
    pub tokens: usize,
}

/// Forecast of one method at one length.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct PointRow {
    /// Context tokens; those of pictures come on top.
    pub context_tokens: usize,
    /// The method with its options.
    pub method: String,
    /// Whether the method equals a full prefill but for rounding.
    pub exact: bool,
    /// Share of the chunks that come from the chunk cache.
    pub hit_rate: f64,
    /// Share of the context that is recomputed.
    pub ratio: f64,
    /// Exchange during recompute; absent for exact methods and one rank.
    pub exchange: Option<&'static str>,
    /// Time to first token.
    pub ttft_ms: f64,
    /// Lower bound of its interval, by the errors of the profile's rates.
    pub ttft_low_ms: f64,
    /// The most.
    pub ttft_high_ms: f64,
    /// The part of it that the slowest ranks wait for transfers.
    pub exposed_ms: f64,
    /// Milliseconds of each token after the first one; absent where there is one token only.
    pub token_ms: Option<f64>,
    /// Until the last token; absent where one is all.
    pub all_tokens_ms: Option<f64>,
    /// Its phases, in their order.
    pub phases: Vec<PhaseRow>,
    /// FLOPs of all ranks together.
    pub total_flops: f64,
    /// FLOPs on the critical path: per phase the most loaded rank's.
    pub critical_flops: f64,
    /// Bytes that each rank receives until the first token.
    pub received_bytes: Vec<u64>,
    /// Memory of each rank at the worst moment, weights included.
    pub rank_memory_bytes: Vec<u64>,
    /// Part of it that belongs to neither weights nor the request.
    pub rank_overhead_bytes: Overhead,
    /// The memory that a rank of the profile has.
    pub rank_has_bytes: u64,
    /// Whether every rank has as much as it needs.
    pub fits: bool,
}

/// An exact prefill that does not run here.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct RivalRow {
    /// Context tokens.
    pub context_tokens: usize,
    /// Form of parallelism: `tensor-parallel`.
    pub name: &'static str,
    /// Time to first token.
    pub ttft_ms: f64,
    /// Lower bound of its interval, by the errors of the profile's rates.
    pub ttft_low_ms: f64,
    /// The most.
    pub ttft_high_ms: f64,
}

/// A phase of the critical path.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct PhaseRow {
    /// Which phase.
    pub phase: &'static str,
    /// Its length.
    pub ms: f64,
    /// The part of it that the slowest rank waits for transfers.
    pub exposed_ms: f64,
}

/// From which length on a selective method is faster than the exact ones.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct CrossoverRow {
    /// The method with its options.
    pub method: String,
    /// Share of the chunks that come from the chunk cache.
    pub hit_rate: f64,
    /// The exact methods that it is compared with.
    pub against: Vec<String>,
    /// Context tokens from which on it is faster than all of them; absent where it is at no length
    /// that was looked at.
    pub wins_from_tokens: Option<usize>,
    /// The same, the earliest that a rate at an end of its interval gives.
    pub wins_from_tokens_earliest: Option<usize>,
    /// The latest; absent where one of them gives no such length.
    pub wins_from_tokens_latest: Option<usize>,
    /// Context tokens from which on it is no more than a tenth slower than the fastest of them.
    pub level_from_tokens: Option<usize>,
    /// Context tokens from which on it is more than a tenth faster.
    pub level_to_tokens: Option<usize>,
    /// Whether it is faster at every length.
    pub wins_at_every_length: bool,
    /// The longest context that was looked at, where it is slower there still.
    pub loses_up_to_tokens: Option<usize>,
}

impl Answer {
    /// The whole for programs.
    pub fn report(&self) -> Report {
        let points = self.lengths.iter().zip(&self.forecasts).flat_map(|(&tokens, found)| {
            self.scenarios.iter().zip(found).map(move |(scenario, forecast)| self.point(tokens, scenario, forecast))
        });
        Report {
            schema: SCHEMA,
            predicted: true,
            notes: self.notes(),
            model: self.model.clone(),
            profile: self.profile.clone(),
            world: self.world(),
            pictures: self.pictures().map(|grids| PicturesRow {
                count: grids.count,
                lines: grids.lines,
                columns: grids.columns,
                tokens: grids.tokens(),
            }),
            points: points.collect(),
            rivals: self.lengths.iter().zip(&self.tensor_parallel).filter_map(rival).collect(),
            crossovers: self.crossovers.iter().map(|&(index, found)| self.crossover(index, found)).collect(),
        }
    }

    fn crossover(&self, index: usize, found: Crossing) -> CrossoverRow {
        let length = |found: Crossover| match found {
            Crossover::FromTheStart(tokens) | Crossover::At(tokens) => Some(tokens),
            Crossover::NotUpTo(_) => None,
        };
        let loses_up_to_tokens = match found.expected {
            Crossover::NotUpTo(tokens) => Some(tokens),
            _ => None,
        };
        let scenario = &self.scenarios[index];
        CrossoverRow {
            method: scenario.method.clone(),
            hit_rate: scenario.hit_rate,
            against: self.against.clone(),
            wins_from_tokens: length(found.expected),
            wins_from_tokens_earliest: length(found.earliest),
            wins_from_tokens_latest: length(found.latest),
            level_from_tokens: length(found.level_from),
            level_to_tokens: length(found.level_to),
            wins_at_every_length: matches!(found.expected, Crossover::FromTheStart(_)),
            loses_up_to_tokens,
        }
    }

    fn point(&self, tokens: usize, scenario: &Scenario, forecast: &Forecast) -> PointRow {
        let predicted = &forecast.predicted;
        let generates = forecast.plan.max_tokens > 1;
        let phases = predicted.phases.iter().map(|phase| PhaseRow {
            phase: phase.phase.name(),
            ms: 1e3 * phase.seconds,
            exposed_ms: 1e3 * phase.exposed_s,
        });
        PointRow {
            context_tokens: tokens,
            method: scenario.method.clone(),
            exact: forecast.plan.method.is_exact(),
            hit_rate: scenario.hit_rate,
            ratio: forecast.ratio,
            exchange: exchange(forecast),
            ttft_ms: 1e3 * predicted.ttft_s,
            ttft_low_ms: 1e3 * predicted.interval.low_s,
            ttft_high_ms: 1e3 * predicted.interval.high_s,
            exposed_ms: 1e3 * predicted.exposed_s,
            token_ms: generates.then_some(1e3 * predicted.token_s),
            all_tokens_ms: generates.then(|| 1e3 * predicted.all_tokens_s(forecast.plan.max_tokens)),
            phases: phases.collect(),
            total_flops: predicted.total_flops,
            critical_flops: predicted.critical_flops,
            received_bytes: predicted.received_bytes.clone(),
            rank_memory_bytes: forecast.rank_memory_bytes.clone(),
            rank_overhead_bytes: forecast.overhead,
            rank_has_bytes: self.profile.rank.memory_bytes,
            fits: forecast.fits,
        }
    }
}

fn rival((&context_tokens, rival): (&usize, &Option<Rival>)) -> Option<RivalRow> {
    let Rival { seconds, interval } = (*rival)?;
    let [ttft_ms, ttft_low_ms, ttft_high_ms] = [seconds, interval.low_s, interval.high_s].map(|seconds| 1e3 * seconds);
    Some(RivalRow { context_tokens, name: TENSOR_PARALLEL, ttft_ms, ttft_low_ms, ttft_high_ms })
}
