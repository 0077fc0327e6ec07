//! Timeline of every rank during one request. A rank's waits within a phase are drawn at its end,
//! hatched: their places in the phase are not recorded.

use super::phases::{class, legend};
use super::points::{lengths_of, marked, measured, ranks, typical, worlds};
use crate::scaling::{Series, is_full};
use crate::schema::{Point, RankSample, Sample, Study};
use tributary_charts::svg::{Anchor, Axis, Chart, Legend, Plot, Scale};
use tributary_system::token_count::short;

const ROW: f64 = 26.0;
const BAR: f64 = 18.0;

/// The most charts of this kind.
const CHARTS: usize = 6;

/// One chart a method, at the longest context on the most ranks.
pub(super) fn charts(study: &Study) -> Vec<Chart> {
    let (Some(length), Some(world)) = (lengths_of(study).last().copied(), worlds(study).last().copied()) else {
        return Vec::new();
    };
    let wanted = |point: &&Point| point.context_tokens == length && point.world == world && !is_full(point);
    let found = measured(study).filter(wanted).filter_map(|point| Some((point, typical(point)?)));
    let drawn = found.filter(|(_, sample)| sample.ranks.iter().any(|rank| !rank.spans.is_empty()));
    drawn.take(CHARTS).enumerate().map(|(index, (point, sample))| chart(study, index + 1, point, sample)).collect()
}

fn chart(study: &Study, number: usize, point: &Point, sample: &Sample) -> Chart {
    let label = Series::of(point).label();
    let title = format!("One request of {label}, {} tokens, {}", short(point.context_tokens), ranks(point.world));
    let below = format!(
        "run {}, {:.2} ms, nearest to the median; from the plan's arrival on; hatched: waiting",
        sample.run, sample.ttft_ms
    );
    let below = marked(&below, point.shares_cores);
    let mut names = legend(study);
    names.retain(|(_, name)| sample.ranks.iter().flat_map(|rank| &rank.spans).any(|span| span.phase == *name));
    let mut plot = Plot::new(&title, &below, &names, Legend::Square, ROW * sample.ranks.len() as f64 + 8.0);
    let spans = || sample.ranks.iter().flat_map(|rank| &rank.spans).filter(|span| is_drawn(&span.phase));
    let end_ms = spans().map(|span| span.start_ms + span.ms).fold(0.0, f64::max);
    let x = Scale::linear(end_ms, plot.across());
    plot.horizontal(&x, &Axis::new("time [ms]"));
    for (index, rank) in sample.ranks.iter().enumerate() {
        let y = plot.place.1 + 4.0 + index as f64 * ROW + (ROW - BAR) / 2.0;
        plot.drawing.text((plot.place.0 - 8.0, y + BAR / 2.0 + 4.0), Anchor::End, "", &format!("rank {}", rank.rank));
        row(&mut plot, &x, y, rank, &names);
    }
    plot.finish(&format!("timeline-{number}"))
}

/// Whether a phase is before the first token.
fn is_drawn(phase: &str) -> bool {
    !matches!(phase, "evict" | "decode")
}

fn row(plot: &mut Plot, x: &Scale, y: f64, rank: &RankSample, names: &[(usize, String)]) {
    for span in rank.spans.iter().filter(|span| is_drawn(&span.phase)) {
        let computed_ms = (span.ms - span.waited_ms).max(0.0);
        let tip = format!(
            "rank {}, {}: {:.2} ms from {:.2} ms on, {:.2} ms of it waiting",
            rank.rank, span.phase, span.ms, span.start_ms, span.waited_ms
        );
        let class = class(names, &span.phase);
        let (start, turn, end) =
            (x.at(span.start_ms), x.at(span.start_ms + computed_ms), x.at(span.start_ms + span.ms));
        plot.drawing.bar((start, y), (turn - start, BAR), &class, false, &tip);
        plot.drawing.bar((turn, y), (end - turn, BAR), &class, true, &tip);
    }
}
