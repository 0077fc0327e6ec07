//! What every method would take on a machine that need not be at hand: predictions over a list of lengths, and the lengths at which
//! methods change places.

pub mod lengths;
mod render;

use serde_json::{Value, json};
use tributary_coordinator::ModelShape;
use tributary_coordinator::forecast::{Crossover, Forecast, Profile, Scenario, crossover};

pub use self::render::render;
use crate::error::Result;

/// Crossovers are looked for up to this length, or up to the longest asked for.
const CROSSOVER_LIMIT: usize = 1 << 20;

/// Everything that was predicted.
pub struct Answer {
    /// The model, as asked for.
    pub model: String,
    /// Its shape.
    pub shape: ModelShape,
    /// The machine.
    pub profile: Profile,
    /// Context lengths in tokens.
    pub lengths: Vec<usize>,
    /// What was asked for.
    pub scenarios: Vec<Scenario>,
    /// Per length, one entry a scenario.
    pub forecasts: Vec<Vec<Forecast>>,
    /// Per selective scenario: its number, and its crossover with the fastest exact method.
    pub crossovers: Vec<(usize, Crossover)>,
    /// Names of the exact methods that it was compared with.
    pub against: Vec<String>,
}

impl Answer {
    /// Predicts every scenario at every length.
    ///
    /// # Errors
    /// As [`Scenario::forecast`].
    pub fn new(
        model: &str,
        lengths: &[usize],
        scenarios: Vec<Scenario>,
        shape: &ModelShape,
        profile: &Profile,
    ) -> Result<Self> {
        let at = |&tokens: &usize| -> Result<Vec<Forecast>> {
            scenarios.iter().map(|scenario| Ok(scenario.forecast(tokens, shape, profile)?)).collect()
        };
        let forecasts = lengths.iter().map(at).collect::<Result<Vec<_>>>()?;
        let is_exact = |index: usize| forecasts.first().is_some_and(|found| found[index].plan.method.is_exact());
        let (exact, selective): (Vec<usize>, Vec<usize>) = (0..scenarios.len()).partition(|&index| is_exact(index));
        let rivals: Vec<Scenario> = exact.iter().map(|&index| scenarios[index].clone()).collect();
        let longest = lengths.iter().copied().fold(CROSSOVER_LIMIT, usize::max);
        let mut crossovers = Vec::new();
        if !rivals.is_empty() {
            for index in selective {
                crossovers.push((index, crossover(&scenarios[index], &rivals, longest, shape, profile)?));
            }
        }
        Ok(Self {
            model: model.to_owned(),
            shape: *shape,
            profile: profile.clone(),
            lengths: lengths.to_vec(),
            against: rivals.into_iter().map(|rival| rival.settings.method.name.to_owned()).collect(),
            scenarios,
            forecasts,
            crossovers,
        })
    }

    /// Number of ranks.
    pub fn world(&self) -> usize {
        self.scenarios.first().map_or(0, |scenario| scenario.settings.world)
    }

    /// What a reader of the numbers should know.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = vec![format!(
            "every number is predicted from counted work and the profile {}; none was measured",
            self.profile.label()
        )];
        let limit = self.shape.max_positions;
        if let Some(longest) = self.lengths.iter().copied().filter(|&tokens| tokens > limit).max() {
            notes.push(format!("the model was made for {limit} positions; up to {longest} tokens are asked for"));
        }
        notes
    }

    /// The whole as JSON: times in milliseconds, memory and traffic in bytes.
    pub fn json(&self) -> Value {
        let points = self.lengths.iter().zip(&self.forecasts).flat_map(|(&tokens, found)| {
            self.scenarios.iter().zip(found).map(move |(scenario, forecast)| self.point(tokens, scenario, forecast))
        });
        let crossovers = self.crossovers.iter().map(|&(index, found)| {
            let (from, up_to) = match found {
                Crossover::FromTheStart(tokens) | Crossover::At(tokens) => (Some(tokens), None),
                Crossover::NotUpTo(tokens) => (None, Some(tokens)),
            };
            let scenario = &self.scenarios[index];
            json!({
                "method": scenario.settings.method.name,
                "hit_rate": scenario.hit_rate,
                "against": self.against,
                "wins_from_tokens": from,
                "wins_at_every_length": matches!(found, Crossover::FromTheStart(_)),
                "loses_up_to_tokens": up_to,
            })
        });
        json!({
            "predicted": true,
            "notes": self.notes(),
            "model": self.model,
            "profile": self.profile,
            "world": self.world(),
            "points": points.collect::<Vec<_>>(),
            "crossovers": crossovers.collect::<Vec<_>>(),
        })
    }

    fn point(&self, tokens: usize, scenario: &Scenario, forecast: &Forecast) -> Value {
        let predicted = &forecast.predicted;
        let phases = predicted.phases.iter().map(|phase| {
            json!({
                "phase": phase.phase.name(),
                "ms": 1e3 * phase.seconds,
                "exposed_ms": 1e3 * phase.exposed_s,
            })
        });
        json!({
            "context_tokens": tokens,
            "method": scenario.settings.method.name,
            "exact": forecast.plan.method.is_exact(),
            "hit_rate": scenario.hit_rate,
            "ratio": forecast.ratio,
            "exchange": exchange(forecast),
            "ttft_ms": 1e3 * predicted.ttft_s,
            "exposed_ms": 1e3 * predicted.exposed_s,
            "phases": phases.collect::<Vec<_>>(),
            "total_flops": predicted.total_flops,
            "critical_flops": predicted.critical_flops,
            "received_bytes": predicted.received_bytes,
            "rank_memory_bytes": forecast.rank_memory_bytes,
            "rank_overhead_bytes": forecast.overhead,
            "rank_has_bytes": self.profile.rank.memory_bytes,
            "fits": forecast.fits,
        })
    }
}

/// The exchange's name, where the method has a use for one.
pub fn exchange(forecast: &Forecast) -> Option<&'static str> {
    let used = !forecast.plan.method.is_exact() && forecast.predicted.received_bytes.len() > 1;
    used.then(|| forecast.plan.exchange.name())
}
