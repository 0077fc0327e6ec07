//! A rank's group as another thread of the rank sees it: one that watches a device which carries the calls' tensors.

use super::{Patience, Verdict};
use crate::{Collective, Error, Result};

/// What a watching thread can see of the group, and do to it.
pub trait GroupMonitor: Send + Sync {
    /// Whether the group still lives.
    ///
    /// # Errors
    /// The cause of its death.
    fn alive(&self) -> Result<()>;

    /// Ends the group; the first cause counts. Gives the error that this rank sees.
    fn kill(&self, error: Error) -> Error;

    /// Says how many calls this rank's device has come to, and the last one's kind if it stands in it: for those who ask
    /// why it does not come.
    fn reach(&self, calls: u64, stands: Option<Collective>);

    /// Which ranks' devices have not come to a call.
    fn behind(&self, sequence: u64) -> LateRanks;

    /// What is to be thought of a wait for these ranks that has lasted as long as its deadline.
    fn judge(&self, missing: &[usize], patience: Patience) -> Verdict;
}

/// Ranks that have not come to a call.
pub struct LateRanks {
    pub missing: Vec<usize>,
    /// What is known of them.
    pub states: Vec<String>,
}
