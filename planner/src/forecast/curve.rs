//! Rates that depend on a size: of products by their rows, of attention by its keys, of a link by
//! its messages.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Rates at sizes, ascending: `[[rows, flops_per_s], ..]`. Between them they are interpolated, both
/// on logarithmic scales; beyond the ends they are constant.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Curve(pub Vec<(f64, f64)>);

impl Curve {
    /// Whether the curve is empty: no rate is known.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The rate at a size; `None` if no rate is known.
    pub fn at(&self, size: f64) -> Option<f64> {
        let after = self.0.partition_point(|&(known, _)| known < size);
        let Some(&(above, above_rate)) = self.0.get(after) else { return self.0.last().map(|&(_, rate)| rate) };
        let Some(&(below, below_rate)) = after.checked_sub(1).and_then(|index| self.0.get(index)) else {
            return Some(above_rate);
        };
        let share = (size / below).ln() / (above / below).ln();
        Some((below_rate.ln() + share * (above_rate / below_rate).ln()).exp())
    }

    /// The same rates times a factor.
    #[must_use]
    pub fn times(&self, factor: f64) -> Self {
        Self(self.0.iter().map(|&(size, rate)| (size, rate * factor)).collect())
    }

    /// Whether sizes ascend and all numbers are valid.
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
