//! A rank's endpoint of a group: from its seat to the moment it leaves.

use std::sync::Arc;
use std::time::Duration;

use crate::group::call::Contribution;
use crate::group::hub::Hub;
use crate::group::liveness::Liveness;
use crate::group::points::{Passage, Points};
use crate::group::{Endpoint, GroupMonitor, LateRanks, Member, Patience, Received, Verdict};
use crate::{Collective, Error, Pulse, Result};

/// The communicator of one rank. It stays on the thread that made it.
pub type Local = Member<LocalEndpoint>;

impl Local {
    /// Calls of the group that some rank has not finished. For tests of memory.
    pub fn open_calls(&self) -> usize {
        self.endpoint().hub.open_calls()
    }
}

/// A place in a group, to be taken on the rank's own thread. Dropping it means that the rank
/// leaves.
pub struct Seat {
    endpoint: LocalEndpoint,
}

/// A rank's end of the group of threads. The rank leaves the group when this is dropped.
pub struct LocalEndpoint {
    hub: Arc<Hub>,
    rank: usize,
    points: Points,
}

/// The seats of a new group, in rank order.
///
/// # Panics
/// If `world` is 0.
pub fn seats(world: usize) -> Vec<Seat> {
    assert!(world > 0, "a group has at least one rank");
    let hub = Arc::new(Hub::new(world));
    let seat = |rank| {
        let passage = LocalMonitor { hub: Arc::clone(&hub), rank };
        Seat { endpoint: LocalEndpoint { hub: Arc::clone(&hub), rank, points: Points::new(Arc::new(passage), rank) } }
    };
    (0..world).map(seat).collect()
}

impl Seat {
    /// This seat's rank.
    pub fn rank(&self) -> usize {
        self.endpoint.rank
    }

    /// A view of the group for a thread that watches it.
    pub fn group(&self) -> LocalGroup {
        LocalGroup { hub: Arc::clone(&self.endpoint.hub) }
    }

    /// Sits down: to be called on the thread that will make the calls.
    pub fn take(self) -> Local {
        Local::new(self.endpoint)
    }
}

/// The group of threads as seen by a thread that watches the ranks.
#[derive(Clone)]
pub struct LocalGroup {
    hub: Arc<Hub>,
}

impl LocalGroup {
    /// Ends the group if one of its ranks computes without progress for longer than it may; gives
    /// that failure.
    pub fn end_if_stalled(&self) -> Option<Error> {
        let (rank, stall) = self.hub.stall()?;
        Some(self.hub.kill(rank, stall.of(rank, String::new())))
    }

    /// The stall that has ended the group, if that was its end.
    pub fn stall(&self) -> Option<Error> {
        self.hub.cause().filter(|error| matches!(error, Error::Stalled { .. }))
    }

    /// The signs of life of all ranks.
    pub fn pulses(&self) -> Vec<Pulse> {
        let lives = !self.hub.dead_within(Duration::ZERO);
        let pulse = |(rank, left): (usize, bool)| Pulse { is_up: lives && !left, age: self.hub.liveness(rank).quiet() };
        self.hub.left().into_iter().enumerate().map(pulse).collect()
    }

    /// Whether the group has ended: it is dead, or all ranks have left.
    pub fn is_over(&self) -> bool {
        self.hub.dead_within(Duration::ZERO) || self.hub.left().iter().all(|&left| left)
    }
}

impl Endpoint for LocalEndpoint {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world(&self) -> usize {
        self.hub.world()
    }

    fn liveness(&self) -> &Liveness {
        self.hub.liveness(self.rank)
    }

    fn alive(&self) -> Result<()> {
        self.hub.alive(self.rank)
    }

    fn put(&self, sequence: u64, part: Contribution) -> Result<()> {
        self.hub.put(self.rank, sequence, part)
    }

    fn take(&self, sequence: u64, patience: Patience) -> Result<Received> {
        self.hub.take(self.rank, sequence, patience, &|missing, patience| self.hub.judge(missing, patience))
    }

    fn kill(&self, error: Error) -> Error {
        self.hub.kill(self.rank, error)
    }

    fn points(&self) -> &Points {
        &self.points
    }

    fn monitor(&self) -> Arc<dyn GroupMonitor> {
        Arc::new(LocalMonitor { hub: Arc::clone(&self.hub), rank: self.rank })
    }
}

/// Ranks that are threads come to points in the hub that they share; the last of them gives the
/// word.
impl Passage for LocalMonitor {
    fn hub(&self) -> &Hub {
        &self.hub
    }

    fn arrive(&self, number: u64) {
        self.hub.arrive(self.rank, number);
    }

    fn gives_words(&self) -> bool {
        true
    }

    fn judge(&self, missing: &[usize], patience: Patience) -> Verdict {
        self.hub.judge(missing, patience)
    }
}

/// The group as seen by another thread of the rank.
struct LocalMonitor {
    hub: Arc<Hub>,
    rank: usize,
}

impl GroupMonitor for LocalMonitor {
    fn alive(&self) -> Result<()> {
        self.hub.alive(self.rank)
    }

    fn kill(&self, error: Error) -> Error {
        self.hub.kill(self.rank, error)
    }

    fn reach(&self, calls: u64, stands: Option<Collective>) {
        self.hub.liveness(self.rank).reach(calls, stands);
    }

    fn behind(&self, sequence: u64) -> LateRanks {
        let late = |rank: &usize| self.hub.activity(*rank).reached <= sequence;
        let missing: Vec<usize> = (0..self.hub.world()).filter(late).collect();
        let states = missing.iter().map(|&rank| self.hub.activity(rank).of(rank)).collect();
        LateRanks { missing, states }
    }

    fn judge(&self, missing: &[usize], patience: Patience) -> Verdict {
        self.hub.judge(missing, patience)
    }
}

impl Drop for LocalEndpoint {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.kill(Error::panicked(self.rank));
        }
        self.hub.leave(self.rank);
    }
}
