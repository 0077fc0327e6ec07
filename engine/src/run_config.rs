//! How a request is answered: by which method, on ranks of which kind.

use tributary_coordinator::{GroupShape, RequestSettings};

/// How one request is run: its settings, and how many threads each rank has.
#[derive(Debug, Clone, PartialEq)]
pub struct RunConfig {
    /// What is chosen for the request: its method, the number of ranks and their like.
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
