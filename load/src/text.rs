//! A result for the terminal, and every request as CSV.

use std::fmt::Write;

use tributary_charts::table::{Layout, table};

use crate::options::Pace;
use crate::report::{Percentiles, Report, Saturation, WindowReport};
use crate::sample::Sample;
use crate::window::Window;

/// The report as an object, and a line break.
pub fn json(report: &Report) -> String {
    let object =
        serde_json::to_string_pretty(report).expect("names are texts, and numbers that JSON lacks become null");
    format!("{object}\n")
}

/// The report as tables, one a window.
pub fn text(report: &Report) -> String {
    let mut text = String::new();
    for window in &report.windows {
        let _ = writeln!(text, "{}\n{}", line(window), times(window));
    }
    report.saturation.iter().for_each(|saturation| text += &format!("{}\n", found(saturation)));
    text
}

/// A window in a line: its plan and its outcomes.
pub fn line(window: &WindowReport) -> String {
    let pace = match (window.rate, window.speed) {
        (Some(rate), _) => format!("open loop, {rate:.3} requests/s"),
        (None, Some(speed)) => format!("a trace at {speed} times its speed"),
        (None, None) => format!("closed loop, {} clients", window.clients.unwrap_or(0)),
    };
    let cached = match (window.mean_cached_tokens, window.mean_prompt_tokens) {
        (Some(cached), Some(all)) if all > 0.0 => format!("; {:.1} % of prompt tokens cached", 100.0 * cached / all),
        _ => String::new(),
    };
    let outcomes: Vec<String> = window.outcomes.iter().map(|(name, count)| format!("{count} {name}")).collect();
    let grows = match &window.growth {
        Some(growth) if growth.grows => "; the queue grows",
        _ => "",
    };
    format!(
        "{pace}, {:.1} s: {} planned, {}; {:.2} answers/s, {:.1} tokens/s{cached}{grows}",
        window.seconds,
        window.planned,
        outcomes.join(", "),
        window.answers_per_second,
        window.tokens_per_second
    )
}

fn times(window: &WindowReport) -> String {
    let rows = [
        ("time to first token", window.ttft_ms),
        ("- alone in flight", window.ttft_alone_ms),
        ("between tokens", window.inter_token_ms),
        ("longest gap", window.longest_gap_ms),
        ("queue", window.queue_ms),
        ("total", window.total_ms),
        ("sent late", window.late_ms),
    ];
    let head = ["ms", "n", "p50", "p90", "p95", "p99", "max"].map(str::to_owned).to_vec();
    let row = |(name, percentiles): (&str, Percentiles)| {
        let Percentiles { count, p50, p90, p95, p99, max } = percentiles;
        let cell = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.1}"));
        let cells = [p50, p90, p95, p99, max].map(cell);
        [name.to_owned(), count.to_string()].into_iter().chain(cells).collect()
    };
    let rows: Vec<Vec<String>> = std::iter::once(head).chain(rows.map(row)).collect();
    table(&rows, Layout::PLAIN)
}

fn found(saturation: &Saturation) -> String {
    match (saturation.growing_rate, saturation.steady_rate) {
        (Some(growing), Some(steady)) => {
            format!("saturation: the queue grows at {growing:.3} requests/s, and does not at {steady:.3}")
        }
        (Some(growing), None) => format!("saturation: the queue grows even at {growing:.3} requests/s"),
        (None, steady) => {
            format!("saturation: the queue does not grow, not even at {:.3} requests/s", steady.unwrap_or(0.0))
        }
    }
}

const COLUMNS: &str = "window,rate,clients,number,planned_s,sent_s,outcome,ttft_ms,total_ms,queue_ms,prompt_tokens,cached_tokens,\
    generated_tokens,gaps_ms\n";

/// Every request of every window, a line each. Unknown fields are empty; gaps share one column,
/// separated by spaces.
pub fn csv(windows: &[(Pace, Window)]) -> String {
    let mut text = COLUMNS.to_owned();
    for (number, (pace, window)) in windows.iter().enumerate() {
        let (rate, clients) = match pace {
            Pace::Open(rate) => (rate.to_string(), String::new()),
            Pace::Replay(_) => (String::new(), String::new()),
            Pace::Closed(clients) => (String::new(), clients.to_string()),
        };
        window.samples.iter().for_each(|sample| csv_line(&mut text, &format!("{number},{rate},{clients}"), sample));
    }
    text
}

fn csv_line(text: &mut String, window: &str, sample: &Sample) {
    let Sample { number, planned, sent, outcome, queue_ms, generated_tokens, .. } = sample;
    let time = |value: Option<f64>| value.map_or(String::new(), |value| format!("{value:.3}"));
    let whole = |value: Option<u64>| value.map_or(String::new(), |value| value.to_string());
    let seconds = |value: Option<f64>| value.map_or(String::new(), |value| format!("{value:.6}"));
    let gaps: Vec<String> = sample.gaps_ms().map(|gap| format!("{gap:.3}")).collect();
    let ended = sent.is_some().then(|| sample.total_ms());
    let cells = [
        window.to_owned(),
        number.to_string(),
        seconds(Some(*planned)),
        seconds(*sent),
        outcome.name(),
        time(sample.ttft_ms()),
        time(ended),
        time(*queue_ms),
        whole(sample.prompt_tokens),
        whole(sample.cached_tokens),
        generated_tokens.to_string(),
        gaps.join(" "),
    ];
    *text += &cells.join(",");
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Outcome;

    #[test]
    fn requests_are_lines() {
        let answered = Sample {
            sent: Some(0.5001),
            parts: vec![0.75, 0.76, 0.8],
            ended: 0.9,
            outcome: Outcome::Answered,
            queue_ms: Some(1.25),
            prompt_tokens: Some(300),
            generated_tokens: 3,
            ..Sample::new(0, 0.5)
        };
        let samples = vec![answered, Sample::new(1, 0.7)];
        let window = Window { samples, seconds: 1.0, sent_seconds: 1.0 };
        let found = csv(&[(Pace::Closed(2), window.clone()), (Pace::Open(1.5), window)]);
        let lines: Vec<&str> = found.lines().collect();
        assert_eq!(lines[1], "0,,2,0,0.500000,0.500100,answered,250.000,400.000,1.250,300,,3,10.000 40.000");
        assert_eq!(lines[4], "1,1.5,,1,0.700000,,not_sent,,,,,,0,");
        assert!(lines.iter().all(|line| line.split(',').count() == 14), "{found}");
    }

    #[test]
    fn what_was_found_is_said() {
        let of = |growing_rate, steady_rate| found(&Saturation { growing_rate, steady_rate, rule: String::new() });
        assert_eq!(of(Some(2.2), Some(2.0)), "saturation: the queue grows at 2.200 requests/s, and does not at 2.000");
        assert!(of(Some(0.1), None).ends_with("grows even at 0.100 requests/s"));
        assert!(of(None, Some(64.0)).ends_with("not even at 64.000 requests/s"));
    }
}
