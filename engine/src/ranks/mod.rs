//! The ranks of this run: threads of this process, or processes with this one among them. Only this
//! module distinguishes the two.

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
use tributary_planner::{GroupShape, Machine};

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
    /// Returns an error if MPI fails or the settings contradict each other, such as MPI without a
    /// launcher or another number of ranks than the launcher's.
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

    /// Number of ranks, where it is fixed at the start.
    pub fn fixed_world(&self) -> Option<usize> {
        let standing = self.backend.standing();
        standing.process.map(|_| standing.world)
    }

    /// This process's rank, where it is one of several.
    pub(crate) fn rank(&self) -> Option<usize> {
        self.backend.standing().process.map(|process| process.rank)
    }

    /// Number of ranks of a group with `world` requested ranks.
    pub fn count(&self, world: usize) -> usize {
        self.backend.standing().ranks(world)
    }

    /// Number of ranks on this host in a group of `world`.
    pub fn here(&self, world: usize) -> usize {
        self.backend.standing().here(world)
    }

    /// Number of ranks in this process in a group of `world`.
    pub fn in_process(&self, world: usize) -> usize {
        self.backend.standing().in_process(world)
    }

    /// The numbers on this host of those.
    pub fn numbers_here(&self, world: usize) -> Range<usize> {
        let first = self.backend.standing().local_rank();
        first..first + self.in_process(world)
    }

    /// Number of ranks that share a GPU with this process's, in a group that sees this machine.
    pub fn sharing(&self, machine: &Machine) -> usize {
        self.backend.standing().process.map_or(machine.ranks_here, |process| process.sharing)
    }

    /// Whether this process has the coordinator.
    pub fn leads(&self) -> bool {
        self.backend.standing().leads()
    }

    /// Kind of the ranks: `threads of one process`, or `MPI`.
    pub fn medium(&self) -> &'static str {
        self.backend.medium()
    }

    /// Launcher of the ranks, in words.
    pub fn origin(&self) -> String {
        self.backend.origin()
    }

    /// Opens the device on which this process's ranks compute.
    ///
    /// # Errors
    /// Returns a configuration error if the build has no CUDA, if there is no device, or if this
    /// host has fewer devices than ranks. Returns a memory error if the budget exceeds the free
    /// memory.
    pub fn open_device(&self, model: &ModelConfig, group: &GroupConfig) -> Result<RankDevice> {
        let standing = self.backend.standing();
        RankDevice::open(model, group.allow_shared_gpu, standing.local_rank(), standing.sharing())
    }

    /// Carrier of tensors between `world` ranks on this device.
    ///
    /// # Errors
    /// Returns an error if ranks would share a GPU, if the build has no NCCL, or if NCCL has no
    /// GPUs.
    pub fn carrier(&self, group: &GroupConfig, rank_device: &RankDevice, world: usize) -> Result<Carrier> {
        Carrier::choose(group, self.fixed_world().is_some(), rank_device, world)
    }

    /// This machine, as a group of ranks on this device sees it.
    pub fn machine(&self, rank_device: &RankDevice, carrier: Carrier, group: GroupShape) -> Machine {
        machine(&*self.backend, rank_device.gpu.as_ref(), carrier, group)
    }

    /// The seats of this process in a group of `world` ranks, for a command that makes its own
    /// calls.
    ///
    /// # Errors
    /// Returns an error if the seats are already taken.
    pub fn seats(&mut self, world: usize) -> Result<Vec<Seat>> {
        self.backend.seats(world)
    }

    /// Leaves the other ranks, which have done nothing together.
    ///
    /// # Errors
    /// Returns an error if the ranks run already.
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
