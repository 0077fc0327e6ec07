//! A picture in a chunk: where its rows stand, and its pixels on their way to the rank that reads
//! them.

use std::fmt;
use std::sync::Arc;

use crate::place::Stretch;

/// Bytes of a pixel: red, green and blue.
pub const PIXEL_BYTES: usize = 3;

/// Patches that run through a vision tower together, if no picture has more: a bound of its memory.
pub const PATCHES_AT_ONCE: usize = 16384;

/// A picture among a chunk's tokens: as many of its ids as the picture has rows are the model's
/// mark of a picture's row.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Picture {
    /// The place of its first row among the chunk's ids.
    pub first: u32,
    /// Lines of its grid of rows.
    pub lines: u32,
    /// Rows in a line.
    pub columns: u32,
    /// Identity of its pixels: pictures of one hash have the same features.
    pub hash: [u8; 32],
    /// Its pixels, where the plan is made. They do not travel with it.
    #[serde(skip)]
    pub pixels: Pixels,
}

impl Picture {
    /// Number of its rows.
    pub fn rows(&self) -> usize {
        self.lines as usize * self.columns as usize
    }

    /// Bytes of its pixels, if a row stands for a square with `side` pixels a side.
    pub fn pixel_bytes(&self, side: usize) -> usize {
        self.rows() * side * side * PIXEL_BYTES
    }

    /// The places of its rows among the chunk's ids.
    pub fn range(&self) -> std::ops::Range<usize> {
        self.first as usize..self.first as usize + self.rows()
    }

    /// Its part of a sequence of rows.
    pub fn stretch(&self) -> Stretch {
        Stretch::Picture { rows: self.lines, columns: self.columns }
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
