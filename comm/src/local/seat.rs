//! A rank's membership of a group: from its seat to the moment it leaves.

use std::sync::Arc;

use super::Local;
use crate::group::call::Contribution;
use crate::group::hub::Hub;
use crate::group::{Behind, Outlook, Patience, Place, Received};
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

    /// Sits down: to be called on the thread that will make the calls.
    pub fn take(self) -> Local {
        Local::new(self.membership)
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

    fn enter(&self, patience: Patience) {
        self.hub.enter(self.rank, patience.phase);
    }

    fn alive(&self) -> Result<()> {
        self.hub.alive(self.rank)
    }

    fn put(&self, sequence: u64, part: Contribution) -> Result<()> {
        self.hub.put(self.rank, sequence, part)
    }

    fn take(&self, sequence: u64, patience: Patience) -> Result<Received> {
        let ask = |missing: &[usize]| missing.iter().map(|&rank| self.hub.doing(rank)).collect();
        self.hub.take(self.rank, sequence, patience, &ask)
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
        self.hub.reach(self.rank, calls, stands);
    }

    fn behind(&self, sequence: u64) -> Behind {
        let missing: Vec<usize> = (0..self.hub.world()).filter(|&rank| self.hub.reached(rank) <= sequence).collect();
        let states = missing.iter().map(|&rank| self.hub.doing(rank)).collect();
        Behind { missing, states }
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
