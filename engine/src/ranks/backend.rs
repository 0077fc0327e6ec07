//! Interface of ranks to an engine, for threads of this process and for processes of this job.

use std::sync::Arc;

use tributary_comm::CoordinatorLink;
use tributary_model::Model;
use tributary_planner::{GroupShape, Machine, Started};
use tributary_store::Store;

use super::audience::Audience;
use super::group::GroupSettings;
use super::identity::Identity;
use super::pulses::Pulses;
use super::seat::Seat;
use crate::auxiliary::AuxiliaryModel;
use crate::carrier::Carrier;
use crate::error::{Error, Result};
use crate::model::ModelFolder;

/// Place of this process among the ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    /// Number of ranks, where a request does not say otherwise.
    pub world: usize,
    /// Which rank this process is, where ranks are processes; absent where all of them are threads
    /// of this one.
    pub process: Option<RankProcess>,
}

/// A process that is one rank of several.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RankProcess {
    /// Its rank.
    pub rank: usize,
    /// Its number on its host.
    pub local_rank: usize,
    /// Ranks of its host.
    pub local_size: usize,
    /// Ranks of its host that share its GPU, itself included.
    pub sharing: usize,
}

impl Standing {
    /// Number of ranks of a group with `world` requested ranks.
    pub fn ranks(&self, world: usize) -> usize {
        self.process.map_or(world, |_| self.world)
    }

    /// Number of ranks on this host in a group of `world`.
    pub fn here(&self, world: usize) -> usize {
        self.process.map_or(world, |process| process.local_size)
    }

    /// Number of ranks in this process in a group of `world`.
    pub fn in_process(&self, world: usize) -> usize {
        self.process.map_or(world, |_| 1)
    }

    /// Whether this process has the coordinator.
    pub fn leads(&self) -> bool {
        self.process.is_none_or(|process| process.rank == 0)
    }

    /// This process's number on its host.
    pub fn local_rank(&self) -> usize {
        self.process.map_or(0, |process| process.local_rank)
    }

    /// Processes of this host that share this one's GPU, itself included.
    pub fn sharing(&self) -> usize {
        self.process.map_or(1, |process| process.sharing)
    }
}

/// Ranks that share a memory, and the speed of the links to the others.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Neighbours {
    /// Ranks that share the memory.
    pub ranks_here: usize,
    /// Number of copies of the weights in it.
    pub weight_copies: usize,
    /// Bytes that a rank receives from another in a second, at the least.
    pub link_bytes_per_s: f64,
}

/// Inputs of a group's start.
pub struct Start<'a> {
    /// The weights: one for all ranks of this process, or one a rank.
    pub models: &'a [Arc<dyn Model>],
    /// Auxiliary models.
    pub auxiliary: Vec<AuxiliaryModel>,
    /// The model folder, which has the adapters.
    pub folder: &'a ModelFolder,
    /// Settings of the group.
    pub settings: GroupSettings,
    /// Identity that its ranks must have in common.
    pub identity: Identity,
    /// Whether its ranks keep chunks for later requests.
    pub keeps_chunks: bool,
    /// The machine as this process sees it.
    pub machine: Machine,
    /// Store of this process's chunk caches.
    pub store: Option<Arc<Store>>,
}

/// A failure that ends this process, in the form for other ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessFailure {
    /// Description of the failure; a table may have several lines.
    pub line: String,
    /// Exit code of the failure.
    pub exit_code: u8,
    /// Whether another rank, or another thread of this one, reports it.
    pub is_told_elsewhere: bool,
}

/// Ranks as an engine uses them. Threads are started a group at a time, as many as a request asks
/// for; processes are one group, which is there already.
pub trait Backend {
    /// Place of this process among them.
    fn standing(&self) -> Standing;

    /// Transport of messages between them, for reports.
    fn label(&self) -> String;

    /// Kind of the ranks, for profiles.
    fn medium(&self) -> &'static str;

    /// Launcher of the ranks, for `doctor`.
    fn origin(&self) -> String;

    /// Refuses a group that cannot be had.
    ///
    /// # Errors
    /// Returns a usage error if the ranks are not those that were started.
    fn check(&self, method: &str, group: GroupShape, threads_started: usize) -> Result<()>;

    /// The ranks that share a memory in a group of `world` ranks: the host's, or a GPU's where this
    /// process sees `gpus` of them.
    fn neighbours(&self, gpus: Option<usize>, carrier: Carrier, world: usize) -> Neighbours;

    /// Memory of the host that was free before any rank had loaded anything.
    fn free_bytes(&self) -> Option<u64>;

    /// Whether a group computes with more threads than cores; this process may use `cores`.
    fn shares_cores(&self, group: GroupShape, cores: usize) -> bool;

    /// Starts a group and waits until it is ready for plans; on a rank that does not lead, until it
    /// serves. Absent if it runs already.
    ///
    /// # Errors
    /// Returns an error if no thread can be started. Returns failures of the ranks before they were
    /// ready.
    fn start(&mut self, start: Start<'_>) -> Result<Option<Started>>;

    /// The way to rank 0 of a running group.
    fn link(&self, group: GroupShape) -> Option<&CoordinatorLink>;

    /// Ends a group that has failed, and gives the cause: a rank's own account, where it has one;
    /// else what the coordinator saw.
    fn lost(&mut self, group: GroupShape, seen: tributary_coordinator::Error) -> Error;

    /// Leaves the next signal to another thread of this process, where ranks listen to signals at
    /// all.
    fn drains(&self) {}

    /// The clients of this process that must get the error before a failure of its ranks ends it.
    /// Ranks that are threads end no process.
    fn audience(&self) -> Audience {
        Audience::default()
    }

    /// Reader of the ranks' signs of life.
    fn pulses(&self) -> Pulses;

    /// Whether ranks that have failed can be started anew.
    fn can_start_anew(&self) -> bool;

    /// Ends all groups and waits for their end; where this process does not lead, waits for rank 0
    /// to end its own.
    ///
    /// # Errors
    /// Returns the failure that ended a group before.
    fn end(&mut self) -> Result<()>;

    /// Drops all groups without waiting: they end on their own.
    fn let_go(&mut self);

    /// The seats of this process in a group of `world` ranks, for a command that makes its own
    /// calls.
    ///
    /// # Errors
    /// Returns an error if the seats are already taken.
    fn seats(&mut self, world: usize) -> Result<Vec<Seat>>;

    /// Ends this process, and the others with it, because of a failure.
    fn fail(&self, failure: &ProcessFailure) -> !;
}
