//! Tiles of a picture: parts of its grid of rows, each in a chunk of its own.
//!
//! The vision tower reads the whole picture, and positions are those of the whole picture. Only the
//! decoder computes tiles apart (InfoFlow KV, experiments on images).

/// Maximum number of tiles along a side of a picture.
pub const MOST_TILES: u8 = 8;

/// Causal order of the rows of a picture that is cut into tiles.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum TileOrder {
    /// That of the uncut picture: line by line, across its tiles.
    #[default]
    Raster,
    /// Tile after tile. It is another prompt than that of the uncut picture.
    Tile,
}

impl TileOrder {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            TileOrder::Raster => "raster",
            TileOrder::Tile => "tile",
        }
    }
}

/// The part of a picture that a chunk has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Tile {
    /// Number of tiles along a side, those without a row included.
    pub grid: u8,
    /// Its number among the picture's tiles, line by line, from 0.
    pub number: u8,
    /// Positions between the first row of the picture's first chunk and the picture.
    pub before: u32,
    /// Causal order of the picture's rows.
    pub order: TileOrder,
}

/// A rectangle of rows in the grid of a picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Area {
    /// Its first line.
    pub top: u32,
    /// Its first column.
    pub left: u32,
    /// Number of its lines.
    pub lines: u32,
    /// Number of its columns.
    pub columns: u32,
}

impl Area {
    /// All of a grid.
    pub fn whole(lines: u32, columns: u32) -> Self {
        Self { top: 0, left: 0, lines, columns }
    }

    /// Number of its rows.
    pub fn rows(self) -> usize {
        self.lines as usize * self.columns as usize
    }

    /// The line and the column of each of its rows in the grid, line by line.
    pub fn cells(self) -> impl Iterator<Item = (u32, u32)> {
        let line = move |line| (self.left..self.left + self.columns).map(move |column| (line, column));
        (self.top..self.top + self.lines).flat_map(line)
    }
}

/// The tiles of a grid of `lines` x `columns` rows that is cut into `tiles` parts along each side,
/// line by line. Each has ⌈lines / tiles⌉ lines and ⌈columns / tiles⌉ columns, less at the lower
/// and the right edge. Tiles without a row are left out.
pub fn areas(lines: u32, columns: u32, tiles: u8) -> Vec<Area> {
    (0..count(lines, columns, tiles)).filter_map(|number| area(lines, columns, tiles, number)).collect()
}

/// Number of those tiles.
pub fn count(lines: u32, columns: u32, tiles: u8) -> usize {
    let along = |rows: u32| rows.div_ceil(side(rows, tiles)) as usize;
    along(lines) * along(columns)
}

/// One of those tiles, if there are that many.
pub fn area(lines: u32, columns: u32, tiles: u8, number: usize) -> Option<Area> {
    if number >= count(lines, columns, tiles) {
        return None;
    }
    let (high, wide) = (side(lines, tiles), side(columns, tiles));
    let across = columns.div_ceil(wide);
    let (top, left) = (number as u32 / across * high, number as u32 % across * wide);
    Some(Area { top, left, lines: high.min(lines - top), columns: wide.min(columns - left) })
}

/// Lines or columns of a tile, of `rows` in the grid.
fn side(rows: u32, tiles: u8) -> u32 {
    rows.div_ceil(u32::from(tiles.max(1))).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn area(top: u32, left: u32, lines: u32, columns: u32) -> Area {
        Area { top, left, lines, columns }
    }

    #[test]
    fn tiles_cover_the_grid_once() {
        for (lines, columns) in [(1, 1), (1, 9), (9, 1), (4, 6), (5, 7), (6, 9), (3, 2), (16, 16)] {
            for tiles in 1..=MOST_TILES {
                let areas = areas(lines, columns, tiles);
                let mut cells: Vec<(u32, u32)> = areas.iter().flat_map(|area| area.cells()).collect();
                assert!(areas.iter().all(|area| area.rows() > 0), "{lines} x {columns} in {tiles}");
                cells.sort_unstable();
                let all: Vec<(u32, u32)> = Area::whole(lines, columns).cells().collect();
                assert_eq!(cells, all, "{lines} x {columns} in {tiles}");
            }
        }
    }

    #[test]
    fn tiles_at_the_edges_are_smaller_and_empty_ones_are_left_out() {
        assert_eq!(areas(3, 5, 2), [area(0, 0, 2, 3), area(0, 3, 2, 2), area(2, 0, 1, 3), area(2, 3, 1, 2)]);
        // Five lines in four parts of two: the last part has none.
        assert_eq!(areas(5, 1, 4), [area(0, 0, 2, 1), area(2, 0, 2, 1), area(4, 0, 1, 1)]);
        assert_eq!(areas(1, 3, 8), [area(0, 0, 1, 1), area(0, 1, 1, 1), area(0, 2, 1, 1)]);
        assert_eq!(areas(4, 6, 1), [Area::whole(4, 6)]);
        assert_eq!((count(3, 5, 2), super::area(3, 5, 2, 4), super::area(0, 5, 2, 0)), (4, None, None));
    }
}
