//! Signs of life: every process reports its activity regularly, from the thread that owns MPI and
//! never computes. A process that is not heard for as long as the heartbeat timeout counts as
//! silent, in any activity.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tributary_protocol::Phase;

use crate::group::liveness::Activity;

/// Number of signs of life within the timeout, and the shortest and longest time between two of
/// them.
const A_TIMEOUT: u32 = 10;
const SHORTEST: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_secs(1);

/// Shortest time between a sign of life and that of a new phase, which is otherwise sent at once.
const SOON: Duration = Duration::from_millis(50);

/// The signs of life that this process has given and heard.
pub struct Heartbeats {
    period: Duration,
    began: Instant,
    state: Mutex<State>,
}

struct State {
    /// The time and phase of this process's last sign of life.
    gave: Option<(Instant, Phase)>,
    /// One entry a rank.
    heard: Vec<Heard>,
}

#[derive(Clone, Default)]
struct Heard {
    count: u64,
    last: Option<Activity>,
    at: Option<Instant>,
}

/// A rank that has been silent for longer than the timeout.
#[derive(Debug, Clone, PartialEq)]
pub struct Silent {
    /// Which rank.
    pub rank: usize,
    /// The activity that it said last; none if it has never said anything.
    pub last: Option<Activity>,
}

/// Silence of each rank, as seen by one thread that looks at regular times. Silence is the sum of
/// the times between looks, each of them capped: a process that was itself stopped does not take
/// all others for silent.
pub struct Vigil {
    timeout: Duration,
    /// The most that one look counts for.
    longest_look: Duration,
    looked: Instant,
    /// One entry a rank: how often it had been heard at the last look, and for how long it has been
    /// silent since.
    silences: Vec<(u64, Duration)>,
}

impl Heartbeats {
    /// Heartbeats of a group of `world` ranks, at a period that follows from the timeout.
    pub fn new(world: usize, timeout: Duration) -> Self {
        let state = State { gave: None, heard: vec![Heard::default(); world] };
        Self { period: (timeout / A_TIMEOUT).clamp(SHORTEST, LONGEST), began: Instant::now(), state: Mutex::new(state) }
    }

    /// Whether this process has itself given a sign of life within this time: if its MPI thread is
    /// stopped, it hears no rank.
    fn is_heard(&self, within: Duration) -> bool {
        self.lock().gave.is_some_and(|(gave, _)| gave.elapsed() < within)
    }

    /// Whether it is time for a sign of life in this phase; then it counts as given.
    pub fn is_due(&self, phase: Phase) -> bool {
        let mut state = self.lock();
        let period = |last: Phase| if last == phase { self.period } else { SOON };
        let due = state.gave.is_none_or(|(gave, last)| gave.elapsed() >= period(last));
        if due {
            state.gave = Some((Instant::now(), phase));
        }
        due
    }

    /// Takes a sign of life.
    pub fn heard(&self, from: usize, activity: Activity) {
        let mut state = self.lock();
        assert!(from < state.heard.len(), "a sign of life from rank {from} of {}", state.heard.len());
        let heard = &mut state.heard[from];
        heard.count += 1;
        (heard.last, heard.at) = (Some(activity), Some(Instant::now()));
    }

    /// Time since a rank was heard; since the beginning, if it never was.
    pub fn age(&self, rank: usize) -> Duration {
        self.lock().heard[rank].at.unwrap_or(self.began).elapsed()
    }

    /// Approximate limit of a rank's silence.
    pub fn patience(&self) -> Duration {
        self.period * A_TIMEOUT
    }

    /// The activity that a rank said last.
    pub fn last(&self, rank: usize) -> Option<Activity> {
        self.lock().heard[rank].last.clone()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Vigil {
    /// Begins now, for a thread that looks about every `pause`.
    pub fn new(heartbeats: &Heartbeats, timeout: Duration, pause: Duration) -> Self {
        let silences = heartbeats.lock().heard.iter().map(|heard| (heard.count, Duration::ZERO)).collect();
        Self { timeout, longest_look: 3 * pause, looked: Instant::now(), silences }
    }

    /// Looks: the silent ranks among `ranks`. There are none while this process is silent itself:
    /// others name it then.
    pub fn look(&mut self, heartbeats: &Heartbeats, ranks: &BTreeSet<usize>) -> Vec<Silent> {
        let silent = self.look_at(Instant::now(), heartbeats, ranks);
        if heartbeats.is_heard(self.timeout / 2) { silent } else { Vec::new() }
    }

    /// Ranks that are lost together, as with their host, gave their last signs of life up to a
    /// period apart. No rank is therefore named while another one has missed its last sign and may
    /// be silent too, until that is certain.
    fn look_at(&mut self, now: Instant, heartbeats: &Heartbeats, ranks: &BTreeSet<usize>) -> Vec<Silent> {
        let missed = 2 * heartbeats.period;
        let passed = now.saturating_duration_since(self.looked).min(self.longest_look);
        self.looked = now;
        let heard = heartbeats.lock().heard.clone();
        assert_eq!(heard.len(), self.silences.len(), "ranks that are heard");
        let (mut silent, mut longest, mut doubtful) = (Vec::new(), Duration::ZERO, false);
        for (rank, (heard, (count, silence))) in heard.into_iter().zip(&mut self.silences).enumerate() {
            *silence = if *count == heard.count { *silence + passed } else { Duration::ZERO };
            *count = heard.count;
            if !ranks.contains(&rank) {
                continue;
            }
            longest = longest.max(*silence);
            if *silence > self.timeout {
                silent.push(Silent { rank, last: heard.last });
            } else {
                doubtful |= *silence > missed;
            }
        }
        if doubtful && longest <= self.timeout + missed { Vec::new() } else { silent }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::liveness::Liveness;

    const TIMEOUT: Duration = Duration::from_secs(2);
    const PAUSE: Duration = Duration::from_millis(100);

    fn silent_ranks(silent: Vec<Silent>) -> Vec<usize> {
        silent.into_iter().map(|silent| silent.rank).collect()
    }

    #[test]
    fn a_rank_that_is_not_heard_for_the_timeout_is_silent() {
        let heartbeats = Heartbeats::new(3, TIMEOUT);
        let (others, mut now) = (BTreeSet::from([1, 2]), Instant::now());
        let mut vigil = Vigil::new(&heartbeats, TIMEOUT, PAUSE);
        for look in 0..25 {
            now += PAUSE;
            heartbeats.heard(1, Liveness::default().activity());
            let silent = silent_ranks(vigil.look_at(now, &heartbeats, &others));
            let wanted = if PAUSE * (look + 1) > TIMEOUT { vec![2] } else { vec![] };
            assert_eq!(silent, wanted, "look {look}");
        }
        heartbeats.heard(2, Liveness::default().activity());
        assert_eq!(vigil.look_at(now + PAUSE, &heartbeats, &others), [], "a rank that is heard again is not silent");
        // A rank that has left is not reported, since no rank asks about it.
        for look in 0..25 {
            now += PAUSE;
            assert!(vigil.look_at(now, &heartbeats, &BTreeSet::new()).is_empty(), "look {look}");
        }
    }

    #[test]
    fn ranks_that_are_lost_together_are_named_together() {
        let heartbeats = Heartbeats::new(4, TIMEOUT);
        let (others, mut now) = (BTreeSet::from([1, 2, 3]), Instant::now());
        let mut vigil = Vigil::new(&heartbeats, TIMEOUT, PAUSE);
        let mut named = Vec::new();
        // Rank 2 gives its last sign two looks after rank 3.
        for look in 0..40 {
            now += PAUSE;
            heartbeats.heard(1, Liveness::default().activity());
            if look < 2 {
                heartbeats.heard(2, Liveness::default().activity());
            }
            let silent = silent_ranks(vigil.look_at(now, &heartbeats, &others));
            if !silent.is_empty() {
                named.push((look, silent));
            }
        }
        // Rank 3 was heard last at the beginning, rank 2 at look 1: 2 seconds are over at look 22.
        assert_eq!(named.first(), Some(&(22, vec![2, 3])), "{named:?}");
    }

    #[test]
    fn a_rank_in_doubt_does_not_hide_a_silent_one_for_long() {
        let heartbeats = Heartbeats::new(3, TIMEOUT);
        let (others, mut now) = (BTreeSet::from([1, 2]), Instant::now());
        let mut vigil = Vigil::new(&heartbeats, TIMEOUT, PAUSE);
        // Rank 1 is heard every half second only, which is late but no silence.
        let first = (0..40).find(|look| {
            now += PAUSE;
            if look % 5 == 0 {
                heartbeats.heard(1, Liveness::default().activity());
            }
            !vigil.look_at(now, &heartbeats, &others).is_empty()
        });
        let latest = (TIMEOUT + 2 * heartbeats.period).as_millis() / PAUSE.as_millis();
        assert!(first.is_some_and(|look| look >= 20 && look <= latest as i32), "{first:?}, {latest}");
    }

    #[test]
    fn a_process_that_is_silent_itself_names_nobody() {
        let heartbeats = Heartbeats::new(2, Duration::ZERO);
        let mut vigil = Vigil::new(&heartbeats, Duration::from_millis(20), PAUSE);
        std::thread::sleep(Duration::from_millis(50));
        assert!(vigil.look(&heartbeats, &BTreeSet::from([1])).is_empty(), "it has not given a sign of life");
        assert!(heartbeats.is_due(Phase::Idle));
        let silent = vigil.look_at(Instant::now(), &heartbeats, &BTreeSet::from([1]));
        assert_eq!(silent_ranks(silent), [1]);
    }

    #[test]
    fn a_process_that_was_stopped_itself_takes_nobody_for_silent() {
        let heartbeats = Heartbeats::new(2, TIMEOUT);
        let mut vigil = Vigil::new(&heartbeats, TIMEOUT, PAUSE);
        let now = Instant::now() + 100 * TIMEOUT;
        assert_eq!(vigil.look_at(now, &heartbeats, &BTreeSet::from([1])), []);
    }

    #[test]
    fn signs_of_life_are_as_many_as_the_timeout_wants() {
        for (timeout_ms, period_ms) in [(10_000, 1000), (2000, 200), (60_000, 1000), (100, 50)] {
            let heartbeats = Heartbeats::new(2, Duration::from_millis(timeout_ms));
            assert_eq!(heartbeats.period, Duration::from_millis(period_ms), "{timeout_ms} ms");
            assert!(heartbeats.is_due(Phase::Idle), "the first one at once");
        }
        let heartbeats = Heartbeats::new(2, Duration::from_secs(3600));
        assert!(heartbeats.is_due(Phase::Idle) && !heartbeats.is_due(Phase::Idle));
        assert!(!heartbeats.is_due(Phase::Probe), "too soon");
        std::thread::sleep(SOON);
        assert!(heartbeats.is_due(Phase::Probe) && !heartbeats.is_due(Phase::Probe), "a new phase");
    }
}
