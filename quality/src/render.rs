//! The report for a reader: a table of scores, and a comparison of methods with full prefill.

use tributary_charts::table::{Layout, cells, table};

use crate::design::labelled;
use crate::eviction_rows::{EVICTIONS, evictions};
use crate::points::{ALL, INTERVALS, P_VALUES, Point, nats, p_value};
use crate::pooled::{Pooled, PooledDifference};
use crate::report::{FailureRow, Report};
use crate::report_runs::ReportRuns;
use crate::statistics::{Mean, Share};
use crate::suite::Cell;

/// The most failures that are shown one by one.
const SHOWN_FAILURES: usize = 10;

/// All tables. Ends with a line break.
pub fn render(report: &Report) -> String {
    let design = &report.design;
    let (requests, answers, before) = (report.requests, report.answers, report.answers_before);
    let mut text = format!(
        "# suite {} on {}: {} requests a task, seed {}, {} ranks of {} threads\n",
        design.suite, report.environment.model, design.samples, design.seed, design.world, design.threads
    );
    if let Some(reproduces) = &design.reproduces {
        text += &format!("# reproduces: {reproduces}\n");
    }
    for line in &design.made_of {
        text += &format!("# {line}\n");
    }
    if design.warm {
        text += "# the methods of a request share its chunks: times to first token do not compare\n";
    }
    if let Some(salt) = &design.split_salt {
        text += &format!("# sources: the part {} with salt {salt}\n", design.split.name());
    }
    if let Some(runs) = &report.report_runs {
        text += &report_runs(runs);
    }
    text += &format!("# {answers} answers to {requests} requests; {before} of them were there before\n\n");
    match report.design.chunk_sizes.as_slice() {
        [] => text += &scores(report, None),
        sizes => {
            for &size in sizes {
                text += &format!("# in chunks of {size} tokens\n");
                text += &scores(report, Some(size));
                text.push('\n');
            }
            text += &by_chunk_size(report, sizes);
        }
    }
    text.push('\n');
    text += &beside_full(report);
    text += &report.pooled.as_ref().map_or_else(String::new, pooled);
    text += "\n# scores: from 0 to 1 (docs/quality.md says by which metric); a request that failed has 0.\n";
    text += &format!("# {INTERVALS}\n# {P_VALUES}\n");
    text += "\
             # F1: of the words of answer and reference, contained: share of answers that contain a reference, whatever the task's metric.\n\
             # rows: share of the context that was recomputed, and after + the share computed before that to select. TTFT: median.\n\
             # token 1 as full: with Wilson's interval. KL: of full prefill's first token from the method's, over the whole vocabulary, mean.\n";
    let kept = evictions(report);
    if kept.len() > 1 {
        text += &format!("\n{}# {EVICTIONS}\n", table(&kept, Layout { left: &[0, 1], commented_rows: Some(1) }));
    }
    text += &failures(&report.failures);
    text
}

/// The study of a run on the report part, and the runs before it.
fn report_runs(ReportRuns { study, earlier }: &ReportRuns) -> String {
    let mut text = format!("# study {} ({}), commit {}\n", study.path, &study.hash[..16], study.commit);
    text += &format!("# report runs before this one: {}\n", earlier.len());
    for run in earlier {
        let (methods, samples) = (run.methods.join(", "), run.samples);
        text += &format!("#   {} of {} at {}: {samples} requests a task, {methods}\n", run.began, run.study, run.head);
    }
    text
}

/// Methods beside each other on all requests.
pub(crate) fn pooled(pooled: &Pooled) -> String {
    let mut rows = vec![cells(["method", "x full"])];
    rows.extend(pooled.shares.iter().map(|own| vec![labelled(&own.method, own.ratio), interval(&own.share)]));
    let shares = table(&rows, Layout { left: &[0], commented_rows: Some(1) });
    let differences = differences(&pooled.differences);
    format!(
        "\n# all {} requests pooled, drawn anew with the answers of all methods: share of full prefill's score [95 %]\n{shares}\n\
         # the same for each pair of methods: difference of mean scores, with intervals and p adjusted after Holm\n{differences}",
        pooled.requests
    )
}

/// Pairs of methods, a row each.
pub(crate) fn differences(pairs: &[PooledDifference]) -> String {
    let mut rows = vec![cells(["method", "less", "difference", "p", "p (Holm)"])];
    rows.extend(pairs.iter().map(|own| {
        let (method, rival) = (labelled(&own.method, own.ratio), labelled(&own.rival, own.rival_ratio));
        vec![method, rival, interval(&own.difference), p_value(own.p), p_value(own.holm_p)]
    }));
    table(&rows, Layout { left: &[0, 1], commented_rows: Some(1) })
}

fn ratio(point: &Point) -> String {
    point.ratio.map_or_else(|| "-".to_owned(), |ratio| ratio.to_string())
}

/// Methods by tasks, a table a length; or by lengths and depths.
fn scores(report: &Report, size: Option<usize>) -> String {
    let design = &report.design;
    if !design.depths.is_empty() {
        return by_depth(report, size);
    }
    let several = design.lengths.len() > 1;
    let mut text = String::new();
    let own = |task: &String, length: Option<usize>| {
        let is_own = |point: &&Point| point.task == *task && point.length == length;
        report.points.iter().any(|point| is_own(&point))
    };
    for length in design.lengths.iter().copied().map(Some).chain([None]) {
        // Of several suites some have lengths.
        let tasks: Vec<&String> = design.tasks.iter().filter(|task| own(task, length)).collect();
        if tasks.is_empty() {
            continue;
        }
        match length {
            Some(length) => text += &format!("# at {length} tokens\n"),
            None if !design.lengths.is_empty() => text += "# without a length\n",
            None => {}
        }
        let all = (ALL, if several && design.tasks.len() > 1 { length } else { None });
        let names = tasks.iter().map(|task| (task.as_str(), length));
        let columns: Vec<(&str, Option<usize>)> =
            if several && design.tasks.len() == 1 { names.collect() } else { names.chain([all]).collect() };
        text += &methods(report, size, &columns, |(task, _)| task.to_owned());
    }
    if several {
        text += "# all tasks, by length\n";
        let of = |&length: &usize| match design.tasks.as_slice() {
            [task] => (task.as_str(), Some(length)),
            _ => (ALL, Some(length)),
        };
        let columns: Vec<(&str, Option<usize>)> = design.lengths.iter().map(of).chain([(ALL, None)]).collect();
        text +=
            &methods(report, size, &columns, |(_, length)| length.map_or_else(|| ALL.to_owned(), |at| at.to_string()));
    }
    text
}

/// A table of mean scores: a row a method, a column for each task at a length.
fn methods(
    report: &Report,
    size: Option<usize>,
    columns: &[(&str, Option<usize>)],
    name: impl Fn((&str, Option<usize>)) -> String,
) -> String {
    let mut rows = vec![cells(["method", "ratio"])];
    rows[0].extend(columns.iter().map(|&column| name(column)));
    for own in report.methods() {
        let mut row = vec![own[0].method.clone(), ratio(&own[0])];
        for &(task, length) in columns {
            let wanted = (task, length, size);
            let point = own.iter().find(|point| (point.task.as_str(), point.length, point.chunk_tokens) == wanted);
            row.push(point.map_or_else(|| "-".to_owned(), |point| format!("{:.2}", point.score.mean)));
        }
        rows.push(row);
    }
    table(&rows, Layout { left: &[0], commented_rows: Some(1) })
}

/// A table of mean scores: a row a method and depth, a column a length.
fn by_depth(report: &Report, size: Option<usize>) -> String {
    let lengths = &report.design.lengths;
    let mut rows = vec![cells(["method", "ratio", "depth [%]"])];
    rows[0].extend(lengths.iter().map(usize::to_string));
    for own in report.methods() {
        for &depth in &report.design.depths {
            let mut row = vec![own[0].method.clone(), ratio(&own[0]), depth.to_string()];
            for &length in lengths {
                let wanted = (Some(depth), Some(length), size);
                let point = own.iter().find(|point| (point.depth, point.length, point.chunk_tokens) == wanted);
                row.push(point.map_or_else(|| "-".to_owned(), |point| format!("{:.2}", point.score.mean)));
            }
            rows.push(row);
        }
    }
    table(&rows, Layout { left: &[0], commented_rows: Some(1) })
}

/// A table of mean scores over all tasks: a row a method, a column a size of chunks.
fn by_chunk_size(report: &Report, sizes: &[usize]) -> String {
    let mut rows = vec![cells(["method", "ratio"])];
    rows[0].extend(sizes.iter().map(usize::to_string));
    for own in report.methods() {
        let mut row = vec![own[0].method.clone(), ratio(&own[0])];
        for &size in sizes {
            let wanted = Cell { chunk_tokens: Some(size), ..Cell::of(ALL) };
            let point = own.iter().find(|point| point.cell() == wanted);
            row.push(point.map_or_else(|| "-".to_owned(), |point| interval(&point.score)));
        }
        rows.push(row);
    }
    format!("# all tasks, by tokens of a chunk\n{}", table(&rows, Layout { left: &[0], commented_rows: Some(1) }))
}

pub(crate) fn interval(Mean { mean, low, high }: &Mean) -> String {
    format!("{mean:.3} [{low:.3} to {high:.3}]")
}

/// Comparison of the first token with full prefill's: the share of equal ones, and the divergence
/// of the distributions.
fn agreement(point: &Point) -> [String; 2] {
    let none = || "-".to_owned();
    let Some(near) = &point.agreement else { return [none(), none()] };
    let Share { share, low, high } = near.first_token;
    let same = format!("{:.1} [{:.1} to {:.1}]", 100.0 * share, 100.0 * low, 100.0 * high);
    [
        same,
        near.kl_nats
            .map_or_else(none, |Mean { mean, low, high }| format!("{} [{} to {}]", nats(mean), nats(low), nats(high))),
    ]
}

fn beside_full(report: &Report) -> String {
    let names =
        ["method", "ratio", "score", "F1", "contained", "x full", "less full's", "right alone", "full alone", "p"];
    let names = names.into_iter().chain([
        "p (Holm)",
        "token 1 as full [%]",
        "KL [nats]",
        "TTFT [ms]",
        "TTFT x full",
        "rows",
        "moved",
        "bytes",
    ]);
    let mut rows = vec![names.map(str::to_owned).collect::<Vec<_>>()];
    let all: Vec<&Point> = report.points.iter().filter(|point| point.cell() == Cell::of(ALL)).collect();
    let full_ms = all.first().map_or(0.0, |full| full.median_ttft_ms);
    for point in all {
        let percent = |share: f64| format!("{:.1} %", 100.0 * share);
        let measured =
            if point.measured_share > 0.0 { format!("+{}", percent(point.measured_share)) } else { String::new() };
        let share = point.share_of_full.map_or_else(|| "-".to_owned(), |share| format!("{share:.2}"));
        let (f1, contained) = (format!("{:.2}", point.f1), format!("{:.2}", point.contained));
        let mut row = vec![point.method.clone(), ratio(point), interval(&point.score), f1, contained, share];
        row.extend(match &point.against_full {
            Some(pair) => [
                interval(&pair.difference),
                pair.right_alone.to_string(),
                pair.full_alone.to_string(),
                p_value(pair.mcnemar_p),
                p_value(pair.holm_p),
            ]
            .to_vec(),
            None => cells(["-", "-", "-", "-", "-"]),
        });
        row.extend(agreement(point));
        row.push(format!("{:.1}", point.median_ttft_ms));
        row.push(format!("{:.2}", point.median_ttft_ms / full_ms));
        row.push(format!("{}{measured}", percent(point.selected_share)));
        row.push(percent(point.moved_share));
        row.push(point.median_received_bytes.to_string());
        rows.push(row);
    }
    table(&rows, Layout { left: &[0], commented_rows: Some(1) })
}

fn failures(rows: &[FailureRow]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let mut text = format!("# {} requests got no answer:\n", rows.len());
    for row in rows.iter().take(SHOWN_FAILURES) {
        let ratio = row.ratio.map_or_else(String::new, |ratio| format!(" at {ratio}"));
        let cell = row.cell();
        text += &format!("#   {cell}, request {}, {}{ratio}: {}\n", row.sample, row.method, row.failure);
    }
    if rows.len() > SHOWN_FAILURES {
        text += "#   the others are in report.json\n";
    }
    text
}
