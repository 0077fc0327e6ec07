//! Duration of the longest layer of a plan: a rank checks for cancellation, and reports progress,
//! after each layer.

use tributary_protocol::{Phase, Plan};

use super::{Profile, ttft};
use crate::ModelShape;

/// Shorter prompts are not checked: no layer of theirs takes a minute anywhere.
const LOOKED_AT: usize = 4096;

/// A layer that is predicted to take long.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LongStep {
    /// Its phase.
    pub phase: Phase,
    /// Its length.
    pub seconds: f64,
    /// Seconds that a rank may compute without progress.
    pub timeout_s: f64,
}

impl LongStep {
    /// The longest layer of a plan on `world` ranks of a machine, if it is predicted to take longer
    /// than the plan's timeout.
    pub fn beyond_timeout(plan: &Plan, world: usize, shape: &ModelShape, profile: &Profile) -> Option<Self> {
        if plan.total_rows() < LOOKED_AT {
            return None;
        }
        let timeout_s = plan.timeout_ms as f64 / 1e3;
        let phases = ttft(plan, world, shape, profile).phases.into_iter();
        let in_layers = phases.filter(|phase| !matches!(phase.phase, Phase::Dispatch | Phase::FirstToken));
        let longest = in_layers.max_by(|a, b| a.seconds.total_cmp(&b.seconds))?;
        let seconds = longest.seconds / shape.layers.max(1) as f64;
        (seconds > timeout_s).then_some(Self { phase: longest.phase, seconds, timeout_s })
    }

    /// Note for readers.
    pub fn note(&self) -> String {
        let Self { phase, seconds, timeout_s } = self;
        format!(
            "a layer of {phase} is predicted to take {seconds:.0} s, longer than --collective-timeout ({timeout_s} s): it may, as \
             long as its tiles get on"
        )
    }
}
