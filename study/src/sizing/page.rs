//! Result as a file: one chart as SVG, or all charts and tables as a page that opens from a disk.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use minijinja::context;
use serde::Serialize;
use tributary_charts::page::framed;
use tributary_system::file::write_whole;

use super::Answer;
use super::chart::{charts, main_chart};
use super::render::{asked, deployment_line, edge_line};
use super::report::{BreakRow, Report, SmallestRow};
use crate::error::{Error, Result};
use crate::page::environment;

/// Name of the template, whose ending turns escaping on.
const NAME: &str = "page.html";

/// A file for a chart, by its ending.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    path: PathBuf,
    is_page: bool,
}

impl FromStr for File {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let path = PathBuf::from(text);
        let ending = path.extension().unwrap_or_default().to_ascii_lowercase();
        let is_page = match ending.to_str() {
            Some("svg") => false,
            Some("html") => true,
            _ => return Err(format!("`{text}` must end in .svg or .html")),
        };
        Ok(Self { path, is_page })
    }
}

/// Writes a chart or the page. An existing file is overwritten.
///
/// # Errors
/// Returns an error if an operation of the operating system fails, if a template cannot be filled
/// in, which only a bug can cause, and as [`Answer::new`] does.
pub fn write(answer: &Answer, file: &File) -> Result<()> {
    let text = if file.is_page { html(answer)? } else { main_chart(answer)?.alone() };
    let path: &Path = &file.path;
    write_whole(path, text.as_bytes()).map_err(Error::file("cannot write", path))
}

/// A deployment and its edges, as the page lists them.
#[derive(Serialize)]
struct Listed {
    deployment: String,
    edges: Vec<String>,
}

fn listed(report: &Report, row: &SmallestRow) -> Listed {
    let edge =
        |edge: &BreakRow| format!("{}{}", if edge.breaks.is_some() { "" } else { "not found: " }, edge_line(edge));
    Listed { deployment: deployment_line(report, row), edges: row.breaks.iter().map(edge).collect() }
}

fn html(answer: &Answer) -> Result<String> {
    let report = answer.report();
    let charts = charts(answer)?;
    let mut environment = environment();
    environment.add_template(NAME, include_str!("page.html"))?;
    let page = environment.get_template(NAME)?;
    let body = page.render(context! {
        charts => charts.iter().map(|chart| chart.inline()).collect::<Vec<_>>(),
        asked => asked(&report).lines().collect::<Vec<_>>(),
        smallest => report.smallest.iter().map(|row| listed(&report, row)).collect::<Vec<_>>(),
        report => report,
    })?;
    Ok(framed(&format!("GPUs for a load: {}", report.model), &body))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sizing::kit::answer;

    #[test]
    fn a_file_says_by_its_ending_what_it_is() {
        let is_page = |text: &str| text.parse::<File>().map(|file| file.is_page);
        assert_eq!([is_page("a/b.svg"), is_page("B.HTML")], [Ok(false), Ok(true)]);
        for wrong in ["", "chart", "chart.png", ".svg"] {
            assert_eq!(is_page(wrong), Err(format!("`{wrong}` must end in .svg or .html")));
        }
    }

    #[test]
    fn a_page_has_charts_and_numbers_and_needs_nothing_from_elsewhere() {
        let mut answer = answer(&["ring", "infoflow"], &[16_384, 1 << 20]);
        answer.question.model = "<models>".to_owned();
        let page = html(&answer).unwrap();
        assert!(page.starts_with("<!DOCTYPE html>\n") && page.contains("prefers-color-scheme:dark"));
        assert!(page.contains("&lt;models&gt;") && !page.contains("<models>"));
        let links = page.replace("http://www.w3.org/2000/svg", "");
        for word in ["http", "src=", "url(", "@import", "<script", "<link", "{{", "{%"] {
            assert!(!links.contains(word), "{word}");
        }
        assert_eq!(page.matches("<svg class=\"chart\"").count(), 3, "charts are not escaped");
        assert_eq!(page.matches("<tr>").count(), 1 + 4, "a row a method and length");
        for part in ["too slow", "smallest:", "tokens of context", "none was measured"] {
            assert!(page.contains(part), "{part}");
        }
    }

    #[test]
    fn files_are_written_whole() {
        let folder = tempfile::tempdir().unwrap();
        let answer = answer(&["infoflow"], &[16_384]);
        for (name, begins) in [("a.svg", "<svg class=\"chart\""), ("a.html", "<!DOCTYPE html>")] {
            let path = folder.path().join(name);
            write(&answer, &path.to_str().unwrap().parse().unwrap()).unwrap();
            assert!(std::fs::read_to_string(path).unwrap().starts_with(begins), "{name}");
        }
        let nowhere = folder.path().join("no/a.svg");
        let error = write(&answer, &nowhere.to_str().unwrap().parse().unwrap()).unwrap_err();
        assert_eq!(error.exit_code(), tributary_protocol::exit::DISK);
    }
}
