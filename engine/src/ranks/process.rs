//! This process as one rank of a group over MPI: found, watched, agreed with the others, serving,
//! and ended.

use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tributary_comm::Communicator;
use tributary_comm::mpi::{self, Ender};
use tributary_comm::process::{ProcessGroup, ProcessSettings};
use tributary_comm::{CoordinatorLink, link};
use tributary_model::Model;
use tributary_planner::{FreeMemory, StoreInventory};
use tributary_protocol::KeySpace;
use tributary_store::Store;
use tributary_worker::{ChunkCache, serve};

use super::agreement::agree;
use super::audience::Audience;
use super::backend::ProcessFailure;
use super::discover::LauncherInfo;
use super::free_memory::narrowest;
use super::group::GroupSettings;
use super::identity::Identity;
use super::inventory::inventory;
use super::pulses::Pulses;
use super::seat::Seat;
use super::watchdog::Watchdog;
use super::words::end_quietly;
use crate::beside::Beside;
use crate::config::GroupConfig;
use crate::device;
use crate::error::{Error, Result};
use crate::machine::available_bytes;

/// Maximum number of plans that wait for rank 0.
const PLANS_WAITING: usize = 4;

/// Least time for the agreement, independent of the time of loading the model.
const LEAST_LIMIT: Duration = Duration::from_secs(1);

/// Time after a deadline at which the watchdog ends overdue work.
const WATCH_GRACE: Duration = Duration::from_secs(3);

/// There is one rank in a process.
const RUNS_ALREADY: Error = Error::Bug("the rank runs already");

/// A rank's process.
pub struct Process {
    /// Launcher of the process.
    pub launcher: LauncherInfo,
    /// Facts of the group.
    pub facts: ProcessGroup,
    seat: Option<mpi::Seat>,
    ender: Ender,
    watchdog: Watchdog,
    /// When the start must be over, agreement included.
    ready_by: Instant,
    /// Memory that was free before any rank of this host had loaded anything, as far as this one
    /// can tell.
    pub available_bytes: Option<u64>,
}

impl Process {
    /// Finds the other ranks.
    ///
    /// # Errors
    /// Returns an error if MPI fails, or if the number of ranks is not the launcher's.
    pub fn find(launcher: LauncherInfo, group: &GroupConfig) -> Result<Self> {
        tracing::debug!(rank = launcher.rank, pid = std::process::id(), phase = "start", "enters");
        fail::fail_point!("engine::start");
        let (start_timeout, available_bytes) = (group.start_timeout, available_bytes());
        let piece_bytes = group.max_message_bytes as usize;
        let holding = if group.allow_shared_gpu { device::gpu_number } else { |_| 0 };
        let heartbeat_timeout = group.heartbeat_timeout;
        let threads = group.threads;
        let settings = ProcessSettings {
            start_timeout,
            heartbeat_timeout,
            threads,
            piece_bytes,
            holding,
            ..ProcessSettings::default()
        };
        let (seat, facts) = mpi::start(settings)?;
        if let Err(error) = check_world(&launcher, &facts) {
            // Every rank finds the same: one says it.
            if launcher.rank > 0 {
                end_quietly(error.exit_code());
            }
            return Err(error);
        }
        let ender = seat.ender();
        tracing::debug!(rank = facts.rank, pid = std::process::id(), phase = "load", "enters");
        let watchdog = Watchdog::start(ender.clone(), facts.rank, facts.peers.clone(), heartbeat_timeout)?;
        // This limit is longer than the agreement's own deadline, which knows which rank is
        // missing.
        watchdog.limit("the start", start_timeout + WATCH_GRACE);
        let ready_by = Instant::now() + start_timeout;
        Ok(Self { launcher, facts, seat: Some(seat), ender, watchdog, ready_by, available_bytes })
    }

    /// Leaves the next signal to another thread of this process.
    pub fn drains(&self) {
        self.watchdog.drains();
    }

    /// The clients of this process that must get the error before a failure ends it.
    pub fn audience(&self) -> Audience {
        self.watchdog.audience.clone()
    }

    /// Reader of the ranks' signs of life.
    pub fn pulses(&self) -> Pulses {
        let (pulses, ender) = (Pulses::default(), self.ender.clone());
        pulses.of(move || ender.pulses());
        pulses
    }

    /// Whether this process has the coordinator.
    pub fn leads(&self) -> bool {
        self.facts.rank == 0
    }

    /// The communicator's seat, for a command that makes its own calls.
    ///
    /// # Errors
    /// Returns an error if it is already taken.
    pub fn seat(&mut self) -> Result<Seat> {
        self.watchdog.over();
        let seat = self.seat.take().ok_or(RUNS_ALREADY)?;
        Ok(Seat::of_process(seat, self.watchdog.clone()))
    }

    /// Starts this process's rank: it agrees with the others, reports its free memory if it is the
    /// one that does so for ranks that share it, then serves plans.
    ///
    /// # Errors
    /// Returns an error if no thread can be started, or if one runs already.
    pub fn serve(
        &mut self,
        (model, beside): (&Arc<dyn Model>, Beside),
        settings: GroupSettings,
        identity: Identity,
        (free_memory, store): (Option<FreeMemory>, Option<Arc<Store>>),
    ) -> Result<Serving> {
        let GroupSettings { threads, kernels, timeout, chunk_cache_bytes, carrier, .. } = settings;
        let (coordinator, worker) = link(PLANS_WAITING);
        let link = self.leads().then_some((coordinator, worker));
        let (coordinator, worker) =
            link.map_or((None, None), |(coordinator, worker)| (Some(coordinator), Some(worker)));
        let rank = self.facts.rank;
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .thread_name(move |index| format!("rank-{rank}-{index}"))
            .build()?;
        let seat = self.seat.take().ok_or(RUNS_ALREADY)?;
        let (model, watchdog, ready_by) = (Arc::clone(model), self.watchdog.clone(), self.ready_by);
        let (tell, agreed) = mpsc::channel();
        let run = move || -> Result<()> {
            pool.install(move || {
                let mut comm = seat.take();
                let limit = || ready_by.saturating_duration_since(Instant::now()).max(LEAST_LIMIT);
                let space = identity.facts().and_then(|(facts, space)| {
                    agree(&mut comm, &facts, limit())?;
                    Ok(space)
                });
                // A rank that leaves without a word would be taken for done.
                let space = space.inspect_err(|error| comm.abort(&error.to_string(), error.exit_code()))?;
                let mut comm = carrier.on_process(comm, model.device())?;
                let free_memory = free_memory.map(|memory| memory.without(comm.message_bytes()));
                let narrowest = narrowest(&mut *comm, free_memory)?;
                let inventory = inventory(&mut *comm, store.as_deref())?;
                let agreed = Agreed { space, narrowest, inventory };
                let chunk_cache = ChunkCache::new(agreed.space.clone(), chunk_cache_bytes);
                let mut chunk_cache = chunk_cache.backed_by(store);
                // Ranks other than 0 do not listen.
                let _ = tell.send(agreed);
                watchdog.over();
                let _reach = worker.as_ref().map(|worker| watchdog.audience.reached_by(worker.alarm()));
                let models = beside.of(&*model, 0);
                serve(models, kernels, &mut *comm, worker.as_ref(), timeout, &mut chunk_cache)?;
                watchdog.leave(comm);
                Ok(())
            })
        };
        let thread = std::thread::Builder::new().name(format!("rank-{rank}")).spawn(run)?;
        Ok(Serving { link: coordinator, agreed, thread })
    }

    /// Ends the group and this process because of a failure. A failure that began on another rank
    /// is reported there.
    pub fn fail(&self, failure: &ProcessFailure) -> ! {
        let by_another = |news: &tributary_comm::Error| matches!(news, tributary_comm::Error::Aborted { rank, .. } if *rank != self.facts.rank);
        // Before it serves, a rank may have the same failure as all others, such as a missing
        // model: one reports it.
        let wait = if self.seat.is_some() { self.watchdog.turn() } else { Duration::ZERO };
        if let Some(news) = self.ender.ended_within(wait).filter(by_another) {
            end_quietly(news.exit_code());
        }
        if failure.is_told_elsewhere {
            end_quietly(failure.exit_code);
        }
        self.watchdog.end(&failure.line, failure.exit_code)
    }
}

/// Facts of each other that ranks have before the first plan.
#[derive(Debug, Clone)]
pub struct Agreed {
    /// Key space of the chunks that they keep.
    pub space: KeySpace,
    /// On rank 0: the least memory that a rank has, and that rank.
    pub narrowest: Option<(usize, FreeMemory)>,
    /// On rank 0: the contents of the ranks' stores.
    pub inventory: Vec<StoreInventory>,
}

/// A rank at work on a thread of this process.
pub struct Serving {
    link: Option<CoordinatorLink>,
    agreed: mpsc::Receiver<Agreed>,
    thread: JoinHandle<Result<()>>,
}

impl Serving {
    /// The way to rank 0, on rank 0.
    pub fn link(&self) -> Option<&CoordinatorLink> {
        self.link.as_ref()
    }

    /// Waits until the ranks are ready for plans. Absent if they failed: [`end`](Self::end) says
    /// why.
    pub fn ready(&self) -> Option<Agreed> {
        self.agreed.recv().ok()
    }

    /// Ends the group if this is rank 0, waits for its end otherwise.
    ///
    /// # Errors
    /// Returns the failure that ended the process.
    pub fn end(mut self) -> Result<()> {
        self.link = None;
        self.failed()
    }

    /// Waits for the end of a group that fails. Rank 0 keeps its orders: without them it would
    /// leave as if it had succeeded, before the failure is reported.
    ///
    /// # Errors
    /// Returns the failure that ended the process.
    pub fn failed(self) -> Result<()> {
        // The panic has been printed; here it is a failure like others, so that the group ends in
        // order.
        self.thread.join().unwrap_or_else(|_| Err(Error::Bug("a bug: the rank's thread panicked")))
    }
}

/// A library that does not know the launcher makes every process a separate world.
fn check_world(launcher: &LauncherInfo, facts: &ProcessGroup) -> Result<()> {
    let LauncherInfo { name, rank, size, local_rank } = launcher;
    if (facts.rank, facts.size) != (*rank, *size) {
        return Err(Error::configuration(format!(
            "{name} started {size} ranks, but {} sees {}: the launcher is not of the MPI that this program runs with",
            facts.library.split(',').next().unwrap_or_default(),
            facts.size
        )));
    }
    if let Some(local_rank) = local_rank.filter(|&local_rank| local_rank != facts.local_rank) {
        tracing::warn!(rank, "{name} says local rank {local_rank}, shared memory says {}", facts.local_rank);
    }
    Ok(())
}
