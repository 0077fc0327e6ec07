//! Pages: runs of tokens that have pictures among them. A picture is the mark of its start, a mark
//! for each of its rows, and the mark of its end, by their ids. Texts around it are encoded on
//! their own, so no text gives such a mark. Of a picture in tiles the first page has the mark of
//! its start, the last one that of its end.

use std::ops::Range;

use tributary_pictures::Picture;
use tributary_protocol::Pixels;
use tributary_protocol::tile::{Tile, count};

use crate::Result;
use crate::picture::PictureMarks;
use crate::tiling::Tiling;
use crate::tokenize::{Piece, Tokenizer};

/// Stands for a picture in the text of a page: it is no space, so that a chat template that trims
/// texts does not trim those on both sides of a picture.
const STAND_IN: &str = "\u{FFFC}";

impl Piece {
    /// Number of rows of its pictures, without their marks of start and end.
    pub fn picture_rows(&self) -> usize {
        self.pictures.iter().map(tributary_protocol::Picture::rows).sum()
    }

    /// A picture between its marks.
    pub fn of_picture(picture: &Picture, marks: &PictureMarks) -> Self {
        Self::default().with_picture(picture, marks, Tiling::default()).swap_remove(0)
    }

    /// Whether it has a tile of a picture, and not the first.
    pub(crate) fn is_later_tile(&self) -> bool {
        self.pictures.first().is_some_and(|picture| !picture.begins())
    }

    /// Adds a text at its end.
    pub(crate) fn push_text(&mut self, text: Self) {
        let start = self.text.len();
        self.text.push_str(&text.text);
        self.append(text, start);
    }

    /// Adds a picture at its end: the same page, or a page for each of the picture's tiles, of
    /// which the first begins with this one.
    pub(crate) fn with_picture(self, picture: &Picture, marks: &PictureMarks, tiling: Tiling) -> Vec<Self> {
        let count = count(picture.rows, picture.columns, tiling.tiles.count());
        let of = |number: usize| Tile {
            grid: tiling.tiles.count(),
            number: number as u8,
            before: self.ids.len() as u32 + 1,
            order: tiling.order,
        };
        let tiles: Vec<Option<Tile>> = (0..count).map(|number| (count > 1).then(|| of(number))).collect();
        let mut page = Some(self);
        let place = |tile: Option<Tile>| {
            let mut page = page.take().unwrap_or_default();
            let placed = tributary_protocol::Picture {
                first: 0,
                lines: picture.rows,
                columns: picture.columns,
                hash: picture.hash,
                tile,
                pixels: Pixels(picture.rgb.clone()),
            };
            page.push_placed(placed, marks);
            page
        };
        tiles.into_iter().map(place).collect()
    }

    /// Adds a picture that has been placed among other ids at its end.
    fn push_placed(&mut self, picture: tributary_protocol::Picture, marks: &PictureMarks) {
        let at = self.text.len()..self.text.len() + STAND_IN.len();
        self.text.push_str(STAND_IN);
        self.ids.extend(picture.begins().then_some(marks.start));
        let first = self.ids.len() as u32;
        self.ids.extend(std::iter::repeat_n(marks.row, picture.rows()));
        self.ids.extend(picture.ends().then_some(marks.end));
        self.spans.resize(self.ids.len(), at);
        self.pictures.push(tributary_protocol::Picture { first, ..picture });
    }

    /// The same page with a part of its text, from which no picture is missing.
    ///
    /// # Errors
    /// Returns [`Error::Untokenizable`](crate::Error::Untokenizable) if the tokenizer fails.
    pub(crate) fn trimmed(&self, of: Range<usize>, tokenizer: &Tokenizer) -> Result<Self> {
        let mut trimmed = Self { title: self.title.clone(), ..Self::default() };
        let mut from = of.start;
        for picture in &self.pictures {
            let (range, row) = (picture.range(), self.ids[picture.first as usize]);
            // A mark that is absent is not written again.
            let start = if picture.begins() { self.ids[range.start - 1] } else { row };
            let end = if picture.ends() { self.ids[range.end] } else { row };
            let (marks, at) = (PictureMarks { row, start, end }, self.spans[range.start].clone());
            trimmed.push_text(tokenizer.encode(&self.text[from..at.start])?);
            trimmed.push_placed(picture.clone(), &marks);
            from = at.end;
        }
        trimmed.push_text(tokenizer.encode(&self.text[from..of.end.max(from)])?);
        Ok(trimmed)
    }

    /// Makes the tiles of a picture stand behind the tokens that the first of their pages has
    /// before them.
    pub(crate) fn align_tiles(pages: &mut [Self]) {
        let mut before = 0;
        for picture in pages.iter_mut().flat_map(|page| &mut page.pictures) {
            before = if picture.begins() { picture.first } else { before };
            picture.tile.iter_mut().for_each(|tile| tile.before = before);
        }
    }

    /// Places of the id `mark` outside of its pictures.
    pub(crate) fn stray(&self, mark: u32) -> impl Iterator<Item = usize> {
        let of_a_picture = |place: &usize| self.pictures.iter().any(|picture| picture.range().contains(place));
        (0..self.ids.len()).filter(move |&place| self.ids[place] == mark).filter(move |place| !of_a_picture(place))
    }
}
