//! Several methods on the same request, interleaved and repeated.

mod measure;
pub mod page;
mod tables;

use schemars::JsonSchema;
use serde::Serialize;
use tributary_engine::{Engine, Question, RunConfig};
use tributary_protocol::REFERENCE;

pub use self::measure::Measured;
pub use self::tables::render;
use crate::error::Result;
use crate::order::order;

/// Name and version of a comparison as JSON (`docs/schemas/compare.v2.json`). A field that goes, or
/// means something else, makes another version.
pub const SCHEMA: &str = "tributary.compare/2";

/// Everything that a comparison came to.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Comparison {
    /// Name and version of this schema.
    #[schemars(extend("const" = SCHEMA))]
    pub schema: &'static str,
    /// Counted runs of each method on each request.
    pub repeat: usize,
    /// Runs of each method before those.
    pub warmup: usize,
    /// The requests, in the order in which they were asked.
    pub requests: Vec<Compared>,
}

/// Several methods on one request.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Compared {
    /// The request's name: that of its file.
    pub request: String,
    /// The answer that it should have; absent where none is known.
    pub expected: Option<String>,
    /// Results of every method, in the requested order.
    pub methods: Vec<Measured>,
}

impl Comparison {
    /// Of `runs` on these requests.
    pub fn new(runs: Runs, requests: Vec<Compared>) -> Self {
        Self { schema: SCHEMA, repeat: runs.repeats, warmup: runs.warmups, requests }
    }
}

/// Numbers of runs of each method.
#[derive(Debug, Clone, Copy)]
pub struct Runs {
    /// Runs that do not count.
    pub warmups: usize,
    /// Runs that do.
    pub repeats: usize,
    /// Seed of their order.
    pub seed: u64,
}

/// Every method on one request: warm-ups, then the counted runs, interleaved, in an order drawn
/// anew for each round. `tell` gets the progress.
///
/// # Errors
/// Returns an error if the engine fails.
pub fn measure_one(
    engine: &mut Engine<'_>,
    question: &Question,
    run_configs: &[(String, RunConfig)],
    runs: Runs,
    tell: &dyn Fn(String),
) -> Result<Vec<Measured>> {
    let mut samples: Vec<Vec<_>> = run_configs.iter().map(|_| Vec::new()).collect();
    let rounds = runs.warmups.saturating_add(runs.repeats);
    for round in 0..rounds {
        for index in order(runs.seed, round, run_configs.len()) {
            let (method, run_config) = &run_configs[index];
            tell(format!("{method}, run {} of {rounds}", round + 1));
            let answered = engine.answer(question, run_config)?;
            if round >= runs.warmups {
                samples[index].push(answered);
            }
        }
    }
    let full = run_configs.iter().position(|(_, run_config)| run_config.settings.method == REFERENCE);
    let full = full.expect("the reference is one of the methods");
    let methods = run_configs.iter().enumerate();
    Ok(methods
        .map(|(index, (name, _))| Measured::new(name, &samples[index], &samples[full], question.expected()))
        .collect())
}
