//! Breakdown of the time to first token: phases of the critical path one after the other, waits for
//! other ranks hatched.

use super::points::{lengths_of, marked, measured, ranks, typical, worlds};
use crate::rows;
use crate::scaling::Series;
use crate::schema::{Point, Sample, Study};
use tributary_charts::svg::{Anchor, Axis, COLOURS, Chart, Legend, Plot, Scale, text_width};
use tributary_system::token_count::short;

const ROW: f64 = 30.0;
const BAR: f64 = 20.0;
const UNACCOUNTED: usize = COLOURS - 1;

/// One chart for each number of ranks, at the longest context.
pub(super) fn charts(study: &Study) -> Vec<Chart> {
    let Some(length) = lengths_of(study).last().copied() else { return Vec::new() };
    worlds(study).into_iter().filter_map(|world| chart(study, length, world)).collect()
}

fn chart(study: &Study, length: usize, world: usize) -> Option<Chart> {
    let here = measured(study).filter(|point| point.context_tokens == length && point.world == world);
    let rows: Vec<(&Point, &Sample)> = here.filter_map(|point| Some((point, typical(point)?))).collect();
    let largest = rows.iter().map(|(_, sample)| sample.ttft_ms).fold(0.0, f64::max);
    if rows.is_empty() {
        return None;
    }
    let legend = legend(study);
    let names: Vec<String> = rows.iter().map(|(point, _)| Series::of(point).label()).collect();
    let left = 24.0 + names.iter().map(|name| text_width(name)).fold(0.0, f64::max);
    let title = format!("Phases until the first token, {} tokens, {}", short(length), ranks(world));
    let below = "critical path of the run nearest to the median; hatched: waiting for other ranks";
    let below = marked(below, rows.iter().any(|(point, _)| point.shares_cores));
    let mut plot = Plot::with_left(&title, &below, &legend, Legend::Square, ROW * rows.len() as f64 + 8.0, left);
    let x = Scale::linear(largest, plot.across());
    plot.horizontal(&x, &Axis::new("time [ms]"));
    for (index, ((_, sample), name)) in rows.iter().zip(&names).enumerate() {
        let y = plot.place.1 + 4.0 + index as f64 * ROW + (ROW - BAR) / 2.0;
        plot.drawing.text((left - 8.0, y + BAR / 2.0 + 4.0), Anchor::End, "", name);
        stack(&mut plot, &x, y, sample, &legend);
    }
    Some(plot.finish(&format!("phases-{length}-{world}-ranks")))
}

/// All phases of the study with their colours, the same in every chart, and the rest.
pub(super) fn legend(study: &Study) -> Vec<(usize, String)> {
    let mut names: Vec<(usize, String)> = rows::phases(study).into_iter().take(UNACCOUNTED).enumerate().collect();
    names.push((UNACCOUNTED, "unaccounted".to_owned()));
    names
}

/// The class of a phase's colour.
pub(super) fn class(legend: &[(usize, String)], phase: &str) -> String {
    let colour = legend.iter().find(|(_, name)| name == phase).map_or(UNACCOUNTED, |(colour, _)| *colour);
    format!("s{colour}")
}

fn stack(plot: &mut Plot, x: &Scale, y: f64, sample: &Sample, legend: &[(usize, String)]) {
    let mut from_ms = 0.0;
    let left = sample.unaccounted_ms.max(0.0);
    let phases = sample.phases.iter().map(|time| (time.phase.as_str(), time.ms, time.waited_ms));
    for (phase, ms, waited_ms) in phases.chain([("unaccounted", left, 0.0)]) {
        let share = 100.0 * ms / sample.ttft_ms;
        let tip =
            format!("{phase}: {ms:.2} ms, {share:.1} % of {:.2} ms, {waited_ms:.2} ms of it waiting", sample.ttft_ms);
        let class = class(legend, phase);
        let computed_ms = (ms - waited_ms).max(0.0);
        for (start, length, hatched) in [(from_ms, computed_ms, false), (from_ms + computed_ms, ms - computed_ms, true)]
        {
            let width = x.at(start + length) - x.at(start);
            plot.drawing.bar((x.at(start), y), (width, BAR), &class, hatched, &tip);
        }
        from_ms += ms;
    }
}
