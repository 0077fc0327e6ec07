//! Communication between ranks: collectives over tensors and bytes ([`Communicator`]), and the
//! control channel between the coordinator and rank 0 ([`link()`]). `tributary_protocol` defines
//! the messages.
//!
//! Knows no model, no method's mathematics and no cache. Backends: [`local`] (ranks as threads of
//! one process) and [`mpi`] (one process a rank, on one or more hosts; feature `mpi`). With either
//! of them, [`nccl`] carries tensors between GPUs (feature `nccl`).

pub mod conformance;
mod download;
mod error;
// Parts of it serve backends of processes only, or of devices.
#[cfg_attr(not(all(feature = "mpi", feature = "nccl")), allow(dead_code))]
mod group;
mod link;
pub mod local;
#[cfg_attr(not(feature = "mpi"), path = "mpi/absent.rs")]
pub mod mpi;
#[cfg_attr(not(feature = "nccl"), path = "nccl/absent.rs")]
pub mod nccl;
pub mod process;
mod pulse;
mod shared;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use candle_core::Tensor;
use tributary_protocol::Phase;

pub use error::{Error, Result};
use group::Patience;
pub use group::liveness::{Activity, Liveness, RankState, StepKind};
pub use group::points::Points;
pub use link::{Alarm, CoordinatorLink, Signals, WorkerLink, link};
pub use pulse::Pulse;
pub use shared::Shared;
pub use tributary_protocol::{Collective, Traffic, TrafficEntry};

/// A collective that has been started and not yet waited for. It must be given back to
/// [`Communicator::wait`] of the communicator that made it.
#[derive(Debug)]
#[must_use = "a started collective must be waited for"]
pub struct Pending {
    /// The call's place in the communicator's sequence of calls.
    pub(crate) sequence: u64,
}

/// Counters and deadline of work that other work interrupts ([`Communicator::set_aside`]).
#[derive(Debug)]
#[must_use = "what was set aside must be taken up again"]
pub struct Aside {
    pub(crate) base: usize,
    pub(crate) patience: Patience,
}

/// A call with tensors, to be started together with others ([`Communicator::start_together`]).
#[derive(Debug, Clone, Copy)]
pub enum Start<'a> {
    /// As [`Communicator::start_exchange`].
    Exchange {
        /// The tensor that goes to rank `to`.
        send: &'a Tensor,
        /// The rank that gets it.
        to: usize,
        /// The rank that sends to this one.
        from: usize,
        /// Rows that come.
        rows: usize,
    },
    /// As [`Communicator::start_all_gather_v`].
    AllGather {
        /// This rank's rows.
        send: &'a Tensor,
        /// Rows of each rank.
        rows: &'a [usize],
    },
    /// As [`Communicator::start_all_to_all_v`].
    AllToAll {
        /// The tensor that goes to each rank.
        send: &'a [Tensor],
        /// Rows that come from each rank.
        rows: &'a [usize],
    },
}

/// Number of multiprocessors of a rank's GPU that computation should leave free now, because
/// messages in flight need them. A kernel that keeps all of them would delay the messages until it
/// ends. A clone holds the same rank's number.
#[derive(Debug, Clone, Default)]
pub struct KeptFree(Arc<AtomicUsize>);

impl KeptFree {
    /// The number; 0 while no message is in flight.
    pub fn multiprocessors(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    #[cfg_attr(not(feature = "nccl"), allow(dead_code))]
    pub(crate) fn set(&self, multiprocessors: usize) {
        self.0.store(multiprocessors, Ordering::Relaxed);
    }
}

/// The calls by which a rank talks to the others. All ranks make the same calls in the same order;
/// an empty shard (a tensor with zero rows) takes every step too. A communicator lives on the
/// thread that took its seat.
///
/// Every wait ends, and a slow rank is not a dead one. After the timeout
/// ([`set_deadline`](Self::set_deadline)) a wait goes on only while another rank computes and makes
/// progress, as its [`liveness`](Self::liveness) shows. After an error the communicator is dead:
/// every later call fails with the first cause.
///
/// Tensors are row-major by token; ranks may differ only in the number of rows (dimension 0). Every
/// rank knows every other rank's number of rows before the call, from the plan or from a broadcast.
pub trait Communicator {
    /// This rank, from 0.
    fn rank(&self) -> usize;

    /// Number of ranks.
    fn size(&self) -> usize;

    /// The record of this rank's progress: a computing rank reports its steps here, which shows its
    /// progress.
    fn liveness(&self) -> Liveness;

    /// The rank's control points, at which all ranks meet, apart from the calls and never on a
    /// device's streams.
    fn points(&self) -> Points;

    /// Multiprocessors of its GPU that the rank's messages need while they are in flight.
    fn kept_free(&self) -> KeptFree {
        KeptFree::default()
    }

    /// Bytes of the rank's GPU that its messages' buffers take, measured when the ranks were
    /// connected. They are not part of the pool that tensors come from.
    fn message_bytes(&self) -> u64 {
        0
    }

    /// Names the phase that the next calls belong to and the timeout: how long a rank may compute
    /// without progress, and how long all ranks may wait for each other. In [`Phase::Start`] it is
    /// a deadline: no wait lasts longer.
    fn set_deadline(&mut self, phase: Phase, deadline: Duration);

    /// Starts several calls at once: each is a call of its own, with its own wait and its own
    /// counters, in the order given. With a backend in which every start has a cost (NCCL), calls
    /// that are started together cost one start; keys and values therefore start together. There
    /// they also end together: a wait for one is a wait for all, and its time counts for that one.
    /// All ranks start the same calls together. Each start gives one pending call.
    ///
    /// # Errors
    /// Fails as the calls do. After an error, no call of this start can be waited for.
    fn start_together(&mut self, starts: &[Start<'_>]) -> Result<Vec<Pending>>;

    /// Sends `send` to rank `to` and receives from rank `from` a tensor of `rows` rows (other
    /// dimensions and dtype as `send`'s). [`wait`](Self::wait) gives one tensor. `to` and `from`
    /// may be this rank.
    ///
    /// # Errors
    /// Returns an error if the ranks' calls differ, or if the communicator is dead.
    fn start_exchange(&mut self, send: &Tensor, to: usize, from: usize, rows: usize) -> Result<Pending> {
        Ok(only(self.start_together(&[Start::Exchange { send, to, from, rows }])?))
    }

    /// Gives every rank every rank's tensor: rank r contributes `rows[r]` rows.
    /// [`wait`](Self::wait) gives one tensor a rank, in rank order, this rank's own included.
    ///
    /// # Errors
    /// Fails as [`start_exchange`](Self::start_exchange) does, and if `send` does not have
    /// `rows[rank]` rows.
    fn start_all_gather_v(&mut self, send: &Tensor, rows: &[usize]) -> Result<Pending> {
        Ok(only(self.start_together(&[Start::AllGather { send, rows }])?))
    }

    /// Sends `send[r]` to rank r and receives a tensor of `rows[r]` rows from rank r.
    /// [`wait`](Self::wait) gives one tensor a rank, in rank order.
    ///
    /// # Errors
    /// Fails as [`start_exchange`](Self::start_exchange) does.
    fn start_all_to_all_v(&mut self, send: &[Tensor], rows: &[usize]) -> Result<Pending> {
        Ok(only(self.start_together(&[Start::AllToAll { send, rows }])?))
    }

    /// Waits for a started collective and gives the received tensors.
    ///
    /// # Errors
    /// Returns [`Error::Timeout`] if all ranks have waited for as long as the timeout,
    /// [`Error::Stalled`] if a rank computes without progress for longer than it may,
    /// [`Error::Aborted`] if a rank gave up, and [`Error::Mismatch`] if the ranks' calls differ.
    fn wait(&mut self, pending: Pending) -> Result<Vec<Tensor>>;

    /// Waits for every started call that has not been waited for, and drops the received tensors.
    /// Every rank calls it at a place where all have started the same calls: then no later call
    /// meets them.
    ///
    /// # Errors
    /// Fails as [`wait`](Self::wait) does.
    fn finish_started(&mut self) -> Result<()>;

    /// Gives every rank the bytes of rank `root`, which passes `Some`; the others pass `None`. A
    /// checksum guards them where they leave the process.
    ///
    /// # Errors
    /// Fails as [`wait`](Self::wait) does. Returns [`Error::Frame`] for a message beyond
    /// [`tributary_protocol::MESSAGE_LIMIT_BYTES`], and for bytes that were damaged on their way.
    fn broadcast_bytes(&mut self, root: usize, bytes: Option<Vec<u8>>) -> Result<Vec<u8>>;

    /// Gives rank `root` every rank's bytes, in rank order; the others get an empty list.
    ///
    /// # Errors
    /// Fails as [`broadcast_bytes`](Self::broadcast_bytes) does.
    fn gather_bytes(&mut self, root: usize, bytes: Vec<u8>) -> Result<Vec<Vec<u8>>>;

    /// Returns when every rank has called it.
    ///
    /// # Errors
    /// Fails as [`wait`](Self::wait) does.
    fn barrier(&mut self) -> Result<()>;

    /// Ends the group: every rank's waiting and later calls fail with [`Error::Aborted`], this
    /// cause and its exit code. The first cause counts.
    fn abort(&mut self, cause: &str, exit_code: u8);

    /// Begins a new lap: a call counts, and so does the wait for it, in the lap in which it is
    /// waited for. Gives the lap's number; lap 0 begins with
    /// [`reset_traffic`](Self::reset_traffic).
    fn start_lap(&mut self) -> usize;

    /// The traffic of this rank in each lap since the last [`reset_traffic`](Self::reset_traffic),
    /// per collective. Where the device waits instead of the thread, a wait is known once the
    /// device has passed it. A caller that needs all waits must first see to that.
    fn laps(&mut self) -> Vec<Traffic>;

    /// Sets the counters to zero. A wait from before that a device has not passed yet is never
    /// counted.
    fn reset_traffic(&mut self);

    /// Sets laps and deadline aside for work in between, which has counters and deadlines of its
    /// own. Every rank calls it at the same place; calls in flight stay in flight.
    fn set_aside(&mut self) -> Aside;

    /// Drops the counters of the work in between, and goes on with what was set aside.
    fn take_up(&mut self, aside: Aside);

    /// All [`laps`](Self::laps) together.
    fn traffic(&mut self) -> Traffic {
        Traffic::sum(&self.laps())
    }

    /// [`start_all_gather_v`](Self::start_all_gather_v) and [`wait`](Self::wait).
    ///
    /// # Errors
    /// Fails as those two do.
    fn all_gather_v(&mut self, send: &Tensor, rows: &[usize]) -> Result<Vec<Tensor>> {
        let pending = self.start_all_gather_v(send, rows)?;
        self.wait(pending)
    }

    /// [`start_all_to_all_v`](Self::start_all_to_all_v) and [`wait`](Self::wait).
    ///
    /// # Errors
    /// Fails as those two do.
    fn all_to_all_v(&mut self, send: &[Tensor], rows: &[usize]) -> Result<Vec<Tensor>> {
        let pending = self.start_all_to_all_v(send, rows)?;
        self.wait(pending)
    }
}

/// The call of a start that was alone.
fn only(mut started: Vec<Pending>) -> Pending {
    assert_eq!(started.len(), 1, "calls of one start");
    started.remove(0)
}
