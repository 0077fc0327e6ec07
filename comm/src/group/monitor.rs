//! The group as seen by another thread of the rank, which watches the device that carries the
//! calls' tensors.

use super::{Patience, Verdict};
use crate::{Collective, Error, Result};

/// The means by which a watching thread sees the group, and ends it.
pub trait GroupMonitor: Send + Sync {
    /// Whether the group still lives.
    ///
    /// # Errors
    /// Returns the cause of the group's death.
    fn alive(&self) -> Result<()>;

    /// Ends the group; the first cause counts. Gives the error that this rank sees.
    fn kill(&self, error: Error) -> Error;

    /// Reports the number of calls that this rank's device has reached, and the last one's kind if
    /// the device waits in it. Ranks that wait for this one ask for it.
    fn reach(&self, calls: u64, stands: Option<Collective>);

    /// Which ranks' devices have not come to a call.
    fn behind(&self, sequence: u64) -> LateRanks;

    /// The verdict on a wait for these ranks that has lasted as long as its deadline.
    fn judge(&self, missing: &[usize], patience: Patience) -> Verdict;
}

/// Ranks that have not come to a call.
pub struct LateRanks {
    pub missing: Vec<usize>,
    /// Last known activity of each of them, one sentence each.
    pub states: Vec<String>,
}
