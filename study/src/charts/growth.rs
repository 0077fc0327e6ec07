//! Speed-up and efficiency against ranks, with the ideal line; weak scaling.

use std::collections::BTreeSet;
use tributary_system::token_count::short;

use super::points::{labels, lengths_of, marked, ranks, worlds};
use crate::scaling::{Scaled, all_series, strong, weak_tokens};
use crate::schema::Study;
use tributary_charts::svg::{Anchor, Axis, COLOURS, Chart, Legend, Plot, Scale};

const HEIGHT: f64 = 260.0;

/// View of scaled points.
struct Look<'a> {
    name: String,
    title: String,
    below: &'a str,
    axis: &'a str,
    value: fn(&Scaled) -> f64,
    ideal: fn(f64) -> f64,
}

pub(super) fn charts(study: &Study) -> Vec<Chart> {
    if worlds(study).len() < 2 {
        return Vec::new();
    }
    let mut charts = Vec::new();
    let all: Vec<Scaled> = strong(study).into_iter().filter(|row| !row.series.is_full()).collect();
    for length in lengths_of(study) {
        let rows: Vec<Scaled> = all.iter().filter(|row| row.tokens == length).cloned().collect();
        if rows.iter().all(|row| row.world == row.base_world) {
            continue;
        }
        let below = "strong scaling: the same request on more ranks, beside the fewest of the same method";
        let speed_up = Look {
            name: format!("speed-up-{length}"),
            title: format!("Speed-up, {} tokens", short(length)),
            below,
            axis: "speed-up",
            value: |row| row.speed_up,
            ideal: |times| times,
        };
        let efficiency = Look {
            name: format!("efficiency-{length}"),
            title: format!("Parallel efficiency, {} tokens", short(length)),
            below,
            axis: "efficiency",
            value: |row| row.efficiency,
            ideal: |_| 1.0,
        };
        charts.extend([chart(study, &rows, &speed_up), chart(study, &rows, &efficiency)]);
    }
    let mut weak = weak_tokens(study);
    if !weak.is_empty() {
        weak.extend(bases(&weak));
        let look = Look {
            name: "weak-tokens".to_owned(),
            title: "Weak scaling at constant tokens a rank".to_owned(),
            below: "base time over time; attention grows with the length: exact methods stay below 1",
            axis: "efficiency",
            value: |row| row.efficiency,
            ideal: |_| 1.0,
        };
        charts.push(chart(study, &weak, &look));
    }
    charts
}

/// Each base as a separate point.
fn bases(rows: &[Scaled]) -> Vec<Scaled> {
    let base = |row: &Scaled| Scaled {
        world: row.base_world,
        tokens: row.base_tokens,
        ms: row.base_ms,
        speed_up: 1.0,
        efficiency: 1.0,
        ..row.clone()
    };
    rows.iter().map(base).collect()
}

fn chart(study: &Study, rows: &[Scaled], look: &Look<'_>) -> Chart {
    let present: Vec<usize> =
        (0..labels(study).len()).filter(|&series| of(study, rows, series).next().is_some()).collect();
    let names = labels(study);
    let name = |series: usize| match of(study, rows, series).next().filter(|_| look.axis == "speed-up") {
        Some(row) => format!("{} ({}: {:.1} ms)", names[series], ranks(row.base_world), row.base_ms),
        None => names[series].clone(),
    };
    let legend: Vec<(usize, String)> = present.iter().map(|&series| (series, name(series))).collect();
    let below = marked(look.below, rows.iter().any(|row| row.shares_cores));
    let mut plot = Plot::new(&look.title, &below, &legend, Legend::Mark, HEIGHT);
    let counts: BTreeSet<usize> = rows.iter().map(|row| row.world).collect();
    let (first, last) = (counts.first().copied().unwrap_or(1), counts.last().copied().unwrap_or(2));
    let x = Scale::between((first as f64 - 0.15, last as f64 + 0.15), plot.across());
    let least = rows.iter().map(|row| row.base_world).min().unwrap_or(1) as f64;
    let ideal_end = (look.ideal)(last as f64 / least);
    let largest = rows.iter().map(look.value).fold(ideal_end, f64::max);
    let y = Scale::linear(1.06 * largest, plot.up());
    let marks = counts.iter().map(|&world| (world as f64, world.to_string())).collect();
    plot.horizontal(&x, &Axis::new("ranks").with(marks));
    plot.vertical(&y, &Axis::new(look.axis));
    let ideal: Vec<(f64, f64)> =
        [first, last].iter().map(|&world| (x.at(world as f64), y.at((look.ideal)(world as f64 / least)))).collect();
    plot.drawing.path(&ideal, false, "ideal");
    plot.drawing.text((ideal[1].0 - 6.0, ideal[1].1 - 7.0), Anchor::End, "muted", "ideal");
    for series in present {
        draw(&mut plot, &x, &y, series, &of(study, rows, series).collect::<Vec<_>>(), look);
    }
    plot.finish(&look.name)
}

/// Rows of a series.
fn of<'a>(study: &Study, rows: &'a [Scaled], series: usize) -> impl Iterator<Item = &'a Scaled> {
    let wanted = all_series(study).into_iter().nth(series);
    rows.iter().filter(move |row| Some(&row.series) == wanted.as_ref())
}

fn draw(plot: &mut Plot, x: &Scale, y: &Scale, series: usize, rows: &[&Scaled], look: &Look<'_>) {
    let mut rows = rows.to_vec();
    rows.sort_by_key(|row| (row.base_tokens, row.world));
    let at = |row: &Scaled| (x.at(row.world as f64), y.at((look.value)(row)));
    for line in rows.chunk_by(|a, b| a.base_tokens == b.base_tokens) {
        let points: Vec<_> = line.iter().map(|row| at(row)).collect();
        plot.drawing.path(&points, false, &format!("curve s{}", series % (COLOURS - 1)));
    }
    for row in rows {
        let shared = if row.shares_cores { "; ranks share cores: functional only" } else { "" };
        let tip = format!(
            "{}, {} tokens, {}: {:.2} ms; base {} tokens, {}: {:.2} ms; {} {:.2}{shared}",
            row.series.label(),
            short(row.tokens),
            ranks(row.world),
            row.ms,
            short(row.base_tokens),
            ranks(row.base_world),
            row.base_ms,
            look.axis,
            (look.value)(row)
        );
        plot.drawing.mark(at(row), series, &tip);
    }
}
