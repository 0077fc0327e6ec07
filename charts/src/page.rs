//! The frame of every page: one self-contained file, light and dark, that opens from a disk. Its
//! content is made of parts here, or comes from the caller's template.

use std::fmt::Write;

use crate::svg::{Chart, escaped, style};

/// The rules of every page, light and dark.
const STYLE: &str = include_str!("page.css");

/// Texts of more letters than this are wrapped in a table.
const WRAPPED_LETTERS: usize = 40;

/// A whole page: a title, and a body that is HTML already.
pub fn framed(title: &str, body: &str) -> String {
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{}</title>\n\
         <style>\n{STYLE}\n{}\n</style>\n</head>\n<body>\n<main>\n{body}</main>\n</body>\n</html>\n",
        escaped(title),
        style()
    )
}

/// A column of a group of columns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// Its heading.
    pub head: String,
    /// Text below the heading.
    pub lead: String,
    /// Its texts.
    pub passages: Vec<Passage>,
}

/// A text with marked parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Passage {
    /// Its name.
    pub head: String,
    /// The parts, one after the other, and whether each is marked.
    pub parts: Vec<(String, bool)>,
}

/// A cell of a heat map in a table: a value from 0 to 1 that gives its colour, and its text.
#[derive(Debug, Clone, PartialEq)]
pub struct Shade {
    /// The value; absent where there is none.
    pub value: Option<f64>,
    /// The number.
    pub number: String,
    /// Smaller text below it.
    pub below: String,
}

/// Largest share of the colour behind a number: digits of either theme can be read on it.
const STRONGEST: f64 = 0.5;

/// Number of columns from which on a table says that it scrolls.
const MANY_COLUMNS: usize = 6;

/// A page in the making. Every text that it is given is escaped.
#[derive(Debug, Clone, Default)]
pub struct Page {
    title: String,
    body: String,
}

impl Page {
    /// A page with a title and a line about its subject.
    pub fn new(title: &str, lead: &str) -> Self {
        let body = format!("<h1>{}</h1>\n<p class=\"lead\">{}</p>\n", escaped(title), escaped(lead));
        Self { title: title.to_owned(), body }
    }

    /// The heading of a section.
    pub fn heading(&mut self, text: &str) {
        let _ = writeln!(self.body, "\n<h2>{}</h2>", escaped(text));
    }

    /// A paragraph.
    pub fn paragraph(&mut self, text: &str) {
        let _ = writeln!(self.body, "<p>{}</p>", escaped(text));
    }

    /// Charts side by side, as many as there is room for.
    pub fn charts(&mut self, charts: &[Chart]) {
        self.body += "<div class=\"charts\">\n";
        for chart in charts {
            let _ = writeln!(self.body, "<figure>{}</figure>", chart.inline());
        }
        self.body += "</div>\n";
    }

    /// A table: its first row is the heads. Columns in `texts` begin at the left, and long texts
    /// are wrapped; the others are numbers.
    pub fn table(&mut self, rows: &[Vec<String>], texts: &[usize]) {
        let Some((heads, rows)) = rows.split_first() else { return };
        let row = |cells: &[String], tag: &str| {
            let cell = |(index, cell): (usize, &String)| {
                let class = match texts.contains(&index) {
                    true if cell.chars().count() > WRAPPED_LETTERS => " class=\"text said\"",
                    true => " class=\"text\"",
                    false => "",
                };
                format!("<{tag}{class}>{}</{tag}>\n", escaped(cell))
            };
            format!("<tr>\n{}</tr>\n", cells.iter().enumerate().map(cell).collect::<String>())
        };
        let body: String = rows.iter().map(|cells| row(cells, "td")).collect();
        let _ = write!(
            self.body,
            "<div class=\"wide\" tabindex=\"0\"><table>\n<thead>{}</thead>\n<tbody>\n{body}</tbody>\n</table></div>\n",
            row(heads, "th")
        );
    }

    /// A table of values from 0 to 1 as a heat map, a name before each row. Its first column stays
    /// where it is; where there are many columns it says how many, because some may be out of
    /// sight.
    ///
    /// # Panics
    /// If a row has not a cell for each column: only a bug can do that.
    pub fn heat_table(&mut self, corner: &str, columns: &[String], rows: &[(String, Vec<Shade>)]) {
        if columns.len() >= MANY_COLUMNS {
            let count = columns.len();
            let _ = writeln!(
                self.body,
                "<p class=\"cut\">{count} columns: scroll for those without room; a shadow marks the cut edge.</p>"
            );
        }
        self.body += "<div class=\"wide\" tabindex=\"0\"><table class=\"heat\">\n<thead><tr>\n";
        for head in std::iter::once(corner).chain(columns.iter().map(String::as_str)) {
            let _ = writeln!(self.body, "<th>{}</th>", escaped(head));
        }
        self.body += "</tr></thead>\n<tbody>";
        for (name, cells) in rows {
            assert_eq!(cells.len(), columns.len(), "cells of a row");
            let _ = write!(self.body, "<tr>\n<td class=\"text\">{}</td>\n", escaped(name));
            for Shade { value, number, below } in cells {
                let (number, below) = (escaped(number), escaped(below));
                let style = value.map_or_else(String::new, |value| {
                    format!(" style=\"--v:{:.3}\"", STRONGEST * value.clamp(0.0, 1.0))
                });
                let _ = writeln!(self.body, "<td{style}>{number} <small>{below}</small></td>");
            }
            self.body += "</tr>\n";
        }
        self.body += "</tbody>\n</table></div>\n";
    }

    /// Parts that are folded below a line until a reader opens them.
    pub fn folded(&mut self, line: &str, fill: impl FnOnce(&mut Self)) {
        let _ = writeln!(self.body, "<details><summary>{}</summary>", escaped(line));
        fill(self);
        self.body += "</details>\n";
    }

    /// Texts with marked parts, side by side, as many as there is room for.
    pub fn side_by_side(&mut self, columns: &[Column]) {
        self.body += "<div class=\"sides\">\n";
        for Column { head, lead, passages } in columns {
            let _ = writeln!(self.body, "<section><h3>{}</h3>\n<p>{}</p>", escaped(head), escaped(lead));
            for Passage { head, parts } in passages {
                let _ = write!(self.body, "<p><b>{}</b> ", escaped(head));
                for (text, is_marked) in parts {
                    let (begin, end) = if *is_marked { ("<mark>", "</mark>") } else { ("", "") };
                    let _ = write!(self.body, "{begin}{}{end}", escaped(text));
                }
                self.body += "</p>\n";
            }
            self.body += "</section>\n";
        }
        self.body += "</div>\n";
    }

    /// Names with their meanings.
    pub fn definitions(&mut self, pairs: &[(&str, String)]) {
        self.body += "<dl>\n";
        for (name, value) in pairs {
            let _ = writeln!(self.body, "<dt>{}</dt><dd>{}</dd>", escaped(name), escaped(value));
        }
        self.body += "</dl>\n";
    }

    /// A list.
    pub fn list(&mut self, items: &[String]) {
        self.body += "<ul>\n";
        for item in items {
            let _ = writeln!(self.body, "<li>{}</li>", escaped(item));
        }
        self.body += "</ul>\n";
    }

    /// The page.
    pub fn finish(self) -> String {
        framed(&self.title, &self.body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::svg::Drawing;

    #[test]
    fn a_heat_table_has_its_numbers_on_their_colours_and_says_that_it_is_cut() {
        let shade =
            |value: f64| Shade { value: Some(value), number: format!("{value:.2}"), below: "[0 – 1]".to_owned() };
        let none = Shade { value: None, number: "–".to_owned(), below: String::new() };
        let names = |count: usize| (0..count).map(|index| format!("<m{index}>")).collect::<Vec<_>>();
        let of = |count: usize| {
            let mut page = Page::new("a", "b");
            let cells = (0..count).map(|index| if index == 1 { none.clone() } else { shade(index as f64 / 10.0) });
            page.heat_table("task", &names(count), &[("<t>".to_owned(), cells.collect())]);
            page.finish()
        };
        let few = of(3);
        assert!(
            few.contains("<td style=\"--v:0.100\">0.20 <small>[0 – 1]</small></td>")
                && few.contains("<th>&lt;m2&gt;</th>"),
            "{few}"
        );
        assert!(
            few.contains("<td>– <small></small></td>")
                && few.contains("<td class=\"text\">&lt;t&gt;</td>")
                && !few.contains("7 columns")
        );
        assert!(of(7).contains("<p class=\"cut\">7 columns: "));
        // The column of names stays, and the container scrolls, not the page.
        assert!(STYLE.contains(".wide th:first-child, .wide td:first-child { position: sticky; left: 0"));
        assert!(
            STYLE.contains("overflow-x: auto") && STYLE.contains("background-attachment: local, local, scroll, scroll")
        );
        assert!(STYLE.matches("--heat:").count() == 2, "both themes");
    }

    #[test]
    fn a_page_needs_nothing_from_elsewhere_and_escapes_texts() {
        let mut page = Page::new("<Scores> & more", "What \"it\" is.");
        page.heading("Table");
        page.table(&[vec!["method".to_owned(), "score".to_owned()], vec!["<none>".to_owned(), "0.5".to_owned()]], &[0]);
        page.charts(&[Drawing::default().finish("empty", "empty", (10.0, 10.0))]);
        page.definitions(&[("model", "a & b".to_owned())]);
        page.list(&["one".to_owned()]);
        let parts = vec![("c".to_owned(), false), ("<d>".to_owned(), true)];
        let passages = vec![Passage { head: "one".to_owned(), parts }];
        page.side_by_side(&[Column { head: "A".to_owned(), lead: "b".to_owned(), passages }]);
        page.folded("<more>", |page| page.paragraph("hidden"));
        let text = page.finish();
        assert!(text.starts_with("<!DOCTYPE html>\n") && text.ends_with("</html>\n"), "{text}");
        assert!(
            text.contains("<title>&lt;Scores&gt; &amp; more</title>") && text.contains("prefers-color-scheme:dark")
        );
        assert!(
            text.contains("<td class=\"text\">&lt;none&gt;</td>\n<td>0.5</td>") && text.contains("<dd>a &amp; b</dd>")
        );
        let column = "<section><h3>A</h3>\n<p>b</p>\n<p><b>one</b> c<mark>&lt;d&gt;</mark></p>\n</section>\n";
        assert!(text.contains(&format!("<div class=\"sides\">\n{column}</div>\n")), "{text}");
        assert!(text.contains("<details><summary>&lt;more&gt;</summary>\n<p>hidden</p>\n</details>\n"), "{text}");
        assert_eq!(text.matches("<svg class=\"chart\"").count(), 1, "charts are not escaped");
        let links = text.replace("http://www.w3.org/2000/svg", "");
        for word in ["http", "src=", "url(", "@import", "<script", "<link"] {
            assert!(!links.contains(word), "{word}");
        }
    }
}
