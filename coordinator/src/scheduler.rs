//! What the ranks do next: a pure function of which requests wait and which run. Prefill comes first, since the first token is what
//! this program is for, but never more prefills in a row than the burst allows while somebody's tokens are being decoded.
//!
//! Clients take turns by what they have asked for (start-time fair queueing, Goyal et al. 1996): one that hands in fifty long prompts does
//! not keep another's short one waiting. Requests of one client are taken in the order in which they came. The one in front that does
//! not fit now waits until memory is free; smaller ones may pass it, but only so often: a large request is not starved by small ones.

use std::collections::{BTreeMap, VecDeque};

/// Limits of what runs and what waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Prefills between two steps of decoding, while any sequence is being decoded.
    pub max_prefill_burst: usize,
    /// Sequences that are decoded side by side.
    pub max_running: usize,
    /// Requests that wait.
    pub max_waiting: usize,
    /// Requests of one client that wait.
    pub max_waiting_each: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { max_prefill_burst: 1, max_running: 64, max_waiting: 256, max_waiting_each: 192 }
    }
}

/// The next order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// Let go of these sequences.
    Release(Vec<u64>),
    /// Prefill this request.
    Prefill(u64),
    /// Draw the next token of each of these.
    Decode(Vec<u64>),
    /// There is nothing to do.
    Nothing,
}

/// A sequence that is being decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Running {
    request: u64,
    /// Bytes that it takes on each rank until it is released.
    bytes: Vec<u64>,
}

/// Requests that may pass one that does not fit, until it has its turn.
const MAX_PASSED: usize = 16;

/// A request that waits.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Waiting {
    request: u64,
    /// Its place in the fair order: the smallest is next, ties in the order of arrival.
    start: u64,
    /// Whether it has been asked about and does not fit beside what runs.
    is_too_large: bool,
}

/// Which requests wait, run, and are to be released.
#[derive(Debug)]
pub struct Scheduler {
    limits: Limits,
    world: usize,
    /// In the order in which they are taken.
    waiting: VecDeque<Waiting>,
    /// The fair order's place of the request that was taken last.
    now: u64,
    /// Where the next request of each client stands, if it has handed in more than has been taken.
    ends: BTreeMap<u64, u64>,
    /// Requests that have passed the one in front.
    passed: usize,
    running: Vec<Running>,
    to_release: Vec<Running>,
    /// Prefills since the last step of decoding.
    burst: usize,
}

impl Scheduler {
    /// A scheduler of a group of `world` ranks that does nothing yet.
    pub fn new(world: usize, limits: Limits) -> Self {
        assert!(world > 0, "a group has at least one rank");
        let (waiting, running, to_release) = (VecDeque::new(), Vec::new(), Vec::new());
        let (now, ends) = (0, BTreeMap::new());
        Self { limits, world, waiting, now, ends, passed: 0, running, to_release, burst: 0 }
    }

    /// A request of a client has come, which `cost` so much (its tokens); whether there is room for it among those that wait.
    pub fn submit(&mut self, request: u64, asker: u64, cost: u64) -> bool {
        if self.waiting.len() >= self.limits.max_waiting {
            return false;
        }
        let now = self.now;
        self.ends.retain(|_, end| *end > now);
        let start = self.ends.get(&asker).copied().unwrap_or(now);
        self.ends.insert(asker, start.saturating_add(cost.max(1)));
        let place = self.waiting.partition_point(|waiting| waiting.start <= start);
        self.waiting.insert(place, Waiting { request, start, is_too_large: false });
        true
    }

    /// What to do next. `fits` says whether a request has room now, beside what runs; while anything runs it is asked once of each
    /// between two releases.
    pub fn next(&mut self, mut fits: impl FnMut(u64) -> bool) -> Next {
        if !self.to_release.is_empty() {
            return Next::Release(self.to_release.iter().map(|sequence| sequence.request).collect());
        }
        let may_burst = self.running.is_empty() || self.burst < self.limits.max_prefill_burst;
        if may_burst && self.running.len() < self.limits.max_running.max(1) {
            let may_pass = self.passed < MAX_PASSED;
            for index in 0..self.waiting.len() {
                let Waiting { request, start, is_too_large } = self.waiting[index].clone();
                if !is_too_large && fits(request) {
                    self.waiting.remove(index);
                    self.passed = if index == 0 { 0 } else { self.passed + 1 };
                    self.now = self.now.max(start);
                    self.burst += 1;
                    return Next::Prefill(request);
                }
                self.waiting[index].is_too_large = !self.running.is_empty();
                if !may_pass {
                    break;
                }
            }
        }
        if self.running.is_empty() {
            return Next::Nothing;
        }
        self.burst = 0;
        Next::Decode(self.running.iter().map(|sequence| sequence.request).collect())
    }

    /// A prefill has ended and its sequence goes on: it takes `bytes` on each rank.
    pub fn runs(&mut self, request: u64, bytes: Vec<u64>) {
        assert_eq!(bytes.len(), self.world, "ranks that a sequence takes memory of");
        assert!(self.running.iter().all(|known| known.request != request), "request {request} runs already");
        self.running.push(Running { request, bytes });
    }

    /// A request is over: its sequence, if it has one, is released by the next order, and counts until that has ended.
    pub fn over(&mut self, request: u64) {
        if self.waiting.front().is_some_and(|front| front.request == request) {
            self.passed = 0;
        }
        self.waiting.retain(|waiting| waiting.request != request);
        let (over, running) = self.running.drain(..).partition(|sequence| sequence.request == request);
        self.running = running;
        let over: Vec<Running> = over;
        self.to_release.extend(over);
    }

    /// The release that [`next`](Self::next) gave has ended.
    pub fn released(&mut self) {
        self.to_release.clear();
        // Memory has come free.
        self.waiting.iter_mut().for_each(|waiting| waiting.is_too_large = false);
    }

    /// Bytes that sequences take on each rank.
    pub fn taken(&self) -> Vec<u64> {
        let mut taken = vec![0; self.world];
        for sequence in self.running.iter().chain(&self.to_release) {
            taken.iter_mut().zip(&sequence.bytes).for_each(|(sum, bytes)| *sum += bytes);
        }
        taken
    }

    /// Sequences that each rank holds something of.
    pub fn sequences(&self) -> Vec<usize> {
        let holds = |rank: usize| {
            self.running.iter().chain(&self.to_release).filter(|sequence| sequence.bytes[rank] > 0).count()
        };
        (0..self.world).map(holds).collect()
    }

    /// The rank that the next request's query belongs to: the one whose memory sequences take least of, ties to the lowest.
    pub fn owner(&self) -> usize {
        let taken = self.taken();
        (0..self.world).min_by_key(|&rank| taken[rank]).expect("a group has at least one rank")
    }

    /// Requests that wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Sequences that are being decoded.
    pub fn running(&self) -> usize {
        self.running.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scheduler(limits: Limits) -> Scheduler {
        Scheduler::new(2, limits)
    }

    /// The next order where everything fits, and what follows from it: a prefill's sequence runs.
    fn carry_out(scheduler: &mut Scheduler) -> Next {
        let next = scheduler.next(|_| true);
        match &next {
            Next::Prefill(request) => scheduler.runs(*request, vec![10, 1]),
            Next::Release(_) => scheduler.released(),
            Next::Decode(_) | Next::Nothing => {}
        }
        next
    }

    #[test]
    fn prefills_come_first_but_not_more_than_the_burst() {
        for (burst, expected) in [(1, "PDPDPDPD"), (2, "PPDPPDDD"), (9, "PPPPDDDD")] {
            let mut scheduler = scheduler(Limits { max_prefill_burst: burst, ..Limits::default() });
            (1..=4).for_each(|request| assert!(scheduler.submit(request, 0, 1)));
            let order = |_| match carry_out(&mut scheduler) {
                Next::Prefill(_) => 'P',
                Next::Decode(_) => 'D',
                other => panic!("{other:?}"),
            };
            assert_eq!((0..8).map(order).collect::<String>(), expected, "burst {burst}");
        }
    }

    #[test]
    fn nobody_decodes_nobody_waits() {
        let mut scheduler = scheduler(Limits::default());
        assert_eq!(carry_out(&mut scheduler), Next::Nothing);
        // Prefills that leave no sequence, of one token each, follow each other.
        (1..=3).for_each(|request| assert!(scheduler.submit(request, 0, 1)));
        for request in 1..=3 {
            assert_eq!(scheduler.next(|_| true), Next::Prefill(request));
            scheduler.over(request);
        }
        assert_eq!(carry_out(&mut scheduler), Next::Nothing);
    }

    #[test]
    fn what_does_not_fit_waits_until_memory_is_free() {
        let mut scheduler = scheduler(Limits::default());
        (1..=3).for_each(|request| assert!(scheduler.submit(request, 0, 1)));
        assert_eq!(carry_out(&mut scheduler), Next::Prefill(1));
        assert_eq!(carry_out(&mut scheduler), Next::Decode(vec![1]));
        let none = |_| false;
        assert_eq!(scheduler.next(none), Next::Decode(vec![1]));
        scheduler.over(1);
        assert_eq!(scheduler.taken(), [10, 1], "it counts until it is released");
        assert_eq!(carry_out(&mut scheduler), Next::Release(vec![1]));
        assert_eq!(scheduler.taken(), [0, 0]);
        assert_eq!(scheduler.next(none), Next::Nothing);
        assert_eq!(carry_out(&mut scheduler), Next::Prefill(2));
    }

    #[test]
    fn whether_the_front_fits_is_asked_once_between_two_releases() {
        let mut scheduler = scheduler(Limits::default());
        (1..=3).for_each(|request| assert!(scheduler.submit(request, 0, 1)));
        assert_eq!(carry_out(&mut scheduler), Next::Prefill(1));
        let mut asked = Vec::new();
        let mut next = |scheduler: &mut Scheduler| {
            scheduler.next(|request| {
                asked.push(request);
                false
            })
        };
        (0..5).for_each(|_| assert_eq!(next(&mut scheduler), Next::Decode(vec![1])));
        // Another one comes to the front.
        scheduler.over(2);
        (0..5).for_each(|_| assert_eq!(next(&mut scheduler), Next::Decode(vec![1])));
        scheduler.over(1);
        assert_eq!(next(&mut scheduler), Next::Release(vec![1]));
        scheduler.released();
        assert_eq!(next(&mut scheduler), Next::Nothing);
        assert_eq!(asked, [2, 3, 3]);
    }

    #[test]
    fn limits_hold() {
        let mut scheduler =
            scheduler(Limits { max_running: 2, max_waiting: 3, max_prefill_burst: 9, ..Limits::default() });
        let taken: Vec<bool> = (1..=4).map(|request| scheduler.submit(request, 0, 1)).collect();
        assert_eq!(taken, [true, true, true, false]);
        assert_eq!(carry_out(&mut scheduler), Next::Prefill(1));
        assert_eq!(carry_out(&mut scheduler), Next::Prefill(2));
        assert_eq!(carry_out(&mut scheduler), Next::Decode(vec![1, 2]));
        scheduler.over(1);
        assert_eq!(carry_out(&mut scheduler), Next::Release(vec![1]));
        assert_eq!(carry_out(&mut scheduler), Next::Prefill(3));
        assert_eq!((scheduler.waiting(), scheduler.running()), (0, 2));
    }

    #[test]
    fn clients_take_turns_by_what_they_ask_for() {
        let mut scheduler = scheduler(Limits::default());
        // One client hands in long prompts, then another a short one, then a third two of the same length.
        (1..=6).for_each(|request| assert!(scheduler.submit(request, 1, 1000)));
        assert_eq!(scheduler.next(|_| true), Next::Prefill(1));
        assert!(scheduler.submit(7, 2, 10));
        (8..=9).for_each(|request| assert!(scheduler.submit(request, 3, 1000)));
        let order: Vec<Next> = (0..8).map(|_| scheduler.next(|_| true)).collect();
        assert_eq!(order, [7, 8, 2, 9, 3, 4, 5, 6].map(Next::Prefill));
        // Who has waited for nothing owes nothing.
        assert!(scheduler.submit(10, 1, 10) && scheduler.submit(11, 4, 10));
        assert_eq!([scheduler.next(|_| true), scheduler.next(|_| true)], [Next::Prefill(11), Next::Prefill(10)]);
    }

    #[test]
    fn small_requests_pass_a_large_one_but_only_so_often() {
        let mut scheduler = scheduler(Limits { max_running: 100, max_prefill_burst: 100, ..Limits::default() });
        scheduler.runs(1000, vec![5, 5]);
        (1..=30).for_each(|request| assert!(scheduler.submit(request, 0, 1)));
        let mut taken = Vec::new();
        while let Next::Prefill(request) = scheduler.next(|request| request != 1) {
            taken.push(request);
        }
        assert_eq!(taken, (2..2 + MAX_PASSED as u64).collect::<Vec<_>>(), "then it has its turn as soon as it fits");
        assert_eq!(scheduler.next(|_| true), Next::Decode(vec![1000]));
        scheduler.over(1000);
        assert!(matches!(scheduler.next(|_| true), Next::Release(_)));
        scheduler.released();
        assert_eq!(scheduler.next(|_| true), Next::Prefill(1));
    }

    #[test]
    fn a_request_that_waits_can_go() {
        let mut scheduler = scheduler(Limits::default());
        (1..=2).for_each(|request| assert!(scheduler.submit(request, 0, 1)));
        scheduler.over(1);
        assert_eq!(carry_out(&mut scheduler), Next::Prefill(2));
    }

    #[test]
    fn the_owner_is_the_rank_with_least_taken() {
        let mut scheduler = scheduler(Limits::default());
        assert_eq!(scheduler.owner(), 0);
        scheduler.runs(1, vec![5, 1]);
        assert_eq!(scheduler.owner(), 1);
        scheduler.runs(2, vec![1, 5]);
        assert_eq!(scheduler.owner(), 0, "level");
    }
}
