//! The frame of a chart: title, legend, axes with marks and units.

use super::{Anchor, COLOURS, Chart, Drawing, Scale, text_width};

/// Width of every chart.
pub const WIDTH: f64 = 620.0;

const LEFT: f64 = 66.0;
const RIGHT: f64 = 22.0;
const BOTTOM: f64 = 50.0;
const LEGEND_LINE: f64 = 19.0;
const BELOW_LINE: f64 = 16.0;

/// Name and scale of an axis.
#[derive(Debug, Clone, Default)]
pub struct Axis {
    /// Name and unit.
    pub label: String,
    /// Marks that replace the scale's.
    pub marks: Option<Vec<(f64, String)>>,
}

impl Axis {
    /// An axis with the scale's own marks.
    pub fn new(label: &str) -> Self {
        Self { label: label.to_owned(), marks: None }
    }

    /// The axis with other marks.
    #[must_use]
    pub fn with(self, marks: Vec<(f64, String)>) -> Self {
        Self { marks: Some(marks), ..self }
    }
}

/// Form of a series in a legend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Legend {
    /// A mark, as in lines and clouds.
    Mark,
    /// A square, as in bars.
    Square,
}

/// A chart under construction: its frame is drawn, and scales give the places of values.
pub struct Plot {
    /// Drawing of the chart.
    pub drawing: Drawing,
    /// Left, top, right and bottom edge of the place for values.
    pub place: (f64, f64, f64, f64),
    title: String,
    height: f64,
}

impl Plot {
    /// A plot with a title, a text below it (perhaps several lines), and a legend (numbers of
    /// colours with their names), over an area with the given height in pixels.
    pub fn new(title: &str, below: &str, legend: &[(usize, String)], kind: Legend, place_height: f64) -> Self {
        Self::with_left(title, below, legend, kind, place_height, LEFT)
    }

    /// As [`new`](Self::new), with so much room for labels on the left.
    pub fn with_left(
        title: &str,
        below: &str,
        legend: &[(usize, String)],
        kind: Legend,
        place_height: f64,
        left: f64,
    ) -> Self {
        let mut drawing = Drawing::default();
        drawing.text((14.0, 24.0), Anchor::Start, "title", title);
        let mut y = 42.0;
        for (line, text) in below.lines().enumerate() {
            y = 42.0 + line as f64 * BELOW_LINE;
            drawing.text((14.0, y), Anchor::Start, "muted", text);
        }
        let lines = draw_legend(&mut drawing, y + 19.0, legend, kind);
        let top = y + 14.0 + lines as f64 * LEGEND_LINE;
        let place = (left, top, WIDTH - RIGHT, top + place_height);
        Self { drawing, place, title: title.to_owned(), height: top + place_height + BOTTOM }
    }

    /// Pixels of the horizontal axis.
    pub fn across(&self) -> (f64, f64) {
        (self.place.0, self.place.2)
    }

    /// Pixels of the vertical axis, upwards.
    pub fn up(&self) -> (f64, f64) {
        (self.place.3, self.place.1)
    }

    /// Draws the horizontal axis with its grid.
    pub fn horizontal(&mut self, scale: &Scale, axis: &Axis) {
        let (left, top, right, bottom) = self.place;
        let (marks, fine) = marks(scale, axis);
        for value in fine {
            let x = scale.at(value);
            self.drawing.line((x, top), (x, bottom), "fine");
        }
        let mut free_from = f64::NEG_INFINITY;
        for (value, label) in marks {
            let x = scale.at(value);
            self.drawing.line((x, top), (x, bottom), "grid");
            let half = text_width(&label) / 2.0;
            // Labels that would run into each other are left out.
            if x - half > free_from {
                self.drawing.text((x, bottom + 17.0), Anchor::Middle, "muted", &label);
                free_from = x + half + 6.0;
            }
        }
        self.drawing.line((left, bottom), (right, bottom), "axis");
        self.drawing.text((f64::midpoint(left, right), bottom + 37.0), Anchor::Middle, "", &axis.label);
    }

    /// Draws the vertical axis with its grid.
    pub fn vertical(&mut self, scale: &Scale, axis: &Axis) {
        let (left, top, right, bottom) = self.place;
        let (marks, fine) = marks(scale, axis);
        for value in fine {
            let y = scale.at(value);
            self.drawing.line((left, y), (right, y), "fine");
        }
        for (value, label) in marks {
            let y = scale.at(value);
            self.drawing.line((left, y), (right, y), "grid");
            self.drawing.text((left - 8.0, y + 4.0), Anchor::End, "muted", &label);
        }
        self.drawing.upright((17.0, f64::midpoint(top, bottom)), "", &axis.label);
    }

    /// The chart.
    pub fn finish(self, name: &str) -> Chart {
        self.drawing.finish(name, &self.title, (WIDTH, self.height))
    }
}

fn marks(scale: &Scale, axis: &Axis) -> (Vec<(f64, String)>, Vec<f64>) {
    match &axis.marks {
        Some(marks) => (marks.clone(), Vec::new()),
        None => scale.ticks(),
    }
}

/// Draws the legend from a line at `first_y` on; gives the number of its lines.
fn draw_legend(drawing: &mut Drawing, first_y: f64, legend: &[(usize, String)], kind: Legend) -> usize {
    let (mut x, mut line) = (14.0, 0);
    for (series, label) in legend {
        let width = 18.0 + text_width(label) + 16.0;
        if x + width > WIDTH - 8.0 && x > 14.0 {
            (x, line) = (14.0, line + 1);
        }
        let y = first_y + f64::from(line) * LEGEND_LINE;
        match kind {
            Legend::Mark => drawing.mark((x + 5.0, y - 4.0), *series, label),
            Legend::Square => {
                let class = format!("s{}", series % COLOURS);
                drawing.bar((x, y - 10.0), (11.0, 11.0), &class, false, label);
            }
        }
        drawing.text((x + 17.0, y), Anchor::Start, "", label);
        x += width;
    }
    if legend.is_empty() { 0 } else { line as usize + 1 }
}
