//! The rests of a polling thread between two looks: none for a moment, then longer and longer.

use std::time::{Duration, Instant};

/// The first rest.
const SHORTEST: Duration = Duration::from_micros(20);

/// The time of polling without a rest: for news where every thread has a core; for the end of a
/// transfer everywhere, because a transfer moves on only while both sides poll.
const NEWS_AT_ONCE: Duration = Duration::from_micros(200);
const TRANSFER_AT_ONCE: Duration = Duration::from_millis(2);

/// The time of the last look that found something, and the length of the next rest.
pub struct Pace {
    at_once: Duration,
    since: Instant,
    rest: Duration,
}

impl Pace {
    /// The pace of a thread that looks for news. Where threads share cores (`crowded`), a look
    /// without a rest takes time from threads that compute.
    pub fn for_news(crowded: bool) -> Self {
        let at_once = if crowded { Duration::ZERO } else { NEWS_AT_ONCE };
        Self { at_once, since: Instant::now(), rest: SHORTEST }
    }

    /// The pace of a thread that waits for the end of a transfer.
    pub fn for_transfer() -> Self {
        Self { at_once: TRANSFER_AT_ONCE, since: Instant::now(), rest: SHORTEST }
    }

    /// Something was found: more may follow at once.
    pub fn found(&mut self) {
        self.since = Instant::now();
        self.rest = SHORTEST;
    }

    /// The rest after a look that found nothing; none if the thread should look again at once.
    pub fn next(&mut self, longest: Duration) -> Option<Duration> {
        if self.since.elapsed() < self.at_once {
            return None;
        }
        let rest = self.rest.min(longest);
        self.rest = (self.rest * 2).min(longest);
        Some(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rests_grow_up_to_the_longest() {
        let mut pace = Pace::for_news(true);
        let longest = Duration::from_micros(100);
        let rests: Vec<u128> = (0..5).filter_map(|_| pace.next(longest)).map(|rest| rest.as_micros()).collect();
        assert_eq!(rests, [20, 40, 80, 100, 100]);
        pace.found();
        assert_eq!(pace.next(longest), Some(SHORTEST));
    }

    #[test]
    fn with_cores_to_spare_the_first_looks_come_at_once() {
        let mut pace = Pace::for_news(false);
        assert_eq!(pace.next(Duration::from_secs(1)), None);
        std::thread::sleep(NEWS_AT_ONCE);
        assert_eq!(pace.next(Duration::from_secs(1)), Some(SHORTEST));
    }
}
