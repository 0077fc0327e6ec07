//! Configuration of a request's run: its method and its ranks.

use tributary_planner::{GroupShape, RequestSettings};

/// Configuration of one request's run: its settings, and the number of threads of each rank.
#[derive(Debug, Clone, PartialEq)]
pub struct RunConfig {
    /// Settings of the request: its method, the number of ranks and similar choices.
    pub settings: RequestSettings,
    /// Threads a rank.
    pub threads: usize,
}

impl RunConfig {
    /// The group of ranks that answers.
    pub fn group(&self) -> GroupShape {
        GroupShape { world: self.settings.world, threads: self.threads }
    }
}
