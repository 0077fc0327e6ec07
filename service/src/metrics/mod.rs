//! Prometheus metrics of a service or a job, in a separate recorder: the one place that turns
//! reports into metrics. Label sets that are known before the first request, and belong to the
//! process's setup, start at 0. The first event then shows as an increase.

mod labels;
mod observer;
mod openmetrics;
mod predictions;
mod recent;
mod record;
mod sheet;
mod table;
#[cfg(test)]
mod tests;
mod tiers;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use metrics_exporter_prometheus::BuildError;
use tributary_engine::{Answered, Client, Observer, Pulse, Pulses, Tally};
use tributary_planner::ModelShape;
use tributary_protocol::Tier;

use self::recent::Recent;
use self::sheet::Sheet;
use self::table as of;

pub use self::labels::Setup;
pub use self::openmetrics::{OPENMETRICS, openmetrics};
pub use self::predictions::{Basis, Predictions};
pub use self::recent::Finished;
pub use self::tiers::TierTotals;

/// The form of the text that Prometheus reads.
pub const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Outcome of a request that was handed in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The whole answer is there.
    Answered,
    /// The ranks refused it or were lost, or its client read too slowly.
    Failed,
    /// Its client has left.
    Cancelled,
}

impl Outcome {
    /// The name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Outcome::Answered => "answered",
            Outcome::Failed => "failed",
            Outcome::Cancelled => "cancelled",
        }
    }
}

/// The metrics of a service or a job.
pub struct Metrics {
    sheet: Sheet,
    world: usize,
    state: Mutex<State>,
}

/// State that changes with the requests, apart from the numbers themselves.
#[derive(Default)]
struct State {
    /// Counts of waiting and running requests.
    tally: Option<Tally>,
    /// The ranks' signs of life.
    pulses: Option<Pulses>,
    /// Predictions of the time to first token: the machine, and the model on it.
    predictions: Option<Predictions>,
    recent: Recent,
    totals: Totals,
    is_draining: bool,
    /// Whether this is a training, whose ranks have no service to tell of them: every step needs
    /// all of them.
    is_training: bool,
    /// Whether the ranks have failed, and no others have answered since.
    has_failed: bool,
}

/// Totals of the chunk caches and their stores since the beginning.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Totals {
    /// Bytes in each rank's memory, in rank order.
    pub used_bytes: Vec<u64>,
    /// The same of each tier that is there, all ranks together.
    pub tiers: BTreeMap<Tier, TierTotals>,
}

impl Metrics {
    /// Metrics of a service of `world` ranks.
    ///
    /// # Errors
    /// Returns an error if buckets have no number, which only a bug can cause.
    pub fn new(world: usize, setup: &Setup) -> Result<Self, BuildError> {
        Self::with(world, false, setup)
    }

    /// Metrics of a job: the `command` that runs, and the name of its study, if it has one; its
    /// ranks are `world` at most.
    ///
    /// # Errors
    /// Fails as [`new`](Self::new) does.
    pub fn of_job(world: usize, command: &str, study: &str) -> Result<Self, BuildError> {
        let this = Self::with(world, true, &Setup::default())?;
        this.sheet.set(&of::JOB_INFO, &[command, study], 1.0);
        Ok(this)
    }

    fn with(world: usize, is_job: bool, setup: &Setup) -> Result<Self, BuildError> {
        let this = Self { sheet: Sheet::new(world, is_job, setup)?, world, state: Mutex::default() };
        let revision = tributary_system::program::revision().unwrap_or_default();
        this.sheet.set(&of::BUILD_INFO, &[env!("CARGO_PKG_VERSION"), revision], 1.0);
        this.sheet.set(&of::WORLD_SIZE, &[], world as f64);
        this.lock().totals.used_bytes = vec![0; world];
        this.state_is("starting");
        Ok(this)
    }

    /// Attaches this client's engine: scrapes then show its waiting and running requests and the
    /// state of its ranks, and the engine reports its ranks' work.
    pub fn attach(self: &Arc<Self>, client: &Client) {
        self.listen_to(client.pulses());
        self.opened(client.desk().tally());
        client.desk().observed_by(Arc::<Self>::clone(self));
    }

    /// From now on scrapes read the ranks' signs of life there.
    pub fn listen_to(&self, pulses: Pulses) {
        self.lock().pulses = Some(pulses);
    }

    /// Observes predicted times of requests from now on, beside the measured ones.
    pub fn predict_on(&self, basis: Basis, shape: ModelShape) {
        self.lock().predictions = Some(Predictions::new(basis, shape));
    }

    /// The predictions and the learned paces; none before the model is known.
    pub fn predictions(&self) -> Option<Predictions> {
        self.lock().predictions.clone()
    }

    /// No more requests are taken.
    pub fn drains(&self) {
        self.lock().is_draining = true;
    }

    /// Sets the finished share of a job, from 0 to 1.
    pub fn progress(&self, share: f64) {
        self.sheet.set(&of::JOB_PROGRESS, &[], share);
    }

    /// A training begins: its ranks exist as long as the process.
    pub fn trains(&self) {
        self.lock().is_training = true;
    }

    /// A training has taken a step: its loss, and the norm of its gradient.
    pub fn trained(&self, loss: f64, gradient_norm: f64) {
        self.sheet.set(&of::TRAINING_LOSS, &[], loss);
        self.sheet.set(&of::TRAINING_GRADIENT_NORM, &[], gradient_norm);
        self.sheet.count(&of::TRAINING_STEPS, &[], 1);
    }

    /// Drops data that no scrape needs any more; called every now and then.
    pub fn upkeep(&self) {
        self.sheet.upkeep();
    }

    /// Counts a request whose client got an error of this kind.
    pub fn refused(&self, kind: &str) {
        self.sheet.count(&of::REQUEST_ERRORS, &[kind], 1);
    }

    /// A request that had been handed in, and got no whole answer.
    pub fn ended(&self, method: &'static str, outcome: Outcome) {
        self.sheet.count(&of::REQUESTS, &[method, outcome.name()], 1);
    }

    /// A request that was answered.
    pub fn answered(&self, answered: &Answered) {
        self.ended(answered.report.method, Outcome::Answered);
        record::report(&self.sheet, answered, self.predictions().as_ref());
        let mut state = self.lock();
        state.recent.finished(Finished::answered(answered), answered.planned.plan.request);
    }

    /// Counts a request whose client had gone before the answer came.
    pub fn unread(&self, answered: &Answered) {
        self.ended(answered.report.method, Outcome::Cancelled);
        let finished = Finished { outcome: Outcome::Cancelled.name(), ..Finished::answered(answered) };
        self.lock().recent.finished(finished, answered.planned.plan.request);
    }

    /// Counts bytes of keys and values that another program has read.
    pub fn handed_over(&self, bytes: usize) {
        self.sheet.count(&of::HANDED_OVER_BYTES, &[], bytes as u64);
    }

    /// Counts an answer that another server has decoded, or has not.
    pub fn decoded(&self, outcome: Outcome) {
        self.sheet.count(&of::DECODER_REQUESTS, &[outcome.name()], 1);
    }

    /// Sets the name that a request has for its client, by its number in the queue.
    pub fn named(&self, request: u64, id: &str) {
        self.lock().recent.named(request, id);
    }

    /// The last requests that have ended, the newest first.
    pub fn recent(&self) -> Vec<Finished> {
        self.lock().recent.newest_first()
    }

    /// Totals of the chunk caches.
    pub fn totals(&self) -> Totals {
        self.lock().totals.clone()
    }

    /// The word for the process's state.
    pub fn state(&self) -> &'static str {
        let state = self.lock();
        match (&state.pulses, &state.tally) {
            _ if state.has_failed => "failed",
            _ if state.is_draining => "draining",
            (None, _) if !state.is_training => "starting",
            (_, Some(tally)) if tally.is_closed() => "failed",
            _ => "serving",
        }
    }

    /// The text that Prometheus reads.
    pub fn render(&self) -> String {
        let state = self.lock();
        let (tally, pulses, is_training) = (state.tally.clone(), state.pulses.clone(), state.is_training);
        drop(state);
        self.state_is(self.state());
        if let Some(pulses) = pulses {
            self.sheet.ranks(self.world, &pulses.read());
        }
        if is_training {
            self.sheet.ranks(self.world, &vec![Pulse { is_up: true, age: Duration::ZERO }; self.world]);
        }
        if let Some(tally) = tally {
            self.sheet.desk(self.world, &tally);
        }
        self.sheet.render()
    }

    fn state_is(&self, now: &str) {
        for state in labels::STATES {
            self.sheet.set(&of::STATE, &[state], f64::from(u8::from(*state == now)));
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
