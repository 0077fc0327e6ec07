//! Charts and the table of kept rows: scores over kept rows, and the cost of choosing them.

use tributary_charts::svg::{Axis, Chart, Legend, Plot, Scale};

use super::marks::{HEIGHT, curve, label_of, legend, scores};
use crate::points::Point;
use crate::report::Report;

/// Scores over the rows that decoding keeps, a curve for each eviction after each method; methods
/// without eviction are lines.
pub fn chart(report: &Report) -> Option<Chart> {
    let all: Vec<&Point> = report.methods().filter_map(<[Point]>::last).collect();
    let mut names: Vec<String> = Vec::new();
    for point in all.iter().filter(|point| point.eviction.is_some()) {
        if !names.contains(&label_of(point)) {
            names.push(label_of(point));
        }
    }
    let of = |name: &String| -> Vec<(f64, &Point)> {
        let own = all.iter().filter(|point| point.eviction.is_some() && label_of(point) == *name);
        let mut found: Vec<(f64, &Point)> = own.filter_map(|point| Some((point.kept_rows?, *point))).collect();
        found.sort_by(|a, b| a.0.total_cmp(&b.0));
        found
    };
    let first = all.first().filter(|_| !names.is_empty())?;
    let below = format!("bands: 95 % of means; dashed: {} with all rows", first.method);
    let mut plot = Plot::new("Quality and kept rows", &below, &legend(&names), Legend::Mark, HEIGHT);
    let kept = names.iter().flat_map(of).map(|(rows, _)| rows);
    let (x, y) = (Scale::log(kept, plot.across()), Scale::between((0.0, 1.05), plot.up()));
    plot.horizontal(&x, &Axis::new("rows kept in a layer and KV head, mean"));
    plot.vertical(&y, &scores());
    let ((left, right), full) = (plot.across(), y.at(first.score.mean));
    plot.drawing.path(&[(left, full), (right, full)], false, "ideal");
    for (series, name) in names.iter().enumerate() {
        curve(&mut plot, (&x, &y), series, &of(name), |rows| format!("{name}, {rows:.0} rows"));
    }
    Some(plot.finish("quality-kept"))
}
