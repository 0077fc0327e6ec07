//! The place where ranks meet: one entry a call, with what each rank has put into it, and the group's first failure.
//!
//! All ranks of one process may share one, or each process has its own, with one rank and images of the others: then the
//! others' parts are brought by [`Hub::bring`].

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::call::Contribution;
use super::meeting::{Death, Meeting, Received};
use crate::wire::Phase;
use crate::{Collective, Error, Result};

/// Shared by all ranks of a group.
pub struct Hub {
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
    /// What each rank is doing.
    doing: Vec<Doing>,
    /// How many calls each rank's device has come to, where devices carry the calls' tensors, and the last one's kind if
    /// it stands in it.
    reached: Vec<(u64, Option<Collective>)>,
    /// With one rank a process: the number of the call that this rank makes next.
    next: u64,
}

/// What a rank is doing, for those who wait for it.
#[derive(Clone)]
struct Doing {
    phase: Phase,
    since: Instant,
    waits: Option<Waits>,
}

#[derive(Clone)]
struct Waits {
    operation: Collective,
    sequence: u64,
    missing: Vec<usize>,
    began: Instant,
    deadline: Duration,
}

/// How long to wait, and in what phase: for the error.
#[derive(Clone, Copy)]
pub struct Patience {
    pub phase: Phase,
    pub deadline: Duration,
}

impl Hub {
    pub fn new(world: usize) -> Self {
        let idle = Doing { phase: Phase::Start, since: Instant::now(), waits: None };
        let state = State {
            calls: BTreeMap::new(),
            left: vec![false; world],
            death: None,
            doing: vec![idle; world],
            reached: vec![(0, None); world],
            next: 0,
        };
        Self { world, state: Mutex::new(state), changed: Condvar::new() }
    }

    pub fn world(&self) -> usize {
        self.world
    }

    /// Calls that are held in memory.
    pub fn open_calls(&self) -> usize {
        self.lock().calls.len()
    }

    /// Says what a rank is doing now.
    pub fn enter(&self, rank: usize, phase: Phase) {
        let mut state = self.lock();
        let doing = &mut state.doing[rank];
        if doing.phase != phase {
            *doing = Doing { phase, since: Instant::now(), waits: None };
        }
    }

    /// What a rank is doing, in words.
    pub fn doing(&self, rank: usize) -> String {
        let state = self.lock();
        let Doing { phase, since, waits } = state.doing[rank].clone();
        let (calls, stands) = state.reached[rank];
        drop(state);
        let seconds = since.elapsed().as_secs_f64();
        match waits {
            None if stands.is_some() => {
                let name = stands.map_or("", Collective::name);
                format!("the device of rank {rank} stands in {name} (call {}, {phase})", calls.saturating_sub(1))
            }
            None => format!("rank {rank} computes, {seconds:.1} s in {phase}"),
            Some(Waits { operation, sequence, missing, .. }) => {
                let name = operation.name();
                format!("rank {rank} waits for ranks {missing:?} in {name} (call {sequence}, {phase})")
            }
        }
    }

    /// Says how many calls a rank's device has come to, and the last one's kind if it stands in it.
    pub fn reach(&self, rank: usize, calls: u64, stands: Option<Collective>) {
        let mut state = self.lock();
        // Two threads of a rank tell: what is older counts no more.
        if calls >= state.reached[rank].0 {
            state.reached[rank] = (calls, stands);
        }
    }

    /// How many calls a rank's device has come to.
    pub fn reached(&self, rank: usize) -> u64 {
        self.lock().reached[rank].0
    }

    /// Puts a rank's part into a call.
    pub fn put(&self, rank: usize, sequence: u64, part: Contribution) -> Result<()> {
        let all: Vec<usize> = (0..self.world).collect();
        self.insert(self.lock(), rank, sequence, part, &all)
    }

    /// Puts this process's part into a call; what the others take out of it is their own affair.
    pub fn put_mine(&self, rank: usize, sequence: u64, part: Contribution) -> Result<()> {
        let mut state = self.lock();
        let world = self.world;
        let meeting = state.calls.entry(sequence).or_insert_with(|| Meeting::new(world));
        for (other, finished) in meeting.finished.iter_mut().enumerate() {
            *finished = other != rank;
        }
        state.next = sequence + 1;
        let needed = part.call.needs(rank, world);
        self.insert(state, rank, sequence, part, &needed)
    }

    /// Puts another process's part into a call. A part of a call that has ended here means that the ranks disagree.
    pub fn bring(&self, from: usize, to: usize, sequence: u64, part: Contribution) {
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
        // The failure is kept: this rank's next call tells it.
        let _ = self.insert(state, from, sequence, part, &[]);
    }

    /// Puts a part in. A rank that has left is missed if it is one of the `needed`.
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

    /// Waits until a call has all that `rank` needs of it, and takes that out. When the deadline has passed, `ask` is called
    /// with the missing ranks, to say what they are doing; if they come meanwhile, all is well.
    pub fn take(
        &self,
        rank: usize,
        sequence: u64,
        patience: Patience,
        ask: &dyn Fn(&[usize]) -> Vec<String>,
    ) -> Result<Received> {
        let started = Instant::now();
        let mut states = None;
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
            let operation = call.kind();
            let (missing_now, deadline) = (missing.clone(), patience.deadline);
            let waits = Waits { operation, sequence, missing: missing_now, began: started, deadline };
            state.doing[rank].waits = Some(waits);
            if let Some(rest) = patience.deadline.checked_sub(started.elapsed()) {
                state = self.changed.wait_timeout(state, rest).unwrap_or_else(PoisonError::into_inner).0;
                continue;
            }
            let Some(states) = states.take() else {
                drop(state);
                states = Some(ask(&missing));
                state = self.lock();
                continue;
            };
            let (phase, after) = (patience.phase, patience.deadline);
            let error = Error::Timeout { rank, operation, sequence, phase, missing, states, after };
            return self.die(state, rank, Death { rank, error, counterpart: None }).map(|()| Received::default());
        }
        state.doing[rank].waits = None;
        let meeting = state.calls.get_mut(&sequence).expect("a call stays until all have finished");
        let received = meeting.take(rank);
        meeting.finished[rank] = true;
        let done = if meeting.is_over() { state.calls.remove(&sequence) } else { None };
        drop(state);
        drop(done);
        Ok(received)
    }

    /// A wait of `rank` that has lasted `grace` longer than its deadline: its thread does not run as it should.
    pub fn overdue(&self, rank: usize, grace: Duration) -> Option<Error> {
        let Doing { phase, waits, .. } = self.lock().doing[rank].clone();
        let Waits { operation, sequence, missing, began, deadline } = waits?;
        let states = vec!["nothing has ended the wait".to_owned()];
        let error = Error::Timeout { rank, operation, sequence, phase, missing, states, after: deadline };
        (began.elapsed() > deadline + grace).then_some(error)
    }

    /// Waits until the group is dead or so much time has passed; whether it is dead.
    pub fn dead_within(&self, limit: Duration) -> bool {
        let state = self.lock();
        let waited = self.changed.wait_timeout_while(state, limit, |state| state.death.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0.death.is_some()
    }

    /// Ends the group; the first cause counts. Gives the error that `rank` sees.
    pub fn kill(&self, rank: usize, error: Error) -> Error {
        let death = Death { rank, error, counterpart: None };
        let Err(error) = self.die(self.lock(), rank, death) else {
            unreachable!("a dead group answers with its cause");
        };
        error
    }

    /// Whether the group still lives, as `rank` sees it.
    pub fn alive(&self, rank: usize) -> Result<()> {
        self.lock().alive(rank)
    }

    /// Takes a rank out of the group. Calls that it has made stay good; a call that it has not made never ends.
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

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;
    use crate::group::call::{Call, Payload};

    fn barrier() -> Contribution {
        Contribution { call: Call::Barrier, payload: Payload::default() }
    }

    #[test]
    fn a_wait_that_outlives_its_deadline_is_overdue() {
        let hub = Hub::new(2);
        let (end_asking, asked) = channel::<()>();
        let patience = Patience { phase: Phase::Probe, deadline: Duration::from_millis(50) };
        std::thread::scope(|scope| {
            hub.enter(0, Phase::Probe);
            let wait = scope.spawn(|| {
                hub.put_mine(0, 0, barrier()).expect("the first call");
                // Asking hangs: what should end the wait does not.
                let ask = move |_: &[usize]| {
                    let _ = asked.recv();
                    vec!["rank 1 does not answer".to_owned()]
                };
                hub.take(0, 0, patience, &ask).map(drop)
            });
            let began = Instant::now();
            let overdue = loop {
                match hub.overdue(0, Duration::from_millis(100)) {
                    Some(error) => break error,
                    None => std::thread::sleep(Duration::from_millis(5)),
                }
                assert!(began.elapsed() < Duration::from_secs(10), "never overdue");
            };
            assert!(began.elapsed() >= Duration::from_millis(150), "{:?}", began.elapsed());
            let Error::Timeout { rank: 0, operation: Collective::Barrier, phase: Phase::Probe, missing, .. } = &overdue
            else {
                panic!("{overdue}");
            };
            assert_eq!(missing, &[1]);
            drop(end_asking);
            assert!(matches!(wait.join().expect("no panic"), Err(Error::Timeout { .. })));
        });
    }

    #[test]
    fn a_part_that_comes_while_one_asks_saves_the_call() {
        let hub = Hub::new(2);
        let patience = Patience { phase: Phase::Probe, deadline: Duration::from_millis(20) };
        hub.put_mine(0, 0, barrier()).expect("the first call");
        let ask = |_: &[usize]| {
            hub.bring(1, 0, 0, barrier());
            Vec::new()
        };
        assert!(hub.take(0, 0, patience, &ask).is_ok());
        assert!(hub.alive(0).is_ok());
        assert_eq!(hub.open_calls(), 0);
    }

    #[test]
    fn a_part_of_a_call_that_has_ended_is_a_mismatch() {
        let hub = Hub::new(2);
        let patience = Patience { phase: Phase::Probe, deadline: Duration::from_secs(5) };
        hub.put_mine(0, 0, barrier()).expect("the first call");
        hub.bring(1, 0, 0, barrier());
        hub.take(0, 0, patience, &|_| Vec::new()).expect("both have come");
        // Ahead of this rank is as it should be; behind it is not.
        hub.bring(1, 0, 1, barrier());
        assert!(hub.alive(0).is_ok());
        hub.bring(1, 0, 0, barrier());
        assert!(matches!(hub.alive(0), Err(Error::Mismatch { sequence: 0, rank: 0, other: 1, .. })));
    }

    #[test]
    fn a_rank_that_has_left_is_missed_only_where_it_is_needed() {
        let hub = Hub::new(3);
        let patience = Patience { phase: Phase::Idle, deadline: Duration::from_secs(5) };
        let bytes = || Payload { tensors: Vec::new(), bytes: Some(std::sync::Arc::new(vec![7])) };
        let call = Call::BroadcastBytes { root: 0 };
        hub.bring(0, 2, 0, Contribution { call: call.clone(), payload: bytes() });
        hub.leave(0);
        hub.leave(1);
        hub.put_mine(2, 0, Contribution { call, payload: Payload::default() }).expect("all that is needed is here");
        assert_eq!(hub.take(2, 0, patience, &|_| Vec::new()).expect("the root's bytes").bytes.len(), 1);
        let error = hub.put_mine(2, 1, barrier()).expect_err("nobody is left");
        assert_eq!((&error, error.exit_code()), (&Error::Left { rank: 0 }, 69));
    }
}
