//! Health of a store: whether it should get requests. A store that fails several times in a row
//! gets none for a while; then one request tries it. This is plain state: it never waits and reads
//! no clock.

use std::time::{Duration, Instant};

use super::limits::RemoteLimits;

/// Whether a store is worth asking.
#[derive(Debug)]
pub struct Health {
    most_failures: usize,
    first_rest: Duration,
    longest_rest: Duration,
    failures: usize,
    rest: Option<Rest>,
}

/// A store that is down is left alone.
#[derive(Debug)]
struct Rest {
    length: Duration,
    until: Instant,
    /// Whether a request tries it right now.
    is_tried: bool,
}

/// Permission for one request. Its holder reports the outcome: `answered`, `failed`, or `let_go`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leave {
    /// Whether this is the one request that tries a store that is down.
    pub is_trial: bool,
}

impl Health {
    /// Health of a store that has had no request.
    pub fn new(limits: &RemoteLimits) -> Self {
        let RemoteLimits { failures, first_rest, longest_rest, .. } = *limits;
        Self { most_failures: failures.max(1), first_rest, longest_rest, failures: 0, rest: None }
    }

    /// Whether no request may be made now.
    pub fn is_down(&self, now: Instant) -> bool {
        self.rest.as_ref().is_some_and(|rest| rest.is_tried || now < rest.until)
    }

    /// Asks for leave; there is none while the store is down.
    pub fn leave(&mut self, now: Instant) -> Option<Leave> {
        if self.is_down(now) {
            return None;
        }
        if let Some(rest) = &mut self.rest {
            rest.is_tried = true;
        }
        Some(Leave { is_trial: self.rest.is_some() })
    }

    /// The store has answered.
    pub fn answered(&mut self) {
        self.failures = 0;
        self.rest = None;
    }

    /// The store has failed. True if it is down from now on and was not before.
    pub fn failed(&mut self, leave: Leave, now: Instant) -> bool {
        match &mut self.rest {
            Some(rest) if leave.is_trial => {
                let length = rest.length.saturating_mul(2).min(self.longest_rest);
                *rest = Rest { length, until: now + length, is_tried: false };
                false
            }
            // A request from before the store went down says nothing new.
            Some(_) => false,
            None => {
                self.failures += 1;
                if self.failures < self.most_failures {
                    return false;
                }
                let length = self.first_rest.min(self.longest_rest);
                self.rest = Some(Rest { length, until: now + length, is_tried: false });
                true
            }
        }
    }

    /// Gives the permission back without an outcome: the next request may try.
    pub fn let_go(&mut self, leave: Leave) {
        if let Some(rest) = self.rest.as_mut().filter(|_| leave.is_trial) {
            rest.is_tried = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn health() -> (Health, Instant) {
        (Health::new(&RemoteLimits { failures: 3, ..RemoteLimits::default() }), Instant::now())
    }

    fn fails(health: &mut Health, now: Instant) -> bool {
        let leave = health.leave(now).expect("leave");
        health.failed(leave, now)
    }

    #[test]
    fn failures_in_a_row_put_it_down_and_answers_between_them_do_not() {
        let (mut health, now) = health();
        for _ in 0..10 {
            assert!(!fails(&mut health, now) && !fails(&mut health, now));
            health.answered();
        }
        let early = health.leave(now).expect("leave");
        assert_eq!([(); 3].map(|()| fails(&mut health, now)), [false, false, true]);
        assert!(health.is_down(now) && health.leave(now).is_none());
        // The failure of a request that was in flight when the store went down.
        assert!(!health.failed(early, now) && !health.is_down(now + SECOND));
        health.answered();
        assert!(!health.is_down(now), "an answer counts for every caller");
    }

    #[test]
    fn one_request_tries_it_and_its_rest_doubles_to_a_minute() {
        let (mut health, mut now) = health();
        while !fails(&mut health, now) {}
        for rest_s in [1, 2, 4, 8, 16, 32, 60, 60] {
            now += Duration::from_secs(rest_s) - SECOND / 1000;
            assert!(health.is_down(now), "{rest_s} s are not over");
            now += SECOND / 1000;
            assert!(!health.is_down(now), "{rest_s} s are over");
            let trial = health.leave(now).expect("leave");
            assert!(trial.is_trial && health.leave(now).is_none(), "one request tries");
            // The caller has gone: the next one tries.
            health.let_go(trial);
            assert!(!fails(&mut health, now), "it was down before");
        }
        now += 60 * SECOND;
        assert!(health.leave(now).is_some_and(|leave| leave.is_trial));
        health.answered();
        assert_eq!(health.leave(now), Some(Leave { is_trial: false }));
        assert_eq!([(); 3].map(|()| fails(&mut health, now)), [false, false, true]);
        assert!(!health.is_down(now + SECOND), "a rest is short again");
    }
}
