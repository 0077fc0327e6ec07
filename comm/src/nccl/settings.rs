//! How a group is started: the same in every build.

use std::time::Duration;

/// How a group is started.
#[derive(Debug, Clone, Copy)]
pub struct NcclSettings {
    /// How long connecting may take.
    pub start_timeout: Duration,
    /// Whether two ranks may share a GPU, for tests of function: no time measured so counts.
    /// [`allow_shared_gpu`](super::allow_shared_gpu) comes before.
    pub allow_shared_gpu: bool,
    /// How all-gathers of unequal parts go. The same on all ranks.
    pub unequal_gathers: UnequalGathers,
    /// Multiprocessors of a rank's GPU that whoever computes there should leave alone while messages are under way
    /// ([`KeptFree`](crate::KeptFree)).
    pub message_multiprocessors: usize,
}

/// How an all-gather goes whose parts are not equal; NCCL's own takes equal ones only.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum UnequalGathers {
    /// As broadcasts where ranks are on several hosts, else as messages.
    #[default]
    ByHosts,
    /// Every rank sends its part to each of the others: to another host as often as that has ranks.
    Messages,
    /// Every rank broadcasts its part: NCCL takes it to each host once and spreads it there.
    Broadcasts,
}
