//! Predictions against measurements: a point on the diagonal is right.

use super::points::{labels, legend, marked, measured, ranks, series_of};
use crate::rows::{bytes_differ, formula_bytes, received_bytes};
use crate::schema::{Point, Study};
use tributary_charts::svg::{Anchor, Axis, Chart, Legend, Plot, Scale};
use tributary_system::token_count::short;

const HEIGHT: f64 = 340.0;

/// Factor between the outer lines and the diagonal.
const MARGIN: f64 = 1.25;

/// One point of a cloud: predicted, measured, tooltip.
type Dot<'a> = (&'a Point, f64, f64, String);

/// Predicted against measured time to first token; none without a prediction.
pub(super) fn predicted(study: &Study) -> Option<Chart> {
    let dot = |point: &'_ Point| -> Option<(f64, f64, String)> {
        let (predicted, found) = (point.predicted.ttft_ms, point.summary.as_ref()?.median_ttft_ms);
        let error = 100.0 * (predicted / found - 1.0);
        let (low, high) = (point.predicted.ttft_low_ms, point.predicted.ttft_high_ms);
        let tip =
            format!("predicted {predicted:.2} ms ({low:.2} to {high:.2}), measured {found:.2} ms ({error:+.0} %)");
        (predicted > 0.0).then_some((predicted, found, tip))
    };
    let below = format!("profile: {}; outer lines: 25 % off", study.provenance.profile);
    let axes = ["predicted [ms]", "measured, median [ms]"];
    cloud(study, &dots(study, dot), "predicted-ttft", "Predicted and measured TTFT", &below, axes)
}

/// Bytes by formula against bytes counted; none without a formula.
pub(super) fn bytes(study: &Study) -> Option<Chart> {
    let dot = |point: &'_ Point| -> Option<(f64, f64, String)> {
        let (formula, found) = (formula_bytes(point)?, received_bytes(point)?);
        (formula > 0 && found > 0)
            .then(|| (formula as f64, found as f64, format!("formula {formula}, counted {found} bytes")))
    };
    // A logarithmic axis has no place for a point without bytes: the line below counts those too.
    let (wrong, count) = (measured(study).filter(|point| bytes_differ(point)).count(), measured(study).count());
    let below = match wrong {
        0 => "received until the first token, all ranks; every rank of every run equal to the byte".to_owned(),
        _ => format!("received until the first token, all ranks, medians; {wrong} of {count} points differ"),
    };
    cloud(
        study,
        &dots(study, dot),
        "bytes",
        "Bytes by formula and counted",
        &below,
        ["formula [bytes]", "counted [bytes]"],
    )
}

fn dots<'a>(study: &'a Study, dot: impl Fn(&Point) -> Option<(f64, f64, String)>) -> Vec<Dot<'a>> {
    let of = |point: &'a Point| dot(point).map(|(predicted, found, tip)| (point, predicted, found, tip));
    measured(study).filter_map(of).collect()
}

fn cloud(study: &Study, dots: &[Dot<'_>], name: &str, title: &str, below: &str, axes: [&str; 2]) -> Option<Chart> {
    if dots.is_empty() {
        return None;
    }
    let labels = labels(study);
    let below = marked(below, dots.iter().any(|dot| dot.0.shares_cores));
    let mut plot = Plot::new(title, &below, &legend(study, dots.iter().map(|dot| dot.0)), Legend::Mark, HEIGHT);
    let values = || dots.iter().flat_map(|(_, predicted, found, _)| [*predicted, *found]);
    let (x, y) = (Scale::log(values(), plot.across()), Scale::log(values(), plot.up()));
    plot.horizontal(&x, &Axis::new(axes[0]));
    plot.vertical(&y, &Axis::new(axes[1]));
    let (from, to) = x.values();
    plot.drawing.path(&[(x.at(from), y.at(from)), (x.at(to), y.at(to))], false, "ideal");
    if name != "bytes" {
        plot.drawing.line((x.at(from * MARGIN), y.at(from)), (x.at(to), y.at(to / MARGIN)), "grid");
        plot.drawing.line((x.at(from), y.at(from * MARGIN)), (x.at(to / MARGIN), y.at(to)), "grid");
    }
    plot.drawing.text((x.at(to) - 8.0, y.at(from) - 10.0), Anchor::End, "muted", "dashed: equal");
    for (point, predicted, found, tip) in dots {
        let series = series_of(study, point);
        let head = format!("{}, {} tokens, {}", labels[series], short(point.context_tokens), ranks(point.world));
        plot.drawing.mark((x.at(*predicted), y.at(*found)), series, &format!("{head}: {tip}"));
    }
    Some(plot.finish(name))
}
