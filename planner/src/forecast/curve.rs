//! Rates that depend on a size: how fast products are by their rows, attention by its keys, a link by its messages.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Rates at sizes, ascending: `[[rows, flops_per_s], ..]`. In between they are interpolated, both on logarithmic scales; outside they
/// stay as they are at the end.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Curve(pub Vec<(f64, f64)>);

impl Curve {
    /// Whether nothing is known.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The rate at a size; nothing where nothing is known.
    pub fn at(&self, size: f64) -> Option<f64> {
        let behind = self.0.partition_point(|&(known, _)| known < size);
        let Some(&(above, above_rate)) = self.0.get(behind) else { return self.0.last().map(|&(_, rate)| rate) };
        let Some(&(below, below_rate)) = behind.checked_sub(1).and_then(|index| self.0.get(index)) else {
            return Some(above_rate);
        };
        let share = (size / below).ln() / (above / below).ln();
        Some((below_rate.ln() + share * (above_rate / below_rate).ln()).exp())
    }

    /// The same on a machine that is so many times as fast.
    #[must_use]
    pub fn times(&self, factor: f64) -> Self {
        Self(self.0.iter().map(|&(size, rate)| (size, rate * factor)).collect())
    }

    /// Whether sizes ascend and every number can be one.
    pub fn is_sound(&self) -> bool {
        let is_number =
            |&(size, rate): &(f64, f64)| [size, rate].iter().all(|number| number.is_finite() && *number > 0.0);
        self.0.iter().all(is_number) && self.0.windows(2).all(|pair| pair[0].0 < pair[1].0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_interpolated_on_logarithmic_scales() {
        let curve = Curve(vec![(1.0, 10.0), (100.0, 1000.0), (200.0, 1000.0)]);
        let at = |size: f64| curve.at(size).map(|rate| (rate * 1e6).round() / 1e6);
        assert_eq!([at(0.1), at(1.0), at(10.0), at(100.0)], [10.0, 10.0, 100.0, 1000.0].map(Some));
        assert_eq!([at(150.0), at(1e9)], [1000.0, 1000.0].map(Some));
        assert_eq!((Curve::default().at(3.0), curve.times(2.0).at(10.0).map(f64::round)), (None, Some(200.0)));
        assert!(curve.is_sound() && Curve::default().is_sound());
        for wrong in [vec![(2.0, 1.0), (1.0, 1.0)], vec![(1.0, 0.0)], vec![(1.0, f64::NAN)], vec![(0.0, 1.0)]] {
            assert!(!Curve(wrong).is_sound());
        }
    }
}
