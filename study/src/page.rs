//! The report as one page: charts and tables, in the frame that every page has. Its template is
//! `page.html`, which escapes all texts except the charts.

use minijinja::{Environment, UndefinedBehavior, context};
use serde::Serialize;
use tributary_charts::page::framed;
use tributary_charts::table::filled;
use tributary_system::size::rounded;
use tributary_system::token_count::short;

use crate::charts::{charts, ranks};
use crate::error::Result;
use crate::notes::{notes, warning};
use crate::rows::{PointRow, interval_name, point_rows};
use crate::schema::Study;

/// Name of the template, whose ending turns escaping on.
const NAME: &str = "page.html";

/// A run that failed, as the page lists it.
#[derive(Serialize)]
struct FailedRun<'a> {
    point: &'a str,
    cause: &'a str,
    run: usize,
    exit_code: u8,
}

/// A table as the page shows it: columns without a value are left out.
#[derive(Serialize)]
struct Shown {
    heads: Vec<Head>,
    rows: Vec<Vec<String>>,
}

/// A column's head, and whether its cells are texts.
#[derive(Serialize)]
struct Head {
    name: String,
    is_text: bool,
}

impl Shown {
    /// Rows below their heads; the first `texts` columns are texts.
    fn new(heads: &[&str], texts: usize, rows: Vec<Vec<String>>) -> Self {
        let all: Vec<Vec<String>> =
            std::iter::once(heads.iter().map(|head| (*head).to_owned()).collect()).chain(rows).collect();
        let (mut rows, texts) = filled(&all, 1, &(0..texts).collect::<Vec<_>>());
        let heads = rows.remove(0).into_iter().enumerate();
        let heads = heads.map(|(place, name)| Head { name, is_text: texts.contains(&place) }).collect();
        Self { heads, rows }
    }
}

fn cache(row: &PointRow) -> String {
    row.shown_cache().unwrap_or(NONE).to_owned()
}

fn points(study: &Study) -> Shown {
    let bounds = format!("{} [ms]", interval_name(study));
    let heads =
        ["method", "cache", "exchange", "tokens", "ranks", "ratio", "median [ms]", &bounds, "p95 [ms]", "p99 [ms]"];
    let heads =
        [&heads[..], &["predicted [ms]", "× full", "efficiency", "Karp-Flatt", "bytes", "formula", "samples"]].concat();
    let count = |value: Option<u64>| value.map_or_else(|| NONE.to_owned(), |value| value.to_string());
    let row = |row: &PointRow| {
        let bounds = row.ci95_low_ttft_ms.zip(row.ci95_high_ttft_ms);
        vec![
            row.method.clone(),
            cache(row),
            row.exchange.clone().unwrap_or_else(|| NONE.to_owned()),
            row.context_tokens.to_string(),
            format!("{}{}", row.world, if row.shares_cores { "*" } else { "" }),
            number(row.ratio),
            fixed(row.median_ttft_ms, 2),
            bounds.map_or_else(|| NONE.to_owned(), |(low, high)| format!("{low:.2} – {high:.2}")),
            fixed(row.p95_ttft_ms, 2),
            fixed(row.p99_ttft_ms, 2),
            fixed(row.predicted_ttft_ms, 2),
            fixed(row.speed_up_to_full, 2),
            fixed(row.grown_efficiency(), 2),
            fixed(row.karp_flatt, 3),
            count(row.received_bytes),
            count(row.formula_bytes),
            row.samples.to_string(),
        ]
    };
    Shown::new(&heads, 3, point_rows(study).iter().map(row).collect())
}

fn accuracy(study: &Study) -> Shown {
    let heads = ["method", "claim", "cache", "tokens", "ranks", "ratio", "max |Δlogit|", "KL [nats]", "top-1 as full"];
    let row = |row: &PointRow| {
        let difference = row.max_logit_difference?;
        Some(vec![
            row.method.clone(),
            if row.exact { "exact" } else { "approximate" }.to_owned(),
            cache(row),
            short(row.context_tokens),
            ranks(row.world),
            number(row.ratio),
            scientific(difference),
            row.kl_nats.map_or_else(|| NONE.to_owned(), scientific),
            if row.top1_agrees == Some(true) { "yes" } else { "no" }.to_owned(),
        ])
    };
    Shown::new(&heads, 3, point_rows(study).iter().filter_map(row).collect())
}

/// The page.
///
/// # Errors
/// Returns an error if a template cannot be filled in, which only a bug can cause.
pub fn html(study: &Study) -> Result<String> {
    let mut environment = environment();
    environment.add_template(NAME, include_str!("page.html"))?;
    let page = environment.get_template(NAME)?;
    let body = page.render(context! {
        design => study.design,
        provenance => study.provenance,
        charts => charts(study).iter().map(|chart| chart.inline()).collect::<Vec<_>>(),
        warning => warning(study),
        busy => study.busy,
        points => points(study),
        accuracy => accuracy(study),
        failures => failures(study),
        notes => notes(study),
    })?;
    Ok(framed(&format!("Time to first token: {}", study.design.model), &body))
}

/// Environment of page templates: filters for numbers, and errors for missing values.
pub(crate) fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    environment.add_filter("number", number);
    environment.add_filter("fixed", fixed);
    environment.add_filter("scientific", scientific);
    environment.add_filter("tokens", short);
    environment.add_filter("ranks", ranks);
    environment.add_filter("bytes", rounded);
    environment.add_filter("percent", percent);
    environment.add_filter("load", load);
    environment
}

fn failures(study: &Study) -> Vec<FailedRun<'_>> {
    let all = study.points.iter().flat_map(|point| point.failures.iter().map(move |failure| (point, failure)));
    let failed = all.map(|(point, failure)| FailedRun {
        point: &point.id,
        cause: &failure.cause,
        run: failure.run,
        exit_code: failure.exit_code,
    });
    failed.collect()
}

/// Text of a missing value.
const NONE: &str = "–";

/// A number with as many digits as it has.
fn number(value: Option<f64>) -> String {
    value.map_or_else(|| NONE.to_owned(), |value| value.to_string())
}

/// A number with `digits` digits after the point.
fn fixed(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| NONE.to_owned(), |value| format!("{value:.digits$}"))
}

/// A share as a percentage.
fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| NONE.to_owned(), |share| format!("{:.1} %", 100.0 * share))
}

/// The load average of the last minute.
fn load(averages: Option<Vec<f64>>) -> String {
    fixed(averages.and_then(|averages| averages.first().copied()), 2)
}

/// A number with two digits and its power of ten.
fn scientific(value: f64) -> String {
    format!("{value:.1e}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::{measured, study};
    use crate::schema::Failure;

    /// The texts of all cells of the table after a heading, row by row.
    fn table(page: &str, heading: &str) -> Vec<Vec<String>> {
        let after = page.split_once(&format!("<h2>{heading}</h2>")).expect("the heading").1;
        let body = after.split_once("<tbody>").expect("a table").1.split_once("</tbody>").expect("its end").0;
        let cells = |row: &str| {
            let cells = row.split("</td>").filter_map(|cell| cell.split_once("<td")?.1.split_once('>'));
            cells.map(|(_, text)| text.to_owned()).collect()
        };
        body.split("</tr>").map(cells).filter(|row: &Vec<String>| !row.is_empty()).collect()
    }

    #[test]
    fn a_page_needs_nothing_from_elsewhere() {
        let mut study = study(vec![measured("full", 512, 1, None, 9.0), measured("ring", 512, 2, None, 6.0)]);
        study.design.model = "<models>".to_owned();
        study.points[1].failures.push(Failure { run: 3, cause: "rank 1 & more".into(), exit_code: 69 });
        let page = html(&study).unwrap();
        assert!(page.starts_with("<!DOCTYPE html>\n"), "{}", &page[..100]);
        assert!(page.contains("&lt;models&gt;") && !page.contains("<models>"));
        assert!(page.contains("rank 1 &amp; more") && page.contains("prefers-color-scheme:dark"));
        let links = page.replace("http://www.w3.org/2000/svg", "");
        for word in ["http", "src=", "url(", "@import", "<script", "<link", "{{", "{%"] {
            assert!(!links.contains(word), "{word}");
        }
        assert_eq!(page.matches("<svg class=\"chart\"").count(), charts(&study).len(), "charts are not escaped");
    }

    #[test]
    fn tables_show_the_rows() {
        let mut infoflow = measured("infoflow", 2048, 2, Some(0.15), 6.0);
        infoflow.shares_cores = true;
        let mut study =
            study(vec![measured("full", 2048, 1, None, 9.0), measured("ring", 2048, 1, None, 8.0), infoflow]);
        study.points.push(measured("ring", 2048, 2, None, 5.0));
        study.points[1].accuracy = None;
        let page = html(&study).unwrap();
        let (points, accuracy) = (table(&page, "Points"), table(&page, "Accuracy"));
        let wanted = "infoflow|cold|replicate|2048|2*|0.15|6.00|4.00 – 9.00|1.50|–|–|0|0|5";
        assert_eq!((points.len(), points[2].join("|").as_str()), (4, wanted));
        let ring = points[3].join("|");
        assert!(ring.starts_with("ring|–|–|2048|2|–|5.00|") && ring.contains("|1.80|0.80|0.250|"), "{ring}");
        let wanted = "infoflow|approximate|cold|2k|2 ranks|0.15|1.0e-6|0.0e0|yes";
        assert_eq!((accuracy.len(), accuracy[1].join("|").as_str()), (3, wanted));
        assert!(page.contains("<p>No run failed.</p>"));
        assert!(page.contains("<th>range [ms]</th>") && !page.contains("95 % interval"), "five samples");
        assert!(
            !page.contains("<th>p95 [ms]</th>") && !page.contains("<th>predicted [ms]</th>"),
            "columns without a value"
        );
        assert!(!page.contains("class=\"warning\""), "no other load is known");
        study.busy = vec![crate::busy::Busy {
            wall_s: 12.0,
            cpu_s: Some(20.0),
            load_before: Some([15.5, 13.0, 10.0]),
            others_share: Some(0.25),
            ..Default::default()
        }];
        let busy = html(&study).unwrap();
        assert!(
            busy.contains(
                "<p class=\"warning\">Warning: the machine was busy: other processes took 25 % of its processors"
            ),
            "{busy}"
        );
        assert!(
            busy.contains("12.0 s, of processors 20.0 s; others took 25.0 % of them; load average 15.50 before"),
            "{busy}"
        );
        study.points.iter_mut().for_each(|point| point.accuracy = None);
        assert!(html(&study).unwrap().contains("there is nothing to compare with"));
    }
}
