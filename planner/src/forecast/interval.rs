//! Uncertainty of a prediction: its values with each of the profile's rates at the ends of its own
//! interval.

use super::profile::{Profile, RankRates};
use super::spread::Spread;

/// Bounds of a time, in seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Interval {
    /// Lower bound.
    pub low_s: f64,
    /// Upper bound.
    pub high_s: f64,
}

impl Interval {
    /// Interval around a prediction; `at` gives its value on another profile. Deviations of single
    /// rates add up as independent errors do; a profile that was not measured has a fifth in any
    /// case.
    pub fn around(seconds: f64, profile: &Profile, at: impl Fn(&Profile) -> f64) -> Self {
        let half = match &profile.spread {
            None => profile.spread().whole(),
            Some(spread) => {
                let of_rate = |(slow, fast): &(Profile, Profile)| (at(slow) - at(fast)) / (2.0 * seconds.max(1e-12));
                let halves = profile.ends().iter().map(of_rate).map(|half| half * half).sum::<f64>();
                (spread.whole().powi(2) + halves).sqrt()
            }
        };
        Self { low_s: seconds * (1.0 - half).max(0.0), high_s: seconds * (1.0 + half) }
    }

    /// Whether a measured time lies in it.
    pub fn has(&self, seconds: f64) -> bool {
        (self.low_s..=self.high_s).contains(&seconds)
    }
}

/// Multiplies a rate of a profile by a factor.
type Change = fn(&mut Profile, f64);

impl Profile {
    /// Relative uncertainty of its rates.
    pub fn spread(&self) -> Spread {
        self.spread.unwrap_or_else(Spread::unmeasured)
    }

    /// Pairs of profiles of which one rate is at the lower and at the upper end of its interval,
    /// the others unchanged. The pace is left out: it makes everything slower or faster.
    pub fn ends(&self) -> Vec<(Self, Self)> {
        let Spread { gemm, attention, memory, link, store, .. } = self.spread();
        let each: [(f64, Change); 5] = [
            (gemm, |profile, factor| {
                profile.of_ranks(|rank| {
                    rank.gemm_flops_per_s *= factor;
                    rank.gemm_by_rows = rank.gemm_by_rows.times(factor);
                });
            }),
            (attention, |profile, factor| {
                profile.of_ranks(|rank| {
                    rank.attention_flops_per_s *= factor;
                    rank.attention_by_keys = rank.attention_by_keys.times(factor);
                });
            }),
            (memory, |profile, factor| {
                profile.of_ranks(|rank| {
                    rank.probe_flops_per_s *= factor;
                    rank.memory_bytes_per_s *= factor;
                    rank.elementwise_bytes_per_s = rank.elementwise_bytes_per_s.map(|rate| rate * factor);
                    rank.merge_bytes_per_s = rank.merge_bytes_per_s.map(|rate| rate * factor);
                    rank.layer_s /= factor;
                });
            }),
            (link, |profile, factor| {
                for link in std::iter::once(&mut profile.inside).chain(&mut profile.between) {
                    link.latency_s /= factor;
                    link.bytes_per_s *= factor;
                    link.by_bytes = link.by_bytes.times(factor);
                }
            }),
            (store, |profile, factor| {
                if let Some(store) = &mut profile.store {
                    store.cached_bytes_per_s *= factor;
                    store.bytes_per_s *= factor;
                }
            }),
        ];
        let at = |change: Change, factor: f64| {
            let mut profile = self.clone();
            change(&mut profile, factor);
            profile
        };
        each.into_iter().map(|(spread, change)| (at(change, 1.0 - spread), at(change, 1.0 + spread))).collect()
    }

    fn of_ranks(&mut self, change: impl Fn(&mut RankRates)) {
        std::iter::once(&mut self.rank).chain(&mut self.alone).for_each(change);
    }
}
