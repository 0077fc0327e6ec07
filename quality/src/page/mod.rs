//! The report as one page: scores by method and task with their intervals, quality against time and
//! bytes, ratios, heat maps of depths, and the requests with the largest losses against full
//! prefill, with both answers.

mod charts;
mod contexts;
mod kept;
mod marks;
mod worst;

use tributary_charts::page::{Page, Shade};

pub(crate) use self::charts::charts;
use self::contexts::{Read, contexts};
use self::marks::label;
use self::worst::{Behind, worst};
use crate::answers::Answers;
use crate::evaluation::Evaluation;
use crate::eviction_rows::{EVICTIONS, evictions};
use crate::points::{INTERVALS, P_VALUES, Point, nats, p_value};
use crate::report::Report;

/// The page of a complete evaluation.
///
/// `read` gives a request as tokens with their texts, or nothing; the contexts of the worst
/// requests are shown by it.
pub fn page(evaluation: &Evaluation, report: &Report, answers: &Answers, read: Read<'_>) -> String {
    let design = &report.design;
    let title = format!("What answers are worth: {} on {}", design.suite, report.environment.model);
    let lead = format!(
        "{} answers to {} requests, seed {}, {} ranks of {} threads on {} ({}, {} cores): {}.",
        report.answers,
        report.requests,
        design.seed,
        design.world,
        design.threads,
        report.origin.host,
        report.origin.cpu,
        report.origin.cores,
        design.made_of.join("; ")
    );
    let mut page = Page::new(&title, &lead);
    page.charts(&charts(report));
    page.heading("Scores");
    page.paragraph(&format!(
        "Mean scores from 0 to 1, by the metric of each task; the stronger the colour, the higher. A request that failed has 0. {INTERVALS}"
    ));
    scores(&mut page, report);
    page.heading("Beside full prefill");
    page.paragraph(&format!(
        "Differences of scores on the same requests; the share of first tokens that are full prefill's, with Wilson's interval; KL(full prefill ‖ method) of \
         the first token's distribution over the whole vocabulary, mean and the interval that holds 95 % of the means of requests drawn anew. {P_VALUES}"
    ));
    page.table(&beside_full(report), &[0]);
    shared_rows(&mut page, report);
    let kept = evictions(report);
    if kept.len() > 1 {
        page.heading("What decoding keeps");
        page.paragraph(EVICTIONS);
        page.table(&kept, &[0, 1]);
    }
    page.heading("Largest losses against full prefill");
    let worst = worst(evaluation, answers);
    falls(&mut page, &worst);
    contexts(&mut page, evaluation, answers, &worst.shown, read);
    page.heading("Failures");
    if report.failures.is_empty() {
        page.paragraph("No request failed.");
    } else {
        page.table(&failures(report), &[0, 2, 4]);
    }
    page.heading("Provenance");
    page.definitions(&provenance(report));
    page.finish()
}

fn name(point: &Point) -> String {
    point.cell().to_string()
}

/// A row a task, a column a method, each score on its colour.
fn scores(page: &mut Page, report: &Report) {
    let methods: Vec<&[Point]> = report.methods().collect();
    let columns: Vec<String> = methods.iter().map(|own| label(&own[0])).collect();
    let shade = |point: &Point| Shade {
        value: Some(point.score.mean),
        number: format!("{:.2}", point.score.mean),
        below: format!("[{:.2} – {:.2}]", point.score.low, point.score.high),
    };
    let row = |index: usize| (name(&methods[0][index]), methods.iter().map(|own| shade(&own[index])).collect());
    let rows: Vec<(String, Vec<Shade>)> = (0..methods.first().map_or(0, |own| own.len())).map(row).collect();
    page.heat_table("task", &columns, &rows);
}

/// A row a method, over all tasks.
fn beside_full(report: &Report) -> Vec<Vec<String>> {
    let heads = [
        "method",
        "score",
        "× full",
        "less full's",
        "p",
        "p (Holm)",
        "token 1 as full [%]",
        "KL [nats]",
        "TTFT [ms]",
        "rows",
        "moved",
        "bytes",
    ];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    for own in report.methods() {
        let Some(point) = own.last() else { continue };
        let percent = |share: f64| format!("{:.1} %", 100.0 * share);
        let (pair, near) = (point.against_full.as_ref(), point.agreement.as_ref());
        let or_none = |text: Option<String>| text.unwrap_or_else(|| "–".to_owned());
        rows.push(vec![
            label(point),
            format!("{:.3} [{:.3} – {:.3}]", point.score.mean, point.score.low, point.score.high),
            or_none(point.share_of_full.map(|share| format!("{share:.2}"))),
            or_none(pair.map(|pair| {
                let difference = pair.difference;
                format!("{:.3} [{:.3} – {:.3}]", difference.mean, difference.low, difference.high)
            })),
            or_none(pair.map(|pair| p_value(pair.mcnemar_p))),
            or_none(pair.map(|pair| p_value(pair.holm_p))),
            or_none(near.map(|near| {
                let [same, low, high] =
                    [near.first_token.share, near.first_token.low, near.first_token.high].map(|share| 100.0 * share);
                format!("{same:.1} [{low:.1} – {high:.1}]")
            })),
            or_none(
                near.and_then(|near| near.kl_nats)
                    .map(|kl| format!("{} [{} – {}]", nats(kl.mean), nats(kl.low), nats(kl.high))),
            ),
            format!("{:.1}", point.median_ttft_ms),
            percent(point.selected_share + point.measured_share),
            percent(point.moved_share),
            point.median_received_bytes.to_string(),
        ]);
    }
    rows
}

/// Overlap of the methods' selections at each ratio: a map, and after it every pair with its
/// interval.
fn shared_rows(page: &mut Page, report: &Report) {
    if report.overlaps.is_empty() {
        return;
    }
    page.heading("Rows that methods share");
    page.paragraph(
        "Of two methods at one ratio: rows that both select over rows that at least one does (Jaccard), mean over the requests that both have answered.",
    );
    page.charts(&report.overlaps.iter().map(charts::overlap).collect::<Vec<_>>());
    let mut rows = vec![["ratio", "method", "other method", "shared rows"].map(str::to_owned).to_vec()];
    for overlap in &report.overlaps {
        for (index, (one, values)) in overlap.methods.iter().zip(&overlap.jaccard).enumerate() {
            for (other, value) in overlap.methods.iter().zip(values).skip(index + 1) {
                let shown =
                    value.map_or_else(|| "–".to_owned(), |v| format!("{:.2} [{:.2} – {:.2}]", v.mean, v.low, v.high));
                rows.push(vec![overlap.ratio.to_string(), one.clone(), other.clone(), shown]);
            }
        }
    }
    page.folded("Every pair with its interval", |page| page.table(&rows, &[1, 2]));
}

/// The requests with the largest losses, with their answers.
fn falls(page: &mut Page, behind: &Behind<'_>) {
    if behind.shown.is_empty() {
        page.paragraph("No method has a lower score than full prefill on any request.");
        return;
    }
    page.paragraph(&behind.told());
    let heads = ["request", "method", "score", "full's", "references", "answer", "full's answer"];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    for fall in &behind.shown {
        rows.push(vec![
            format!(
                "{}, {}",
                fall.own.cell,
                fall.own.id.clone().unwrap_or_else(|| format!("request {}", fall.own.sample))
            ),
            fall.method.clone(),
            format!("{:.2}", fall.own.score),
            format!("{:.2}", fall.full.score),
            worst::shown(&fall.own.references.join("; ")),
            worst::shown(fall.own.reply().map_or("(failed)", |reply| reply.answer.as_str())),
            worst::shown(fall.full.reply().map_or("(failed)", |reply| reply.answer.as_str())),
        ]);
    }
    page.table(&rows, &[0, 1, 4, 5, 6]);
}

fn failures(report: &Report) -> Vec<Vec<String>> {
    let heads = ["task", "request", "method", "exit code", "failure"];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    for row in &report.failures {
        let ratio = row.ratio.map_or_else(String::new, |ratio| format!(" at {ratio}"));
        let method = format!("{}{ratio}", row.method);
        rows.push(vec![
            row.cell().to_string(),
            row.sample.to_string(),
            method,
            row.exit_code.to_string(),
            row.failure.clone(),
        ]);
    }
    rows
}

fn provenance(report: &Report) -> Vec<(&'static str, String)> {
    let (origin, environment, design) = (&report.origin, &report.environment, &report.design);
    let list = |numbers: &[usize]| match numbers.is_empty() {
        true => "–".to_owned(),
        false => numbers.iter().map(usize::to_string).collect::<Vec<_>>().join(", "),
    };
    vec![
        ("command", origin.command.join(" ")),
        ("program", format!("tributary {}, build {}", origin.version, origin.build)),
        ("commit", origin.revision.clone().unwrap_or_else(|| "unknown".to_owned())),
        ("reproduces", design.reproduces.clone().unwrap_or_else(|| "–".to_owned())),
        ("backend", environment.backend.clone()),
        (
            "model",
            format!(
                "{} ({}), {}{}, kernels {}",
                environment.model,
                environment.load_format,
                environment.dtype,
                environment.kv_dtype.iter().map(|kv| format!(", keys and values {kv}")).collect::<String>(),
                environment.kernels
            ),
        ),
        ("model hash", origin.model_hash.clone()),
        ("requests a task", design.samples.to_string()),
        ("part of the sources", design.split.name().to_owned()),
        ("lengths", list(&design.lengths)),
        ("depths [%]", list(&design.depths)),
        (
            "tokens of a chunk",
            match design.chunk_sizes.is_empty() {
                true => design.chunk_tokens.map_or_else(|| "the suite's own".to_owned(), |tokens| tokens.to_string()),
                false => list(&design.chunk_sizes),
            },
        ),
        ("answers before", report.answers_before.to_string()),
    ]
}

#[cfg(test)]
mod tests;
