//! Places of rows on three axes: time, height and width. A token stands at one number on all three;
//! the rows of a picture stand in a grid (M-RoPE: Wang et al. 2024, "Qwen2-VL", section 2.1). Rows
//! and positions are then no longer counted alike: 54 rows of a picture of 6 x 9 take 9 positions.
//!
//! A place says nothing of causal order, which is that of the rows in their sequence.

use std::collections::HashMap;

use crate::tile::Area;

/// The position of a row on each axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Place {
    /// Time.
    pub t: u32,
    /// Height.
    pub h: u32,
    /// Width.
    pub w: u32,
}

impl Place {
    /// The place of a token: one position on all axes.
    pub fn of_token(position: u32) -> Self {
        Self { t: position, h: position, w: position }
    }

    /// The positions on axes 0, 1 and 2.
    pub fn axes(self) -> [u32; 3] {
        [self.t, self.h, self.w]
    }

    /// The position, if it is the same on all axes.
    pub fn position(self) -> Option<u32> {
        (self.t == self.h && self.h == self.w).then_some(self.t)
    }
}

/// A part of a sequence of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stretch {
    /// Tokens, each of one position.
    Tokens(u32),
    /// The rows of a picture, line by line.
    Picture {
        /// Rows of its grid, after merging.
        rows: u32,
        /// Columns of its grid, after merging.
        columns: u32,
    },
    /// Some of the rows of a picture, at the places that they have in the whole picture.
    Tile {
        /// Positions before the picture that no row of the sequence takes.
        before: u32,
        /// Rows of the whole picture's grid.
        rows: u32,
        /// Columns of the whole picture's grid.
        columns: u32,
        /// The part of the grid.
        area: Area,
    },
}

impl Stretch {
    /// Number of rows of a sequence that it has.
    pub fn rows(self) -> usize {
        match self {
            Stretch::Tokens(count) => count as usize,
            Stretch::Picture { rows, columns } => rows as usize * columns as usize,
            Stretch::Tile { area, .. } => area.rows(),
        }
    }

    /// Number of positions that it takes: the longer side of the whole picture.
    pub fn extent(self) -> u32 {
        match self {
            Stretch::Tokens(count) => count,
            Stretch::Picture { rows, columns } => rows.max(columns),
            Stretch::Tile { before, rows, columns, .. } => before + rows.max(columns),
        }
    }
}

/// Number of positions that a sequence takes.
pub fn extent(stretches: &[Stretch]) -> u32 {
    stretches.iter().map(|stretch| stretch.extent()).sum()
}

/// The place of each row of a sequence that begins at `start`, and the position after its last.
///
/// A picture at position p has the row of its line r and column c at (p, p + r, p + c).
pub fn places(stretches: &[Stretch], start: u32) -> (Vec<Place>, u32) {
    let mut places = Vec::with_capacity(stretches.iter().map(|stretch| stretch.rows()).sum());
    let mut next = start;
    for stretch in stretches {
        match *stretch {
            Stretch::Tokens(count) => places.extend((next..next + count).map(Place::of_token)),
            Stretch::Picture { rows, columns } => places.extend(grid(Area::whole(rows, columns), next)),
            Stretch::Tile { before, area, .. } => places.extend(grid(area, next + before)),
        }
        next += stretch.extent();
    }
    (places, next)
}

/// The places of a part of a picture that begins at position `start`.
fn grid(area: Area, start: u32) -> impl Iterator<Item = Place> {
    area.cells().map(move |(row, column)| Place { t: start, h: start + row, w: start + column })
}

/// Numbers of places in a table of rotations, whose first rows are those of the plain positions.
/// A place keeps its number when others are added.
#[derive(Debug, Clone, Default)]
pub struct PlaceNumbers {
    plain: u32,
    numbers: HashMap<Place, u32>,
    composed: Vec<[u32; 3]>,
}

impl PlaceNumbers {
    /// Numbers in a table that begins with the rows of `plain` positions.
    pub fn after(plain: u32) -> Self {
        Self { plain, ..Self::default() }
    }

    /// The number of a place: its position where the table has the plain row, else that of a row
    /// after the plain ones.
    pub fn number(&mut self, place: Place) -> u32 {
        if let Some(position) = place.position().filter(|&position| position < self.plain) {
            return position;
        }
        let next = self.plain + self.composed.len() as u32;
        *self.numbers.entry(place).or_insert_with(|| {
            self.composed.push(place.axes());
            next
        })
    }

    /// The places of the rows after the plain ones, in the order of their numbers.
    pub fn composed(&self) -> &[[u32; 3]] {
        &self.composed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tile::areas;

    #[test]
    fn a_picture_takes_as_many_positions_as_its_longer_side() {
        let stretches = [Stretch::Tokens(2), Stretch::Picture { rows: 2, columns: 3 }, Stretch::Tokens(1)];
        let (found, end) = places(&stretches, 10);
        let expected = [
            [10; 3],
            [11; 3],
            [12, 12, 12],
            [12, 12, 13],
            [12, 12, 14],
            [12, 13, 12],
            [12, 13, 13],
            [12, 13, 14],
            [15; 3],
        ];
        assert_eq!(found.iter().map(|place| place.axes()).collect::<Vec<_>>(), expected);
        assert_eq!((end, extent(&stretches)), (16, 6));
        assert_eq!(stretches.map(Stretch::rows), [2, 6, 1]);
        assert_eq!(extent(&[Stretch::Picture { rows: 6, columns: 9 }]), 9);
        assert_eq!(extent(&[Stretch::Picture { rows: 9, columns: 6 }]), 9);
        assert_eq!(places(&[], 7), (vec![], 7));
    }

    #[test]
    fn tiles_stand_where_the_whole_picture_has_them() {
        for (rows, columns, tiles, text) in [(3, 5, 2, 4), (1, 6, 4, 0), (7, 2, 3, 1)] {
            let (whole, end) = places(&[Stretch::Tokens(text), Stretch::Picture { rows, columns }], 20);
            for area in areas(rows, columns, tiles) {
                let tile = [Stretch::Tile { before: text, rows, columns, area }, Stretch::Tokens(1)];
                let (mut found, behind) = places(&tile, 20);
                assert_eq!(found.pop(), Some(Place::of_token(end)), "tokens after the last tile");
                let of_whole = area.cells().map(|(row, column)| whole[(text + row * columns + column) as usize]);
                assert_eq!(found, of_whole.collect::<Vec<_>>(), "{area:?} of {rows} x {columns}");
                assert_eq!((behind, extent(&tile)), (end + 1, end + 1 - 20));
            }
        }
    }

    #[test]
    fn places_keep_their_numbers() {
        let mut numbers = PlaceNumbers::after(4);
        let picture = Place { t: 1, h: 1, w: 2 };
        assert_eq!(numbers.number(Place::of_token(3)), 3);
        assert_eq!(numbers.number(picture), 4);
        assert_eq!(numbers.number(Place::of_token(4)), 5, "beyond the plain rows");
        assert_eq!(numbers.number(picture), 4);
        assert_eq!(numbers.composed(), [[1, 1, 2], [4, 4, 4]]);
    }
}
