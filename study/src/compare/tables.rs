//! The comparison for a reader: a table a request, and one over all requests where there are
//! several.

use tributary_charts::statistics::median;
use tributary_charts::table::{Layout, table};

use super::Compared;
use super::measure::Measured;

/// Longest answer shown, in characters.
const ANSWER_CHARS: usize = 40;

/// All tables.
pub fn render(results: &[Compared]) -> String {
    let mut text = String::new();
    for Compared { request, expected, methods } in results {
        text += &match expected {
            Some(expected) => format!("{request}: expected answer `{expected}`\n"),
            None => format!("{request}\n"),
        };
        text += &one(methods);
        text.push('\n');
        if methods.iter().any(|method| method.evicted.is_some()) {
            text += &format!("what decoding keeps\n{}\n", evictions(methods));
        }
    }
    if results.len() > 1 {
        text += &format!("all {} requests\n", results.len());
        text += &all(results);
        text.push('\n');
    }
    text + &explained(results)
}

/// Legend of the columns, a line each.
pub(super) fn explained(results: &[Compared]) -> String {
    let runs = results.first().and_then(|compared| compared.methods.first()).map_or(0, |method| method.ttft_ms.len());
    let mut text = format!(
        "TTFT: median of {runs} interleaved runs [least to largest], from the request's acceptance to the first token; \
         x full: that median over full's.\nbytes: received by all ranks until the first token. max |dlogit|, KL [nats], \
         top-1: the first token's logits against full's.\n"
    );
    if results.iter().flat_map(|compared| &compared.methods).any(|method| method.evicted.is_some()) {
        text += "rows kept: in a layer and KV head, mean. MFLOP, traffic, to move: by the planner's formulas, what choosing the rows costs; \
                 traffic: weights, keys and values that are read. evict: median, between first and second token. token: median of those after the \
                 first, without the eviction.\n";
    }
    text
}

fn header(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn one(methods: &[Measured]) -> String {
    table(&rows(methods), Layout::PLAIN)
}

/// A row a method, below the names of columns.
pub(super) fn rows(methods: &[Measured]) -> Vec<Vec<String>> {
    let names = [
        "method",
        "exact?",
        "TTFT [ms]",
        "range [ms]",
        "x full",
        "bytes",
        "max |dlogit|",
        "KL",
        "top-1",
        "right?",
        "answer",
    ];
    let mut rows = vec![header(&names)];
    for method in methods {
        rows.push(vec![
            method.method.clone(),
            yes(method.exact),
            format!("{:.1}", method.median_ttft_ms),
            format!("[{:.1} to {:.1}]", method.min_ttft_ms, method.max_ttft_ms),
            format!("{:.2}", method.ttft_ratio_to_full),
            method.received_bytes.to_string(),
            format!("{:.1e}", method.accuracy.max_logit_difference),
            format!("{:.1e}", method.accuracy.kl_nats),
            yes(method.accuracy.top1_agrees),
            method.right.map_or_else(|| "-".to_owned(), yes),
            shortened(&method.answer),
        ]);
    }
    rows
}

/// Rows that evictions keep, and the cost of choosing them by formula and by clock.
fn evictions(methods: &[Measured]) -> String {
    table(&eviction_rows(methods), Layout::PLAIN)
}

/// A row a method with the rows that its eviction keeps.
pub(super) fn eviction_rows(methods: &[Measured]) -> Vec<Vec<String>> {
    let names =
        ["method", "rows kept", "of", "KV [KiB]", "of", "MFLOP", "traffic [KiB]", "to move [KiB]", "moved [KiB]"];
    let names = [&names[..], &["evict [ms]", "of TTFT [%]", "token [ms]"]].concat();
    let mut rows = vec![header(&names)];
    let kib = |bytes: u64| format!("{:.1}", bytes as f64 / 1024.0);
    for method in methods {
        let mut row = vec![method.method.clone()];
        row.extend(match &method.evicted {
            Some(evicted) => vec![
                format!("{:.0}", evicted.kept_rows),
                format!("{:.0}", evicted.rows),
                kib(evicted.bytes_kept),
                kib(evicted.bytes_before),
                format!("{:.1}", evicted.formula.flops / 1e6),
                kib(evicted.formula.memory_traffic_bytes),
                kib(evicted.formula.received_bytes),
                kib(evicted.received_bytes),
            ],
            None => vec!["-".to_owned(); 8],
        });
        let real = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.2}"));
        row.push(real(method.median_evict_ms));
        row.push(real(method.median_evict_ms.map(|ms| 100.0 * ms / method.median_ttft_ms)));
        row.push(real(method.median_token_ms));
        rows.push(row);
    }
    rows
}

fn all(results: &[Compared]) -> String {
    table(&all_rows(results), Layout::PLAIN)
}

/// A row a method over all requests.
pub(super) fn all_rows(results: &[Compared]) -> Vec<Vec<String>> {
    let names = ["method", "exact?", "x full (median)", "right", "top-1 as full", "largest |dlogit|"];
    let mut rows = vec![header(&names)];
    let count = results.first().map_or(0, |compared| compared.methods.len());
    for index in 0..count {
        let of_method: Vec<&Measured> = results.iter().map(|compared| &compared.methods[index]).collect();
        let ratios: Vec<f64> = of_method.iter().map(|method| method.ttft_ratio_to_full).collect();
        let judged = of_method.iter().filter(|method| method.right.is_some()).count();
        let right = of_method.iter().filter(|method| method.right == Some(true)).count();
        let agree = of_method.iter().filter(|method| method.accuracy.top1_agrees).count();
        let largest = of_method.iter().map(|method| method.accuracy.max_logit_difference).fold(0.0, f64::max);
        rows.push(vec![
            of_method[0].method.clone(),
            yes(of_method[0].exact),
            format!("{:.2}", median(&ratios)),
            if judged > 0 { format!("{right} of {judged}") } else { "-".to_owned() },
            format!("{agree} of {}", of_method.len()),
            format!("{largest:.1e}"),
        ]);
    }
    rows
}

fn yes(is_so: bool) -> String {
    if is_so { "yes" } else { "no" }.to_owned()
}

fn shortened(answer: &str) -> String {
    let line = answer.split_whitespace().collect::<Vec<_>>().join(" ");
    if line.chars().count() <= ANSWER_CHARS {
        return line;
    }
    line.chars().take(ANSWER_CHARS - 1).chain(['…']).collect()
}
