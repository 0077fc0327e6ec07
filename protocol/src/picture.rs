//! A picture in a chunk, or a tile of one: where its rows stand, and its pixels on their way to the
//! rank that reads them.

use std::fmt;
use std::sync::Arc;

use crate::place::Stretch;
use crate::tile::{Area, Tile, area, count};

/// Bytes of a pixel: red, green and blue.
pub const PIXEL_BYTES: usize = 3;

/// Patches that run through a vision tower together, if no picture has more: a bound of its memory.
pub const PATCHES_AT_ONCE: usize = 16384;

/// A picture among a chunk's tokens, or a tile of it: as many of its ids as the picture has rows
/// there are the model's mark of a picture's row.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Picture {
    /// The place of its first row among the chunk's ids.
    pub first: u32,
    /// Lines of the whole picture's grid of rows.
    pub lines: u32,
    /// Rows in a line of the whole picture.
    pub columns: u32,
    /// The tile whose rows are in the chunk, if not all are.
    pub tile: Option<Tile>,
    /// Identity of its pixels: pictures of one hash have the same features.
    pub hash: [u8; 32],
    /// Its pixels, where the plan is made. They do not travel with it.
    #[serde(skip)]
    pub pixels: Pixels,
}

impl Picture {
    /// Number of its rows in the chunk.
    pub fn rows(&self) -> usize {
        self.area().rows()
    }

    /// Number of rows of the whole picture.
    pub fn grid_rows(&self) -> usize {
        self.lines as usize * self.columns as usize
    }

    /// The part of its grid that is in the chunk.
    ///
    /// # Panics
    /// If the grid has no such tile: ranks check plans before they use them.
    pub fn area(&self) -> Area {
        let Some(tile) = self.tile else { return Area::whole(self.lines, self.columns) };
        area(self.lines, self.columns, tile.grid, tile.number.into()).expect("ranks check the number of a tile")
    }

    /// Number of its tiles.
    pub fn tiles(&self) -> usize {
        self.tile.map_or(1, |tile| count(self.lines, self.columns, tile.grid))
    }

    /// Whether the chunk has the picture's beginning: the mark before its first row.
    pub fn begins(&self) -> bool {
        self.tile.is_none_or(|tile| tile.number == 0)
    }

    /// Whether the chunk has the picture's end: the mark after its last row.
    pub fn ends(&self) -> bool {
        self.tile.is_none_or(|tile| usize::from(tile.number) + 1 == self.tiles())
    }

    /// Bytes of the whole picture's pixels, if a row stands for a square with `side` pixels a side.
    pub fn pixel_bytes(&self, side: usize) -> usize {
        self.grid_rows() * side * side * PIXEL_BYTES
    }

    /// The places of its rows among the chunk's ids.
    pub fn range(&self) -> std::ops::Range<usize> {
        self.first as usize..self.first as usize + self.rows()
    }

    /// The numbers of its rows in the whole picture, line by line.
    pub fn numbers(&self) -> impl Iterator<Item = u32> {
        let columns = self.columns;
        self.area().cells().map(move |(line, column)| line * columns + column)
    }

    /// Its part of a chunk's rows, of which `tokens` stand before it.
    pub fn stretch(&self, tokens: u32) -> Stretch {
        let (rows, columns) = (self.lines, self.columns);
        match self.tile {
            Some(tile) => {
                Stretch::Tile { before: tile.before.saturating_sub(tokens), rows, columns, area: self.area() }
            }
            None => Stretch::Picture { rows, columns },
        }
    }
}

/// Pictures in packs that run through a tower one after the other: each pack has at most
/// [`PATCHES_AT_ONCE`] patches, or a single picture; `row_patches` is the number of patches of a
/// row.
pub fn packs<'p>(pictures: &[&'p Picture], row_patches: usize) -> Vec<Vec<&'p Picture>> {
    let (mut packs, mut patches): (Vec<Vec<&Picture>>, usize) = (Vec::new(), 0);
    for &picture in pictures {
        let own = picture.rows() * row_patches;
        match packs.last_mut().filter(|_| patches + own <= PATCHES_AT_ONCE) {
            Some(pack) => {
                pack.push(picture);
                patches += own;
            }
            None => {
                packs.push(vec![picture]);
                patches = own;
            }
        }
    }
    packs
}

/// Red, green and blue of each pixel, line by line. Two plans that differ in these alone are equal:
/// a picture's hash says which pixels it has.
#[derive(Clone, Default)]
pub struct Pixels(pub Arc<[u8]>);

impl PartialEq for Pixels {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Pixels {}

impl fmt::Debug for Pixels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pixels({} bytes)", self.0.len())
    }
}
