//! The ranks' next step: a pure function of waiting and running requests. Prefill comes first,
//! since the first token matters most, but no more prefills in a row than the burst allows during
//! decoding.
//!
//! Clients take turns by the cost of their requests (start-time fair queueing, Goyal et al. 1996):
//! one that submits fifty long prompts does not keep another's short one waiting. Requests of one
//! client are taken in the order of their arrival. The first one in line that does not fit now
//! waits until memory is free. Smaller ones may pass it, but only a limited number: a large request
//! is not starved by small ones. Another [`Policy`] takes the shortest request first, up to an age.
//!
//! Memory of answers is reserved in steps ([`Reservation`]): a sequence whose next step has no room
//! pauses.

mod pace;
mod policy;
#[cfg(test)]
mod policy_tests;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use tributary_planner::{Reservation, Room};

use self::policy::Standing;

pub use self::pace::Pace;
pub use self::policy::{Arrival, Policy};

/// Limits of running and waiting requests.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// Maximum prefills between two steps of decoding, while any sequence is in decoding.
    pub max_prefill_burst: usize,
    /// Maximum number of sequences in decoding at once.
    pub max_running: usize,
    /// Maximum number of waiting requests.
    pub max_waiting: usize,
    /// Maximum number of waiting requests of one client.
    pub max_waiting_each: usize,
    /// Decoding's share of the time while a prefill is in progress, from 0 to below 1: the prefill
    /// halts at control points for steps of decoding. At 0 it never halts.
    pub decode_share: f64,
    /// The time for which a prefill may compute until it halts for
    /// the first time.
    pub max_gap: Duration,
    /// Maximum bytes of kept sequences on each rank.
    pub kept_bytes: u64,
    /// Maximum bytes of held sequences on each rank; one alone may have more.
    pub held_bytes: u64,
    /// The order in which waiting requests are taken.
    pub policy: Policy,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_prefill_burst: 1,
            max_running: 64,
            max_waiting: 256,
            max_waiting_each: 192,
            decode_share: 0.5,
            max_gap: Duration::from_millis(250),
            kept_bytes: u64::MAX,
            held_bytes: u64::MAX,
            policy: Policy::Fifo,
        }
    }
}

/// The next order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// Release these sequences.
    Release(Vec<u64>),
    /// Prefill this request.
    Prefill(u64),
    /// Draw the next token of each of these.
    Decode(Vec<u64>),
    /// Nothing to do.
    Nothing,
}

/// A sequence in decoding.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Running {
    request: u64,
    /// Memory that it takes on each rank until it is released.
    reservation: Reservation,
    /// Whether it had no room for its next token in the last step of decoding.
    is_paused: bool,
}

/// Maximum number of requests that may pass one that does not fit, until it has its turn.
const MAX_PASSED: usize = 16;

/// A waiting request.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Waiting {
    request: u64,
    standing: Standing,
    /// Whether it was found not to fit beside running ones.
    is_too_large: bool,
    /// Whether its sequence is to be held, and was found to exceed the bound of those.
    is_held: bool,
    is_held_back: bool,
}

/// Requests that wait, run, or are to be released.
#[derive(Debug)]
pub struct Scheduler {
    limits: Limits,
    world: usize,
    /// Waiting requests, in the order in which they are taken at the last moment that was told.
    waiting: VecDeque<Waiting>,
    /// Place in the fair order of the request that was taken last.
    now: u64,
    /// Place of the next request of each client, if it has waiting ones.
    ends: BTreeMap<u64, u64>,
    /// Requests that have passed the first one in line.
    passed: usize,
    running: Vec<Running>,
    /// Sequences of answered requests that stay for later ones, the one used longest ago first.
    kept: Vec<Running>,
    /// Sequences that other programs read. They make way for nothing, and take no steps.
    held: Vec<Running>,
    to_release: Vec<Running>,
    /// Prefills since the last step of decoding.
    burst: usize,
    /// Most memory of the request that is being prefilled.
    prefilling: Option<Reservation>,
}

impl Scheduler {
    /// An idle scheduler of a group of `world` ranks.
    pub fn new(world: usize, limits: Limits) -> Self {
        assert!(world > 0, "a group has at least one rank");
        let (waiting, running, kept, held) = (VecDeque::new(), Vec::new(), Vec::new(), Vec::new());
        let (now, ends, to_release) = (0, BTreeMap::new(), Vec::new());
        let (passed, burst, prefilling) = (0, 0, None);
        Self { limits, world, waiting, now, ends, passed, running, kept, held, to_release, burst, prefilling }
    }

    /// Adds a client's request; returns whether there is room for it among the waiting ones.
    pub fn submit(&mut self, arrival: Arrival) -> bool {
        if self.waiting.len() >= self.limits.max_waiting {
            return false;
        }
        let Arrival { request, asker, tokens, work, at, is_held } = arrival;
        let now = self.now;
        self.ends.retain(|_, end| *end > now);
        let start = self.ends.get(&asker).copied().unwrap_or(now);
        self.ends.insert(asker, start.saturating_add(tokens.max(1)));
        let standing = Standing { start, work, at };
        self.waiting.push_back(Waiting { request, standing, is_too_large: false, is_held, is_held_back: false });
        self.line_up(at);
        true
    }

    /// Puts waiting requests in the order in which they are taken at the moment `now`.
    fn line_up(&mut self, now: Duration) {
        let policy = self.limits.policy;
        self.waiting.make_contiguous().sort_by_key(|waiting| policy.place(waiting.standing, now));
    }

    /// The next step at the moment `now`, on the clock of [arrivals](Arrival), in this room.
    /// `takes` returns the memory that a request takes during decoding, if its prefill has room now
    /// beside running ones. While anything runs it is called once for each request between two
    /// releases.
    pub fn next(&mut self, now: Duration, room: &Room, mut takes: impl FnMut(u64) -> Option<Reservation>) -> Next {
        self.prefilling = None;
        if self.releases() {
            return self.release();
        }
        let may_burst = self.running.is_empty() || self.burst < self.limits.max_prefill_burst;
        if may_burst && self.running.len() < self.limits.max_running.max(1) {
            self.line_up(now);
            if let Some(next) = self.first_that_fits(room, &mut takes) {
                return next;
            }
        }
        if self.running.is_empty() {
            return Next::Nothing;
        }
        self.burst = 0;
        self.step(room)
    }

    /// The first waiting request that has room, or the release of a kept sequence that gives it
    /// room.
    fn first_that_fits(&mut self, room: &Room, takes: &mut dyn FnMut(u64) -> Option<Reservation>) -> Option<Next> {
        let may_pass = self.passed < MAX_PASSED;
        // Those that wait until other programs have read theirs keep their order, and let others
        // pass.
        let (mut is_first, mut holds_back) = (true, false);
        for index in 0..self.waiting.len() {
            let Waiting { request, standing, is_too_large, is_held, .. } = self.waiting[index].clone();
            holds_back |= is_held && self.waiting[index].is_held_back;
            if is_held && holds_back {
                continue;
            }
            let its = if is_too_large { None } else { takes(request) };
            if is_held && its.as_ref().is_some_and(|its| !self.may_hold(its)) {
                (self.waiting[index].is_held_back, holds_back) = (true, true);
                continue;
            }
            if its.as_ref().is_some_and(|its| self.has_room(room, (its, is_held), &self.kept)) {
                self.waiting.remove(index);
                self.passed = if is_first { 0 } else { self.passed + 1 };
                self.now = self.now.max(standing.start);
                self.burst += 1;
                return Some(Next::Prefill(request));
            }
            // Kept sequences make way where that helps.
            let would_help = !is_too_large && its.is_none_or(|its| self.has_room(room, (&its, is_held), &[]));
            if is_first && would_help && self.gives_way() {
                return Some(self.release());
            }
            self.waiting[index].is_too_large = !self.running.is_empty() || !self.held.is_empty();
            if !may_pass {
                break;
            }
            is_first = false;
        }
        None
    }

    /// The room beside held sequences, and beside one that is to be held: their end is not in the
    /// scheduler's hands, so nothing counts on their memory.
    fn beside_held(&self, room: &Room, its: Option<&Reservation>) -> Room {
        let mut room = room.clone();
        self.held.iter().map(|held| &held.reservation).chain(its).for_each(|one| one.add_to(&mut room.cached_bytes));
        room
    }

    /// Whether another sequence may be held beside those that are.
    fn may_hold(&self, its: &Reservation) -> bool {
        let mut bytes = vec![0; self.world];
        self.held.iter().map(|held| &held.reservation).chain([its]).for_each(|one| one.add_to(&mut bytes));
        self.held.is_empty() || bytes.into_iter().all(|bytes| bytes <= self.limits.held_bytes)
    }

    /// The next step while the prefill that [`next`](Self::next) gave is in progress: the release
    /// of sequences that are over, or the next token of the running ones.
    pub fn beside_prefill(&mut self, room: &Room) -> Next {
        if self.releases() {
            return self.release();
        }
        if self.running.is_empty() {
            return Next::Nothing;
        }
        self.burst = 0;
        self.step(room)
    }

    /// The next tokens, or the release of a kept sequence whose memory they need.
    fn step(&mut self, room: &Room) -> Next {
        let before = (!self.kept.is_empty()).then(|| self.running.clone());
        let mut drawn = self.steps(room);
        if let Some(before) = before.filter(|_| self.paused() > 0) {
            self.running = before;
            self.gives_way();
            return self.release();
        }
        // Chunks that were cached meanwhile may have taken the room of all: then the oldest goes on
        // beyond it.
        // Held ones end without an order.
        let is_stuck = drawn.is_empty() && self.prefilling.is_none() && self.held.is_empty();
        if let (true, Some(oldest)) = (is_stuck, self.running.first_mut()) {
            oldest.reservation = oldest.reservation.with_another_step();
            oldest.reservation.writes();
            oldest.is_paused = false;
            drawn.push(oldest.request);
        }
        if drawn.is_empty() { Next::Nothing } else { Next::Decode(drawn) }
    }

    /// Whether a kept sequence made way: the one used longest ago is to be released.
    fn gives_way(&mut self) -> bool {
        let oldest = (!self.kept.is_empty()).then(|| self.kept.remove(0));
        self.to_release.extend(oldest);
        self.releases()
    }

    /// The prefill that [`next`](Self::next) gave begins; it takes this memory at most.
    pub fn prefills(&mut self, peak: Reservation) {
        self.prefilling = Some(peak);
    }

    /// Whether a request can run beside running ones, with answers of any length. A request alone
    /// has been checked before. Released memory goes to the oldest paused sequence before a
    /// newcomer.
    /// `kept` are the sequences that are kept meanwhile. Its own is to be held if `is_held`.
    fn has_room(&self, room: &Room, (its, is_held): (&Reservation, bool), kept: &[Running]) -> bool {
        let oldest_paused = self.running.iter().position(|sequence| sequence.is_paused);
        let goes_on = oldest_paused.map(|index| self.running[index].reservation.with_another_step());
        let others = self.running.iter().chain(kept).chain(&self.to_release).enumerate();
        let others = others.filter(|(index, _)| Some(*index) != oldest_paused).map(|(_, other)| &other.reservation);
        let is_alone = self.running.is_empty() && kept.is_empty() && self.held.is_empty();
        let room = self.beside_held(room, Some(its).filter(|_| is_held));
        let its = Some(its).filter(|_| !is_held);
        is_alone || room.all_can_end(others.chain(&goes_on).chain(its))
    }

    /// The sequences that draw a token now. Those that need another step and have no room for it
    /// pause.
    fn steps(&mut self, room: &Room) -> Vec<u64> {
        let room = self.beside_held(room, None);
        let mut drawn = Vec::with_capacity(self.running.len());
        for index in 0..self.running.len() {
            self.running[index].is_paused = false;
            if self.running[index].reservation.is_at_its_end() {
                let more = self.running[index].reservation.with_another_step();
                let now = std::mem::replace(&mut self.running[index].reservation, more);
                let there = self.running.iter().chain(&self.kept).map(|sequence| &sequence.reservation);
                if !room.all_can_end(there.chain(&self.prefilling)) {
                    self.running[index].reservation = now;
                    self.running[index].is_paused = true;
                    continue;
                }
            }
            self.running[index].reservation.writes();
            drawn.push(self.running[index].request);
        }
        drawn
    }

    /// A prefill has ended and its sequence goes on.
    pub fn runs(&mut self, request: u64, reservation: Reservation) {
        assert!(self.running.iter().all(|known| known.request != request), "request {request} runs already");
        self.running.push(Running { request, reservation, is_paused: false });
    }

    /// A request is over: its sequence, if it has one, is released by the next order, and counts
    /// until that has ended.
    pub fn over(&mut self, request: u64) {
        if self.waiting.front().is_some_and(|front| front.request == request) {
            self.passed = 0;
        }
        self.waiting.retain(|waiting| waiting.request != request);
        for sequences in [&mut self.running, &mut self.held] {
            self.to_release.extend(sequences.extract_if(.., |sequence| sequence.request == request));
        }
    }

    /// A sequence whose first token has been drawn stays for another program, until it is
    /// [over](Self::over).
    pub fn hold(&mut self, request: u64) {
        let held = self.running.extract_if(.., |sequence| sequence.request == request);
        self.held.extend(held.map(|held| Running { reservation: held.reservation.ended(), ..held }));
    }

    /// Whether the sequence of this request is held.
    pub fn holds(&self, request: u64) -> bool {
        self.held.iter().any(|sequence| sequence.request == request)
    }

    /// Number of held sequences.
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// A sequence in decoding is over, and stays for later requests until it has to make way;
    /// returns whether it does. One that is larger than all may be is over.
    pub fn keep(&mut self, request: u64) -> bool {
        let is_small = |sequence: &&Running| {
            (0..self.world).all(|rank| sequence.reservation.bytes(rank) <= self.limits.kept_bytes)
        };
        let mut found = self.running.iter().filter(|sequence| sequence.request == request);
        if found.find(is_small).is_none() {
            self.over(request);
            return false;
        }
        let (kept, running) = self.running.drain(..).partition(|sequence| sequence.request == request);
        self.running = running;
        let kept: Vec<Running> = kept;
        let ended = |sequence: Running| Running { reservation: sequence.reservation.ended(), ..sequence };
        self.kept.extend(kept.into_iter().map(ended));
        while self.kept_bytes() > self.limits.kept_bytes {
            self.gives_way();
        }
        true
    }

    /// A kept sequence is used: others make way before it.
    pub fn uses(&mut self, request: u64) {
        if let Some(index) = self.kept.iter().position(|sequence| sequence.request == request) {
            let used = self.kept.remove(index);
            self.kept.push(used);
        }
    }

    /// Kept sequences that are of no more use are to be released.
    pub fn drop_kept(&mut self, requests: &[u64]) {
        let (dropped, kept) = self.kept.drain(..).partition(|sequence| requests.contains(&sequence.request));
        let dropped: Vec<Running> = dropped;
        self.kept = kept;
        self.to_release.extend(dropped);
    }

    /// Memory of each kept sequence.
    pub fn kept_reservations(&self) -> BTreeMap<u64, Reservation> {
        self.kept.iter().map(|sequence| (sequence.request, sequence.reservation.clone())).collect()
    }

    /// Number of kept sequences.
    pub fn kept(&self) -> usize {
        self.kept.len()
    }

    /// Bytes of kept sequences on the rank that has most.
    fn kept_bytes(&self) -> u64 {
        let mut bytes = vec![0; self.world];
        self.kept.iter().for_each(|sequence| sequence.reservation.add_to(&mut bytes));
        bytes.into_iter().max().unwrap_or(0)
    }

    /// Whether no sequence takes memory.
    pub fn is_alone(&self) -> bool {
        self.running.is_empty() && self.kept.is_empty() && self.held.is_empty()
    }

    fn release(&self) -> Next {
        Next::Release(self.to_release.iter().map(|sequence| sequence.request).collect())
    }

    /// Whether sequences are to be released.
    pub fn releases(&self) -> bool {
        !self.to_release.is_empty()
    }

    /// The release that [`next`](Self::next) gave has ended.
    pub fn released(&mut self) {
        self.to_release.clear();
        // Memory has come free.
        self.waiting.iter_mut().for_each(|waiting| (waiting.is_too_large, waiting.is_held_back) = (false, false));
    }

    /// Bytes that sequences take on each rank.
    pub fn taken(&self) -> Vec<u64> {
        let mut taken = vec![0; self.world];
        for sequence in self.running.iter().chain(&self.kept).chain(&self.held).chain(&self.to_release) {
            sequence.reservation.add_to(&mut taken);
        }
        taken
    }

    /// Numbers of sequences that each rank holds a part of.
    pub fn sequences(&self) -> Vec<usize> {
        let holds = |rank: usize| {
            let there = self.running.iter().chain(&self.held).chain(&self.to_release);
            there.filter(|sequence| sequence.reservation.bytes(rank) > 0).count()
        };
        (0..self.world).map(holds).collect()
    }

    /// Owner of the next request: the rank whose memory sequences take least of, ties to the
    /// lowest.
    pub fn owner(&self) -> usize {
        let taken = self.taken();
        (0..self.world).min_by_key(|&rank| taken[rank]).expect("a group has at least one rank")
    }

    /// The order in which waiting requests are taken.
    pub fn policy(&self) -> Policy {
        self.limits.policy
    }

    /// Number of waiting requests.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Number of sequences in decoding.
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Number of those that wait for memory.
    pub fn paused(&self) -> usize {
        self.running.iter().filter(|sequence| sequence.is_paused).count()
    }
}
