//! Ranks before their first token, for which the writer pauses: on a host whose cores all compute,
//! even a thread of the lowest priority takes time from them.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Number of computing ranks, with a signal for the writer that waits until none computes.
#[derive(Debug, Default)]
pub struct Ranks {
    computing: Mutex<usize>,
    changed: Condvar,
}

/// A rank that is before its first token, for as long as this lives.
#[derive(Debug)]
pub struct Computing(Arc<Ranks>);

impl Ranks {
    fn lock(&self) -> MutexGuard<'_, usize> {
        self.computing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no rank is before its first token, at the longest until then.
    pub fn wait(&self, until: Instant) {
        let left = until.saturating_duration_since(Instant::now());
        let computes = |count: &mut usize| *count > 0;
        drop(self.changed.wait_timeout_while(self.lock(), left, computes).unwrap_or_else(PoisonError::into_inner));
    }
}

impl Computing {
    /// One more.
    pub fn new(ranks: &Arc<Ranks>) -> Self {
        *ranks.lock() += 1;
        Self(Arc::clone(ranks))
    }
}

impl Drop for Computing {
    fn drop(&mut self) {
        let mut count = self.0.lock();
        *count -= 1;
        if *count == 0 {
            self.0.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn whoever_waits_goes_on_when_the_last_rank_is_through_or_when_it_takes_too_long() {
        let ranks = Arc::new(Ranks::default());
        let begun = Instant::now();
        let long = Duration::from_secs(600);
        ranks.wait(begun + long);
        let (one, other) = (Computing::new(&ranks), Computing::new(&ranks));
        ranks.wait(begun + Duration::from_millis(20));
        assert!(begun.elapsed() >= Duration::from_millis(20), "two ranks compute");
        drop(one);
        let waiting = Arc::clone(&ranks);
        let waiter = std::thread::spawn(move || waiting.wait(begun + long));
        std::thread::sleep(Duration::from_millis(50));
        assert!(!waiter.is_finished(), "one still does");
        drop(other);
        waiter.join().expect("it goes on");
        assert!(begun.elapsed() < long);
    }
}
