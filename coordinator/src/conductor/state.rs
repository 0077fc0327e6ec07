//! The state of a conductor: the requests that wait, and those that the ranks are at.

use std::collections::BTreeMap;
use std::time::Instant;

use tributary_comm::CoordinatorLink;
use tributary_planner::{Draft, GroupShape, Planned, Planner};
use tributary_protocol::RankReport;

use super::desk::{Inbox, Submission};
use super::observer::Prefilled;
use crate::auxiliary::Readers;
use crate::dispatch::InFlight;
use crate::scheduler::{Limits, Scheduler};

/// A request that waits for its turn.
pub(super) struct Waiting {
    pub(super) submission: Submission,
    pub(super) draft: Draft,
}

/// A request that the ranks are at.
pub(super) struct Request {
    pub(super) submission: Submission,
    pub(super) planned: Planned,
    pub(super) in_flight: InFlight,
    /// When its newest token came; before the first, when its prefill began.
    pub(super) token_at: Instant,
}

/// Gives orders to a group of ranks.
pub struct Conductor<'a> {
    pub(super) link: &'a CoordinatorLink,
    pub(super) planner: &'a mut Planner,
    /// The models that read or write for requests.
    pub(super) readers: Readers,
    pub(super) group: GroupShape,
    pub(super) scheduler: Scheduler,
    pub(super) inbox: Inbox,
    /// Whether anybody can still hand in a request.
    pub(super) open: bool,
    pub(super) waiting: BTreeMap<u64, Waiting>,
    /// Requests that have been prefilled and are being decoded.
    pub(super) running: BTreeMap<u64, Request>,
}

impl<'a> Conductor<'a> {
    /// A conductor of the group whose rank 0 is at the other end of `link`.
    pub fn new(
        link: &'a CoordinatorLink,
        planner: &'a mut Planner,
        group: GroupShape,
        limits: Limits,
        inbox: Inbox,
    ) -> Self {
        inbox.counts.tally.bound(limits.max_waiting, limits.max_waiting_each);
        inbox.counts.cancel_by(link.cancels());
        let scheduler = Scheduler::new(group.world, limits);
        let (waiting, running) = (BTreeMap::new(), BTreeMap::new());
        let readers = Readers::default();
        Self { link, planner, readers, group, scheduler, inbox, open: true, waiting, running }
    }

    /// The same with models that read or write for requests.
    #[must_use]
    pub fn with_readers(self, readers: &Readers) -> Self {
        Self { readers: readers.clone(), ..self }
    }

    /// Tells clients how many wait and run. It comes before a client hears of its request's end, so that a client that has heard
    /// of it finds itself gone.
    pub(super) fn count(&self) {
        let numbers = [self.waiting.len(), self.running.len(), self.scheduler.paused()];
        self.inbox.counts.tally.set(numbers, self.scheduler.sequences());
    }

    /// Takes what the ranks say at the end of a prefill: which chunks they keep, and what has moved.
    pub(super) fn note(&mut self, request: u64, reports: &[RankReport]) {
        let stores = self.planner.note(self.group, reports);
        let plan = self.running.get(&request).map(|running| &*running.planned.plan);
        self.inbox.counts.observed.tell(|observer| Prefilled::new(plan, reports, &stores).tell(observer));
    }
}
