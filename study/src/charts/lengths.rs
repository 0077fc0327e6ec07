//! Time to first token against the length of the context: both axes logarithmic, the interval of
//! the median as a band, one chart a number of ranks.

use super::points::{labels, legend, lengths_of, marked, measured, ranks, series_of, worlds};
use crate::rows::interval_name;
use crate::schema::{Point, Study, Summary, interval_kind};
use tributary_charts::svg::{Axis, COLOURS, Chart, Legend, Plot, Scale};
use tributary_system::token_count::short;

const HEIGHT: f64 = 300.0;

pub(super) fn charts(study: &Study) -> Vec<Chart> {
    worlds(study).into_iter().map(|world| chart(study, world)).collect()
}

fn chart(study: &Study, world: usize) -> Chart {
    let here = || measured(study).filter(|point| point.world == world);
    let legend = legend(study, here());
    let below = format!("median and {}; both axes logarithmic", interval_name(study));
    let below = marked(&below, here().any(|point| point.shares_cores));
    let title = format!("Time to first token, {}", ranks(world));
    let mut plot = Plot::new(&title, &below, &legend, Legend::Mark, HEIGHT);
    let lengths = lengths_of(study);
    let x = Scale::log(lengths.iter().map(|&length| length as f64), plot.across());
    // The same range in the charts of all worlds, so that they can be compared.
    let bounds = measured(study).filter_map(|point| point.summary.as_ref()).flat_map(|summary| {
        let (low, high) = summary.ci95_ttft_ms;
        [low, high]
    });
    let y = Scale::log(bounds, plot.up());
    let marks = lengths.iter().map(|&length| (length as f64, short(length))).collect();
    plot.horizontal(&x, &Axis::new("context [tokens]").with(marks));
    plot.vertical(&y, &Axis::new("TTFT [ms]"));
    for series in 0..labels(study).len() {
        let mut points: Vec<(&Point, &Summary)> = measured(study)
            .filter(|point| point.world == world && series_of(study, point) == series)
            .filter_map(|point| Some((point, point.summary.as_ref()?)))
            .collect();
        points.sort_by_key(|(point, _)| point.context_tokens);
        draw(&mut plot, (&x, &y), series, &labels(study)[series], &points);
    }
    plot.finish(&format!("ttft-{world}-ranks"))
}

fn draw(plot: &mut Plot, (x, y): (&Scale, &Scale), series: usize, label: &str, points: &[(&Point, &Summary)]) {
    let colour = format!("s{}", series % (COLOURS - 1));
    let at = |point: &Point, ms: f64| (x.at(point.context_tokens as f64), y.at(ms));
    let lower = points.iter().map(|(point, summary)| at(point, summary.ci95_ttft_ms.0));
    let upper = points.iter().rev().map(|(point, summary)| at(point, summary.ci95_ttft_ms.1));
    if points.len() > 1 {
        plot.drawing.path(&lower.chain(upper).collect::<Vec<_>>(), true, &format!("band {colour}"));
        let line: Vec<_> = points.iter().map(|(point, summary)| at(point, summary.median_ttft_ms)).collect();
        plot.drawing.path(&line, false, &format!("curve {colour}"));
    }
    for (point, summary) in points {
        let (low, high) = summary.ci95_ttft_ms;
        if points.len() == 1 {
            plot.drawing.path(&[at(point, low), at(point, high)], false, &format!("curve {colour}"));
        }
        let kind = if interval_kind(summary.count) == "range" { "range" } else { "95 % interval" };
        let tip = format!(
            "{label}, {} tokens, {}: {:.2} ms, {kind} {low:.2} to {high:.2} ms, {} samples",
            short(point.context_tokens),
            ranks(point.world),
            summary.median_ttft_ms,
            summary.count
        );
        plot.drawing.mark(at(point, summary.median_ttft_ms), series, &tip);
    }
}
