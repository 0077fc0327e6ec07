//! The charts of a page: quality against time and bytes with the methods that no other beats,
//! ratios, and depths.

use tributary_charts::svg::{Anchor, Axis, COLOURS, Chart, HeatMap, Legend, Plot, Scale, labels};
use tributary_protocol::Family;

use super::kept;
use super::marks::{HEIGHT, curve, label, label_of, legend, scores};
use crate::overlap::Overlap;
use crate::points::{ALL, Point};
use crate::report::Report;
use crate::statistics::Mean;

/// Pixels of the place for values where every point has its name.
const NAMED_HEIGHT: f64 = 420.0;

/// All charts that have data.
pub fn charts(report: &Report) -> Vec<Chart> {
    let all: Vec<&Point> = report.methods().filter_map(<[Point]>::last).collect();
    let time = |point: &Point| point.median_ttft_ms;
    let bytes = |point: &Point| point.median_received_bytes as f64;
    let beside = [
        front(&all, time, ("quality-ttft", "Quality and time", "time to first token, median [ms]")),
        front(&all, bytes, ("quality-bytes", "Quality and bytes", "received until the first token, median [bytes]")),
        ratios(&all),
        chunk_sizes(report),
        kept::chart(report),
        decoding(
            &all,
            |point| point.kept_rows,
            ("quality-rows", "Quality and memory", "rows kept in a layer and KV head, mean"),
        ),
        decoding(
            &all,
            |point| point.median_total_ms,
            ("quality-total", "Quality and all tokens", "until the last token, median [ms]"),
        ),
    ];
    beside.into_iter().flatten().chain(depths(report)).collect()
}

/// Scores over the cost of decoding; nothing where no method evicts, since then all of them decode
/// alike.
fn decoding(all: &[&Point], cost: impl Fn(&Point) -> Option<f64>, names: (&str, &str, &str)) -> Option<Chart> {
    all.iter().any(|point| point.eviction.is_some()).then(|| front(all, |point| cost(point).unwrap_or(0.0), names))?
}

/// Names of methods, and the number of each point's.
fn series(all: &[&Point]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for point in all {
        if !names.contains(&label_of(point)) {
            names.push(label_of(point));
        }
    }
    names
}

/// The place of a point's family among all, which is its colour and its mark.
fn family_of(point: &Point) -> usize {
    Family::ALL.into_iter().position(|family| family.name() == point.family).unwrap_or(COLOURS - 1)
}

/// The families of some points, for a legend.
fn families(all: &[&Point]) -> Vec<(usize, String)> {
    let titles = Family::ALL.into_iter().enumerate().map(|(index, family)| (index, family.title().to_owned()));
    titles.filter(|(index, _)| all.iter().any(|point| family_of(point) == *index)).collect()
}

/// Scores over a cost, each point with its name and its family's colour, and a line through the
/// points that no other beats in both. A logarithmic axis has no place for a cost of zero.
fn front(all: &[&Point], cost: impl Fn(&Point) -> f64, (name, title, axis): (&str, &str, &str)) -> Option<Chart> {
    let shown: Vec<&Point> = all.iter().copied().filter(|point| cost(point) > 0.0).collect();
    if shown.len() < 2 {
        return None;
    }
    let missing = all.len() - shown.len();
    let below = match missing {
        0 => "dashed: no other method is better and cheaper; upright: 95 % of the mean".to_owned(),
        _ => format!(
            "dashed: no other method is better and cheaper; upright: 95 % of the mean\n{missing} that cost nothing are left out"
        ),
    };
    let mut plot = Plot::new(title, &below, &families(&shown), Legend::Mark, NAMED_HEIGHT);
    let (x, y) =
        (Scale::log(shown.iter().map(|point| cost(point)), plot.across()), Scale::between((0.0, 1.05), plot.up()));
    plot.horizontal(&x, &Axis::new(axis));
    plot.vertical(&y, &scores());
    let best: Vec<(f64, f64)> =
        unbeaten(&shown, &cost).iter().map(|(cost, score)| (x.at(*cost), y.at(*score))).collect();
    plot.drawing.path(&best, false, "ideal");
    let mut named: Vec<(String, (f64, f64))> = Vec::new();
    for point in shown {
        let score = point.score;
        let tip = format!(
            "{}: {:.3} ({:.3} to {:.3}) at {:.1}",
            label(point),
            score.mean,
            score.low,
            score.high,
            cost(point)
        );
        let at = x.at(cost(point));
        plot.drawing.line((at, y.at(score.low)), (at, y.at(score.high)), "leader");
        plot.drawing.mark((at, y.at(score.mean)), family_of(point), &tip);
        named.push((label(point), (at, y.at(score.mean))));
    }
    let placed = labels::labels(&named, plot.place);
    labels::draw(&mut plot.drawing, &placed);
    let unnamed = named.len() - placed.len();
    if unnamed > 0 {
        let (left, _, _, bottom) = plot.place;
        plot.drawing.text(
            (left + 6.0, bottom - 6.0),
            Anchor::Start,
            "muted",
            &format!("{unnamed} more have their names in tooltips"),
        );
    }
    Some(plot.finish(name))
}

/// Cost and score of the points than which none is both cheaper and as good, or as cheap and
/// better; by cost.
fn unbeaten(points: &[&Point], cost: &impl Fn(&Point) -> f64) -> Vec<(f64, f64)> {
    let mut all: Vec<(f64, f64)> = points.iter().map(|point| (cost(point), point.score.mean)).collect();
    all.sort_by(|a, b| a.0.total_cmp(&b.0).then(b.1.total_cmp(&a.1)));
    let mut best: Vec<(f64, f64)> = Vec::new();
    for (cost, score) in all {
        if best.last().is_none_or(|last| score > last.1) {
            best.push((cost, score));
        }
    }
    best
}

/// Scores over the share that is recomputed, of methods that have several; full prefill's score as
/// a line.
fn ratios(all: &[&Point]) -> Option<Chart> {
    let names = series(all);
    let of = |name: &String| -> Vec<(f64, &Point)> {
        let own = all.iter().filter(|point| point.method == *name && point.eviction.is_none());
        let mut found: Vec<(f64, &Point)> = own.filter_map(|point| Some((point.ratio?, *point))).collect();
        found.sort_by(|a, b| a.0.total_cmp(&b.0));
        found
    };
    let curves: Vec<(usize, Vec<(f64, &Point)>)> =
        names.iter().map(of).enumerate().filter(|(_, points)| points.len() > 1).collect();
    let largest = curves.iter().flat_map(|(_, points)| points).map(|(ratio, _)| *ratio).fold(0.0, f64::max);
    let (first, _) = (all.first()?, curves.first()?);
    let shown: Vec<(usize, String)> = curves.iter().map(|(series, _)| (*series, names[*series].clone())).collect();
    let below = format!("bands: 95 % of means; dashed: {}", first.method);
    let mut plot = Plot::new("Quality and ratio", &below, &shown, Legend::Mark, HEIGHT);
    let (x, y) = (Scale::linear(largest, plot.across()), Scale::between((0.0, 1.05), plot.up()));
    plot.horizontal(&x, &Axis::new("share of the context that is recomputed"));
    plot.vertical(&y, &scores());
    let ((left, right), full) = (plot.across(), y.at(first.score.mean));
    plot.drawing.path(&[(left, full), (right, full)], false, "ideal");
    for (series, points) in curves {
        curve(&mut plot, (&x, &y), series, &points, |ratio| format!("{} at {ratio}", names[series]));
    }
    Some(plot.finish("quality-ratio"))
}

/// Scores over the size of chunks, of every method with each ratio, where there are several sizes.
fn chunk_sizes(report: &Report) -> Option<Chart> {
    let sizes = &report.design.chunk_sizes;
    if sizes.len() < 2 {
        return None;
    }
    let labels: Vec<String> = report.methods().map(|own| label(&own[0])).collect();
    let mut plot = Plot::new("Quality and chunks", "bands: 95 % of means", &legend(&labels), Legend::Mark, HEIGHT);
    let values = sizes.iter().map(|&size| size as f64);
    let (x, y) = (Scale::log(values.clone(), plot.across()), Scale::between((0.0, 1.05), plot.up()));
    let marks = values.map(|size| (size, size.to_string())).collect();
    plot.horizontal(&x, &Axis::new("tokens of a chunk, at most").with(marks));
    plot.vertical(&y, &scores());
    for (series, own) in report.methods().enumerate() {
        let of =
            |size: &usize| own.iter().find(|p| p.task == ALL && p.length.is_none() && p.chunk_tokens == Some(*size));
        let points: Vec<(f64, &Point)> = sizes.iter().filter_map(|size| Some((*size as f64, of(size)?))).collect();
        let tip = |size: f64| format!("{} in chunks of {size}", labels[series]);
        curve(&mut plot, (&x, &y), series, &points, tip);
    }
    Some(plot.finish("quality-chunks"))
}

/// Which methods select the same rows, at one ratio: rows are named, columns have their numbers.
pub fn overlap(overlap: &Overlap) -> Chart {
    let columns: Vec<String> = (1..=overlap.methods.len()).map(|number| number.to_string()).collect();
    let rows: Vec<String> =
        columns.iter().zip(&overlap.methods).map(|(number, name)| format!("{number} {name}")).collect();
    let mean = |row: &Vec<Option<Mean>>| row.iter().map(|value| value.map(|value| value.mean)).collect::<Vec<_>>();
    let values: Vec<Vec<Option<f64>>> = overlap.jaccard.iter().map(mean).collect();
    let title = format!("Shared rows at {}", overlap.ratio);
    let map = HeatMap {
        title: &title,
        below: "both methods' rows over those of either, mean over requests",
        across: "method",
        down: "",
        columns: &columns,
        rows: &rows,
        values: &values,
    };
    map.chart(&format!("overlap-{}", overlap.ratio.to_string().replace('.', "-")))
}

/// A heat map for each method, where there are depths.
fn depths(report: &Report) -> Vec<Chart> {
    let design = &report.design;
    if design.depths.is_empty() {
        return Vec::new();
    }
    let texts = |numbers: &[usize]| numbers.iter().map(usize::to_string).collect::<Vec<_>>();
    let (columns, rows) = (texts(&design.lengths), texts(&design.depths));
    let map = |own: &[Point], size: Option<usize>| {
        let at = |depth: usize, length: usize| {
            let wanted = (Some(depth), Some(length), size);
            let found = own.iter().find(|point| (point.depth, point.length, point.chunk_tokens) == wanted);
            found.map(|point| point.score.mean)
        };
        let row = |&depth: &usize| design.lengths.iter().map(|&length| at(depth, length)).collect::<Vec<_>>();
        let values: Vec<Vec<Option<f64>>> = design.depths.iter().map(row).collect();
        let label = size.map_or_else(|| label(&own[0]), |size| format!("{} in chunks of {size}", label(&own[0])));
        let map = HeatMap {
            title: &label,
            below: "mean score by length and depth",
            across: "tokens",
            down: "depth [%]",
            columns: &columns,
            rows: &rows,
            values: &values,
        };
        map.chart(&format!("depths-{}", label.replace(|letter: char| !letter.is_ascii_alphanumeric(), "-")))
    };
    let sizes: Vec<Option<usize>> = match design.chunk_sizes.is_empty() {
        true => vec![None],
        false => design.chunk_sizes.iter().copied().map(Some).collect(),
    };
    report
        .methods()
        .flat_map(|own| sizes.iter().map(move |&size| (own, size)))
        .map(|(own, size)| map(own, size))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::point;

    #[test]
    fn the_front_has_what_no_other_beats() {
        let points =
            [point("full", None, 0.9, 100.0), point("none", None, 0.2, 10.0), point("relay", Some(0.1), 0.8, 30.0)];
        let others = [point("epic", Some(0.1), 0.3, 40.0), point("ring", None, 0.9, 120.0)];
        let all: Vec<&Point> = points.iter().chain(&others).collect();
        assert_eq!(unbeaten(&all, &|point| point.median_ttft_ms), [(10.0, 0.2), (30.0, 0.8), (100.0, 0.9)]);
        let chart = front(&all, |point| point.median_ttft_ms, ("a", "b", "c")).unwrap();
        // Exact, reuse, query and position: the legend has families, and the points have names.
        assert_eq!(chart.body.matches("class=\"dot").count(), 5 + 4, "marks and their legend");
        for own in &all {
            assert!(
                chart.body.contains(&format!("class=\"small\">{}</text>", label(own))),
                "{}: {}",
                own.method,
                chart.body
            );
        }
        assert!(chart.body.contains("\">rows by position</text>") && !chart.body.contains("\">rows by drift</text>"));
        assert!(front(&all, |_| 0.0, ("a", "b", "c")).is_none(), "nothing costs anything");
    }

    #[test]
    fn every_method_has_its_name_and_each_family_a_look_of_its_own() {
        let points: Vec<Point> = tributary_protocol::METHODS
            .into_iter()
            .enumerate()
            .map(|(index, method)| point(method.name, method.ratio, 0.9 + 0.004 * index as f64, 100.0 + index as f64))
            .collect();
        let all: Vec<&Point> = points.iter().collect();
        let chart = front(&all, |point| point.median_ttft_ms, ("a", "b", "c")).unwrap();
        for own in &points {
            assert!(chart.body.contains(&format!("class=\"small\">{}</text>", label(own))), "{}", own.method);
        }
        let legend = families(&all);
        assert_eq!(legend.len(), Family::ALL.len());
        let mut looks: Vec<(usize, usize)> =
            legend.iter().map(|(series, _)| (series % (COLOURS - 1), series % 4)).collect();
        looks.sort_unstable();
        looks.dedup();
        assert_eq!(looks.len(), legend.len(), "no two families look alike");
        let of = |name: &str| family_of(all.iter().find(|point| point.method == name).unwrap());
        assert_ne!(of("random"), of("trace"));
        // From 100 ms to 120 ms there are several marks below the axis.
        let marks = chart.body.matches("text-anchor=\"middle\" class=\"muted\"").count();
        assert!(marks >= 3, "{marks}");
    }

    #[test]
    fn sizes_of_chunks_are_curves() {
        let mut evaluation =
            crate::kit::evaluation(vec![crate::kit::arm("full", None), crate::kit::arm("none", None)], 1);
        let report = |evaluation: &crate::Evaluation| {
            let known = (crate::kit::origin(), crate::kit::environment());
            crate::report::report(evaluation, known, &crate::answers::Answers::default(), 0, None)
        };
        assert!(chunk_sizes(&report(&evaluation)).is_none());
        let cell = |size| (crate::suite::Cell { chunk_tokens: Some(size), ..crate::suite::Cell::of("single") }, 1);
        evaluation.cells = vec![cell(64), cell(128), cell(512)];
        evaluation.design.chunk_sizes = vec![64, 128, 512];
        let chart = chunk_sizes(&report(&evaluation)).unwrap();
        assert_eq!(
            (chart.body.matches("class=\"curve").count(), chart.body.matches("in chunks of 128: ").count()),
            (2, 2)
        );
    }

    #[test]
    fn ratios_are_curves_where_there_are_several() {
        let points =
            [point("full", None, 0.9, 1.0), point("relay", Some(0.1), 0.7, 1.0), point("relay", Some(0.2), 0.8, 1.0)];
        let all: Vec<&Point> = points.iter().collect();
        let chart = ratios(&all).unwrap();
        assert_eq!((chart.body.matches("class=\"curve").count(), chart.body.matches("class=\"band").count()), (1, 1));
        assert!(ratios(&all[..2]).is_none(), "one ratio is no curve");
    }
}
