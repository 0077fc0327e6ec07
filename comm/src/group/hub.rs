//! The place where ranks meet: one entry a call with the parts that ranks have put into it, and the
//! group's first failure.
//!
//! All ranks of one process may share one, or each process has its own, with one rank and images of
//! the others: then the others' parts are brought by [`Hub::bring`].

#[cfg(test)]
mod tests;
mod words;

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tributary_protocol::Phase;

use super::call::Contribution;
use super::gate::Gate;
use super::liveness::{Activity, Liveness, Stall};
use super::meeting::{Death, Meeting, Received};
use crate::{Collective, Error, Result};

/// Shared by all ranks of a group.
pub struct Hub {
    world: usize,
    /// The progress of each rank that runs in this process.
    livenesses: Vec<Liveness>,
    state: Mutex<State>,
    changed: Condvar,
}

pub(super) struct State {
    /// Calls that not every rank has finished, by sequence number.
    calls: BTreeMap<u64, Meeting>,
    /// Ranks that have dropped their seat.
    left: Vec<bool>,
    death: Option<Death>,
    /// With one rank a process: the number of the call that this rank makes next.
    next: u64,
    /// Which control point each rank has come to.
    pub(super) gate: Gate,
}

/// Result of a rank's look whether its wait is over.
pub(super) enum Look<T> {
    /// It is over.
    Done(T),
    /// These ranks are missing.
    Missing(Vec<usize>),
}

/// A wait of one rank.
#[derive(Clone, Copy)]
pub(super) struct Wait {
    pub rank: usize,
    pub operation: Collective,
    pub sequence: u64,
    pub patience: Patience,
}

/// The deadline of a wait, and the phase that its error names.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    pub phase: Phase,
    pub deadline: Duration,
}

/// The verdict on a wait that has lasted as long as its deadline.
#[derive(Debug)]
pub enum Verdict {
    /// A rank computes and makes progress, or may be silent, which the heartbeats find out: the
    /// wait continues.
    GoesOn,
    /// No rank can end the wait any more. The sentences have the last known activity of each
    /// missing rank.
    Over(Vec<String>),
    /// A rank of this process computes without progress.
    Stalled(Error),
}

/// A wait that has outlived its deadline is judged again after this fraction of the deadline, or
/// after this time if it is shorter.
const JUDGED_AGAIN: u32 = 8;
const JUDGED_AGAIN_AFTER: Duration = Duration::from_secs(1);

impl Hub {
    pub fn new(world: usize) -> Self {
        let state =
            State { calls: BTreeMap::new(), left: vec![false; world], death: None, next: 0, gate: Gate::new(world) };
        let livenesses = (0..world).map(|_| Liveness::default()).collect();
        Self { world, livenesses, state: Mutex::new(state), changed: Condvar::new() }
    }

    pub fn world(&self) -> usize {
        self.world
    }

    /// Calls that are held in memory.
    pub fn open_calls(&self) -> usize {
        self.lock().calls.len()
    }

    /// The record of the progress of a rank of this process.
    pub fn liveness(&self, rank: usize) -> &Liveness {
        &self.livenesses[rank]
    }

    /// Current activity of a rank of this process.
    pub fn activity(&self, rank: usize) -> Activity {
        self.livenesses[rank].activity()
    }

    /// The first rank of this process that computes without progress for longer than it may.
    pub fn stall(&self) -> Option<(usize, Stall)> {
        let left = self.left();
        let here = self.livenesses.iter().enumerate().filter(|(rank, _)| !left[*rank]);
        here.filter_map(|(rank, liveness)| Some((rank, liveness.stall()?))).next()
    }

    /// The verdict on a rank's wait, where all ranks run in this process.
    pub fn judge(&self, missing: &[usize], patience: Patience) -> Verdict {
        let states = || missing.iter().map(|&rank| self.activity(rank).of(rank)).collect();
        if patience.phase == Phase::Start {
            return Verdict::Over(states());
        }
        if let Some((rank, stall)) = self.stall() {
            return Verdict::Stalled(stall.of(rank, String::new()));
        }
        let left = self.lock().left.clone();
        let mut here = (0..self.world).filter(|&rank| !left[rank]);
        match here.all(|rank| self.activity(rank).has_waited(patience.deadline)) {
            true => Verdict::Over(states()),
            false => Verdict::GoesOn,
        }
    }

    /// Puts a rank's part into a call.
    pub fn put(&self, rank: usize, sequence: u64, part: Contribution) -> Result<()> {
        let all: Vec<usize> = (0..self.world).collect();
        self.insert(self.lock(), rank, sequence, part, &all)
    }

    /// Puts this process's part into a call; the other ranks take their copies of it in their own
    /// processes.
    pub fn put_mine(&self, rank: usize, sequence: u64, part: Contribution) -> Result<()> {
        let mut state = self.lock();
        let world = self.world;
        // Numbers may be left out: NCCL carries those calls.
        assert!(sequence >= state.next, "call {sequence} comes after {}", state.next);
        let meeting = state.calls.entry(sequence).or_insert_with(|| Meeting::new(world));
        for (other, finished) in meeting.finished.iter_mut().enumerate() {
            *finished = other != rank;
        }
        state.next = sequence + 1;
        let needed = part.call.needs(rank, world);
        self.insert(state, rank, sequence, part, &needed)
    }

    /// Puts another process's part into a call. A part of a call that has ended here means that the
    /// ranks disagree.
    pub fn bring(&self, from: usize, to: usize, sequence: u64, part: Contribution) {
        assert!(from < self.world, "a part from rank {from} of {}", self.world);
        let mut state = self.lock();
        if sequence < state.next && !state.calls.contains_key(&sequence) {
            let (found, expected) = ("a call that has ended".to_owned(), part.call.to_string());
            let error = Error::Mismatch { sequence, rank: to, found, other: from, expected };
            let death = Death { rank: to, error, counterpart: None };
            let _ = self.die(state, to, death);
            return;
        }
        let world = self.world;
        state.calls.entry(sequence).or_insert_with(|| Meeting::new(world));
        // The failure is kept: this rank's next call returns it.
        let _ = self.insert(state, from, sequence, part, &[]);
    }

    /// Puts a part in. The group ends if one of the `needed` ranks has left without making the
    /// call.
    fn insert(
        &self,
        mut state: MutexGuard<'_, State>,
        rank: usize,
        sequence: u64,
        part: Contribution,
        needed: &[usize],
    ) -> Result<()> {
        state.alive(rank)?;
        let world = self.world;
        assert!(part.call.is_of(world), "{} among {world} ranks", part.call);
        let meeting = state.calls.entry(sequence).or_insert_with(|| Meeting::new(world));
        if let Some(death) = meeting.mismatch(rank, sequence, &part.call) {
            return self.die(state, rank, death);
        }
        meeting.made[rank] = Some(part);
        let absent = meeting.absent(needed.iter().copied());
        if let Some(gone) = absent.into_iter().find(|&other| state.left[other]) {
            return self.die(state, rank, Death::left(gone));
        }
        drop(state);
        self.changed.notify_all();
        Ok(())
    }

    /// Waits until a call has all that `rank` needs of it, and takes that out. When the deadline
    /// has passed, `judge` is asked again and again with the ranks that are missing: slow is not
    /// dead. If they come meanwhile, all is well.
    pub fn take(
        &self,
        rank: usize,
        sequence: u64,
        patience: Patience,
        judge: &dyn Fn(&[usize], Patience) -> Verdict,
    ) -> Result<Received> {
        let operation = self.lock().calls.get(&sequence).map_or(Collective::Barrier, |meeting| meeting.kind_of(rank));
        let wait = Wait { rank, operation, sequence, patience };
        self.wait(wait, judge, |state| {
            let meeting = state.calls.get_mut(&sequence).expect("a call stays until all have finished");
            let call = &meeting.made[rank].as_ref().expect("the rank has made the call").call;
            let missing = meeting.absent(call.needs(rank, self.world));
            if !missing.is_empty() {
                return Look::Missing(missing);
            }
            let received = meeting.take(rank);
            meeting.finished[rank] = true;
            let done = if meeting.is_over() { state.calls.remove(&sequence) } else { None };
            Look::Done((received, done))
        })
        .map(|(received, _)| received)
    }

    /// Waits until `look` finds that the wait is over. When the deadline has passed, `judge` is
    /// asked again and again with the ranks that are missing: slow is not dead.
    pub(super) fn wait<T>(
        &self,
        wait: Wait,
        judge: &dyn Fn(&[usize], Patience) -> Verdict,
        mut look: impl FnMut(&mut State) -> Look<T>,
    ) -> Result<T> {
        let Wait { rank, operation, sequence, patience } = wait;
        let began = Instant::now();
        let mut waited = false;
        let mut rest = patience.deadline;
        let mut verdict = Verdict::GoesOn;
        let mut state = self.lock();
        loop {
            state.alive(rank)?;
            let missing = match look(&mut state) {
                Look::Missing(missing) => missing,
                Look::Done(done) => {
                    drop(state);
                    if waited {
                        self.livenesses[rank].go_on();
                    }
                    return Ok(done);
                }
            };
            if let Some(&gone) = missing.iter().find(|&&other| state.left[other]) {
                return Err(self.ended_by(state, rank, Death::left(gone)));
            }
            let error = match std::mem::replace(&mut verdict, Verdict::GoesOn) {
                Verdict::GoesOn => None,
                Verdict::Stalled(error) => Some(error),
                Verdict::Over(states) => {
                    let (phase, after, missing) = (patience.phase, patience.deadline, missing.clone());
                    Some(Error::Timeout { rank, operation, sequence, phase, missing, states, after })
                }
            };
            if let Some(error) = error {
                return Err(self.ended_by(state, rank, Death { rank, error, counterpart: None }));
            }
            waited = true;
            self.livenesses[rank].wait_for(operation, sequence, &missing, began);
            let until = rest.saturating_sub(began.elapsed());
            if !until.is_zero() {
                state = self.changed.wait_timeout(state, until).unwrap_or_else(PoisonError::into_inner).0;
                continue;
            }
            drop(state);
            verdict = judge(&missing, patience);
            rest = began.elapsed() + (patience.deadline / JUDGED_AGAIN).min(JUDGED_AGAIN_AFTER);
            state = self.lock();
        }
    }

    /// Waits until the group is dead or so much time has passed; whether it is dead.
    pub fn dead_within(&self, limit: Duration) -> bool {
        let state = self.lock();
        let waited = self.changed.wait_timeout_while(state, limit, |state| state.death.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0.death.is_some()
    }

    /// Ends the group; the first cause counts. Gives the error that `rank` sees.
    pub fn kill(&self, rank: usize, error: Error) -> Error {
        self.ended_by(self.lock(), rank, Death { rank, error, counterpart: None })
    }

    /// Ends the group; gives the error that `rank` sees.
    fn ended_by(&self, state: MutexGuard<'_, State>, rank: usize, death: Death) -> Error {
        self.die(state, rank, death).expect_err("a dead group answers with its cause")
    }

    /// Wakes the waiting threads after a change.
    pub(super) fn notify(&self) {
        self.changed.notify_all();
    }

    /// Whether the group still lives, as `rank` sees it.
    pub fn alive(&self, rank: usize) -> Result<()> {
        self.lock().alive(rank)
    }

    /// Takes a rank out of the group. Calls that it has made stay good; a call that it has not made
    /// never ends.
    pub fn leave(&self, rank: usize) {
        let mut state = self.lock();
        state.left[rank] = true;
        for meeting in state.calls.values_mut() {
            meeting.finished[rank] = true;
        }
        state.calls.retain(|_, meeting| !meeting.is_over());
        drop(state);
        self.changed.notify_all();
    }

    /// The first cause of the group's end, as the rank sees it where it began.
    pub fn cause(&self) -> Option<Error> {
        self.lock().death.as_ref().map(|death| death.error.clone())
    }

    /// Which ranks have left.
    pub fn left(&self) -> Vec<bool> {
        self.lock().left.clone()
    }

    fn die(&self, mut state: MutexGuard<'_, State>, rank: usize, death: Death) -> Result<()> {
        let first = state.death.get_or_insert(death);
        let error = first.seen_by(rank);
        // No rank can take anything out of a dead group.
        let calls = std::mem::take(&mut state.calls);
        drop(state);
        drop(calls);
        self.changed.notify_all();
        Err(error)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    pub(super) fn alive(&self, rank: usize) -> Result<()> {
        self.death.as_ref().map_or(Ok(()), |death| Err(death.seen_by(rank)))
    }
}
