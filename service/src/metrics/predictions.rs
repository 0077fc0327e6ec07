//! Predictions of the planner for each request, from the measurements of earlier requests.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tributary_engine::Answered;
use tributary_planner::ModelShape;
use tributary_planner::forecast::{Profile, ttft};
use tributary_planner::outlook::{Kind, Learned, Pace};
use tributary_protocol::Phase;

/// The machine that requests are predicted for.
#[derive(Debug, Clone, PartialEq)]
pub enum Basis {
    /// A given profile.
    Given(Profile),
    /// A profile for the rates that may be assumed; predictions rest only on measurements of
    /// requests.
    Assumed(Profile),
}

/// The planner's predictions of requests, and the paces learned from answered ones. Clones are of
/// the same ones.
#[derive(Debug, Clone)]
pub struct Predictions {
    basis: Arc<Basis>,
    shape: ModelShape,
    learned: Arc<Mutex<Learned>>,
}

impl Predictions {
    /// Predictions without measurements yet.
    pub fn new(basis: Basis, shape: ModelShape) -> Self {
        Self { basis: Arc::new(basis), shape, learned: Arc::default() }
    }

    /// The seconds to the first token that a request was to take without its wait, as was known
    /// before it; then learns from it. None where the profile has fewer ranks, or where nothing is
    /// known yet.
    pub fn of(&self, answered: &Answered) -> Option<f64> {
        let (planned, report) = (&answered.planned, &answered.report);
        let (profile, only_learned) = match &*self.basis {
            Basis::Given(profile) => (profile, false),
            Basis::Assumed(profile) => (profile, true),
        };
        if planned.world > profile.ranks {
            return None;
        }
        let predicted = ttft(&planned.plan, planned.world, &self.shape, profile);
        let is_exact = planned.plan.method.is_exact() || planned.plan.method.prefill.is_whole();
        let phase = |name: &str| Phase::TO_FIRST_TOKEN.into_iter().find(|phase| phase.name() == name);
        let phases: Vec<(Phase, f64)> = report
            .phases
            .iter()
            .filter_map(|found| Some((phase(found.phase)?, found.critical_path_ms / 1000.0)))
            .collect();
        // Neither its turn nor other requests' steps in between are its own.
        let interleaved = report.phases.iter().filter(|row| row.phase == Phase::Interleaved.name());
        let others_s = interleaved.map(|row| row.critical_path_ms / 1000.0).sum::<f64>();
        let own_s = (report.ttft_ms / 1000.0 - answered.answer.queued.as_secs_f64() - others_s).max(0.0);
        let mut learned = self.lock();
        let before = learned.ttft_s(&predicted, is_exact, only_learned);
        learned.learn(&predicted, is_exact, &phases, own_s);
        before
    }

    /// Paces learned so far, by kind of phase.
    pub fn paces(&self) -> Vec<(Kind, Pace)> {
        self.lock().paces().collect()
    }

    /// Whether a profile was given that they start from.
    pub fn has_profile(&self) -> bool {
        matches!(&*self.basis, Basis::Given(_))
    }

    /// The name of the profile that predictions start from.
    pub fn profile(&self) -> &str {
        match &*self.basis {
            Basis::Given(profile) | Basis::Assumed(profile) => &profile.name,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Learned> {
        self.learned.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
