//! Text in aligned columns.

/// Lays rows out: the first column to the left, the others to the right, two spaces between. Every line ends with a line
/// break and has no space before it. Rows may be of different lengths.
pub fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| {
            if column == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        text += cells.collect::<Vec<_>>().join("  ").trim_end();
        text.push('\n');
    }
    text
}

/// Rows in columns, `#` before those of the header and two spaces before the others; columns in `left` to the left, the
/// others to the right. Rows have as many cells as the first.
pub fn aligned(rows: &[Vec<String>], header_rows: usize, left: &[usize]) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for (index, row) in rows.iter().enumerate() {
        let cell = |(column, cell): (usize, &String)| {
            let width = widths[column];
            if left.contains(&column) { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        };
        let mark = if index < header_rows { "#" } else { " " };
        let line = row.iter().enumerate().map(cell).collect::<Vec<_>>().join("  ");
        text += format!("{mark} {line}").trim_end();
        text.push('\n');
    }
    text
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
        assert_eq!(table(&rows), "name      ms\nα       1.25\nlonger     3\nx\n");
        assert_eq!(table(&[]), "");
    }
}
