//! Predictions as an object for programs: times in milliseconds, memory and traffic in bytes.

use schemars::JsonSchema;
use serde::Serialize;
use tributary_coordinator::forecast::overhead::Overhead;
use tributary_coordinator::forecast::{Crossover, Forecast, Profile, Scenario};

use super::{Answer, exchange};

/// Name and version of predictions as JSON (`docs/schemas/plan.v1.json`). A field that goes, or means something else, makes another
/// version.
pub const SCHEMA: &str = "tributary.plan/1";

/// Everything that was predicted.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Report {
    /// Name and version of this schema.
    #[schemars(extend("const" = SCHEMA))]
    pub schema: &'static str,
    /// Always true: no number here was measured.
    pub predicted: bool,
    /// What a reader of the numbers should know.
    pub notes: Vec<String>,
    /// The model, as asked for.
    pub model: String,
    /// The machine.
    pub profile: Profile,
    /// Number of ranks.
    pub world: usize,
    /// One entry a length, method and hit rate.
    pub points: Vec<PointRow>,
    /// One entry a selective method and hit rate; none where no exact method was asked for.
    pub crossovers: Vec<CrossoverRow>,
}

/// What one method would take at one length.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct PointRow {
    /// Context tokens.
    pub context_tokens: usize,
    /// The method's name.
    pub method: &'static str,
    /// Whether the method equals a full prefill but for rounding.
    pub exact: bool,
    /// Share of the chunks that come from the chunk cache.
    pub hit_rate: f64,
    /// Share of the context that is recomputed.
    pub ratio: f64,
    /// What moves during recompute; absent for exact methods and one rank.
    pub exchange: Option<&'static str>,
    /// Time to first token.
    pub ttft_ms: f64,
    /// The part of it that the slowest ranks wait for transfers.
    pub exposed_ms: f64,
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
    /// What of it neither weights nor the request have.
    pub rank_overhead_bytes: Overhead,
    /// The memory that a rank of the profile has.
    pub rank_has_bytes: u64,
    /// Whether every rank has as much as it needs.
    pub fits: bool,
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
    /// The method's name.
    pub method: &'static str,
    /// Share of the chunks that come from the chunk cache.
    pub hit_rate: f64,
    /// Names of the exact methods that it is compared with.
    pub against: Vec<String>,
    /// Context tokens from which on it is faster than all of them; absent where it is at no length that was looked at.
    pub wins_from_tokens: Option<usize>,
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
            points: points.collect(),
            crossovers: self.crossovers.iter().map(|&(index, found)| self.crossover(index, found)).collect(),
        }
    }

    fn crossover(&self, index: usize, found: Crossover) -> CrossoverRow {
        let (wins_from_tokens, loses_up_to_tokens) = match found {
            Crossover::FromTheStart(tokens) | Crossover::At(tokens) => (Some(tokens), None),
            Crossover::NotUpTo(tokens) => (None, Some(tokens)),
        };
        let scenario = &self.scenarios[index];
        CrossoverRow {
            method: scenario.settings.method.name,
            hit_rate: scenario.hit_rate,
            against: self.against.clone(),
            wins_from_tokens,
            wins_at_every_length: matches!(found, Crossover::FromTheStart(_)),
            loses_up_to_tokens,
        }
    }

    fn point(&self, tokens: usize, scenario: &Scenario, forecast: &Forecast) -> PointRow {
        let predicted = &forecast.predicted;
        let phases = predicted.phases.iter().map(|phase| PhaseRow {
            phase: phase.phase.name(),
            ms: 1e3 * phase.seconds,
            exposed_ms: 1e3 * phase.exposed_s,
        });
        PointRow {
            context_tokens: tokens,
            method: scenario.settings.method.name,
            exact: forecast.plan.method.is_exact(),
            hit_rate: scenario.hit_rate,
            ratio: forecast.ratio,
            exchange: exchange(forecast),
            ttft_ms: 1e3 * predicted.ttft_s,
            exposed_ms: 1e3 * predicted.exposed_s,
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
