//! What the ranks do next: a pure function of which requests wait and which run. Prefill comes first, since the first token is what
//! this program is for, but never more prefills in a row than the burst allows while somebody's tokens are being decoded.
//!
//! Clients take turns by what they have asked for (start-time fair queueing, Goyal et al. 1996): one that hands in fifty long prompts does
//! not keep another's short one waiting. Requests of one client are taken in the order in which they came. The one in front that does
//! not fit now waits until memory is free; smaller ones may pass it, but only so often: a large request is not starved by small ones.
//!
//! Memory of answers is reserved in steps ([`Reservation`]): a sequence whose next step has no room pauses.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};

use tributary_planner::{Reservation, Room};

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
    /// What it takes of each rank's memory until it is released.
    reservation: Reservation,
    /// Whether it had no room for its next token in the last step of decoding.
    is_paused: bool,
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

    /// What to do next, in this room. `takes` says what a request takes while it is decoded, if its prefill has room now, beside what
    /// runs; while anything runs it is asked once of each between two releases.
    pub fn next(&mut self, room: &Room, mut takes: impl FnMut(u64) -> Option<Reservation>) -> Next {
        if !self.to_release.is_empty() {
            return Next::Release(self.to_release.iter().map(|sequence| sequence.request).collect());
        }
        let may_burst = self.running.is_empty() || self.burst < self.limits.max_prefill_burst;
        if may_burst && self.running.len() < self.limits.max_running.max(1) {
            let may_pass = self.passed < MAX_PASSED;
            for index in 0..self.waiting.len() {
                let Waiting { request, start, is_too_large } = self.waiting[index].clone();
                if !is_too_large && takes(request).is_some_and(|its| self.has_room(room, &its)) {
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
        Next::Decode(self.steps(room))
    }

    /// Whether a request can run beside what runs, however long the answers become. One that runs alone has been checked before. What
    /// comes free is the oldest's that pauses before it is a newcomer's.
    fn has_room(&self, room: &Room, its: &Reservation) -> bool {
        let oldest_paused = self.running.iter().position(|sequence| sequence.is_paused);
        let goes_on = oldest_paused.map(|index| self.running[index].reservation.with_another_step());
        let others = self.running.iter().chain(&self.to_release).enumerate();
        let others = others.filter(|(index, _)| Some(*index) != oldest_paused).map(|(_, other)| &other.reservation);
        self.running.is_empty() || room.all_can_end(others.chain(&goes_on).chain([its]))
    }

    /// The sequences that draw a token now: at least one. Those that need another step and have no room for it pause.
    fn steps(&mut self, room: &Room) -> Vec<u64> {
        let mut drawn = Vec::with_capacity(self.running.len());
        for index in 0..self.running.len() {
            self.running[index].is_paused = false;
            if self.running[index].reservation.is_at_its_end() {
                let more = self.running[index].reservation.with_another_step();
                let now = std::mem::replace(&mut self.running[index].reservation, more);
                if !room.all_can_end(self.running.iter().map(|sequence| &sequence.reservation)) {
                    self.running[index].reservation = now;
                    self.running[index].is_paused = true;
                    continue;
                }
            }
            self.running[index].reservation.writes();
            drawn.push(self.running[index].request);
        }
        // Chunks that were cached meanwhile may have taken the room of all: then the oldest goes on beyond it.
        if let (true, Some(oldest)) = (drawn.is_empty(), self.running.first_mut()) {
            oldest.reservation = oldest.reservation.with_another_step();
            oldest.reservation.writes();
            oldest.is_paused = false;
            drawn.push(oldest.request);
        }
        drawn
    }

    /// A prefill has ended and its sequence goes on.
    pub fn runs(&mut self, request: u64, reservation: Reservation) {
        assert!(self.running.iter().all(|known| known.request != request), "request {request} runs already");
        self.running.push(Running { request, reservation, is_paused: false });
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
            sequence.reservation.add_to(&mut taken);
        }
        taken
    }

    /// Sequences that each rank holds something of.
    pub fn sequences(&self) -> Vec<usize> {
        let holds = |rank: usize| {
            self.running.iter().chain(&self.to_release).filter(|sequence| sequence.reservation.bytes(rank) > 0).count()
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

    /// Those of them that wait for memory.
    pub fn paused(&self) -> usize {
        self.running.iter().filter(|sequence| sequence.is_paused).count()
    }
}
