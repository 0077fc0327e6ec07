//! A rank's membership of a group: from its seat to the moment it leaves.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::sync::Arc;

use super::hub::{Hub, Patience};
use super::{FIRST_DEADLINE, Local};
use crate::wire::Phase;
use crate::{Error, Traffic};

/// A place in a group, to be taken on the rank's own thread. Dropping it means that the rank leaves.
pub struct Seat {
    membership: Membership,
}

/// Leaves the group when it is dropped.
pub(super) struct Membership {
    pub(super) hub: Arc<Hub>,
    pub(super) rank: usize,
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
        Local {
            membership: self.membership,
            next: 0,
            patience: Patience { phase: Phase::Idle, deadline: FIRST_DEADLINE },
            started: BTreeMap::new(),
            traffic: Traffic::default(),
            stays: PhantomData,
        }
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let cause = format!("rank {} panicked", self.rank);
            let _ = self.hub.kill(self.rank, Error::Aborted { rank: self.rank, cause });
        }
        self.hub.leave(self.rank);
    }
}
