//! Limits of waiting for an object store: times, and numbers of waiting requests.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// The longest pause between two attempts.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Limits of waiting for an object store: times, and numbers of waiting requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteLimits {
    /// For one attempt, from its connection to the last byte; for a list, from one part of it to
    /// the next.
    pub timeout: Duration,
    /// For a connection; it is part of an attempt.
    pub connect: Duration,
    /// Maximum number of attempts at a request. There is one attempt at a chunk that is absent or
    /// not allowed.
    pub attempts: usize,
    /// The pause before the second attempt. It doubles with every attempt, and a part of it is
    /// drawn by chance.
    pub pause: Duration,
    /// Maximum number of requests in flight. Uploads take half of them at most, so that no request
    /// for a chunk waits for all of them.
    pub at_once: usize,
    /// Maximum number of requests for chunks that are in flight or wait for their turn.
    pub waiting_requests: usize,
    /// Bytes of chunks that are being sent or wait for their turn.
    pub waiting_bytes: u64,
    /// Attempts that fail in a row before the store counts as down.
    pub failures: usize,
    /// First rest of a store that is down. It doubles whenever the store is still down.
    pub first_rest: Duration,
    /// The longest such time.
    pub longest_rest: Duration,
    /// Whether a folder (`file://`) that others may write to is meant.
    pub is_shared: bool,
}

impl Default for RemoteLimits {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(20),
            connect: Duration::from_secs(3),
            attempts: 3,
            pause: Duration::from_millis(100),
            at_once: 16,
            waiting_requests: 1024,
            waiting_bytes: 1 << 30,
            failures: 5,
            first_rest: Duration::from_secs(1),
            longest_rest: Duration::from_secs(60),
            is_shared: false,
        }
    }
}

impl RemoteLimits {
    /// Longest time of a request for a chunk from its turn on, all attempts and pauses together.
    pub fn longest(&self) -> Duration {
        let attempts = u32::try_from(self.attempts.max(1)).unwrap_or(u32::MAX);
        let pauses: Duration = (1..self.attempts).map(|attempt| self.longest_pause(attempt)).sum();
        self.timeout.saturating_mul(attempts).saturating_add(pauses)
    }

    /// Longest pause after `attempts` attempts.
    fn longest_pause(&self, attempts: usize) -> Duration {
        let doubled = u32::try_from(attempts.saturating_sub(1)).unwrap_or(u32::MAX).min(16);
        self.pause.saturating_mul(1 << doubled).min(LONGEST_PAUSE)
    }

    /// A pause after `attempts` attempts: at random between half of the longest and all of it, so
    /// that requests that failed together do not return together.
    pub(crate) fn pause_behind(&self, attempts: usize) -> Duration {
        // The standard library draws the seed of a hash by chance.
        let chance = RandomState::new().hash_one(()) as f64 / u64::MAX as f64;
        self.longest_pause(attempts).mul_f64(0.5 + 0.5 * chance)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_and_are_bounded() {
        let limits = RemoteLimits { attempts: 4, timeout: Duration::from_secs(1), ..RemoteLimits::default() };
        for (attempts, longest_ms) in [(1, 100), (2, 200), (3, 400), (7, 5000), (usize::MAX, 5000)] {
            let longest = Duration::from_millis(longest_ms);
            assert_eq!(limits.longest_pause(attempts), longest);
            let pauses: Vec<Duration> = (0..100).map(|_| limits.pause_behind(attempts)).collect();
            assert!(pauses.iter().all(|pause| (longest / 2..=longest).contains(pause)), "{pauses:?}");
            assert!(pauses.iter().any(|pause| *pause != pauses[0]), "drawn by chance: {pauses:?}");
        }
        assert_eq!(limits.longest(), Duration::from_millis(4000 + 100 + 200 + 400));
    }
}
