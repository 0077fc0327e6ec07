//! The report as one page: charts and tables, in the frame that every page has. What stands in it is `page.html`, which escapes every text
//! that it is given but for the charts.

use minijinja::{Environment, UndefinedBehavior, context};
use serde::Serialize;
use tributary_charts::page::framed;
use tributary_system::size::rounded;
use tributary_system::token_count::short;

use crate::charts::{charts, ranks};
use crate::error::Result;
use crate::notes::notes;
use crate::rows::point_rows;
use crate::schema::Study;

/// The template's name. That it ends so makes it escape.
const NAME: &str = "page.html";

/// A run that failed, as the page lists it.
#[derive(Serialize)]
struct FailedRun<'a> {
    point: &'a str,
    cause: &'a str,
    run: usize,
    exit_code: u8,
}

/// The page.
///
/// # Errors
/// A template that cannot be filled in, which is a bug.
pub fn html(study: &Study) -> Result<String> {
    let mut environment = environment();
    environment.add_template(NAME, include_str!("page.html"))?;
    let page = environment.get_template(NAME)?;
    let body = page.render(context! {
        design => study.design,
        provenance => study.provenance,
        charts => charts(study).iter().map(|chart| chart.inline()).collect::<Vec<_>>(),
        points => point_rows(study),
        failures => failures(study),
        notes => notes(study),
    })?;
    Ok(framed(&format!("Time to first token: {}", study.design.model), &body))
}

/// What templates of pages have: words for numbers, and no patience with what is missing.
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

/// Stands where there is no value.
const NONE: &str = "–";

/// A number with as many digits as it has.
fn number(value: Option<f64>) -> String {
    value.map_or_else(|| NONE.to_owned(), |value| value.to_string())
}

/// A number with so many digits behind the point.
fn fixed(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| NONE.to_owned(), |value| format!("{value:.digits$}"))
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

    /// The texts of all cells of the table behind a heading, row by row.
    fn table(page: &str, heading: &str) -> Vec<Vec<String>> {
        let behind = page.split_once(&format!("<h2>{heading}</h2>")).expect("the heading").1;
        let body = behind.split_once("<tbody>").expect("a table").1.split_once("</tbody>").expect("its end").0;
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
        let wanted = "infoflow|cold|replicate|2048|2*|0.15|6.00|4.00 – 9.00|–|–|–|1.50|–|–|0|0|5";
        assert_eq!((points.len(), points[2].join("|").as_str()), (4, wanted));
        let ring = points[3].join("|");
        assert!(ring.starts_with("ring|–|–|2048|2|–|5.00|") && ring.contains("|1.80|0.80|0.250|"), "{ring}");
        let wanted = "infoflow|approximate|cold|2k|2 ranks|0.15|1.0e-6|0.0e0|yes";
        assert_eq!((accuracy.len(), accuracy[1].join("|").as_str()), (3, wanted));
        assert!(page.contains("<p>No run failed.</p>"));
        study.points.iter_mut().for_each(|point| point.accuracy = None);
        assert!(html(&study).unwrap().contains("there is nothing to compare with"));
    }
}
