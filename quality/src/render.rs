//! The report for a reader: a table of scores, and methods beside full prefill.

use tributary_charts::table::{Layout, cells, table};

use crate::points::{ALL, Point};
use crate::report::{FailureRow, Report};
use crate::statistics::Mean;

/// The most failures that are shown one by one.
const SHOWN_FAILURES: usize = 10;

/// All tables. Ends with a line break.
pub fn render(report: &Report) -> String {
    let design = &report.design;
    let (requests, answers, before) = (design.samples * design.tasks.len(), report.answers, report.answers_before);
    let mut text = format!(
        "# suite {} on {}: {} requests a task, {} documents of {} tokens, seed {}, {} ranks of {} threads\n",
        design.suite,
        report.environment.model,
        design.samples,
        design.documents,
        design.document_tokens,
        design.seed,
        design.world,
        design.threads
    );
    text += &format!("# {answers} answers to {requests} requests; {before} of them were there before\n\n");
    text += &scores(report);
    text.push('\n');
    text += &beside_full(report);
    text += "\n# scores: share of answers that begin with the expected one, word for word; a request that failed counts as wrong.\n\
             # intervals: 95 % of the means of requests drawn anew. p: McNemar's exact test on the requests that one of the two alone answers right.\n\
             # rows: share of the context that was recomputed, and behind + what was computed before that to select. TTFT: median.\n";
    text += &failures(&report.failures);
    text
}

fn ratio(point: &Point) -> String {
    point.ratio.map_or_else(|| "-".to_owned(), |ratio| ratio.to_string())
}

fn scores(report: &Report) -> String {
    let tasks: Vec<&str> = report.design.tasks.iter().map(String::as_str).chain([ALL]).collect();
    let mut rows = vec![["method", "ratio"].into_iter().chain(tasks.iter().copied()).map(str::to_owned).collect()];
    for points in report.points.chunks(tasks.len()) {
        let mut row = vec![points[0].method.clone(), ratio(&points[0])];
        row.extend(points.iter().map(|point| format!("{:.2}", point.score.mean)));
        rows.push(row);
    }
    table(&rows, Layout { left: &[0], commented_rows: Some(1) })
}

fn interval(Mean { mean, low, high }: &Mean) -> String {
    format!("{mean:.3} [{low:.3} to {high:.3}]")
}

fn beside_full(report: &Report) -> String {
    let names = ["method", "ratio", "score", "less full's", "right alone", "full alone", "p", "token 1 as full"];
    let names = names.into_iter().chain(["TTFT [ms]", "x full", "rows", "moved", "bytes"]);
    let mut rows = vec![names.map(str::to_owned).collect::<Vec<_>>()];
    let all: Vec<&Point> = report.points.iter().filter(|point| point.task == ALL).collect();
    let full_ms = all.first().map_or(0.0, |full| full.median_ttft_ms);
    for point in all {
        let percent = |share: f64| format!("{:.1} %", 100.0 * share);
        let measured =
            if point.measured_share > 0.0 { format!("+{}", percent(point.measured_share)) } else { String::new() };
        let mut row = vec![point.method.clone(), ratio(point), interval(&point.score)];
        row.extend(match &point.against_full {
            Some(pair) => [
                interval(&pair.difference),
                pair.right_alone.to_string(),
                pair.full_alone.to_string(),
                if pair.mcnemar_p < 0.001 { "<0.001".to_owned() } else { format!("{:.3}", pair.mcnemar_p) },
            ]
            .to_vec(),
            None => cells(["-", "-", "-", "-"]),
        });
        row.push(percent(point.first_token_agrees));
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
        text += &format!("#   {} {}, {}{ratio}: {}\n", row.task, row.sample, row.method, row.failure);
    }
    if rows.len() > SHOWN_FAILURES {
        text += "#   the others are in report.json\n";
    }
    text
}
