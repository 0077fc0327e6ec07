//! Shared parts of charts of scores: their height, their axis, names, and curves with bands.

use tributary_charts::svg::{Axis, COLOURS, Plot, Scale};

use crate::points::Point;
use crate::statistics::Mean;

/// Pixels of the place for values.
pub(super) const HEIGHT: f64 = 300.0;

/// The axis of scores.
pub(super) fn scores() -> Axis {
    let marks = (0..=5).map(|fifth| f64::from(fifth) / 5.0);
    Axis::new("mean score of all tasks").with(marks.map(|mark| (mark, mark.to_string())).collect())
}

/// Common name of a method's points at all its ratios, and at all budgets of an eviction after it.
pub(super) fn label_of(point: &Point) -> String {
    point.eviction.as_ref().map_or_else(|| point.method.clone(), |own| format!("{}, {}", own.behind, own.evict))
}

/// Names with the numbers of their marks.
pub(super) fn legend(names: &[String]) -> Vec<(usize, String)> {
    names.iter().cloned().enumerate().collect()
}

/// A curve of scores with its band and marks.
pub(super) fn curve(
    plot: &mut Plot,
    (x, y): (&Scale, &Scale),
    series: usize,
    points: &[(f64, &Point)],
    tip: impl Fn(f64) -> String,
) {
    let at = |value: fn(&Point) -> f64| points.iter().map(move |(place, point)| (x.at(*place), y.at(value(point))));
    let band: Vec<(f64, f64)> =
        at(|point| point.score.low).chain(at(|point| point.score.high).collect::<Vec<_>>().into_iter().rev()).collect();
    let colour = series % (COLOURS - 1);
    plot.drawing.path(&band, true, &format!("band s{colour}"));
    let curve: Vec<(f64, f64)> = at(|point| point.score.mean).collect();
    plot.drawing.path(&curve, false, &format!("curve s{colour}"));
    for ((value, point), place) in points.iter().zip(curve) {
        let Mean { mean, low, high } = point.score;
        plot.drawing.mark(place, series, &format!("{}: {mean:.3} ({low:.3} to {high:.3})", tip(*value)));
    }
}

/// A method with its ratio.
pub(super) fn label(point: &Point) -> String {
    point.ratio.map_or_else(|| point.method.clone(), |ratio| format!("{} at {ratio}", point.method))
}
