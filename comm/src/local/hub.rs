//! The place where the ranks of one process meet: one entry a call, with what each rank has put into it.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::call::Contribution;
use super::meeting::{Death, Meeting, Received};
use crate::wire::Phase;
use crate::{Error, Result};

/// Shared by all ranks of a group.
pub(super) struct Hub {
    world: usize,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    /// Calls that not every rank has finished, by sequence number.
    calls: BTreeMap<u64, Meeting>,
    /// Ranks that have dropped their seat.
    left: Vec<bool>,
    death: Option<Death>,
}

/// How long to wait, and in what phase: for the error.
#[derive(Clone, Copy)]
pub(super) struct Patience {
    pub(super) phase: Phase,
    pub(super) deadline: Duration,
}

impl Hub {
    pub(super) fn new(world: usize) -> Self {
        let state = State { calls: BTreeMap::new(), left: vec![false; world], death: None };
        Self { world, state: Mutex::new(state), changed: Condvar::new() }
    }

    pub(super) fn world(&self) -> usize {
        self.world
    }

    /// Calls that are held in memory.
    pub(super) fn open_calls(&self) -> usize {
        self.lock().calls.len()
    }

    /// Puts a rank's part into a call.
    pub(super) fn put(&self, rank: usize, sequence: u64, part: Contribution) -> Result<()> {
        let mut state = self.lock();
        state.alive(rank)?;
        let world = self.world;
        let meeting = state.calls.entry(sequence).or_insert_with(|| Meeting::new(world));
        if let Some(death) = meeting.mismatch(rank, sequence, &part.call) {
            return self.die(state, rank, death);
        }
        meeting.made[rank] = Some(part);
        let absent = meeting.absent(0..world);
        if let Some(gone) = absent.into_iter().find(|&other| state.left[other]) {
            return self.die(state, rank, Death::left(gone));
        }
        drop(state);
        self.changed.notify_all();
        Ok(())
    }

    /// Waits until a call has all that `rank` needs of it, and takes that out.
    pub(super) fn take(&self, rank: usize, sequence: u64, patience: Patience) -> Result<Received> {
        let started = Instant::now();
        let mut state = self.lock();
        loop {
            state.alive(rank)?;
            let meeting = state.calls.get(&sequence).expect("a call stays until all have finished");
            let call = &meeting.made[rank].as_ref().expect("the rank has made the call").call;
            let missing = meeting.absent(call.needs(rank, self.world));
            if missing.is_empty() {
                break;
            }
            if let Some(&gone) = missing.iter().find(|&&other| state.left[other]) {
                return self.die(state, rank, Death::left(gone)).map(|()| Received::default());
            }
            let Some(rest) = patience.deadline.checked_sub(started.elapsed()) else {
                let error = Error::Timeout {
                    rank,
                    operation: call.kind(),
                    sequence,
                    phase: patience.phase,
                    missing,
                    after: patience.deadline,
                };
                let death = Death { rank, error, counterpart: None };
                return self.die(state, rank, death).map(|()| Received::default());
            };
            let waited = self.changed.wait_timeout(state, rest);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let meeting = state.calls.get_mut(&sequence).expect("a call stays until all have finished");
        let received = meeting.take(rank);
        meeting.finished[rank] = true;
        let done = if meeting.is_over() { state.calls.remove(&sequence) } else { None };
        drop(state);
        drop(done);
        Ok(received)
    }

    /// Ends the group; the first cause counts. Gives the error that `rank` sees.
    pub(super) fn kill(&self, rank: usize, error: Error) -> Error {
        let death = Death { rank, error, counterpart: None };
        let Err(error) = self.die(self.lock(), rank, death) else {
            unreachable!("a dead group answers with its cause");
        };
        error
    }

    /// Whether the group still lives, as `rank` sees it.
    pub(super) fn alive(&self, rank: usize) -> Result<()> {
        self.lock().alive(rank)
    }

    /// Takes a rank out of the group. Calls that it has made stay good; a call that it has not made never ends.
    pub(super) fn leave(&self, rank: usize) {
        let mut state = self.lock();
        state.left[rank] = true;
        for meeting in state.calls.values_mut() {
            meeting.finished[rank] = true;
        }
        state.calls.retain(|_, meeting| !meeting.is_over());
        drop(state);
        self.changed.notify_all();
    }

    fn die(&self, mut state: MutexGuard<'_, State>, rank: usize, death: Death) -> Result<()> {
        let first = state.death.get_or_insert(death);
        let error = first.seen_by(rank);
        // Nobody can take anything out of a dead group.
        let calls = std::mem::take(&mut state.calls);
        drop(state);
        drop(calls);
        self.changed.notify_all();
        Err(error)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn alive(&self, rank: usize) -> Result<()> {
        self.death.as_ref().map_or(Ok(()), |death| Err(death.seen_by(rank)))
    }
}
