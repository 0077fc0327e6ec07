//! A rank's membership of a group: from its seat to the moment it leaves.

use std::sync::Arc;
use std::time::Duration;

use super::Local;
use crate::group::call::Contribution;
use crate::group::hub::Hub;
use crate::group::work::Work;
use crate::group::{Behind, Outlook, Patience, Place, Received, Verdict};
use crate::{Collective, Error, Result};

/// A place in a group, to be taken on the rank's own thread. Dropping it means that the rank leaves.
pub struct Seat {
    membership: Membership,
}

/// Leaves the group when it is dropped.
pub struct Membership {
    hub: Arc<Hub>,
    rank: usize,
}

/// The seats of a new group, in rank order.
///
/// # Panics
/// If `world` is 0.
pub fn seats(world: usize) -> Vec<Seat> {
    assert!(world > 0, "a group has at least one rank");
    let hub = Arc::new(Hub::new(world));
    (0..world).map(|rank| Seat { membership: Membership { hub: Arc::clone(&hub), rank } }).collect()
}

impl Seat {
    /// This seat's rank.
    pub fn rank(&self) -> usize {
        self.membership.rank
    }

    /// The group, for a thread that watches it.
    pub fn lookout(&self) -> Lookout {
        Lookout { hub: Arc::clone(&self.membership.hub) }
    }

    /// Sits down: to be called on the thread that will make the calls.
    pub fn take(self) -> Local {
        Local::new(self.membership)
    }
}

/// The group from outside its ranks' threads: for a thread that watches them.
#[derive(Clone)]
pub struct Lookout {
    hub: Arc<Hub>,
}

impl Lookout {
    /// Ends the group if one of its ranks computes without progress for longer than it may; gives that failure.
    pub fn end_if_stalled(&self) -> Option<Error> {
        let (rank, stall) = self.hub.stall()?;
        Some(self.hub.kill(rank, stall.of(rank, String::new())))
    }

    /// The stall that has ended the group, if that was its end.
    pub fn stall(&self) -> Option<Error> {
        self.hub.cause().filter(|error| matches!(error, Error::Stalled { .. }))
    }

    /// Whether nothing can come of the group any more: it is dead, or all ranks have left.
    pub fn is_over(&self) -> bool {
        self.hub.dead_within(Duration::ZERO) || self.hub.is_empty()
    }
}

impl Membership {
    pub(super) fn hub(&self) -> &Hub {
        &self.hub
    }
}

impl Place for Membership {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world(&self) -> usize {
        self.hub.world()
    }

    fn work(&self) -> &Work {
        self.hub.work(self.rank)
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

    fn outlook(&self) -> Arc<dyn Outlook> {
        Arc::new(Window { hub: Arc::clone(&self.hub), rank: self.rank })
    }
}

/// The group from another thread of the rank.
struct Window {
    hub: Arc<Hub>,
    rank: usize,
}

impl Outlook for Window {
    fn alive(&self) -> Result<()> {
        self.hub.alive(self.rank)
    }

    fn kill(&self, error: Error) -> Error {
        self.hub.kill(self.rank, error)
    }

    fn reach(&self, calls: u64, stands: Option<Collective>) {
        self.hub.work(self.rank).reach(calls, stands);
    }

    fn behind(&self, sequence: u64) -> Behind {
        let late = |rank: &usize| self.hub.activity(*rank).reached <= sequence;
        let missing: Vec<usize> = (0..self.hub.world()).filter(late).collect();
        let states = missing.iter().map(|&rank| self.hub.activity(rank).of(rank)).collect();
        Behind { missing, states }
    }

    fn judge(&self, missing: &[usize], patience: Patience) -> Verdict {
        self.hub.judge(missing, patience)
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.kill(Error::panicked(self.rank));
        }
        self.hub.leave(self.rank);
    }
}
