//! From values to pixels, and where an axis has its marks.

/// A range of values on a range of pixels.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scale {
    values: (f64, f64),
    pixels: (f64, f64),
    logarithmic: bool,
}

impl Scale {
    /// In proportion, from 0 or below to a round number that holds all values.
    pub fn linear(largest: f64, pixels: (f64, f64)) -> Self {
        let largest = if largest > 0.0 { largest } else { 1.0 };
        let step = step(largest);
        Self { values: (0.0, (largest / step).ceil() * step), pixels, logarithmic: false }
    }

    /// In proportion, between these values.
    pub fn between(values: (f64, f64), pixels: (f64, f64)) -> Self {
        Self { values, pixels, logarithmic: false }
    }

    /// By logarithms, with some room on both sides. Values are above 0.
    pub fn log(values: impl Iterator<Item = f64>, pixels: (f64, f64)) -> Self {
        let positive = values.filter(|value| *value > 0.0);
        let (least, largest) = positive.fold((f64::INFINITY, 0.0f64), |(a, b), value| (a.min(value), b.max(value)));
        let (least, largest) = if largest > 0.0 { (least, largest) } else { (1.0, 10.0) };
        let room = (largest / least).powf(0.06).max(1.15);
        Self { values: (least / room, largest * room), pixels, logarithmic: true }
    }

    /// Place of a value.
    pub fn at(&self, value: f64) -> f64 {
        let (from, to) = self.values;
        let share = match self.logarithmic {
            true => (value / from).ln() / (to / from).ln(),
            false => (value - from) / (to - from),
        };
        self.pixels.0 + share * (self.pixels.1 - self.pixels.0)
    }

    /// The least and the largest value.
    pub fn values(&self) -> (f64, f64) {
        self.values
    }

    /// Marks with their labels, and finer marks without.
    pub fn ticks(&self) -> (Vec<(f64, String)>, Vec<f64>) {
        let (from, to) = self.values;
        if !self.logarithmic {
            return (multiples((from, to), step(to - from)), Vec::new());
        }
        let (first, last) = (from.log10().floor() as i32, to.log10().ceil() as i32);
        let decades = (to / from).log10();
        let (mut marks, mut fine) = (Vec::new(), Vec::new());
        for decade in first..=last {
            for digit in 1..10 {
                let value = f64::from(digit) * 10f64.powi(decade);
                if value < from || value > to {
                    continue;
                }
                let is_mark = digit == 1 || (decades < CROWDED && (digit == 2 || digit == 5));
                if is_mark { marks.push((value, short(value))) } else { fine.push(value) }
            }
        }
        if marks.len() >= FEWEST {
            return (marks, fine);
        }
        // Less than a decade or so: steps as on an axis in proportion, ever finer.
        let steps = [5.0, 8.0, 12.0, 20.0].map(|count| round_step((to - from) / count));
        let finer = steps.into_iter().map(|step| multiples((from, to), step));
        (finer.into_iter().find(|marks| marks.len() >= FEWEST).unwrap_or(marks), Vec::new())
    }
}

/// The fewest marks of a logarithmic axis, and the decades from which on only powers of ten have
/// one.
const FEWEST: usize = 3;
const CROWDED: f64 = 4.0;

/// Marks at every multiple of a step.
fn multiples((from, to): (f64, f64), step: f64) -> Vec<(f64, String)> {
    let first = (from / step - 1e-9).ceil();
    let count = (to / step + 1e-9).floor() - first;
    if count < 0.0 {
        return Vec::new();
    }
    (0..=count as usize).map(|index| (first + index as f64) * step).map(|value| (value, short(value))).collect()
}

/// A step of 1, 2 or 5 times a power of ten that makes five marks or so.
fn step(range: f64) -> f64 {
    round_step(range / 5.0)
}

/// The next step of 1, 2 or 5 times a power of ten.
fn round_step(rough: f64) -> f64 {
    let power = 10f64.powf(rough.log10().floor());
    let factor = [1.0, 2.0, 5.0, 10.0].into_iter().find(|factor| factor * power >= rough * 0.999).unwrap_or(10.0);
    factor * power
}

/// A number in few letters: 2e-5, 0.25, 12, 1.5k, 3M.
pub(super) fn short(value: f64) -> String {
    let (scaled, unit) = match value.abs() {
        ..1e4 => (value, ""),
        ..1e6 => (value / 1e3, "k"),
        ..1e9 => (value / 1e6, "M"),
        ..1e12 => (value / 1e9, "G"),
        _ => (value / 1e12, "T"),
    };
    let text = match scaled.abs() {
        0.0 => "0".to_owned(),
        ..0.001 => return format!("{scaled:.1e}").replace(".0e", "e"),
        ..0.01 => format!("{scaled:.4}"),
        ..0.1 => format!("{scaled:.3}"),
        ..1.0 => format!("{scaled:.2}"),
        ..100.0 => format!("{scaled:.1}"),
        _ => format!("{scaled:.0}"),
    };
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text}{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_find_their_place() {
        let linear = Scale::linear(87.0, (0.0, 100.0));
        assert_eq!(linear.values(), (0.0, 100.0));
        assert!((linear.at(25.0) - 25.0).abs() < 1e-9);
        let log = Scale::log([10.0, 1000.0].into_iter(), (200.0, 0.0));
        assert!((log.at(100.0) - 100.0).abs() < 1e-9, "the middle by logarithms");
        assert!(log.at(1000.0) > 0.0 && log.at(10.0) < 200.0, "some room");
        let one = Scale::log([50.0].into_iter(), (0.0, 10.0));
        assert!((one.at(50.0) - 5.0).abs() < 1e-9);
        assert!(Scale::log(std::iter::empty(), (0.0, 1.0)).at(2.0).is_finite());
    }

    #[test]
    fn marks_are_round() {
        let labels = |scale: Scale| scale.ticks().0.into_iter().map(|(_, label)| label).collect::<Vec<_>>();
        assert_eq!(labels(Scale::linear(1.1, (0.0, 1.0))), ["0", "0.5", "1", "1.5"]);
        assert_eq!(labels(Scale::linear(95.0, (0.0, 1.0))), ["0", "20", "40", "60", "80", "100"]);
        assert_eq!(
            labels(Scale::log([10.0, 1000.0].into_iter(), (0.0, 1.0))),
            ["10", "20", "50", "100", "200", "500", "1000"]
        );
        assert_eq!(labels(Scale::log([1e3, 1e9].into_iter(), (0.0, 1.0)))[0], "1000");
    }

    #[test]
    fn logarithmic_axes_have_three_marks_at_least_and_none_twice() {
        for power in -6..12 {
            for lead in [1.0, 1.3, 1.9, 2.4, 3.7, 4.9, 6.1, 8.8] {
                for range in [1.0, 1.1, 1.5, 2.0, 3.0, 5.0, 8.0, 10.0, 30.0, 100.0, 900.0, 1e4, 1e6] {
                    let least = lead * 10f64.powi(power);
                    let scale = Scale::log([least, least * range].into_iter(), (0.0, 530.0));
                    let (marks, _) = scale.ticks();
                    let (from, to) = scale.values();
                    assert!(marks.len() >= FEWEST, "{least} times {range}: {marks:?}");
                    assert!(
                        marks.iter().all(|(value, _)| *value >= from * 0.999_999 && *value <= to * 1.000_001),
                        "{marks:?}"
                    );
                    let mut labels: Vec<&String> = marks.iter().map(|(_, label)| label).collect();
                    labels.dedup();
                    assert_eq!(labels.len(), marks.len(), "{least} times {range}: {marks:?}");
                }
            }
        }
    }

    #[test]
    fn decades_have_marks_at_1_2_and_5() {
        let (marks, fine) = Scale::log([40.0, 900.0].into_iter(), (0.0, 1.0)).ticks();
        assert_eq!(
            marks.iter().map(|(_, label)| label.as_str()).collect::<Vec<_>>(),
            ["50", "100", "200", "500", "1000"]
        );
        assert!(fine.contains(&300.0) && !fine.contains(&200.0), "{fine:?}");
        let narrow = Scale::log([210.0, 230.0].into_iter(), (0.0, 1.0)).ticks().0;
        assert_eq!(narrow.iter().map(|(_, label)| label.as_str()).collect::<Vec<_>>(), ["200", "220", "240", "260"]);
    }

    #[test]
    fn numbers_are_short() {
        let table = [(0.0, "0"), (0.25, "0.25"), (12.0, "12"), (1500.0, "1500"), (15_000.0, "15k"), (2.5e6, "2.5M")];
        for (value, text) in table.into_iter().chain([
            (1e9, "1G"),
            (0.1, "0.1"),
            (100.0, "100"),
            (2e-5, "2e-5"),
            (-1.5e-4, "-1.5e-4"),
            (0.004, "0.004"),
        ]) {
            assert_eq!(short(value), text);
        }
    }
}
