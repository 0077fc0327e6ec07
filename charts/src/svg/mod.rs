//! Drawing: just enough SVG for the charts of a study. Colours are classes, so that a page or a
//! file gives them for light and dark; every mark carries a tooltip.

mod heat;
pub mod labels;
mod plot;
mod scale;

use std::fmt::Write;

pub use heat::HeatMap;
pub use plot::{Axis, Legend, Plot};
pub use scale::Scale;

/// Number of colours for series: `s0` and so on.
pub const COLOURS: usize = 9;

/// Forms of marks.
const FORMS: usize = 4;

/// Colours that most kinds of colour blindness tell apart (after Okabe and Ito), for light and for
/// dark ground. The last is grey, for the rest.
const PALETTE: [(&str, &str); COLOURS] = [
    ("#0072b2", "#4aa8e0"),
    ("#d55e00", "#ff8c4a"),
    ("#009e73", "#2fc79b"),
    ("#b8569a", "#e08fc4"),
    ("#c78500", "#f2b632"),
    ("#3f9fd0", "#8fd3f7"),
    ("#7a5cc0", "#ab94ea"),
    ("#5b6b1f", "#b4c55a"),
    ("#8a8f98", "#8f959e"),
];

/// Rules for every chart, light and dark.
pub fn style() -> String {
    let mut light = String::from(
        "svg.chart{font-family:system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif;font-size:12px}\
         .chart text{fill:#22262c}.chart .title{font-size:15px;font-weight:600}.chart .muted{fill:#606873}\
         .chart .grid{stroke:#e3e6ea;stroke-width:1}.chart .fine{stroke:#f0f2f4;stroke-width:1}\
         .chart .axis{stroke:#7a818b;stroke-width:1}.chart .ideal{stroke:#7a818b;stroke-width:1.5;stroke-dasharray:5 4;fill:none}\
         .chart .ground{fill:#ffffff}.chart .hatch{stroke:#ffffff;stroke-width:2.2}\
         .chart .curve{fill:none;stroke-width:2.2;stroke-linejoin:round;stroke-linecap:round}.chart .band{stroke:none;opacity:.16}\
         .chart .dot{stroke:#ffffff;stroke-width:1.2}.chart .strong{fill:#ffffff}\
         .chart .small{font-size:11px;paint-order:stroke;stroke:#ffffff;stroke-width:3px;stroke-linejoin:round}.chart .leader{stroke:#9aa1ab;stroke-width:.8}",
    );
    let mut dark = String::from(
        ".chart text{fill:#e4e7eb}.chart .muted{fill:#9aa3ae}.chart .grid{stroke:#30363f}.chart .fine{stroke:#23282f}\
         .chart .axis{stroke:#808892}.chart .ideal{stroke:#808892}.chart .ground{fill:#15181c}\
         .chart .hatch{stroke:#15181c}.chart .dot{stroke:#15181c}.chart .strong{fill:#15181c}.chart .band{opacity:.22}\
         .chart .leader{stroke:#6b737e}.chart .small{stroke:#15181c}",
    );
    for (index, (on_light, on_dark)) in PALETTE.iter().enumerate() {
        for (text, colour) in [(&mut light, on_light), (&mut dark, on_dark)] {
            let _ =
                write!(text, ".chart .s{index}{{fill:{colour}}}.chart .curve.s{index}{{fill:none;stroke:{colour}}}");
        }
    }
    format!("{light}@media (prefers-color-scheme:dark){{{dark}}}")
}

/// A finished chart.
#[derive(Debug, Clone, PartialEq)]
pub struct Chart {
    /// Its file's name, without an ending.
    pub name: String,
    /// Its title.
    pub title: String,
    /// Width and height in pixels.
    pub size: (f64, f64),
    /// Drawn elements.
    pub body: String,
}

impl Chart {
    /// As a part of a page that has the rules for charts.
    pub fn inline(&self) -> String {
        let (width, height) = self.size;
        format!(
            "<svg class=\"chart\" xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
             width=\"{width}\" height=\"{height}\" role=\"img\" aria-label=\"{}\">{}</svg>",
            escaped(&self.title),
            self.body
        )
    }

    /// The drawing as a separate file.
    pub fn alone(&self) -> String {
        let (width, height) = self.size;
        let ground = format!("<rect class=\"ground\" width=\"{width}\" height=\"{height}\"/>");
        let inline = self.inline();
        let (opening, rest) = inline.split_at(inline.find('>').map_or(0, |end| end + 1));
        format!("{opening}<style>{}</style>{ground}{rest}\n", style())
    }
}

/// Text escaped for XML, attributes included.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Anchor of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Anchor {
    /// At its beginning.
    Start,
    /// In its middle.
    Middle,
    /// At its end.
    End,
}

/// A drawing in progress. Coordinates in pixels from the upper left corner.
#[derive(Debug, Clone, Default)]
pub struct Drawing {
    body: String,
}

impl Drawing {
    /// A text, its baseline at `y`.
    pub fn text(&mut self, (x, y): (f64, f64), anchor: Anchor, class: &str, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        self.add(&format!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" class=\"{class}\">{}</text>",
            escaped(text)
        ));
    }

    /// A text that reads upwards.
    pub fn upright(&mut self, (x, y): (f64, f64), class: &str, text: &str) {
        self.add(&format!(
            "<text transform=\"translate({x:.1} {y:.1}) rotate(-90)\" text-anchor=\"middle\" class=\"{class}\">{}</text>",
            escaped(text)
        ));
    }

    /// A straight line.
    pub fn line(&mut self, (x1, y1): (f64, f64), (x2, y2): (f64, f64), class: &str) {
        self.add(&format!("<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" class=\"{class}\"/>"));
    }

    /// Lines from point to point, closed or not.
    pub fn path(&mut self, points: &[(f64, f64)], closed: bool, class: &str) {
        let mut steps = String::new();
        for (index, (x, y)) in points.iter().enumerate() {
            let _ = write!(steps, "{}{x:.1} {y:.1}", if index == 0 { "M" } else { "L" });
        }
        let end = if closed { "Z" } else { "" };
        self.add(&format!("<path d=\"{steps}{end}\" class=\"{class}\"/>"));
    }

    /// A rectangle with a tooltip; `hatched` for waiting.
    pub fn bar(&mut self, (x, y): (f64, f64), (width, height): (f64, f64), class: &str, hatched: bool, tip: &str) {
        if width <= 0.0 {
            return;
        }
        let tip = escaped(tip);
        let body = format!("x=\"{x:.2}\" y=\"{y:.1}\" width=\"{width:.2}\" height=\"{height:.1}\"");
        let faint = if hatched { " opacity=\"0.55\"" } else { "" };
        let mut group = format!("<g><title>{tip}</title><rect {body} class=\"{class}\"{faint}/>");
        if hatched {
            group += &hatching((x, y), (width, height));
        }
        self.add(&format!("{group}</g>"));
    }

    /// A mark of a series: forms differ too, so that series are not told apart by colour alone. No
    /// two of the first 32 share form and colour.
    pub fn mark(&mut self, (x, y): (f64, f64), series: usize, tip: &str) {
        let class = format!("dot s{}", series % (COLOURS - 1));
        let form = match (series + series / (COLOURS - 1)) % FORMS {
            0 => format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4.5\" class=\"{class}\"/>"),
            1 => {
                format!("<rect x=\"{:.1}\" y=\"{:.1}\" width=\"8\" height=\"8\" class=\"{class}\"/>", x - 4.0, y - 4.0)
            }
            2 => polygon(&[(x, y - 5.5), (x + 5.2, y + 4.0), (x - 5.2, y + 4.0)], &class),
            _ => polygon(&[(x, y - 5.6), (x + 5.6, y), (x, y + 5.6), (x - 5.6, y)], &class),
        };
        self.add(&format!("<g><title>{}</title>{form}</g>", escaped(tip)));
    }

    /// Something that is drawn already.
    pub fn add(&mut self, element: &str) {
        self.body.push_str(element);
        self.body.push('\n');
    }

    /// The chart.
    pub fn finish(self, name: &str, title: &str, size: (f64, f64)) -> Chart {
        Chart { name: name.to_owned(), title: title.to_owned(), size, body: self.body }
    }
}

fn polygon(points: &[(f64, f64)], class: &str) -> String {
    let points: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    format!("<polygon points=\"{}\" class=\"{class}\"/>", points.join(" "))
}

/// Slanting lines within a rectangle. Lines, not a pattern: patterns are named, and names in a page
/// must be unique.
fn hatching((x, y): (f64, f64), (width, height): (f64, f64)) -> String {
    let step = 6.0;
    let mut lines = String::new();
    let mut from = step - height;
    while from < width {
        // From the lower left to the upper right, cut at both sides.
        let (left, right) = (from.max(0.0), (from + height).min(width));
        if right > left {
            let (low, high) = (height - (left - from), height - (right - from));
            let _ = write!(lines, "M{:.2} {:.1}L{:.2} {:.1}", x + left, y + low, x + right, y + high);
        }
        from += step;
    }
    format!("<path d=\"{lines}\" class=\"hatch\"/>")
}

/// Pixels that a text of 12 pixels takes, roughly.
pub fn text_width(text: &str) -> f64 {
    6.6 * text.chars().count() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_break_the_drawing() {
        let mut drawing = Drawing::default();
        drawing.text((1.0, 2.0), Anchor::Middle, "title", "a < b & \"c\"");
        drawing.bar((0.0, 0.0), (30.0, 10.0), "s1", true, "<x>");
        drawing.bar((0.0, 0.0), (0.0, 10.0), "s1", false, "nothing");
        let chart = drawing.finish("name", "a & b", (40.0, 30.0));
        assert!(chart.body.contains("a &lt; b &amp; &quot;c&quot;"), "{}", chart.body);
        assert!(!chart.body.contains("nothing"));
        let alone = chart.alone();
        assert!(alone.starts_with("<svg class=\"chart\"") && alone.contains("<style>") && alone.ends_with("</svg>\n"));
        assert!(alone.contains("aria-label=\"a &amp; b\""));
        assert!(!alone.contains("href"), "nothing from elsewhere");
    }

    #[test]
    fn no_two_of_32_series_look_alike() {
        let look = |series: usize| {
            let mut drawing = Drawing::default();
            drawing.mark((10.0, 10.0), series, "");
            drawing.body
        };
        let looks: std::collections::BTreeSet<String> = (0..32).map(look).collect();
        assert_eq!(looks.len(), 32);
        assert_ne!(look(3), look(11), "the same colour in another form");
    }

    #[test]
    fn hatching_stays_inside() {
        let lines = hatching((10.0, 20.0), (7.0, 30.0));
        let data = lines.split('"').nth(1).expect("the path's data");
        for pair in data.split(['M', 'L']).filter(|pair| !pair.is_empty()) {
            let (x, y) = pair.split_once(' ').expect("two numbers");
            let (x, y): (f64, f64) = (x.parse().unwrap(), y.parse().unwrap());
            assert!((10.0..=17.0).contains(&x) && (20.0..=50.0).contains(&y), "{pair}");
        }
    }
}
