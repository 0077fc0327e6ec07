//! The post: where the rank's thread and the thread that owns MPI meet.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tributary_protocol::{Phase, Word};

use super::heartbeats::Heartbeats;
use super::letter::{Kind, Letter};
use crate::group::hub::Hub;
use crate::group::points::Passage;
use crate::group::{LateRanks, Patience, Verdict};
use crate::{Error, Pulse, Result};

/// The time by which a rank lets each lower rank speak first, where all have the same to say, and
/// the longest such wait.
const TURN: Duration = Duration::from_millis(50);
const LONGEST_TURN: Duration = Duration::from_millis(600);

/// The longest time that a rank which ends waits for the news to leave.
const TELL_LIMIT: Duration = Duration::from_millis(300);

/// Shared by the rank's thread and the owner of MPI.
pub struct Post {
    /// This rank's calls and the others' parts in them.
    pub hub: Hub,
    pub rank: usize,
    pub world: usize,
    /// Signs of life.
    pub heartbeats: Heartbeats,
    outbox: Mutex<Outbox>,
    changed: Condvar,
    /// Whether the rank's thread waits for a part.
    waited_for: AtomicBool,
}

#[derive(Default)]
struct Outbox {
    letters: Vec<Letter>,
    /// Short letters that overtake the others.
    urgent: Vec<Letter>,
    /// Numbers of urgent letters that have been handed over, and that have left.
    urgent_handed: usize,
    urgent_left: usize,
    /// Whether the group's end has been written to the others.
    told: bool,
    /// Whether each rank has left in peace.
    farewells: Vec<bool>,
    leaving: bool,
    /// Whether the process ends as soon as it has left, even while it computes.
    ends_at_once: bool,
    /// Whether the rank's thread has begun to wait since the last rest.
    looks_at_once: bool,
}

impl Outbox {
    fn hand_over_urgent(&mut self, letters: Vec<Letter>) {
        self.urgent_handed += letters.len();
        self.urgent.extend(letters);
    }
}

impl Post {
    pub fn new(rank: usize, world: usize, heartbeat_timeout: Duration) -> Self {
        let farewells = (0..world).map(|other| other == rank).collect();
        let outbox = Mutex::new(Outbox { farewells, ..Outbox::default() });
        let (hub, heartbeats) = (Hub::new(world), Heartbeats::new(world, heartbeat_timeout));
        Self { hub, rank, world, heartbeats, outbox, changed: Condvar::new(), waited_for: AtomicBool::new(false) }
    }

    /// Hands letters over.
    pub fn send(&self, letters: Vec<Letter>) {
        if letters.is_empty() {
            return;
        }
        self.outbox().letters.extend(letters);
        self.changed.notify_all();
    }

    /// Hands letters over that overtake the others.
    pub fn send_urgently(&self, letters: Vec<Letter>) {
        self.outbox().hand_over_urgent(letters);
        self.changed.notify_all();
    }

    /// Says whether the rank's thread waits. The owner of MPI looks at once where it begins to.
    pub fn wait(&self, waits: bool) {
        self.waited_for.store(waits, Ordering::Relaxed);
        if waits {
            self.outbox().looks_at_once = true;
            self.changed.notify_all();
        }
    }

    pub fn is_waited_for(&self) -> bool {
        self.waited_for.load(Ordering::Relaxed)
    }

    /// Ends the group, notifies the other ranks, and gives the error that this rank sees.
    pub fn kill(&self, error: Error) -> Error {
        let seen = self.hub.kill(self.rank, error);
        self.tell(&seen);
        seen
    }

    /// Takes a failure that the owner of MPI has found, and announces it without waiting: the owner
    /// itself sends the letters.
    pub fn found(&self, error: Error) {
        let seen = self.hub.kill(self.rank, error);
        self.announce(&seen);
    }

    /// Writes a failure that began here to the others, once, and waits until the letters have left.
    /// A second caller waits too, because the process may end after either call.
    pub fn tell(&self, error: &Error) {
        let Some(handed) = self.announce(error) else { return };
        let waits = |outbox: &mut Outbox| outbox.urgent_left < handed;
        let waited = self.changed.wait_timeout_while(self.outbox(), TELL_LIMIT, waits);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// Hands over the news of a failure that began here, once. Gives the number of urgent letters
    /// that must have left before the other ranks know of it.
    fn announce(&self, error: &Error) -> Option<usize> {
        let (cause, exit_code) = match error {
            Error::Aborted { rank, .. } if *rank != self.rank => return None,
            Error::Aborted { cause, exit_code, .. } => (cause.clone(), *exit_code),
            other => (other.to_string(), other.exit_code()),
        };
        let mut outbox = self.outbox();
        if !std::mem::replace(&mut outbox.told, true) {
            let letter = |to| Letter::abort(to, &cause, exit_code);
            outbox.hand_over_urgent(self.others().map(letter).collect());
        }
        let handed = outbox.urgent_handed;
        drop(outbox);
        self.changed.notify_all();
        Some(handed)
    }

    /// Sends this rank's activity to all others, if it is due. In a dead group it sends nothing:
    /// sending to an ended rank would block for long.
    pub fn beat(&self) {
        fail::fail_point!("comm::mpi::beat", |_| ());
        if self.world == 1 || !self.heartbeats.is_due(self.hub.liveness(self.rank).phase()) {
            return;
        }
        if self.hub.alive(self.rank).is_ok() {
            let activity = self.hub.activity(self.rank);
            self.send_urgently(self.others().map(|to| Letter::beat(to, &activity)).collect());
        }
    }

    /// Notes that a rank has arrived at a control point. Once all have, rank 0 gives the word and
    /// sends it to the others.
    pub fn comes_to(&self, rank: usize, number: u64) {
        if let Some((number, word)) = self.hub.arrive(rank, number) {
            self.send_urgently(self.others().map(|to| Letter::word(to, number, word)).collect());
        }
    }

    /// The ranks whose device has not come to a call, by their last signs of life.
    pub fn behind(&self, sequence: u64) -> LateRanks {
        let late = |rank: &usize| self.heartbeats.last(*rank).is_none_or(|last| last.reached <= sequence);
        let missing: Vec<usize> = self.others().filter(late).collect();
        LateRanks { states: self.states(&missing), missing }
    }

    /// The verdict on this rank's wait for `missing`, which has lasted as long as its deadline.
    /// Ranks that are silent are not looked for here: the thread that keeps a vigil finds them.
    pub fn judge(&self, missing: &[usize], patience: Patience) -> Verdict {
        let all_wait = || {
            let waits = |rank| self.heartbeats.last(rank).is_some_and(|last| last.has_waited(patience.deadline));
            self.in_the_group().into_iter().all(waits)
        };
        if patience.phase != Phase::Start && !all_wait() {
            return Verdict::GoesOn;
        }
        // All ranks that wait come to the same verdict at the same time: the lowest of them speaks
        // for all.
        self.hub.dead_within((TURN * u32::try_from(self.rank).unwrap_or(u32::MAX)).min(LONGEST_TURN));
        Verdict::Over(self.states(missing))
    }

    /// Last message of each of these ranks, one sentence each.
    fn states(&self, ranks: &[usize]) -> Vec<String> {
        let state = |&rank: &usize| match self.heartbeats.last(rank) {
            Some(last) => last.of(rank),
            None => format!("rank {rank} has never been heard"),
        };
        ranks.iter().map(state).collect()
    }

    /// The other ranks that have not left.
    pub fn in_the_group(&self) -> BTreeSet<usize> {
        let outbox = self.outbox();
        self.others().filter(|&rank| !outbox.farewells[rank]).collect()
    }

    /// The signs of life of all ranks, as this process has heard them.
    pub fn pulses(&self) -> Vec<Pulse> {
        let (lives, there) = (!self.hub.dead_within(Duration::ZERO), self.in_the_group());
        let pulse = |rank| match rank == self.rank {
            true => Pulse { is_up: lives && !self.has_left(), age: Duration::ZERO },
            false => {
                let age = self.heartbeats.age(rank);
                Pulse { is_up: lives && there.contains(&rank) && age <= self.heartbeats.patience(), age }
            }
        };
        (0..self.world).map(pulse).collect()
    }

    /// Says farewell to the other ranks, after everything that was sent before.
    pub fn leave(&self) {
        let letters = self.others().map(|to| Letter::bare(to, Kind::Farewell)).collect();
        self.send(letters);
        self.outbox().leaving = true;
        self.changed.notify_all();
    }

    /// Leaves the group in order and in the middle of an order: its thread, which may compute for
    /// long, is not waited for. Every process does so where one does.
    pub fn leave_at_once(&self, from: usize, cause: &str) {
        if std::mem::replace(&mut self.outbox().ends_at_once, true) {
            return;
        }
        // Nothing is sent after the farewell.
        self.found(Error::Aborted { rank: from, cause: cause.to_owned(), exit_code: 0 });
        self.leave();
    }

    /// Whether the process ends as soon as it has left.
    pub fn ends_at_once(&self) -> bool {
        self.outbox().ends_at_once
    }

    /// Whether this rank has said farewell: the group no longer depends on its process.
    pub fn has_left(&self) -> bool {
        self.outbox().leaving
    }

    /// Takes a farewell.
    pub fn left(&self, from: usize) {
        self.hub.leave(from);
        self.outbox().farewells[from] = true;
    }

    /// Whether all ranks have said farewell, this one too, and everything has been sent.
    pub fn is_over(&self) -> bool {
        let outbox = self.outbox();
        outbox.leaving && outbox.letters.is_empty() && outbox.farewells.iter().all(|&left| left)
    }

    /// Takes the letters that are waiting.
    pub fn letters(&self) -> Vec<Letter> {
        std::mem::take(&mut self.outbox().letters)
    }

    /// Takes the urgent letters that are waiting.
    pub fn urgent_letters(&self) -> Vec<Letter> {
        std::mem::take(&mut self.outbox().urgent)
    }

    /// Notes that `count` urgent letters have left.
    pub fn urgent_have_left(&self, count: usize) {
        self.outbox().urgent_left += count;
        self.changed.notify_all();
    }

    /// Rests until a letter is handed over, so long at most.
    pub fn rest(&self, limit: Duration) {
        let idle = |outbox: &mut Outbox| outbox.letters.is_empty() && outbox.urgent.is_empty() && !outbox.looks_at_once;
        let waited = self.changed.wait_timeout_while(self.outbox(), limit, idle);
        waited.unwrap_or_else(PoisonError::into_inner).0.looks_at_once = false;
    }

    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let rank = self.rank;
        (0..self.world).filter(move |&other| other != rank)
    }

    fn outbox(&self) -> MutexGuard<'_, Outbox> {
        self.outbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Each process reports its point to the process of rank 0, and gets the word from there.
impl Passage for Post {
    fn hub(&self) -> &Hub {
        &self.hub
    }

    fn arrive(&self, number: u64) {
        match self.rank {
            0 => self.comes_to(0, number),
            _ => self.send_urgently(vec![Letter::point(0, number)]),
        }
        self.wait(true);
    }

    fn gives_words(&self) -> bool {
        self.rank == 0
    }

    fn judge(&self, missing: &[usize], patience: Patience) -> Verdict {
        self.judge(missing, patience)
    }

    fn passed(&self, outcome: &Result<Word>) {
        self.wait(false);
        if let Err(error) = outcome {
            self.tell(error);
        }
    }
}

impl fmt::Debug for Post {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Post of rank {} of {}", self.rank, self.world)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Instant;

    use super::*;

    #[test]
    fn whoever_tells_second_waits_for_the_letters_too() {
        let post = Arc::new(Post::new(0, 2, Duration::from_secs(10)));
        let died = Error::Aborted { rank: 0, cause: "it broke".to_owned(), exit_code: 70 };
        post.found(died.clone());
        let began = Instant::now();
        let owner = {
            let post = Arc::clone(&post);
            std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(50));
                let letters = post.urgent_letters();
                post.urgent_have_left(letters.len());
                letters.len()
            })
        };
        post.tell(&died);
        assert!(began.elapsed() >= Duration::from_millis(50), "the letters had not left");
        assert_eq!(owner.join().expect("it does not panic"), 1, "told once");
    }
}
