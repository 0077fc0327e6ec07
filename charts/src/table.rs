//! Text in aligned columns.

/// Layout of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout<'a> {
    /// Left-aligned columns; the others are right-aligned.
    pub left: &'a [usize],
    /// Number of rows at the top that are marked as comments, with `#` before them and two spaces
    /// before the others. Absent: no row has a prefix.
    pub commented_rows: Option<usize>,
}

impl Layout<'_> {
    /// The first column to the left, and nothing before the rows.
    pub const PLAIN: Layout<'static> = Layout { left: &[0], commented_rows: None };
}

/// Lays rows out in columns, two spaces between them. Every line ends with a line break and has no
/// space before it. Rows may be of different lengths.
pub fn table(rows: &[Vec<String>], layout: Layout<'_>) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for (index, row) in rows.iter().enumerate() {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| {
            if layout.left.contains(&column) { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        let mark = layout.commented_rows.map_or("", |commented| if index < commented { "# " } else { "  " });
        let line = format!("{mark}{}", cells.collect::<Vec<_>>().join("  "));
        text += line.trim_end();
        text.push('\n');
    }
    text
}

/// Rows without the columns that are empty below the first `heads` rows (a dash counts as empty),
/// and the new numbers of the left-aligned columns.
pub fn filled(rows: &[Vec<String>], heads: usize, left: &[usize]) -> (Vec<Vec<String>>, Vec<usize>) {
    let is_empty = |cell: &String| ["", "-", "–"].contains(&cell.as_str());
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let has_cells = |column: &usize| {
        rows.len() <= heads || rows.iter().skip(heads).any(|row| row.get(*column).is_some_and(|cell| !is_empty(cell)))
    };
    let kept: Vec<usize> = (0..columns).filter(has_cells).collect();
    let row = |row: &Vec<String>| kept.iter().filter_map(|&column| row.get(column).cloned()).collect();
    let left = kept.iter().enumerate().filter(|(_, column)| left.contains(column)).map(|(place, _)| place).collect();
    (rows.iter().map(row).collect(), left)
}

/// A row of a table.
pub fn cells<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(str::to_owned).to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let rows = [cells(["name", "ms"]), cells(["α", "1.25"]), cells(["longer", "3"]), cells(["x"])];
        assert_eq!(table(&rows, Layout::PLAIN), "name      ms\nα       1.25\nlonger     3\nx\n");
        assert_eq!(table(&[], Layout::PLAIN), "");
    }

    #[test]
    fn columns_without_values_are_left_out() {
        let rows = [
            cells(["n", "p95", "name", "x"]),
            cells(["", "[ms]", "", ""]),
            cells(["1", "-", "a", "–"]),
            cells(["2", "", "-", "–"]),
        ];
        let (found, left) = filled(&rows, 2, &[1, 2]);
        assert_eq!(found, [cells(["n", "name"]), cells(["", ""]), cells(["1", "a"]), cells(["2", "-"])]);
        assert_eq!(left, [1]);
        assert_eq!(filled(&rows[..2], 2, &[0]).0, rows[..2].to_vec(), "without rows all columns stay");
    }

    #[test]
    fn header_rows_are_comments() {
        let rows =
            [cells(["n", "name", "ms"]), cells(["", "", "[s]"]), cells(["10", "a", ""]), cells(["1", "long", "2.5"])];
        let layout = Layout { left: &[1], commented_rows: Some(2) };
        let wanted = "#  n  name   ms\n#           [s]\n  10  a\n   1  long  2.5\n";
        assert_eq!(table(&rows, layout), wanted);
    }
}
