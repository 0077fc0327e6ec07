//! Result for a reader: a table of deployments, a table of memory, and the first limits.

use tributary_charts::table::{Layout, cells, table};
use tributary_system::token_count::short;

use super::Answer;
use super::breaks::{Broken, Changing};
use super::report::{BreakRow, DeploymentRow, Report, SizingRow, SmallestRow};

/// Text of a missing value.
const NONE: &str = "-";

/// Everything as text.
pub fn render(answer: &Answer) -> String {
    let report = answer.report();
    let mut text = head(answer, &report);
    text += "\npredicted: the fewest GPUs with which it holds; times to first token [ms], alone and under load\n";
    text += &deployments(&report);
    let memory = memory(&report);
    if !memory.is_empty() {
        text += "\npredicted memory of the fullest rank [GB]; documents for which a group has room beside a request, that it keeps, and that lie elsewhere\n";
        text += &memory;
    }
    text.push('\n');
    for row in &report.smallest {
        text += &smallest(&report, row);
    }
    if report.smallest.is_empty() {
        text += "nothing does what is asked for\n";
    }
    for note in &report.notes {
        text += &format!("note: {note}\n");
    }
    text
}

fn head(answer: &Answer, report: &Report) -> String {
    let shape = &answer.question.shape;
    let mut text = format!("{}: {}\n", report.model, shape.in_words());
    for profile in &report.profiles {
        text += &format!("{}: {}\n", profile.label(), profile.description);
    }
    text + &asked(report)
}

/// The question, in two lines.
pub(super) fn asked(report: &Report) -> String {
    format!(
        "asked for: the first token of 95 % of {} requests a second within {} ms; {:.0} % of the chunks warm\n\
         documents of {} tokens ({:.1} MB of keys and values), {} of them kept\n",
        report.requests_per_second,
        report.slo_ttft_ms,
        100.0 * report.hit_rate,
        report.document_tokens,
        report.document_bytes as f64 / 1e6,
        report.documents,
    )
}

/// Whether a method is exact, in a word.
pub(super) fn claim(is_exact: bool) -> &'static str {
    if is_exact { "exact" } else { "approximate" }
}

/// Milliseconds with as many digits as say something.
pub(super) fn milliseconds(ms: f64) -> String {
    if ms < 100.0 { format!("{ms:.1}") } else { format!("{ms:.0}") }
}

fn gigabytes(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / 1e9)
}

fn deployments(report: &Report) -> String {
    let head = [
        "tokens", "profile", "method", "answer", "GPUs", "groups", "ranks", "exchange", "alone", "mean", "p95", "busy",
    ];
    let mut rows = vec![cells(head)];
    for point in &report.points {
        let mut row = vec![short(point.context_tokens), point.profile.clone(), point.method.clone()];
        row.push(claim(point.exact).to_owned());
        match (&point.deployment, &point.refusal) {
            (Some(found), _) => row.extend(deployment(found)),
            (None, why) => row.extend([NONE.to_owned(), why.clone().unwrap_or_default()]),
        }
        rows.push(row);
    }
    aligned(rows)
}

fn deployment(found: &DeploymentRow) -> [String; 8] {
    [
        found.gpus.to_string(),
        found.groups.to_string(),
        found.world.to_string(),
        found.exchange.unwrap_or(NONE).to_owned(),
        milliseconds(found.ttft_ms),
        milliseconds(found.mean_ttft_ms),
        milliseconds(found.p95_ttft_ms),
        format!("{:.0} %", 100.0 * found.utilisation),
    ]
}

/// A table in which reasons, which are longer than any column, follow the other cells.
fn aligned(mut rows: Vec<Vec<String>>) -> String {
    const LEFT: Layout<'static> = Layout { left: &[0, 1, 2, 3], commented_rows: None };
    const BEFORE_REASON: usize = 5;
    let columns = rows.first().map_or(0, Vec::len);
    let cut = |row: &mut Vec<String>| if row.len() < columns { row.split_off(BEFORE_REASON) } else { Vec::new() };
    let reasons: Vec<Vec<String>> = rows.iter_mut().map(cut).collect();
    let lines = table(&rows, LEFT);
    let behind = |(line, reason): (&str, &Vec<String>)| match reason.first() {
        Some(reason) => format!("{line}  {reason}\n"),
        None => format!("{line}\n"),
    };
    lines.lines().zip(&reasons).map(behind).collect()
}

fn memory(report: &Report) -> String {
    let head = [
        "tokens",
        "profile",
        "method",
        "weights",
        "request",
        "overhead",
        "left",
        "of",
        "room",
        "kept",
        "[GB]",
        "elsewhere",
        "[GB]",
    ];
    let row = |point: &SizingRow| {
        let found = point.deployment.as_ref()?;
        let memory = &found.rank_memory;
        let mut row = vec![short(point.context_tokens), point.profile.clone(), point.method.clone()];
        let parts = [memory.weight_bytes, memory.request_bytes, memory.overhead_bytes, memory.left_bytes];
        row.extend(parts.map(gigabytes));
        row.push(gigabytes(memory.has_bytes));
        row.extend(match &found.documents {
            Some(documents) => [
                documents.held.to_string(),
                (report.documents - documents.left_over).to_string(),
                gigabytes(documents.held_bytes),
                documents.left_over.to_string(),
                gigabytes(documents.left_over_bytes),
            ],
            None => [NONE; 5].map(str::to_owned),
        });
        Some(row)
    };
    let rows: Vec<_> = report.points.iter().filter_map(row).collect();
    if rows.is_empty() {
        return String::new();
    }
    let rows: Vec<_> = std::iter::once(cells(head)).chain(rows).collect();
    table(&rows, Layout { left: &[0, 1, 2], commented_rows: None })
}

/// A deployment in a line, and its edges, the nearest first.
fn smallest(report: &Report, row: &SmallestRow) -> String {
    let mut text = format!("{}\n", deployment_line(report, row));
    for (index, edge) in row.breaks.iter().enumerate() {
        let when = match (index, edge.breaks) {
            (_, None) => "not found",
            (0, _) => "breaks first",
            _ => "then",
        };
        text += &format!("  {when}: {}\n", edge_line(edge));
    }
    text
}

/// A deployment in a line.
pub(super) fn deployment_line(report: &Report, row: &SmallestRow) -> String {
    let point = &report.points[row.point];
    let Some(found) = &point.deployment else { return String::new() };
    let kind = if row.exact_alternative { "exact instead" } else { "smallest" };
    format!(
        "{} tokens, {kind}: {} of {}, {} of {} by {} ({}{})",
        short(point.context_tokens),
        counted(found.gpus, "GPU"),
        point.profile,
        counted(found.groups, "group"),
        found.world,
        point.method,
        claim(point.exact),
        found.exchange.map_or_else(String::new, |exchange| format!(", {exchange}")),
    )
}

/// `1 GPU`, `2 GPUs`.
pub(super) fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// An edge in a line.
pub(super) fn edge_line(edge: &BreakRow) -> String {
    let number = |value: f64| match edge.changing {
        Changing::RequestsPerSecond => format!("{} requests a second", digits(value)),
        Changing::ContextTokens => format!("{} tokens of context", short(value as usize)),
        Changing::HitRate => format!("a hit rate of {value:.2}"),
        Changing::Documents => format!("{value:.0} documents"),
    };
    let (Some(breaks), Some(broken)) = (edge.breaks, edge.broken) else {
        return match edge.changing {
            Changing::HitRate => "anything that a lower hit rate breaks; it holds with no chunk warm".to_owned(),
            _ => format!("anything that breaks up to {}", number(edge.holds)),
        };
    };
    let what = match broken {
        Broken::Slo => "the time to first token",
        Broken::Memory => "a rank's memory",
        Broken::DocumentMemory => "room for all documents beside a request",
    };
    let beyond = if breaks < edge.today { "below" } else { "beyond" };
    let change = 100.0 * (edge.holds / edge.today - 1.0);
    format!("{what}, {beyond} {} ({change:+.0} %), busy {:.0} %", number(edge.holds), 100.0 * edge.utilisation)
}

/// A number with three digits that count, rounded down.
fn digits(value: f64) -> String {
    let places = (2 - value.max(1e-9).log10().floor() as i32).max(0);
    let scale = 10f64.powi(places);
    format!("{:.*}", places as usize, (value * scale).floor() / scale)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sizing::kit::answer;

    #[test]
    fn numbers_are_rounded_down() {
        let table = [(5.379, "5.37"), (53.79, "53.7"), (537.9, "537"), (5379.4, "5379"), (0.05379, "0.0537")];
        for (value, text) in table {
            assert_eq!(digits(value), text);
        }
    }

    #[test]
    fn the_text_says_what_it_takes_and_what_breaks_first() {
        let text = render(&answer(&["ring", "infoflow"], &[32_768, 1 << 20]));
        let parts = [
            "the first token of 95 % of 4 requests a second within 1000 ms; 80 % of the chunks warm",
            "h100x8 (not measured here)",
            "too slow: ",
            "32k tokens, smallest: ",
            "by infoflow (approximate",
            "32k tokens, exact instead: ",
            "by ring (exact)",
            "  breaks first: ",
            "none was measured",
            "decoding is left out",
        ];
        for part in parts {
            assert!(text.contains(part), "`{part}` is not in\n{text}");
        }
        assert!(text.lines().all(|line| line.trim_end() == line), "{text}");
    }
}
