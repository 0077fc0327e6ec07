//! The settings with which a group is started: the same in every build.

use std::time::Duration;

/// The settings with which a group is started.
#[derive(Debug, Clone, Copy)]
pub struct NcclSettings {
    /// Longest time for connecting.
    pub start_timeout: Duration,
    /// Whether two ranks may share a GPU, for tests of function: no time measured so counts.
    /// [`allow_shared_gpu`](super::allow_shared_gpu) comes before.
    pub allow_shared_gpu: bool,
    /// The way of all-gathers with unequal parts. All ranks have the same.
    pub unequal_gathers: UnequalGathers,
    /// Number of multiprocessors of a rank's GPU that computation should leave alone while messages
    /// are under way ([`KeptFree`](crate::KeptFree)). On a Hopper NCCL takes no more than these.
    pub message_multiprocessors: usize,
}

/// The way of an all-gather whose parts are not equal; NCCL's own takes equal parts only.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum UnequalGathers {
    /// Broadcasts where ranks are on several hosts, else messages.
    #[default]
    ByHosts,
    /// Every rank sends its part to each of the others: to another host as often as that has ranks.
    Messages,
    /// Every rank broadcasts its part: NCCL takes it to each host once and spreads it there.
    Broadcasts,
}
