//! Ranks as threads of this process: one plain thread a rank, each with its own pool; ranks share
//! the model's weights, or each has its own device and weights.

use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tributary_comm::local::{self, LocalGroup};
use tributary_comm::{Alarm, CoordinatorLink, link};
use tributary_kernels::Kernels;
use tributary_model::Model;
use tributary_protocol::{Event, KeySpace};
use tributary_store::Store;
use tributary_worker::{ChunkCache, Error, root_cause, serve};

use crate::beside::Beside;
use crate::carrier::Carrier;

/// Maximum number of plans that wait for rank 0.
const PLANS_WAITING: usize = 4;

/// Interval at which a thread looks whether ranks make progress, and whether they have ended.
const LOOK: Duration = Duration::from_millis(100);
const LOOK_FOR_END: Duration = Duration::from_millis(1);

/// Time of the other ranks to end once the group has failed because of a stuck one.
const LAST_WORK: Duration = Duration::from_secs(2);

/// A running group of ranks.
pub struct Group {
    link: CoordinatorLink,
    ranks: Vec<JoinHandle<Result<(), Error>>>,
    lookout: LocalGroup,
    message_bytes: u64,
}

/// Settings of a group.
#[derive(Debug, Clone, Copy)]
pub struct GroupSettings {
    /// Number of ranks.
    pub world: usize,
    /// Threads a rank.
    pub threads: usize,
    /// Which implementation of the kernels runs.
    pub kernels: Kernels,
    /// Longest time that a rank may compute without progress between requests, and that all ranks
    /// may wait for each other.
    pub timeout: Duration,
    /// Bytes of chunks that each rank keeps.
    pub chunk_cache_bytes: u64,
    /// Carrier of tensors.
    pub carrier: Carrier,
}

impl Group {
    /// Starts the ranks. Each has one of the `models`, in turn, and computes on its device, and
    /// rank 0 may run auxiliary ones; `space` names the chunks that they keep, in memory and in the
    /// `store`.
    ///
    /// # Errors
    /// Returns an error if no thread can be started.
    pub fn start(
        (models, beside): (&[Arc<dyn Model>], Beside),
        space: &KeySpace,
        settings: GroupSettings,
        store: Option<Arc<Store>>,
    ) -> std::io::Result<Self> {
        assert!(!models.is_empty(), "a group computes with a model");
        let copies = models.len();
        assert!(settings.world > 0, "a group has at least one rank");
        let (link, worker_link) = link(PLANS_WAITING);
        let alarm = worker_link.alarm();
        let mut worker_link = Some(worker_link);
        let mut ranks = Vec::with_capacity(settings.world);
        let seats = local::seats(settings.world);
        let lookout = seats[0].group();
        let (tell, told) = mpsc::channel();
        for (rank, seat) in seats.into_iter().enumerate() {
            let (model, link) = (models[rank % models.len()].clone(), worker_link.take());
            let pool = rayon::ThreadPoolBuilder::new()
                .num_threads(settings.threads)
                .thread_name(move |index| format!("rank-{rank}-{index}"))
                .build()
                .map_err(std::io::Error::other)?;
            let chunk_cache = ChunkCache::new(space.clone(), settings.chunk_cache_bytes);
            let mut chunk_cache = chunk_cache.backed_by(store.clone());
            let (tell, beside) = (tell.clone(), beside.clone());
            let run = move || {
                pool.install(move || {
                    let mut comm = settings.carrier.on_thread(seat, model.device())?;
                    // The receiver may be gone.
                    let _ = tell.send(comm.message_bytes());
                    drop(tell);
                    let models = beside.of(&*model, rank % copies);
                    serve(models, settings.kernels, &mut *comm, link.as_ref(), settings.timeout, &mut chunk_cache)
                })
            };
            ranks.push(std::thread::Builder::new().name(format!("rank-{rank}")).spawn(run)?);
        }
        let watched = lookout.clone();
        std::thread::Builder::new().name("watch".to_owned()).spawn(move || watch(&watched, &alarm))?;
        drop(tell);
        let message_bytes = match settings.carrier {
            Carrier::Own => 0,
            // Each rank reports it once, or ends. The first request shows the cause of an end; so
            // it does for a rank that is blocked in the driver.
            Carrier::Nccl(nccl) => {
                let until = Instant::now() + nccl.start_timeout + LAST_WORK;
                let next = || told.recv_timeout(until.saturating_duration_since(Instant::now())).ok();
                std::iter::from_fn(next).take(settings.world).max().unwrap_or(0)
            }
        };
        Ok(Self { link, ranks, lookout, message_bytes })
    }

    /// Bytes that messages' buffers take of a rank's GPU, the most of any rank.
    pub fn message_bytes(&self) -> u64 {
        self.message_bytes
    }

    /// A view of the group for an observer.
    pub fn lookout(&self) -> LocalGroup {
        self.lookout.clone()
    }

    /// The way to rank 0.
    pub fn link(&self) -> &CoordinatorLink {
        &self.link
    }

    /// Ends the ranks, and returns the cause if they had ended before. A stuck rank is abandoned:
    /// only the end of the process can end a computing thread.
    ///
    /// # Errors
    /// Returns the failure that ended the group.
    pub fn end(self) -> Result<(), Error> {
        drop(self.link);
        let mut stuck_since = None;
        while self.ranks.iter().any(|rank| !rank.is_finished()) {
            if let Some(error) = self.lookout.stall()
                && stuck_since.get_or_insert_with(Instant::now).elapsed() > LAST_WORK
            {
                return Err(error.into());
            }
            std::thread::sleep(LOOK_FOR_END);
        }
        // The panic has been printed; here it is a failure like others, so that all ends in order.
        let panicked = |_| Err(Error::Bug("the rank's thread panicked"));
        let join = |rank: JoinHandle<Result<(), Error>>| rank.join().unwrap_or_else(panicked);
        root_cause(self.ranks.into_iter().map(join).collect())
    }
}

/// Ends the group if one of its ranks computes without progress for longer than it may; watches
/// until the group cannot produce results any more. Notifies the coordinator of such an end, which
/// may wait for that very rank.
fn watch(lookout: &LocalGroup, alarm: &Alarm) {
    while !lookout.is_over() {
        lookout.end_if_stalled();
        std::thread::sleep(LOOK);
    }
    if let Some(error) = lookout.stall() {
        let (exit_code, cause) = (error.exit_code(), error.to_string());
        let rank = if let tributary_comm::Error::Stalled { rank, .. } = error { rank } else { 0 };
        // The coordinator may have gone: then the message has no receiver.
        let _ = alarm.send(Event::Failed { request: 0, rank, exit_code, cause });
    }
}
