//! The ranks of this run: threads of this process, or processes of which this is one. Only here it is asked which.

mod agreement;
mod audience;
mod backend;
mod discover;
mod free_memory;
mod group;
mod identity;
mod inventory;
mod process;
mod processes;
mod pulses;
pub mod reap;
mod seat;
mod survey;
mod threads;
mod watchdog;
mod words;

use std::ops::Range;

use tributary_comm::{mpi, nccl};
use tributary_coordinator::{GroupShape, Machine};

pub use self::audience::Attendance;
pub use self::backend::ProcessFailure;
pub(crate) use self::backend::{Backend, Start};
pub use self::discover::{LauncherInfo, launcher};
pub use self::free_memory::narrowest;
pub use self::group::{Group, GroupSettings};
pub(crate) use self::identity::Identity;
pub use self::identity::program_hash;
use self::process::Process;
use self::processes::Processes;
pub use self::pulses::Pulses;
pub use self::seat::{Seat, Seated};
use self::survey::machine;
use self::threads::Threads;
pub use self::words::refuse;
use crate::carrier::Carrier;
use crate::config::{GroupConfig, ModelConfig};
use crate::device::RankDevice;
use crate::error::Result;

/// The ranks of this run, found.
pub struct Ranks {
    backend: Box<dyn Backend>,
}

impl Ranks {
    /// Finds out which there are, and meets the others.
    ///
    /// # Errors
    /// What cannot be meant: MPI without a launcher, another number of ranks than the launcher's and their like; MPI's.
    pub fn find(group: &GroupConfig) -> Result<Self> {
        if group.allow_shared_gpu {
            // Now: the process has one thread yet. A build without NCCL has nothing to allow.
            match nccl::allow_shared_gpu() {
                Ok(()) | Err(tributary_comm::Error::NotBuilt { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let launcher = launcher();
        let built = mpi::library_version().map(drop).map_err(|error| error.to_string());
        if discover::by_mpi(group.transport, group.world, launcher.as_ref(), built)?
            && let Some(launcher) = launcher
        {
            let process = Process::find(launcher, group)?;
            return Ok(Self { backend: Box::new(Processes::new(process)) });
        }
        Ok(Self { backend: Box::new(Threads::new(group.world.unwrap_or(1))) })
    }

    pub(crate) fn backend_mut(&mut self) -> &mut dyn Backend {
        &mut *self.backend
    }

    pub(crate) fn backend(&self) -> &dyn Backend {
        &*self.backend
    }

    /// Number of ranks, where a request does not say otherwise.
    pub fn world(&self) -> usize {
        self.backend.standing().world
    }

    /// Number of ranks, where they were started as they are and no request can have others.
    pub fn fixed_world(&self) -> Option<usize> {
        let standing = self.backend.standing();
        standing.process.map(|_| standing.world)
    }

    /// This process's rank, where it is one of several.
    pub(crate) fn rank(&self) -> Option<usize> {
        self.backend.standing().process.map(|process| process.rank)
    }

    /// Number of ranks of a group for which `world` are asked.
    pub fn count(&self, world: usize) -> usize {
        self.backend.standing().ranks(world)
    }

    /// How many of a group of `world` ranks are on this host.
    pub fn here(&self, world: usize) -> usize {
        self.backend.standing().here(world)
    }

    /// How many of a group of `world` ranks are in this process.
    pub fn in_process(&self, world: usize) -> usize {
        self.backend.standing().in_process(world)
    }

    /// The numbers on this host of those.
    pub fn numbers_here(&self, world: usize) -> Range<usize> {
        let first = self.backend.standing().local_rank();
        first..first + self.in_process(world)
    }

    /// How many ranks share a GPU with this process's, of a group that sees this machine.
    pub fn sharing(&self, machine: &Machine) -> usize {
        self.backend.standing().process.map_or(machine.ranks_here, |process| process.sharing)
    }

    /// Whether this process has the coordinator.
    pub fn leads(&self) -> bool {
        self.backend.standing().leads()
    }

    /// What the ranks are: `threads of one process`, or `MPI`.
    pub fn medium(&self) -> &'static str {
        self.backend.medium()
    }

    /// Who started them, in words.
    pub fn origin(&self) -> String {
        self.backend.origin()
    }

    /// Opens the device on which this process's ranks compute.
    ///
    /// # Errors
    /// Configuration: a build without CUDA, no device, fewer devices than ranks of this host. Memory: a budget above what is
    /// free.
    pub fn open_device(&self, model: &ModelConfig, group: &GroupConfig) -> Result<RankDevice> {
        let standing = self.backend.standing();
        RankDevice::open(model, group.allow_shared_gpu, standing.local_rank(), standing.sharing())
    }

    /// What carries tensors between `world` ranks on this device.
    ///
    /// # Errors
    /// Ranks that would share a GPU, a build without NCCL, NCCL without GPUs.
    pub fn carrier(&self, group: &GroupConfig, rank_device: &RankDevice, world: usize) -> Result<Carrier> {
        Carrier::choose(group, self.fixed_world().is_some(), rank_device, world)
    }

    /// This machine, as a group of ranks on this device sees it.
    pub fn machine(&self, rank_device: &RankDevice, carrier: Carrier, group: GroupShape) -> Machine {
        machine(&*self.backend, rank_device.gpu.as_ref(), carrier, group)
    }

    /// The seats of this process in a group of `world` ranks, for a command that makes calls of its own.
    ///
    /// # Errors
    /// They are taken.
    pub fn seats(&mut self, world: usize) -> Result<Vec<Seat>> {
        self.backend.seats(world)
    }

    /// Leaves the other ranks, which have done nothing together.
    ///
    /// # Errors
    /// They run already.
    pub fn leave(&mut self) -> Result<()> {
        let own = self.in_process(1);
        self.backend.seats(own)?.into_iter().for_each(Seat::leave);
        Ok(())
    }

    /// Ends this process, and the others with it, because of a failure.
    pub fn fail(&self, failure: &ProcessFailure) -> ! {
        self.backend.fail(failure)
    }
}
