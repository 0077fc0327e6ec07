//! Decoding's share of the ranks' time while a prefill is in progress: how much of it is owed, and
//! when the prefill has to halt. A pure function of the times that it is told.

use std::time::Duration;

/// The time that decoding has had beside prefills, and what it is owed.
#[derive(Debug, Clone)]
pub struct Pace {
    /// Seconds of decoding owed for a second of prefill.
    rate: f64,
    /// Seconds of decoding owed; below 0 if it has had more.
    owed_s: f64,
    /// Seconds of decoding that a prefill owes only after the gap.
    within_gap_s: f64,
}

impl Pace {
    /// A pace that gives decoding a share of the time from 0 (prefills never halt) to below 1, and
    /// halts no prefill within `max_gap` of its begin.
    ///
    /// # Panics
    /// If the share is not below 1.
    pub fn new(share: f64, max_gap: Duration) -> Self {
        assert!((0.0..1.0).contains(&share), "decoding's share of the time: {share}");
        let rate = share / (1.0 - share);
        let within_gap_s = rate * max_gap.as_secs_f64();
        Self { rate, owed_s: -within_gap_s, within_gap_s }
    }

    /// A prefill begins: it computes up to the gap before decoding is owed a step.
    pub fn begins(&mut self) {
        self.owed_s = -self.within_gap_s;
    }

    /// A prefill has computed for so long.
    pub fn prefilled(&mut self, time: Duration) {
        self.owed_s += self.rate * time.as_secs_f64();
    }

    /// A step of decoding has taken so long.
    pub fn stepped(&mut self, time: Duration) {
        self.owed_s -= time.as_secs_f64();
    }

    /// Whether a step of decoding is owed.
    pub fn is_due(&self) -> bool {
        self.rate > 0.0 && self.owed_s >= 0.0
    }

    /// The time for which a prefill may compute until a step is owed; `None` if none ever is.
    pub fn until_due(&self) -> Option<Duration> {
        let seconds = (-self.owed_s).max(0.0) / self.rate;
        (self.rate > 0.0).then(|| Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// The shares of decoding and of the prefill in `layers` layers that take `layer` each, where
    /// a step takes `step`; and the longest time without a step.
    fn beside(share: f64, (layer, step): (Duration, Duration), layers: u32) -> (f64, Duration) {
        let mut pace = Pace::new(share, 250 * MS);
        let (mut decoded, mut gap, mut longest) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
        for _ in 0..layers {
            pace.prefilled(layer);
            gap += layer;
            longest = longest.max(gap);
            while pace.is_due() {
                pace.stepped(step);
                decoded += step;
                gap = Duration::ZERO;
            }
        }
        (decoded.as_secs_f64() / (decoded + layers * layer).as_secs_f64(), longest)
    }

    #[test]
    fn decoding_has_its_share_of_a_long_prefill() {
        for share in [0.1, 0.5, 0.8] {
            for (layer, step) in [(MS, 20 * MS), (70 * MS, 7 * MS), (900 * MS, 20 * MS)] {
                let (found, longest) = beside(share, (layer, step), 5000);
                assert!((found - share).abs() < 0.02, "{found} of the time for {share}, layers of {layer:?}");
                let between = step.mul_f64((1.0 - share) / share);
                let most = layer + between.max(250 * MS);
                assert!(longest <= most, "{longest:?} without a step, layers of {layer:?}");
            }
        }
        assert_eq!(beside(0.0, (MS, MS), 1000), (0.0, 1000 * MS), "share 0 never halts");
    }

    #[test]
    fn a_prefill_within_the_gap_is_not_halted() {
        let mut pace = Pace::new(0.5, 250 * MS);
        assert_eq!(pace.until_due(), Some(250 * MS));
        pace.prefilled(249 * MS);
        assert!(!pace.is_due());
        // One that follows it is no more to blame.
        pace.stepped(20 * MS);
        pace.begins();
        assert_eq!(pace.until_due(), Some(250 * MS));
        pace.prefilled(260 * MS);
        assert!(pace.is_due() && pace.until_due() == Some(Duration::ZERO));
        pace.begins();
        assert_eq!((pace.is_due(), pace.until_due()), (false, Some(250 * MS)));
        assert_eq!(Pace::new(0.0, MS).until_due(), None);
        let mut hardly = Pace::new(1e-22, MS);
        hardly.stepped(20 * MS);
        assert_eq!(hardly.until_due(), Some(Duration::MAX), "a share too small to count");
    }
}
