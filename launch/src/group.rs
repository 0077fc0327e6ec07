//! Ranks as threads of this process: one plain thread a rank, each with its own pool, sharing the model's weights, or with
//! a device and weights of its own.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tributary_comm::local;
use tributary_comm::wire::{CoordinatorLink, KeySpace, link};
use tributary_kernels::Kernels;
use tributary_worker::{ChunkCache, Error, Model, root_cause, serve};

pub use crate::carrier::Carrier;

/// How many plans may wait for rank 0.
const PLANS_WAITING: usize = 4;

/// A running group of ranks.
pub struct Group {
    link: CoordinatorLink,
    ranks: Vec<JoinHandle<Result<(), Error>>>,
}

/// How a group runs.
#[derive(Debug, Clone, Copy)]
pub struct GroupSettings {
    /// Number of ranks.
    pub world: usize,
    /// Threads a rank.
    pub threads: usize,
    /// Which implementation of the kernels runs.
    pub kernels: Kernels,
    /// Deadline of a collective between requests.
    pub timeout: Duration,
    /// Bytes of chunks that each rank keeps.
    pub chunk_cache_bytes: u64,
    /// What carries tensors.
    pub carrier: Carrier,
}

impl Group {
    /// Starts the ranks. Each has one of the `models`, in turn, and computes on its device; `space` names the chunks that
    /// they keep.
    ///
    /// # Errors
    /// The system has no thread to give.
    pub fn start(models: &[Arc<dyn Model>], space: &KeySpace, settings: GroupSettings) -> std::io::Result<Self> {
        let (link, worker_link) = link(PLANS_WAITING);
        let mut worker_link = Some(worker_link);
        let mut ranks = Vec::with_capacity(settings.world);
        for (rank, seat) in local::seats(settings.world).into_iter().enumerate() {
            let (model, link) = (models[rank % models.len()].clone(), worker_link.take());
            let pool = rayon::ThreadPoolBuilder::new()
                .num_threads(settings.threads)
                .thread_name(move |index| format!("rank-{rank}-{index}"))
                .build()
                .map_err(std::io::Error::other)?;
            let mut chunk_cache = ChunkCache::new(space.clone(), settings.chunk_cache_bytes);
            let run = move || {
                pool.install(move || {
                    let mut comm = settings.carrier.on_thread(seat, model.device())?;
                    serve(&*model, settings.kernels, &mut *comm, link.as_ref(), settings.timeout, &mut chunk_cache)
                })
            };
            ranks.push(std::thread::Builder::new().name(format!("rank-{rank}")).spawn(run)?);
        }
        Ok(Self { link, ranks })
    }

    /// The way to rank 0.
    pub fn link(&self) -> &CoordinatorLink {
        &self.link
    }

    /// Ends the ranks, and says why they ended if not because of this.
    ///
    /// # Errors
    /// The failure that ended the group.
    pub fn end(self) -> Result<(), Error> {
        drop(self.link);
        let join =
            |rank: JoinHandle<Result<(), Error>>| rank.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        root_cause(self.ranks.into_iter().map(join).collect())
    }
}
