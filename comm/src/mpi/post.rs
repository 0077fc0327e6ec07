//! The desk between the rank's thread and the thread that owns MPI.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::letter::{Kind, Letter};
use crate::Error;
use crate::group::Behind;
use crate::group::hub::Hub;

/// How long the others may take to say what they are doing. Who does not answer is stopped or cut off.
const ANSWER_LIMIT: Duration = Duration::from_millis(600);

/// By how much a rank lets each of those before it speak first.
const TURN: Duration = Duration::from_millis(50);

/// How long a rank that ends waits for the news to leave.
const TELL_LIMIT: Duration = Duration::from_millis(300);

/// Shared by the rank's thread and the owner of MPI.
pub struct Post {
    /// This rank's calls and the others' parts in them.
    pub hub: Hub,
    pub rank: usize,
    pub world: usize,
    desk: Mutex<Desk>,
    changed: Condvar,
    /// Whether the rank's thread waits for a part.
    waited_for: AtomicBool,
}

#[derive(Default)]
struct Desk {
    letters: Vec<Letter>,
    /// Short letters that overtake the others.
    urgent: Vec<Letter>,
    /// The number of the last question to the others, and what they say to it.
    asked: u64,
    answers: BTreeMap<usize, Said>,
    /// How many urgent letters have been handed over, and how many have left.
    urgent_handed: usize,
    urgent_left: usize,
    /// Whether the group's end has been written to the others.
    told: bool,
    /// Who has left in peace.
    farewells: Vec<bool>,
    leaving: bool,
}

/// What a rank says to the question what it is doing.
pub struct Said {
    /// How many calls its device has come to.
    pub reached: u64,
    pub doing: String,
}

impl Desk {
    fn hand_over_urgent(&mut self, letters: Vec<Letter>) {
        self.urgent_handed += letters.len();
        self.urgent.extend(letters);
    }
}

impl Post {
    pub fn new(rank: usize, world: usize) -> Self {
        let farewells = (0..world).map(|other| other == rank).collect();
        let desk = Mutex::new(Desk { farewells, ..Desk::default() });
        Self { hub: Hub::new(world), rank, world, desk, changed: Condvar::new(), waited_for: AtomicBool::new(false) }
    }

    /// Hands letters over.
    pub fn send(&self, letters: Vec<Letter>) {
        if letters.is_empty() {
            return;
        }
        self.desk().letters.extend(letters);
        self.changed.notify_all();
    }

    /// Hands letters over that overtake the others.
    pub fn send_urgently(&self, letters: Vec<Letter>) {
        self.desk().hand_over_urgent(letters);
        self.changed.notify_all();
    }

    /// Says whether the rank's thread waits.
    pub fn wait(&self, waits: bool) {
        self.waited_for.store(waits, Ordering::Relaxed);
    }

    pub fn is_waited_for(&self) -> bool {
        self.waited_for.load(Ordering::Relaxed)
    }

    /// Ends the group, tells the others, and gives the error that this rank sees.
    pub fn kill(&self, error: Error) -> Error {
        let seen = self.hub.kill(self.rank, error);
        self.tell(&seen);
        seen
    }

    /// Takes a failure that the owner of MPI has found, and tells it without waiting: the owner itself sends the letters.
    pub fn found(&self, error: Error) {
        let seen = self.hub.kill(self.rank, error);
        self.announce(&seen);
    }

    /// Writes a failure that began here to the others, once, and waits until that has left. So does whoever comes second: the
    /// process may end behind it.
    pub fn tell(&self, error: &Error) {
        let Some(handed) = self.announce(error) else { return };
        let waits = |desk: &mut Desk| desk.urgent_left < handed;
        let waited = self.changed.wait_timeout_while(self.desk(), TELL_LIMIT, waits);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// Hands the news of a failure over, if it began here and has not been; gives how many urgent letters must then leave.
    fn announce(&self, error: &Error) -> Option<usize> {
        let (cause, exit_code) = match error {
            Error::Aborted { rank, .. } if *rank != self.rank => return None,
            Error::Aborted { cause, exit_code, .. } => (cause.clone(), *exit_code),
            other => (other.to_string(), other.exit_code()),
        };
        let mut desk = self.desk();
        if !std::mem::replace(&mut desk.told, true) {
            let letter = |to| Letter::abort(to, &cause, exit_code).ok();
            desk.hand_over_urgent(self.others().filter_map(letter).collect());
        }
        let handed = desk.urgent_handed;
        drop(desk);
        self.changed.notify_all();
        Some(handed)
    }

    /// Asks all others what they are doing: who does not answer, and what the `missing` ranks say.
    pub fn ask(&self, missing: &[usize]) -> Vec<String> {
        self.question(|desk| self.states(desk, missing))
    }

    /// Asks all others whose device has not come to a call: they are missing, and who does not answer is too.
    pub fn behind(&self, sequence: u64) -> Behind {
        self.question(|desk| {
            let late = |rank: &usize| desk.answers.get(rank).is_none_or(|said| said.reached <= sequence);
            let missing: Vec<usize> = self.others().filter(late).collect();
            Behind { states: self.states(desk, &missing), missing }
        })
    }

    /// Asks all others, waits for their answers, reads them, and lets those before this rank speak first.
    fn question<T>(&self, read: impl FnOnce(&Desk) -> T) -> T {
        let number = {
            let mut desk = self.desk();
            desk.answers.clear();
            desk.asked += 1;
            desk.asked
        };
        self.send_urgently(self.others().filter_map(|to| Letter::ask(to, number).ok()).collect());
        let some_are_silent = |desk: &mut Desk| desk.answers.len() + 1 < self.world;
        let waited = self.changed.wait_timeout_while(self.desk(), ANSWER_LIMIT, some_are_silent);
        let desk = waited.unwrap_or_else(PoisonError::into_inner).0;
        let before = desk.answers.range(..self.rank).count() as u32;
        let answer = read(&desk);
        drop(desk);
        // All who wait ask at the same time: the first of those who live speaks for all.
        self.hub.dead_within((TURN * before).min(ANSWER_LIMIT));
        answer
    }

    /// Who has not answered, and what the missing ranks said.
    fn states(&self, desk: &Desk, missing: &[usize]) -> Vec<String> {
        let silent = self.others().filter(|rank| !desk.answers.contains_key(rank));
        let silent = silent.map(|rank| format!("rank {rank} does not answer"));
        let answers = missing.iter().filter_map(|rank| Some(desk.answers.get(rank)?.doing.clone()));
        silent.chain(answers).collect()
    }

    /// Takes an answer, unless it is to an earlier question.
    pub fn answered(&self, from: usize, number: u64, said: Said) {
        let mut desk = self.desk();
        if number == desk.asked {
            desk.answers.insert(from, said);
        }
        drop(desk);
        self.changed.notify_all();
    }

    /// Says farewell to the others, behind everything that was sent before.
    pub fn leave(&self) {
        let letters = self.others().map(|to| Letter::bare(to, Kind::Farewell)).collect();
        self.send(letters);
        self.desk().leaving = true;
        self.changed.notify_all();
    }

    /// Takes a farewell.
    pub fn left(&self, from: usize) {
        self.hub.leave(from);
        self.desk().farewells[from] = true;
    }

    /// Whether all ranks have said farewell, this one too, and everything has been sent.
    pub fn is_over(&self) -> bool {
        let desk = self.desk();
        desk.leaving && desk.letters.is_empty() && desk.farewells.iter().all(|&left| left)
    }

    /// Takes the letters that are waiting.
    pub fn letters(&self) -> Vec<Letter> {
        std::mem::take(&mut self.desk().letters)
    }

    /// Takes the urgent letters that are waiting.
    pub fn urgent_letters(&self) -> Vec<Letter> {
        std::mem::take(&mut self.desk().urgent)
    }

    /// Notes that so many urgent letters have left.
    pub fn urgent_have_left(&self, count: usize) {
        self.desk().urgent_left += count;
        self.changed.notify_all();
    }

    /// Rests until a letter is handed over, so long at most.
    pub fn rest(&self, limit: Duration) {
        let idle = |desk: &mut Desk| desk.letters.is_empty() && desk.urgent.is_empty();
        let waited = self.changed.wait_timeout_while(self.desk(), limit, idle);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let rank = self.rank;
        (0..self.world).filter(move |&other| other != rank)
    }

    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
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
        let post = Arc::new(Post::new(0, 2));
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
