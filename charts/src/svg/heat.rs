//! A heat map: a value from 0 to 1 in each place of a grid, as a colour and, where there is room,
//! in digits.

use super::{Anchor, Chart, Legend, Plot, text_width};

/// Pixels of a row.
const ROW: f64 = 34.0;

/// Least room for the names of rows, margins included.
const LEFT: f64 = 92.0;
const BESIDE: f64 = 44.0;

/// Pixels that digits leave free beside them.
const MARGIN: f64 = 4.0;

/// The least and the most of the colour: a value of 0 still shows where its place is.
const FAINTEST: f64 = 0.06;

/// Value from which on the cell's colour is so strong that digits take the background's colour.
const STRONG: f64 = 0.6;

/// Data of the heat map.
#[derive(Debug, Clone, PartialEq)]
pub struct HeatMap<'a> {
    /// The chart's title.
    pub title: &'a str,
    /// Text below the title.
    pub below: &'a str,
    /// Meaning of the columns, with their unit.
    pub across: &'a str,
    /// Meaning of the rows, with their unit.
    pub down: &'a str,
    /// Names of columns.
    pub columns: &'a [String],
    /// Names of rows, from the top.
    pub rows: &'a [String],
    /// Values, row by row, each from 0 to 1; absent where there is none.
    pub values: &'a [Vec<Option<f64>>],
}

impl HeatMap<'_> {
    /// Pixels for the names of rows, and for their meaning.
    fn left(&self) -> f64 {
        let widest = self.rows.iter().map(|name| text_width(name)).fold(0.0, f64::max);
        LEFT.max(widest + BESIDE)
    }

    /// The chart, under a file's name.
    ///
    /// # Panics
    /// If there are not as many values as places: only a bug can do that.
    pub fn chart(&self, name: &str) -> Chart {
        assert_eq!(self.values.len(), self.rows.len(), "rows of values");
        let height = ROW * self.rows.len() as f64;
        let mut plot = Plot::with_left(self.title, self.below, &[], Legend::Square, height, self.left());
        let (left, top, right, bottom) = plot.place;
        let width = (right - left) / self.columns.len().max(1) as f64;
        for (row, (row_name, values)) in self.rows.iter().zip(self.values).enumerate() {
            assert_eq!(values.len(), self.columns.len(), "values of a row");
            let y = top + ROW * row as f64;
            plot.drawing.text((left - 8.0, y + ROW / 2.0 + 4.0), Anchor::End, "muted", row_name);
            for (column, (column_name, value)) in self.columns.iter().zip(values).enumerate() {
                let x = left + width * column as f64;
                let tip = format!("{} {column_name}, {} {row_name}: ", self.across, self.down);
                let middle = (x + width / 2.0, y + ROW / 2.0 + 4.0);
                match value {
                    Some(value) => {
                        let strength = FAINTEST + (1.0 - FAINTEST) * value.clamp(0.0, 1.0);
                        plot.drawing.add(&format!(
                            "<g><title>{}{value:.3}</title><rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" \
                             class=\"s0\" fill-opacity=\"{strength:.3}\"/></g>",
                            super::escaped(&tip),
                            x + 1.0,
                            y + 1.0,
                            width - 2.0,
                            ROW - 2.0
                        ));
                        let class = if *value >= STRONG { "strong" } else { "" };
                        let digits = format!("{value:.2}");
                        if text_width(&digits) + MARGIN <= width {
                            plot.drawing.text(middle, Anchor::Middle, class, &digits);
                        }
                    }
                    None => plot.drawing.text(middle, Anchor::Middle, "muted", "–"),
                }
            }
        }
        for (column, name) in self.columns.iter().enumerate() {
            let x = left + width * (column as f64 + 0.5);
            plot.drawing.text((x, bottom + 17.0), Anchor::Middle, "muted", name);
        }
        plot.drawing.text((f64::midpoint(left, right), bottom + 37.0), Anchor::Middle, "", self.across);
        plot.drawing.upright((17.0, f64::midpoint(top, bottom)), "", self.down);
        plot.finish(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_has_its_colour_and_its_digits() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let (columns, rows) = (names(&["4k", "8k"]), names(&["0", "50", "100"]));
        let values = [vec![Some(0.0), Some(1.0)], vec![Some(0.5), None], vec![Some(0.25), Some(0.75)]];
        let map = HeatMap {
            title: "a & b",
            below: "",
            across: "tokens",
            down: "depth [%]",
            columns: &columns,
            rows: &rows,
            values: &values,
        };
        let body = map.chart("heat").body;
        let strengths: Vec<f64> = body
            .split("fill-opacity=\"")
            .skip(1)
            .map(|rest| rest.split('"').next().unwrap_or_default().parse().expect("a number"))
            .collect();
        assert_eq!(strengths.len(), 5, "{body}");
        assert!((strengths[0], strengths[1]) == (FAINTEST, 1.0) && strengths[3] < strengths[2], "{strengths:?}");
        assert!(body.contains("tokens 8k, depth [%] 100: 0.750") && body.contains(">–</text>"), "{body}");
        assert_eq!(body.matches("class=\"strong\"").count(), 2, "digits on a strong colour");
        let (columns, values) = (vec!["x".to_owned(); 60], [vec![Some(0.25); 60]]);
        let crowded = HeatMap { columns: &columns, rows: &rows[..1], values: &values, ..map };
        let body = crowded.chart("heat").body;
        assert!(body.contains(": 0.250</title>") && !body.contains(">0.25<"), "no room for digits: {body}");
    }
}
