//! How a request is answered: by which method, on ranks of which kind.

use tributary_coordinator::{GroupShape, RequestSettings};

/// One way to answer: a method's settings on ranks of so many threads.
#[derive(Debug, Clone, PartialEq)]
pub struct Way {
    /// The method's settings, the number of ranks among them.
    pub settings: RequestSettings,
    /// Threads a rank.
    pub threads: usize,
}

impl Way {
    /// The group of ranks that answers.
    pub fn group(&self) -> GroupShape {
        GroupShape { world: self.settings.world, threads: self.threads }
    }
}
