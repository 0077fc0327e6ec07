//! Result for a reader: a table of times, a table of tokens and time, and what breaks first.

use tributary_charts::table::{Layout, cells, filled, table};

use super::Answer;
use super::fit::{Compared, Fit};
use super::limit::{Edge, Limit};
use super::report::{Report, TwinPercentiles, TwinRow};

/// Text of a missing value.
const NONE: &str = "-";

/// Everything as text.
pub fn render(answer: &Answer) -> String {
    let report = answer.report();
    let mut text = head(&report);
    text += &report.fit.as_ref().map_or_else(String::new, fit);
    text += "\npredicted: times to first token and in the queue [ms]; p50 and p95 with their ranges, p99 with its 95 % interval\n";
    text += &aligned(std::iter::once(TIMES.map(str::to_owned).to_vec()).chain(report.rows.iter().map(times)));
    text += "\npredicted: source of the prompts' tokens, the groups' time, and the most at once\n";
    text += &aligned(std::iter::once(USE.map(str::to_owned).to_vec()).chain(report.rows.iter().map(usage)));
    text.push('\n');
    report.rows.iter().for_each(|row| text += &limit(&report, row));
    for note in &report.notes {
        text += &format!("note: {note}\n");
    }
    text += &format!("note: replayed {} times as fast as real time\n", digits(report.times_real_time));
    text
}

const TIMES: [&str; 15] = [
    "method",
    "GPUs",
    "groups",
    "answered",
    "too long",
    "no memory",
    "queue full",
    "p50",
    "range",
    "p95",
    "range",
    "p99",
    "interval",
    "queue p50",
    "queue p95",
];

const USE: [&str; 12] = [
    "method",
    "GPUs",
    "memory",
    "store",
    "computed",
    "prefill",
    "decode",
    "idle",
    "waiting",
    "running",
    "step [ms]",
    "evicted",
];

fn head(report: &Report) -> String {
    let trace = &report.replayed;
    let rate = trace.requests as f64 / trace.seconds.max(f64::MIN_POSITIVE);
    let rate = if trace.seconds > 0.0 { format!(", {} a second", digits(rate)) } else { String::new() };
    format!(
        "{} on {}: {}\n{} ({}): {} requests in {:.0} s{rate}; {:.0} tokens a prompt, {:.0} an answer; --chunk-prefix {}\n",
        report.model,
        report.profile.label(),
        report.profile.description,
        trace.path,
        trace.format,
        trace.requests,
        trace.seconds,
        trace.mean_prompt_tokens,
        trace.mean_output_tokens,
        report.chunk_prefix,
    )
}

/// Predicted and measured times of the service that the profile was fitted to.
fn fit(fit: &Fit) -> String {
    let of = |Compared { predicted_s, measured_s }: &Compared, scale: f64, unit: &str, factor: f64| {
        let [measured, predicted] = [measured_s, predicted_s].map(|seconds| digits(scale * seconds));
        format!("{measured} {unit}, predicted {predicted} before the fit (factor {factor:.3})")
    };
    let Fit { prefill, step, under_load } = fit;
    format!(
        "measured by the service in this replay: prefills {}; a step {}\n",
        of(prefill, 1.0, "s", under_load.prefill),
        of(step, 1e3, "ms", under_load.decode)
    )
}

fn milliseconds(ms: Option<f64>) -> String {
    ms.map_or_else(|| NONE.to_owned(), |ms| if ms < 100.0 { format!("{ms:.1}") } else { format!("{ms:.0}") })
}

fn interval(times: &TwinPercentiles) -> String {
    match (times.p99_low, times.p99_high) {
        (Some(_), Some(_)) => format!("{}..{}", milliseconds(times.p99_low), milliseconds(times.p99_high)),
        (Some(_), None) => format!("{}..", milliseconds(times.p99_low)),
        _ => NONE.to_owned(),
    }
}

fn range(ms: Option<[f64; 2]>) -> String {
    ms.map_or_else(
        || NONE.to_owned(),
        |[low, high]| format!("{}..{}", milliseconds(Some(low)), milliseconds(Some(high))),
    )
}

/// A count, or nothing to see where it is 0.
fn some(count: usize) -> String {
    if count == 0 { NONE.to_owned() } else { count.to_string() }
}

fn times(row: &TwinRow) -> Vec<String> {
    cells([
        &row.method,
        &row.gpus.to_string(),
        &format!("{} x {}", row.groups, row.world),
        &row.answered.to_string(),
        &some(row.too_long),
        &some(row.no_memory),
        &some(row.queue_full),
        &milliseconds(row.ttft_ms.p50),
        &range(row.ttft_range_ms.map(|range| range.p50)),
        &milliseconds(row.ttft_ms.p95),
        &range(row.ttft_range_ms.and_then(|range| range.p95)),
        &milliseconds(row.ttft_ms.p99),
        &interval(&row.ttft_ms),
        &milliseconds(row.queue_ms.p50),
        &milliseconds(row.queue_ms.p95),
    ])
}

fn usage(row: &TwinRow) -> Vec<String> {
    let of_tokens = |tokens: usize| format!("{:.1} %", 100.0 * tokens as f64 / row.tokens.prompt.max(1) as f64);
    let share = |share: f64| format!("{:.1} %", 100.0 * share);
    let store = if row.tokens.store == 0 { NONE.to_owned() } else { of_tokens(row.tokens.store) };
    cells([
        &row.method,
        &row.gpus.to_string(),
        &of_tokens(row.tokens.memory),
        &store,
        &of_tokens(row.tokens.computed),
        &share(row.busy.prefill),
        &share(row.busy.decode),
        &share(row.busy.idle),
        &row.most_waiting.to_string(),
        &row.most_running.to_string(),
        &milliseconds(row.mean_step_ms),
        &some(usize::try_from(row.evicted).unwrap_or(usize::MAX)),
    ])
}

/// A table without empty columns.
fn aligned(rows: impl Iterator<Item = Vec<String>>) -> String {
    let (rows, left) = filled(&rows.collect::<Vec<_>>(), 1, &[0]);
    table(&rows, Layout { left: &left, commented_rows: None })
}

/// What breaks first, in a line.
fn limit(report: &Report, row: &TwinRow) -> String {
    let gpus = format!("{} GPU{}", row.gpus, if row.gpus == 1 { "" } else { "s" });
    let Some(edge) = row.limit else { return format!("{} on {gpus}: no request is answered\n", row.method) };
    let Edge { holds, breaks, broken, prefill, decode } = edge;
    let rate = |pace: f64| {
        let (count, seconds) = (report.replayed.requests as f64, report.replayed.seconds);
        if seconds > 0.0 { format!(" ({} requests a second)", digits(pace * count / seconds)) } else { String::new() }
    };
    let bound = match report.slo_ttft_ms {
        Some(slo_ms) => format!("p95 of the time to first token, above {slo_ms} ms"),
        None => "p95 of the time to first token, above twice that without waiting".to_owned(),
    };
    let what = match broken {
        Some(Limit::TimeToFirstToken) => bound,
        Some(Limit::Queue) => "the queue, which is full".to_owned(),
        None => "nothing that was tried".to_owned(),
    };
    let busy = prefill.zip(decode).map_or_else(String::new, |(prefill, decode)| {
        format!(
            ", busy {:.0} % ({:.0} % prefill, {:.0} % decode)",
            100.0 * (prefill + decode),
            100.0 * prefill,
            100.0 * decode
        )
    });
    let holds = match (holds, breaks) {
        (Some(pace), _) => format!("it holds up to {} times this pace{}{busy}", digits(pace), rate(pace)),
        (None, Some(pace)) => format!("it fails from {} times this pace on", digits(pace)),
        (None, None) => return String::new(),
    };
    format!("{} on {gpus}: breaks first: {what}; {holds}\n", row.method)
}

/// A number with three digits that count.
fn digits(value: f64) -> String {
    let places = (2 - value.max(1e-9).log10().floor() as i32).max(0);
    format!("{value:.*}", places as usize)
}
