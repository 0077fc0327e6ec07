//! The report as one page: charts and tables, nothing from elsewhere, light and dark. It opens from a disk.

use super::charts::{charts, ranks};
use super::csv::{formula_bytes, received_bytes};
use super::notes::notes;
use super::scaling::{full, is_full, strong_of};
use super::schema::{Point, Study};
use tributary_charts::svg::{escaped, style};
use tributary_system::size::rounded;
use tributary_system::token_count::short;

const PAGE_STYLE: &str = "\
:root{color-scheme:light dark;--ground:#fff;--text:#22262c;--muted:#606873;--line:#e3e6ea;--card:#fff}\
@media (prefers-color-scheme:dark){:root{--ground:#0f1114;--text:#e4e7eb;--muted:#9aa3ae;--line:#30363f;--card:#15181c}}\
body{margin:0;background:var(--ground);color:var(--text);font:15px/1.5 system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif}\
main{max-width:1320px;margin:0 auto;padding:28px 20px 60px}h1{font-size:24px;margin:0 0 4px}\
h2{font-size:18px;margin:36px 0 12px}p,li{color:var(--muted);max-width:90ch}p.lead{margin:0 0 20px}\
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,560px),1fr));gap:18px}\
.charts figure{margin:0;padding:6px;border:1px solid var(--line);border-radius:8px;background:var(--card)}\
.charts svg{width:100%;height:auto;display:block}.wide{overflow-x:auto}\
table{border-collapse:collapse;font-size:13px;font-variant-numeric:tabular-nums}\
th,td{padding:4px 10px;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}\
th{font-weight:600}th:first-child,td:first-child,.text{text-align:left}\
dl{display:grid;grid-template-columns:max-content 1fr;gap:3px 18px;font-size:13px;margin:0}\
dt{color:var(--muted)}dd{margin:0;overflow-wrap:anywhere}";

/// The page.
pub fn html(study: &Study) -> String {
    let figures: String = charts(study).iter().map(|chart| format!("<figure>{}</figure>\n", chart.inline())).collect();
    let notes: String = notes(study).iter().map(|note| format!("<li>{}</li>\n", escaped(note))).collect();
    let title = format!("Time to first token: {}", study.design.model);
    let title = escaped(&title);
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{title}</title>\n\
         <style>{PAGE_STYLE}{}</style>\n</head>\n<body>\n<main>\n<h1>{title}</h1>\n<p class=\"lead\">{}</p>\n\
         <div class=\"charts\">\n{figures}</div>\n<h2>Points</h2>\n<div class=\"wide\">{}</div>\n\
         <h2>Accuracy</h2>\n{}\n<h2>Failures</h2>\n{}\n<h2>Provenance</h2>\n{}\n<h2>Notes</h2>\n<ul>\n{notes}</ul>\n\
         </main>\n</body>\n</html>\n",
        style(),
        escaped(&lead(study)),
        points(study),
        accuracy(study),
        failures(study),
        provenance(study)
    )
}

fn lead(study: &Study) -> String {
    let design = &study.design;
    let list = |items: Vec<String>| items.join(", ");
    format!(
        "Contexts of {} tokens in chunks of {}, a query of {}; {} ranks of {} threads; {} counted runs a point after {} \
         warm-ups, all points interleaved in random order. Measured on {} ({}, {} cores).",
        list(design.lengths.iter().map(|&length| short(length)).collect()),
        design.chunk_tokens,
        design.query_tokens,
        list(design.worlds.iter().map(usize::to_string).collect()),
        design.threads,
        design.repeats,
        design.warmups,
        study.provenance.host,
        study.provenance.cpu,
        study.provenance.cores
    )
}

/// A table; the first `text` columns hold words.
fn table(names: &[&str], rows: &[Vec<String>], text: usize) -> String {
    let cells = |row: &[String], tag: &str| -> String {
        let cell = |(column, cell): (usize, &String)| {
            let class = if column < text { " class=\"text\"" } else { "" };
            format!("<{tag}{class}>{}</{tag}>", escaped(cell))
        };
        format!("<tr>{}</tr>\n", row.iter().enumerate().map(cell).collect::<String>())
    };
    let head: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let body: String = rows.iter().map(|row| cells(row, "td")).collect();
    format!("<table>\n<thead>{}</thead>\n<tbody>\n{body}</tbody>\n</table>", cells(&head, "th"))
}

fn points(study: &Study) -> String {
    let names = [
        "method",
        "cache",
        "exchange",
        "tokens",
        "ranks",
        "ratio",
        "median [ms]",
        "95 % interval [ms]",
        "p95 [ms]",
        "p99 [ms]",
        "predicted [ms]",
        "× full",
        "efficiency",
        "Karp-Flatt",
        "bytes",
        "formula",
        "samples",
    ];
    table(&names, &study.points.iter().map(|point| point_row(study, point)).collect::<Vec<_>>(), 3)
}

fn point_row(study: &Study, point: &Point) -> Vec<String> {
    let summary = point.summary.as_ref();
    let ms = |value: Option<f64>| shown(value.map(|value| format!("{value:.2}")));
    let strong = strong_of(study, point).filter(|strong| strong.world > strong.base_world && !is_full(point));
    let to_full = full(study, point.context_tokens).zip(summary).map(|((_, full), own)| full / own.median_ttft_ms);
    vec![
        point.method.clone(),
        if point.exact { "–".to_owned() } else { point.cache.to_string() },
        shown(point.exchange.clone()),
        point.context_tokens.to_string(),
        format!("{}{}", point.world, if point.shares_cores { "*" } else { "" }),
        shown(point.ratio),
        ms(summary.map(|summary| summary.median_ttft_ms)),
        shown(summary.map(|summary| format!("{:.2} – {:.2}", summary.ci95_ttft_ms.0, summary.ci95_ttft_ms.1))),
        ms(summary.and_then(|summary| summary.p95_ttft_ms)),
        ms(summary.and_then(|summary| summary.p99_ttft_ms)),
        ms(Some(point.predicted.ttft_ms).filter(|&predicted| predicted > 0.0)),
        ms(to_full),
        ms(strong.as_ref().map(|strong| strong.efficiency)),
        shown(strong.as_ref().and_then(|strong| strong.karp_flatt).map(|share| format!("{share:.3}"))),
        shown(received_bytes(point)),
        shown(formula_bytes(point)),
        point.samples.len().to_string(),
    ]
}

fn accuracy(study: &Study) -> String {
    let row = |point: &Point| -> Option<Vec<String>> {
        let accuracy = point.accuracy.as_ref()?;
        Some(vec![
            point.method.clone(),
            if point.exact { "exact" } else { "approximate" }.to_owned(),
            if point.exact { "–".to_owned() } else { point.cache.to_string() },
            short(point.context_tokens),
            ranks(point.world),
            shown(point.ratio),
            format!("{:.1e}", accuracy.max_logit_difference),
            format!("{:.1e}", accuracy.kl_nats),
            if accuracy.top1_agrees { "yes" } else { "no" }.to_owned(),
        ])
    };
    let rows: Vec<Vec<String>> = study.points.iter().filter_map(row).collect();
    if rows.is_empty() {
        return "<p>Full prefill is not part of the study: there is nothing to compare with.</p>".to_owned();
    }
    let names = ["method", "claim", "cache", "tokens", "ranks", "ratio", "max |Δlogit|", "KL [nats]", "top-1 as full"];
    format!("<div class=\"wide\">{}</div>", table(&names, &rows, 3))
}

fn failures(study: &Study) -> String {
    let all = study.points.iter().flat_map(|point| point.failures.iter().map(move |failure| (point, failure)));
    let rows: Vec<Vec<String>> = all
        .map(|(point, failure)| {
            vec![point.id.clone(), failure.cause.clone(), failure.run.to_string(), failure.exit_code.to_string()]
        })
        .collect();
    if rows.is_empty() {
        return "<p>No run failed.</p>".to_owned();
    }
    format!("<div class=\"wide\">{}</div>", table(&["point", "cause", "run", "exit code"], &rows, 2))
}

fn provenance(study: &Study) -> String {
    let (from, design) = (&study.provenance, &study.design);
    let facts = [
        ("began", from.began.clone()),
        ("command", from.command.join(" ")),
        ("program", format!("tributary {}, build {}", from.version, from.build)),
        ("commit", from.revision.clone().unwrap_or_else(|| "unknown".to_owned())),
        ("host", format!("{}, {}", from.host, from.system)),
        ("processor", format!("{}, {} cores, {}", from.cpu, from.cores, from.instruction_set)),
        ("memory", rounded(from.memory_bytes)),
        ("backend", from.backend.clone()),
        ("model", format!("{} ({}), {}, kernels {}", design.model, design.load_format, design.dtype, design.kernels)),
        ("model hash", from.model_hash.clone()),
        ("profile of predictions", from.profile.clone()),
        ("seed", design.seed.to_string()),
    ];
    let fact = |(name, value): &(&str, String)| format!("<dt>{name}</dt><dd>{}</dd>\n", escaped(value));
    format!("<dl>\n{}</dl>", facts.iter().map(fact).collect::<String>())
}

fn shown(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "–".to_owned(), |value| value.to_string())
}

#[cfg(test)]
mod tests {
    use super::super::kit::{measured, study};
    use super::super::schema::Failure;
    use super::*;

    #[test]
    fn a_page_needs_nothing_from_elsewhere() {
        let mut study = study(vec![measured("full", 512, 1, None, 9.0), measured("ring", 512, 2, None, 6.0)]);
        study.design.model = "<models>".to_owned();
        study.points[1].failures.push(Failure { run: 3, cause: "rank 1 & more".into(), exit_code: 69 });
        let page = html(&study);
        assert!(page.contains("&lt;models&gt;") && !page.contains("<models>"));
        assert!(page.contains("rank 1 &amp; more") && page.contains("prefers-color-scheme:dark"));
        let links = page.replace("http://www.w3.org/2000/svg", "");
        for word in ["http", "src=", "url(", "@import", "<script", "<link"] {
            assert!(!links.contains(word), "{word}");
        }
        assert!(page.contains("<td>6.00</td>") && page.contains("<svg class=\"chart\""));
    }
}
