//! Forecast of every method's times on a machine that need not be available: predictions over a
//! list of lengths, and the lengths at which methods change places.

pub mod asked;
pub mod lengths;
mod render;
mod report;

use tributary_planner::ModelShape;
use tributary_planner::forecast::{Interval, Profile};
use tributary_planner::outlook::{Crossing, Cut, Forecast, PictureGrids, Scenario, crossover};

pub use self::render::render;
pub use self::report::Report;
use crate::error::Result;

/// The name of the rival that does not run here.
pub const TENSOR_PARALLEL: &str = "tensor-parallel";

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
    /// Requested scenarios.
    pub scenarios: Vec<Scenario>,
    /// Per length, one entry a scenario.
    pub forecasts: Vec<Vec<Forecast>>,
    /// Per selective scenario: its number, and its crossover with the fastest exact method.
    pub crossovers: Vec<(usize, Crossing)>,
    /// Per length, the prefill of a model whose matrices are cut over all ranks, which does not run
    /// here; nothing where its heads cannot be cut so.
    pub tensor_parallel: Vec<Option<Rival>>,
    /// The exact methods that it was compared with.
    pub against: Vec<String>,
    /// Methods that were left out, since they read no pictures.
    pub left_out: Vec<String>,
}

/// A rival that does not run here, by its formula.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rival {
    /// Time to first token.
    pub seconds: f64,
    /// Interval of the prediction.
    pub interval: Interval,
}

impl Rival {
    /// Tensor parallelism over `world` ranks, for a prompt of `tokens` tokens.
    fn tensor_parallel(tokens: usize, world: usize, shape: &ModelShape, profile: &Profile) -> Option<Self> {
        let cut = Cut { tensor: world, context: 1 };
        (world > 1 && cut.fits(shape)).then(|| Self {
            seconds: cut.seconds(tokens, shape, profile),
            interval: cut.interval(tokens, shape, profile),
        })
    }
}

impl Answer {
    /// Predicts every scenario at every length.
    ///
    /// # Errors
    /// Fails as [`Scenario::forecast`] does.
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
        let (mut exact, selective): (Vec<usize>, Vec<usize>) = (0..scenarios.len()).partition(|&index| is_exact(index));
        // A cached prefix is not computed, whatever its length.
        exact.retain(|&index| !scenarios[index].settings.method.reuses());
        let rivals: Vec<Scenario> = exact.iter().map(|&index| scenarios[index].clone()).collect();
        let longest = lengths.iter().copied().fold(CROSSOVER_LIMIT, usize::max);
        let mut crossovers = Vec::new();
        if !rivals.is_empty() {
            for index in selective {
                crossovers.push((index, crossover(&scenarios[index], &rivals, longest, shape, profile)?));
            }
        }
        let first = scenarios.first();
        let (world, around) =
            first.map_or((0, 0), |first| (first.settings.world, first.prefix_tokens + first.query_tokens));
        // The formula knows no towers.
        let has_pictures = first.is_some_and(|first| first.pictures.count > 0);
        let rival = |tokens| Rival::tensor_parallel(tokens + around, world, shape, profile);
        let tensor_parallel = lengths.iter().map(|tokens| if has_pictures { None } else { rival(tokens) }).collect();
        Ok(Self {
            tensor_parallel,
            model: model.to_owned(),
            shape: *shape,
            profile: profile.clone(),
            lengths: lengths.to_vec(),
            against: rivals.into_iter().map(|rival| rival.method).collect(),
            scenarios,
            forecasts,
            crossovers,
            left_out: Vec::new(),
        })
    }

    /// The same with the names of methods that were left out, since they read no pictures.
    #[must_use]
    pub fn without(self, left_out: Vec<String>) -> Self {
        Self { left_out, ..self }
    }

    /// Number of ranks.
    pub fn world(&self) -> usize {
        self.scenarios.first().map_or(0, |scenario| scenario.settings.world)
    }

    /// The pictures of each request, if there are some.
    pub fn pictures(&self) -> Option<PictureGrids> {
        self.scenarios.first().map(|first| first.pictures).filter(|pictures| pictures.count > 0)
    }

    /// Notes for a reader of the numbers.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = vec![format!(
            "every number is predicted from counted work and the profile {}; none was measured",
            self.profile.label()
        )];
        let assumed = self.profile.assumed_numbers();
        if !assumed.is_empty() {
            notes.push(format!("assumed, not published: {}", assumed.join(", ")));
        }
        if let Some(pictures) = self.pictures() {
            notes.push(format!(
                "{} pictures of {} x {} places, {} tokens with their marks, stand after the tokens of text",
                pictures.count,
                pictures.lines,
                pictures.columns,
                pictures.tokens()
            ));
        }
        if !self.left_out.is_empty() {
            notes.push(format!("left out, since they read no pictures: {}", self.left_out.join(", ")));
        }
        let limit = self.shape.max_positions;
        if let Some(longest) = self.lengths.iter().copied().filter(|&tokens| tokens > limit).max() {
            notes.push(format!("the model was made for {limit} positions; up to {longest} tokens are asked for"));
        }
        notes
    }
}

/// The exchange's name, where the method has a use for one.
pub fn exchange(forecast: &Forecast) -> Option<&'static str> {
    let used = forecast.plan.method.selects() && forecast.predicted.received_bytes.len() > 1;
    used.then(|| forecast.plan.exchange.name())
}
