//! The picture of a load: of one window the time to first token over time and its distribution, of
//! several their percentiles against the rate.

use tributary_charts::statistics;
use tributary_charts::svg::{Anchor, Axis, Chart, Legend, Plot, Scale};

use crate::options::Pace;
use crate::report::{Percentiles, Report};
use crate::sample::Sample;
use crate::window::Window;

/// Pixels of the place for values.
const HEIGHT: f64 = 220.0;

/// The most requests that are drawn as points: of more, some at even distances.
const MOST_POINTS: usize = 2000;

const TTFT: &str = "time to first token [ms]";

/// Draws the result of a load, as the text of an SVG file.
pub fn plot(report: &Report, windows: &[(Pace, Window)]) -> String {
    let charts = match windows {
        [(_, window)] => vec![over_time(report, window), distribution(window)],
        _ => vec![against_rate(report)],
    };
    below_each_other(charts).alone()
}

/// Shape of the requests, in a line.
fn below(report: &Report) -> String {
    let shape = &report.requests;
    if let Some(trace) = &shape.trace {
        return format!("{} requests of the trace {}, lengths times {}", trace.requests, trace.path, trace.scale);
    }
    let reuse = match (shape.corpus, shape.zipf) {
        (Some(corpus), Some(zipf)) => format!("of a corpus of {corpus} by Zipf's law with exponent {zipf}"),
        _ => "each of them new".to_owned(),
    };
    let (documents, tokens, most) = (shape.documents, shape.document_tokens, shape.max_tokens);
    format!("{documents} documents of about {tokens} tokens, {reuse}; {most} tokens to generate at most")
}

/// Seconds and milliseconds of every request that has a first token.
fn points(window: &Window) -> Vec<(f64, f64)> {
    let answered = window.samples.iter().filter(|sample| sample.is_answered());
    answered.filter_map(|sample| Some((sample.planned, sample.ttft_ms()?))).collect()
}

fn over_time(report: &Report, window: &Window) -> Chart {
    let points = points(window);
    let lost: Vec<&Sample> = window.samples.iter().filter(|sample| !sample.is_answered()).collect();
    let mut legend = vec![(0, "answered".to_owned())];
    if !lost.is_empty() {
        legend.push((1, "not answered".to_owned()));
    }
    let mut plot = Plot::new(
        "Time to first token, by when the request was planned",
        &below(report),
        &legend,
        Legend::Mark,
        HEIGHT,
    );
    let (across, up) =
        (Scale::linear(window.seconds, plot.across()), Scale::log(points.iter().map(|p| p.1), plot.up()));
    plot.horizontal(&across, &Axis::new("planned [s]"));
    plot.vertical(&up, &Axis::new(TTFT));
    let step = points.len().div_ceil(MOST_POINTS).max(1);
    for (seconds, ms) in points.iter().step_by(step) {
        plot.drawing.mark((across.at(*seconds), up.at(*ms)), 0, &format!("{seconds:.2} s: {ms:.1} ms"));
    }
    let bottom = plot.place.3 - 6.0;
    for sample in lost.iter().step_by(lost.len().div_ceil(MOST_POINTS).max(1)) {
        let tip = format!("{:.2} s: {}", sample.planned, sample.outcome.name());
        plot.drawing.mark((across.at(sample.planned), bottom), 1, &tip);
    }
    plot.finish("ttft-over-time")
}

fn distribution(window: &Window) -> Chart {
    let series = [
        ("time to first token", Sample::ttft_ms as fn(&Sample) -> Option<f64>),
        ("total", |sample| Some(sample.total_ms())),
    ];
    let legend: Vec<(usize, String)> =
        series.iter().enumerate().map(|(index, (name, _))| (index, (*name).to_owned())).collect();
    let mut plot = Plot::new("Share of requests that took no longer", "", &legend, Legend::Mark, HEIGHT);
    let sorted = |value: fn(&Sample) -> Option<f64>| {
        let answered = window.samples.iter().filter(|sample| sample.is_answered());
        statistics::sorted(&answered.filter_map(value).collect::<Vec<f64>>())
    };
    let curves = series.map(|(name, value)| (name, sorted(value)));
    let all = curves.iter().flat_map(|(_, values)| values.iter().copied());
    let (across, up) = (Scale::log(all, plot.across()), Scale::between((0.0, 1.0), plot.up()));
    plot.horizontal(&across, &Axis::new("[ms]"));
    let marks = [0.0, 0.5, 0.9, 1.0].map(|share: f64| (share, format!("{:.0} %", share * 100.0)));
    plot.vertical(&up, &Axis::new("requests").with(marks.to_vec()));
    for (index, (name, values)) in curves.iter().enumerate() {
        let share = |position: usize| (position + 1) as f64 / values.len() as f64;
        let step = values.len().div_ceil(MOST_POINTS).max(1);
        let steps = values.iter().enumerate().step_by(step);
        let curve: Vec<(f64, f64)> = steps.map(|(position, ms)| (across.at(*ms), up.at(share(position)))).collect();
        plot.drawing.path(&curve, false, &format!("curve s{index}"));
        if let (Some(ms), Some(&place)) = (values.last(), curve.last()) {
            plot.drawing.mark(place, index, &format!("{name}: {ms:.1} ms at most"));
        }
    }
    plot.finish("distribution")
}

fn against_rate(report: &Report) -> Chart {
    type Of = fn(&Percentiles) -> Option<f64>;
    let of: [(&str, Of); 4] = [("p50", |p| p.p50), ("p90", |p| p.p90), ("p95", |p| p.p95), ("p99", |p| p.p99)];
    let legend: Vec<(usize, String)> =
        of.iter().enumerate().map(|(index, (name, _))| (index, (*name).to_owned())).collect();
    let mut plot = Plot::new(
        "Time to first token against the rate of requests",
        &below(report),
        &legend,
        Legend::Mark,
        HEIGHT * 1.4,
    );
    let of_rate =
        |rate: f64| report.windows.iter().find(|window| window.rate == Some(rate)).map(|window| &window.ttft_ms);
    let mut rates = statistics::sorted(&report.windows.iter().filter_map(|window| window.rate).collect::<Vec<f64>>());
    rates.dedup();
    let windows: Vec<(f64, &Percentiles)> = rates.into_iter().filter_map(|rate| Some((rate, of_rate(rate)?))).collect();
    let largest = windows.last().map_or(1.0, |(rate, _)| *rate);
    let values = windows.iter().flat_map(|(_, percentiles)| of.iter().filter_map(|(_, of)| of(percentiles)));
    let (across, up) = (Scale::linear(largest, plot.across()), Scale::log(values, plot.up()));
    plot.horizontal(&across, &Axis::new("planned requests a second"));
    plot.vertical(&up, &Axis::new(TTFT));
    for (index, (name, of)) in of.iter().enumerate() {
        let curve: Vec<(f64, f64)> = windows.iter().filter_map(|(rate, all)| Some((*rate, of(all)?))).collect();
        let places: Vec<(f64, f64)> = curve.iter().map(|(rate, ms)| (across.at(*rate), up.at(*ms))).collect();
        plot.drawing.path(&places, false, &format!("curve s{index}"));
        for (place, (rate, ms)) in places.iter().zip(&curve) {
            plot.drawing.mark(*place, index, &format!("{name} at {rate:.3} requests/s: {ms:.1} ms"));
        }
    }
    if let Some(rate) = report.saturation.as_ref().and_then(|saturation| saturation.growing_rate) {
        let (x, (_, top, _, bottom)) = (across.at(rate), plot.place);
        plot.drawing.line((x, top), (x, bottom), "ideal");
        plot.drawing.text((x - 6.0, top + 14.0), Anchor::End, "muted", "the queue grows");
    }
    plot.finish("ttft-against-rate")
}

/// Charts as one, in their order.
fn below_each_other(charts: Vec<Chart>) -> Chart {
    let (mut body, mut height, mut width) = (String::new(), 0.0, 0.0f64);
    for chart in &charts {
        body += &format!("<g transform=\"translate(0 {height:.0})\">{}</g>\n", chart.body);
        height += chart.size.1;
        width = width.max(chart.size.0);
    }
    let title = charts.into_iter().next().map_or_else(String::new, |chart| chart.title);
    Chart { name: "load".to_owned(), title, size: (width, height), body }
}
