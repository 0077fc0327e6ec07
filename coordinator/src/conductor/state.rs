//! The state of a conductor: waiting requests, and those in progress on the ranks.

use std::collections::BTreeMap;
use std::time::Instant;

use tributary_comm::CoordinatorLink;
use tributary_planner::{Draft, GroupShape, Planned, Planner};
use tributary_protocol::RankReport;

use super::conversations::{Conversations, Later};
use super::desk::{Inbox, Submission};
use super::observer::{Occupation, Prefilled};
use super::reads::Reads;
use crate::auxiliary::Readers;
use crate::dispatch::InFlight;
use crate::scheduler::{Limits, Pace, Scheduler};

/// A request that waits for its turn.
pub(super) struct Waiting {
    pub(super) submission: Submission,
    pub(super) draft: Draft,
    /// The same for a request that goes on from a kept sequence, as it was placed last.
    pub(super) later: Option<Later>,
}

/// A request in progress on the ranks.
pub(super) struct Request {
    pub(super) submission: Submission,
    pub(super) planned: Planned,
    pub(super) in_flight: InFlight,
    /// Arrival of its newest token; before the first, the start of its prefill.
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
    /// Decoding's share of the time beside prefills.
    pub(super) pace: Pace,
    /// The moment up to which an observer knows what the group has done.
    pub(super) known: Instant,
    /// The moment from which arrivals are counted.
    pub(super) began: Instant,
    pub(super) inbox: Inbox,
    /// Whether requests can still be submitted.
    pub(super) open: bool,
    pub(super) waiting: BTreeMap<u64, Waiting>,
    /// Requests that have been prefilled and are in decoding.
    pub(super) running: BTreeMap<u64, Request>,
    /// Sequences of answered requests that stay for later ones.
    pub(super) conversations: Conversations,
    /// Reads of held sequences that wait for their order.
    pub(super) reads: Reads,
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
        inbox.counts.cancel_by(link.signals());
        let scheduler = Scheduler::new(group.world, limits);
        let pace = Pace::new(limits.decode_share, limits.max_gap);
        let (waiting, running) = (BTreeMap::new(), BTreeMap::new());
        let (readers, conversations, reads) = (Readers::default(), Conversations::default(), Reads::default());
        let (open, began) = (true, Instant::now());
        let known = began;
        Self {
            link,
            planner,
            readers,
            group,
            scheduler,
            pace,
            known,
            began,
            inbox,
            open,
            waiting,
            running,
            conversations,
            reads,
        }
    }

    /// The same with models that read or write for requests.
    #[must_use]
    pub fn with_readers(self, readers: &Readers) -> Self {
        Self { readers: readers.clone(), ..self }
    }

    /// Publishes the numbers of waiting and running requests. This precedes the notification of a
    /// request's end, so that its client finds it gone from the counts.
    pub(super) fn count(&self) {
        let scheduler = &self.scheduler;
        let numbers = [self.waiting.len(), self.running.len(), scheduler.paused(), scheduler.kept(), scheduler.held()];
        self.inbox.counts.tally.set(numbers, self.scheduler.sequences());
    }

    /// All time since the last call was spent so.
    pub(super) fn spent(&mut self, on: Occupation) {
        let now = Instant::now();
        let time = now.saturating_duration_since(std::mem::replace(&mut self.known, now));
        self.inbox.counts.observed.tell(|observer| observer.spent(on, time));
    }

    /// Takes the ranks' reports at the end of a prefill: the chunks that they keep, and their
    /// traffic.
    pub(super) fn note(&mut self, request: u64, reports: &[RankReport]) {
        let stores = self.planner.note(self.group, reports);
        let plan = self.running.get(&request).map(|running| &*running.planned.plan);
        if let Some(plan) = plan {
            self.planner.learn(plan, reports);
        }
        self.inbox.counts.observed.tell(|observer| Prefilled::new(plan, reports, &stores).tell(observer));
    }
}
