//! The service that is simulated: a model on a machine, the reading of requests, and limits.

use tributary_coordinator::scheduler::Limits;
use tributary_planner::ModelShape;
use tributary_planner::forecast::Profile;

use super::prompt::Reading;

/// A service of one method on groups of one size.
#[derive(Debug, Clone)]
pub struct Service {
    /// The model.
    pub shape: ModelShape,
    /// The machine of each group.
    pub profile: Profile,
    /// Number of ranks of a group.
    pub world: usize,
    /// How requests are read, and by which method.
    pub reading: Reading,
    /// Limits of running and waiting requests of a group.
    pub limits: Limits,
    /// Maximum bytes of chunks of each rank; a quarter of the memory where absent.
    pub chunk_cache_bytes: Option<u64>,
    /// Bytes of each group's store, if it has one.
    pub store_bytes: Option<u64>,
}
