//! What the ranks do next: a pure function of which requests wait and which run. Prefill comes first, since the first token is what
//! this program is for, but never more prefills in a row than the burst allows while somebody's tokens are being decoded.
//!
//! Requests are taken in the order in which they came. The one in front that does not fit now waits until memory is free, and
//! so do those behind it: a large request is not starved by small ones.

use std::collections::VecDeque;

/// Limits of what runs and what waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Prefills between two steps of decoding, while any sequence is being decoded.
    pub max_prefill_burst: usize,
    /// Sequences that are decoded side by side.
    pub max_running: usize,
    /// Requests that wait.
    pub max_waiting: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { max_prefill_burst: 1, max_running: 64, max_waiting: 256 }
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

/// Which requests wait, run, and are to be released.
#[derive(Debug)]
pub struct Scheduler {
    limits: Limits,
    world: usize,
    waiting: VecDeque<u64>,
    running: Vec<Running>,
    to_release: Vec<Running>,
    /// Prefills since the last step of decoding.
    burst: usize,
    /// Whether the request in front has been asked about and does not fit beside what runs: no memory comes free before a release.
    front_waits: bool,
}

impl Scheduler {
    /// A scheduler of a group of `world` ranks that does nothing yet.
    pub fn new(world: usize, limits: Limits) -> Self {
        assert!(world > 0, "a group has at least one rank");
        let (waiting, running, to_release) = (VecDeque::new(), Vec::new(), Vec::new());
        Self { limits, world, waiting, running, to_release, burst: 0, front_waits: false }
    }

    /// A request has come; whether there is room for it among those that wait.
    pub fn submit(&mut self, request: u64) -> bool {
        let fits = self.waiting.len() < self.limits.max_waiting;
        if fits {
            self.waiting.push_back(request);
        }
        fits
    }

    /// What to do next. `fits` says whether a request has room now, beside what runs; it is asked of the one in front only, and
    /// while anything runs once between two releases.
    pub fn next(&mut self, fits: impl FnOnce(u64) -> bool) -> Next {
        if !self.to_release.is_empty() {
            return Next::Release(self.to_release.iter().map(|sequence| sequence.request).collect());
        }
        let may_burst = self.running.is_empty() || self.burst < self.limits.max_prefill_burst;
        if let Some(&request) = self.waiting.front()
            && may_burst
            && self.running.len() < self.limits.max_running.max(1)
            && !self.front_waits
        {
            if fits(request) {
                self.waiting.pop_front();
                self.burst += 1;
                return Next::Prefill(request);
            }
            self.front_waits = !self.running.is_empty();
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
        self.front_waits &= self.waiting.front() != Some(&request);
        self.waiting.retain(|&waiting| waiting != request);
        let (over, running) = self.running.drain(..).partition(|sequence| sequence.request == request);
        self.running = running;
        let over: Vec<Running> = over;
        self.to_release.extend(over);
    }

    /// The release that [`next`](Self::next) gave has ended.
    pub fn released(&mut self) {
        self.to_release.clear();
        self.front_waits = false;
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
            (1..=4).for_each(|request| assert!(scheduler.submit(request)));
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
        (1..=3).for_each(|request| assert!(scheduler.submit(request)));
        for request in 1..=3 {
            assert_eq!(scheduler.next(|_| true), Next::Prefill(request));
            scheduler.over(request);
        }
        assert_eq!(carry_out(&mut scheduler), Next::Nothing);
    }

    #[test]
    fn what_does_not_fit_waits_and_nobody_passes_it() {
        let mut scheduler = scheduler(Limits::default());
        (1..=3).for_each(|request| assert!(scheduler.submit(request)));
        assert_eq!(carry_out(&mut scheduler), Next::Prefill(1));
        assert_eq!(carry_out(&mut scheduler), Next::Decode(vec![1]));
        let only_third = |request| request == 3;
        assert_eq!(scheduler.next(only_third), Next::Decode(vec![1]));
        scheduler.over(1);
        assert_eq!(scheduler.taken(), [10, 1], "it counts until it is released");
        assert_eq!(carry_out(&mut scheduler), Next::Release(vec![1]));
        assert_eq!(scheduler.taken(), [0, 0]);
        assert_eq!(scheduler.next(only_third), Next::Nothing);
        assert_eq!(carry_out(&mut scheduler), Next::Prefill(2));
    }

    #[test]
    fn whether_the_front_fits_is_asked_once_between_two_releases() {
        let mut scheduler = scheduler(Limits::default());
        (1..=3).for_each(|request| assert!(scheduler.submit(request)));
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
        let mut scheduler = scheduler(Limits { max_running: 2, max_waiting: 3, max_prefill_burst: 9 });
        let taken: Vec<bool> = (1..=4).map(|request| scheduler.submit(request)).collect();
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
    fn a_request_that_waits_can_go() {
        let mut scheduler = scheduler(Limits::default());
        (1..=2).for_each(|request| assert!(scheduler.submit(request)));
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
