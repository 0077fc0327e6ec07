//! Ranks as processes, over MPI.
//!
//! One thread of the process owns MPI (`owner.rs`); the rank's thread leaves letters at the
//! `post::Post` and finds the others' parts there. Collectives are made of messages between
//! pairs, so that a rank knows who has not come, and long ones go in pieces. Nothing here retries:
//! after a failure the group is dead and the process must end by `std::process::exit`, because MPI
//! cannot be left in order while messages are on their way.

mod body;
mod heartbeats;
mod letter;
mod meet;
mod owner;
mod pace;
mod post;

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use candle_core::{Device, Tensor};

use self::body::Body;
pub use self::heartbeats::Silent;
use self::letter::Letter;
pub use self::meet::library_version;
use self::post::Post;
use crate::download::download;
use crate::group::call::{Call, Contribution};
use crate::group::liveness::Liveness;
use crate::group::points::Points;
use crate::group::{Endpoint, GroupMonitor, LateRanks, Member, Patience, Received, Verdict};
use crate::process::{ProcessGroup, ProcessSettings};
use crate::{Collective, Error, Pulse, Result};

/// The communicator of this process's rank.
pub type Mpi = Member<MpiEndpoint>;

/// Finds the other ranks. Once in a process's life.
///
/// # Errors
/// Returns [`Error::Start`] if the library fails, [`Error::StartTimeout`] if the ranks do not find
/// each other in time, and [`Error::Version`] if they speak different versions of the protocol.
pub fn start(settings: ProcessSettings) -> Result<(Seat, ProcessGroup)> {
    let (sender, receiver) = sync_channel(1);
    let (limit, device) = (settings.start_timeout, settings.device.clone());
    let run = move || owner::run(&settings, &sender);
    let thread = std::thread::Builder::new().name("mpi".to_owned()).spawn(run);
    let thread = thread.map_err(|error| Error::Start(format!("no thread for MPI: {error}")))?;
    let (post, group) = match receiver.recv_timeout(limit) {
        Ok(outcome) => outcome?,
        Err(RecvTimeoutError::Timeout) => return Err(Error::StartTimeout(limit)),
        Err(RecvTimeoutError::Disconnected) => return Err(Error::Start("MPI failed at its start".to_owned())),
    };
    let points = Points::new(Arc::clone(&post) as Arc<_>, post.rank);
    Ok((Seat { endpoint: MpiEndpoint { post, points, owner: Some(thread), device } }, group))
}

/// This process's place in the group, to be taken on the thread that will make the calls.
pub struct Seat {
    endpoint: MpiEndpoint,
}

impl Seat {
    /// A handle that can end the group from any thread.
    pub fn ender(&self) -> Ender {
        Ender { post: Arc::clone(&self.endpoint.post) }
    }

    /// Sits down.
    pub fn take(self) -> Mpi {
        Mpi::new(self.endpoint)
    }
}

/// Ends the group from any thread of this process, and sees how it is.
#[derive(Debug, Clone)]
pub struct Ender {
    post: Arc<Post>,
}

impl Ender {
    /// Ends the group as [`Communicator::abort`](crate::Communicator::abort) does; gives its first
    /// cause. The process must end after it.
    pub fn end(&self, cause: &str, exit_code: u8) -> Error {
        let rank = self.post.rank;
        self.post.kill(Error::Aborted { rank, cause: cause.to_owned(), exit_code })
    }

    /// Ends the group in the middle of an order: every process leaves MPI in order, even while its
    /// rank computes, and exits with code 0. This one too, soon.
    pub fn end_in_order(&self, cause: &str) {
        self.post.leave_at_once(self.post.rank, cause);
    }

    /// Whether this process leaves the group so.
    pub fn ends_in_order(&self) -> bool {
        self.post.ends_at_once()
    }

    /// The group's end, if it has come or comes within so much time.
    pub fn ended_within(&self, limit: Duration) -> Option<Error> {
        if !self.post.hub.dead_within(limit) {
            return None;
        }
        self.post.hub.alive(self.post.rank).err()
    }

    /// The failure of this process's rank, if it computes without progress for longer than it may;
    /// `words` say which process it is. The process must end then: nothing else can end the thread
    /// that computes.
    pub fn stalled(&self, words: &str) -> Option<Error> {
        if self.post.has_left() {
            return None;
        }
        let stall = self.post.hub.liveness(self.post.rank).stall()?;
        Some(stall.of(self.post.rank, format!(" ({words})")))
    }

    /// Whether all ranks have said farewell and this process's is about to leave MPI, or has left
    /// it.
    pub fn is_leaving(&self) -> bool {
        self.post.is_over()
    }

    /// The signs of life of all ranks, as this process has heard them.
    pub fn pulses(&self) -> Vec<Pulse> {
        self.post.pulses()
    }

    /// Begins to listen to the other ranks, for a thread that does so about every `pause`.
    pub fn vigil(&self, timeout: Duration, pause: Duration) -> Vigil {
        let vigil = heartbeats::Vigil::new(&self.post.heartbeats, timeout, pause);
        Vigil { post: Arc::clone(&self.post), vigil }
    }
}

/// One thread's watch over the silence of the other ranks.
pub struct Vigil {
    post: Arc<Post>,
    vigil: heartbeats::Vigil,
}

impl Vigil {
    /// Listens: the ranks that have been silent for longer than the timeout and have not left in
    /// peace.
    pub fn listen(&mut self) -> Vec<Silent> {
        self.vigil.look(&self.post.heartbeats, &self.post.in_the_group())
    }
}

impl Mpi {
    /// The same, with received tensors put on a device.
    pub fn receiving_on(mut self, device: Device) -> Self {
        self.endpoint_mut().device = device;
        self
    }
}

/// A rank's end of the backend.
pub struct MpiEndpoint {
    post: Arc<Post>,
    points: Points,
    owner: Option<JoinHandle<()>>,
    device: Device,
}

impl MpiEndpoint {
    /// The letters that carry this rank's part of a call to those who need it.
    fn letters(&self, sequence: u64, part: &Contribution) -> Result<Vec<Letter>> {
        let (rank, world) = (self.post.rank, self.post.world);
        let call = &part.call;
        if let Call::AllToAll { .. } = call {
            assert_eq!(part.payload.tensors.len(), world, "an all-to-all has one tensor a rank");
        }
        let mut letters = Vec::new();
        for to in call.goes_to(rank, world) {
            let tensor = match call {
                Call::AllToAll { .. } => part.payload.tensors[to].as_ref(),
                _ => part.payload.tensors.first().and_then(Option::as_ref),
            };
            let body = match (tensor, &part.payload.bytes) {
                (Some(tensor), _) => Body::Tensor(tensor.clone()),
                (None, Some(bytes)) => Body::Bytes(Arc::clone(bytes)),
                (None, None) => Body::None,
            };
            letters.push(Letter::call(to, sequence, call.clone(), body)?);
        }
        Ok(letters)
    }

    /// Reports a failure that began here to the other ranks.
    fn told<T>(&self, outcome: Result<T>) -> Result<T> {
        outcome.inspect_err(|error| self.post.tell(error))
    }
}

impl Endpoint for MpiEndpoint {
    fn rank(&self) -> usize {
        self.post.rank
    }

    fn world(&self) -> usize {
        self.post.world
    }

    fn liveness(&self) -> &Liveness {
        self.post.hub.liveness(self.post.rank)
    }

    fn alive(&self) -> Result<()> {
        self.post.hub.alive(self.post.rank)
    }

    fn put(&self, sequence: u64, mut part: Contribution) -> Result<()> {
        self.alive()?;
        download(part.payload.tensors.iter_mut().flatten()).map_err(|error| self.kill(error.into()))?;
        let letters = self.letters(sequence, &part).map_err(|error| self.kill(error))?;
        self.told(self.post.hub.put_mine(self.post.rank, sequence, part))?;
        // A test can lose this rank's messages on their way.
        fail::fail_point!("comm::mpi::lose", |_| Ok(()));
        self.post.send(letters);
        Ok(())
    }

    fn take(&self, sequence: u64, patience: Patience) -> Result<Received> {
        let judge = |missing: &[usize], patience: Patience| self.post.judge(missing, patience);
        self.post.wait(true);
        let received = self.post.hub.take(self.post.rank, sequence, patience, &judge);
        self.post.wait(false);
        let mut received = self.told(received)?;
        let place = |tensor: &Tensor| tensor.to_device(&self.device);
        let placed = received.tensors.iter().map(place).collect::<candle_core::Result<_>>();
        received.tensors = placed.map_err(|error| self.kill(error.into()))?;
        Ok(received)
    }

    fn kill(&self, error: Error) -> Error {
        self.post.kill(error)
    }

    fn points(&self) -> &Points {
        &self.points
    }

    fn monitor(&self) -> Arc<dyn GroupMonitor> {
        Arc::clone(&self.post) as Arc<dyn GroupMonitor>
    }
}

impl GroupMonitor for Post {
    fn alive(&self) -> Result<()> {
        self.hub.alive(self.rank)
    }

    fn kill(&self, error: Error) -> Error {
        self.kill(error)
    }

    fn reach(&self, calls: u64, stands: Option<Collective>) {
        self.hub.liveness(self.rank).reach(calls, stands);
    }

    fn behind(&self, sequence: u64) -> LateRanks {
        self.behind(sequence)
    }

    fn judge(&self, missing: &[usize], patience: Patience) -> Verdict {
        self.judge(missing, patience)
    }
}

impl Drop for MpiEndpoint {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.kill(Error::panicked(self.post.rank));
        }
        if self.alive().is_err() {
            // The owner's requests cannot be completed any more, and must not be dropped: the
            // process ends with them.
            return;
        }
        self.post.leave();
        if let Some(owner) = self.owner.take() {
            // If it panicked, MPI has ended the process.
            let _ = owner.join();
        }
    }
}
