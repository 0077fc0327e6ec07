//! A comparison as one page: for each request the time to first token of every method as bars, the
//! table, and every answer whole.

use std::path::Path;

use tributary_charts::page::Page;
use tributary_charts::svg::{Anchor, Axis, Chart, Legend, Plot, Scale};
use tributary_charts::table::filled;
use tributary_system::file::write_whole;

use super::tables::{all_rows, eviction_rows, explained, rows};
use super::{Compared, Comparison, Measured};
use crate::error::{Error, Result};

/// Pixels of a method's bar with the room around it, and of the bar.
const ROW: f64 = 26.0;
const BAR: f64 = 15.0;

/// Room for names at the left: at least, at most, and a letter's.
const LEFT: (f64, f64) = (80.0, 260.0);
const LETTER: f64 = 6.6;

/// The colours of exact methods and of the others.
const COLOURS: [(usize, &str); 2] = [(0, "exact"), (1, "approximate")];

/// A method's times, in milliseconds.
#[derive(Debug, Clone, PartialEq)]
struct Bar {
    method: String,
    is_exact: bool,
    least: f64,
    median: f64,
    most: f64,
    ratio_to_full: f64,
}

/// Data of a request on the page.
#[derive(Debug, Clone, PartialEq)]
struct Shown {
    request: String,
    expected: Option<String>,
    bars: Vec<Bar>,
    table: Vec<Vec<String>>,
    /// Empty where decoding keeps everything.
    evicted: Vec<Vec<String>>,
    /// Methods with their answers.
    answers: Vec<(String, String)>,
}

/// Writes the page. An existing file is overwritten.
///
/// # Errors
/// Returns an error if an operation of the operating system fails.
pub fn write(comparison: &Comparison, path: &Path) -> Result<()> {
    write_whole(path, page(comparison).as_bytes()).map_err(Error::file("cannot write", path))
}

/// The page.
pub fn page(comparison: &Comparison) -> String {
    let Comparison { repeat, warmup, requests, .. } = comparison;
    let shown: Vec<Shown> = requests.iter().map(Shown::new).collect();
    let all = if requests.len() > 1 { all_rows(requests) } else { Vec::new() };
    laid_out((*repeat, *warmup), &shown, &all, &explained(requests))
}

fn laid_out((repeat, warmup): (usize, usize), requests: &[Shown], all: &[Vec<String>], explained: &str) -> String {
    let lead = format!(
        "{repeat} counted runs of each method after {warmup} that do not count, interleaved in an order drawn anew for each round."
    );
    let mut page = Page::new("Methods on the same requests", &lead);
    for shown in requests {
        shown.add_to(&mut page);
    }
    if !all.is_empty() {
        page.heading(&format!("All {} requests", requests.len()));
        page.table(all, &[0]);
    }
    page.heading("What the columns are");
    page.list(&explained.lines().map(str::to_owned).collect::<Vec<_>>());
    page.finish()
}

impl Shown {
    fn new(compared: &Compared) -> Self {
        let Compared { request, expected, methods } = compared;
        let bar = |method: &Measured| Bar {
            method: method.method.clone(),
            is_exact: method.exact,
            least: method.min_ttft_ms,
            median: method.median_ttft_ms,
            most: method.max_ttft_ms,
            ratio_to_full: method.ttft_ratio_to_full,
        };
        let evicts = methods.iter().any(|method| method.evicted.is_some());
        Self {
            request: request.clone(),
            expected: expected.clone(),
            bars: methods.iter().map(bar).collect(),
            table: rows(methods),
            evicted: if evicts { eviction_rows(methods) } else { Vec::new() },
            answers: methods.iter().map(|method| (method.method.clone(), method.answer.clone())).collect(),
        }
    }

    fn add_to(&self, page: &mut Page) {
        page.heading(&self.request);
        if let Some(expected) = &self.expected {
            page.paragraph(&format!("Expected answer: {expected}"));
        }
        page.charts(&[chart(&self.request, &self.bars)]);
        let (shown, left) = filled(&self.table, 1, &[0]);
        page.table(&shown, &left);
        if !self.evicted.is_empty() {
            page.paragraph("What decoding keeps:");
            page.table(&self.evicted, &[0]);
        }
        page.paragraph("Answers:");
        let answers = self.answers.iter().map(|(method, answer)| (method.as_str(), answer.clone()));
        page.definitions(&answers.collect::<Vec<_>>());
    }
}

/// Median times to first token as bars, with lines from the least run to the largest.
fn chart(request: &str, bars: &[Bar]) -> Chart {
    let widest = bars.iter().map(|method| method.method.chars().count()).max().unwrap_or(0);
    let left = (LETTER * widest as f64 + 20.0).clamp(LEFT.0, LEFT.1);
    let letters = ((left - 20.0) / LETTER) as usize;
    let legend = COLOURS.map(|(colour, name)| (colour, name.to_owned()));
    let title = format!("Time to first token: {request}");
    let height = ROW * bars.len() as f64;
    let mut plot =
        Plot::with_left(&title, "median; lines: the least run to the largest", &legend, Legend::Square, height, left);
    let largest = bars.iter().map(|bar| bar.most).fold(0.0, f64::max);
    let x = Scale::linear(1.08 * largest, plot.across());
    plot.horizontal(&x, &Axis::new("TTFT [ms]"));
    let top = plot.place.1;
    for (index, bar) in bars.iter().enumerate() {
        let y = top + ROW * (index as f64 + 0.5);
        let Bar { least, median, most, ratio_to_full, .. } = *bar;
        let colour = COLOURS[usize::from(!bar.is_exact)].0;
        let tip = format!("{}: {median:.1} ms [{least:.1} to {most:.1}], {ratio_to_full:.2} x full", bar.method);
        let name: String = bar.method.chars().take(letters).collect();
        plot.drawing.text((left - 8.0, y + 4.0), Anchor::End, "", &name);
        plot.drawing.bar(
            (x.at(0.0), y - BAR / 2.0),
            (x.at(median) - x.at(0.0), BAR),
            &format!("s{colour}"),
            false,
            &tip,
        );
        plot.drawing.line((x.at(least), y), (x.at(most), y), "axis");
        plot.drawing.text((x.at(most) + 5.0, y + 4.0), Anchor::Start, "small", &format!("{median:.1}"));
    }
    plot.finish("ttft")
}

#[cfg(test)]
mod tests {
    use tributary_charts::table::cells;

    use super::*;
    use crate::compare::SCHEMA;

    fn shown(request: &str) -> Shown {
        let bar = |method: &str, is_exact, median: f64| Bar {
            method: method.to_owned(),
            is_exact,
            least: median - 2.0,
            median,
            most: median + 5.0,
            ratio_to_full: median / 120.0,
        };
        Shown {
            request: request.to_owned(),
            expected: Some("<7>".to_owned()),
            bars: vec![bar("full", true, 120.0), bar("infoflow:ratio=0.1", false, 40.0)],
            table: vec![
                cells(["method", "TTFT [ms]", "right?"]),
                cells(["full", "120.0", "-"]),
                cells(["infoflow", "40.0", "-"]),
            ],
            evicted: Vec::new(),
            answers: vec![
                ("full".to_owned(), "seven".to_owned()),
                ("infoflow:ratio=0.1".to_owned(), "<eight>".to_owned()),
            ],
        }
    }

    #[test]
    fn a_page_has_the_chart_the_table_and_the_answers() {
        let all = [cells(["method", "right"]), cells(["full", "2 of 2"])];
        let page = laid_out((3, 1), &[shown("one"), shown("two & three")], &all, "TTFT: median.\nbytes: all.");
        assert!(page.contains("<h2>two &amp; three</h2>") && page.contains("Expected answer: &lt;7&gt;"), "{page}");
        assert_eq!(page.matches("<svg class=\"chart\"").count(), 2);
        assert!(page.contains("infoflow:ratio=0.1: 40.0 ms [38.0 to 45.0], 0.33 x full</title>"), "{page}");
        assert!(page.contains("<td>40.0</td>") && !page.contains("<th>right?</th>"), "a column without a value");
        assert!(page.contains("<dt>infoflow:ratio=0.1</dt><dd>&lt;eight&gt;</dd>"), "{page}");
        assert!(page.contains("<h2>All 2 requests</h2>") && page.contains("<li>bytes: all.</li>"));
        let links = page.replace("http://www.w3.org/2000/svg", "");
        for word in ["http", "src=", "url(", "@import", "<script", "<link"] {
            assert!(!links.contains(word), "{word}");
        }
    }

    #[test]
    fn bars_are_as_long_as_their_times() {
        let body = chart("one", &shown("one").bars).body;
        let widths: Vec<f64> = body
            .split("<rect x=\"")
            .skip(3)
            .filter_map(|rest| rest.split("width=\"").nth(1)?.split('"').next()?.parse().ok())
            .collect();
        assert_eq!(widths.len(), 2, "{body}");
        assert!((widths[0] / widths[1] - 3.0).abs() < 0.01, "{widths:?}");
        assert!(body.contains("class=\"s0\"") && body.contains("class=\"s1\""), "exact and approximate");
    }

    #[test]
    fn a_page_is_written_or_its_path_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("page.html");
        let comparison = Comparison { schema: SCHEMA, repeat: 3, warmup: 1, requests: Vec::new() };
        write(&comparison, &path).unwrap();
        assert!(std::fs::read_to_string(&path).unwrap().starts_with("<!DOCTYPE html>"));
        let error = write(&comparison, &folder.path().join("none/page.html")).unwrap_err();
        assert!(error.to_string().contains("none/page.html") && error.exit_code() == 74, "{error}");
    }
}
