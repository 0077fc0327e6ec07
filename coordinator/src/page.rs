//! Pages: runs of tokens that have pictures among them. A picture is the mark of its start, a mark
//! for each of its rows, and the mark of its end, by their ids. Texts around it are encoded on
//! their own, so no text gives such a mark.

use std::ops::Range;

use tributary_pictures::Picture;
use tributary_protocol::Pixels;

use crate::Result;
use crate::picture::PictureMarks;
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
        let mut page = Self::default();
        page.push_picture(picture, marks);
        page
    }

    /// Adds a text at its end.
    pub(crate) fn push_text(&mut self, text: Self) {
        let start = self.text.len();
        self.text.push_str(&text.text);
        self.append(text, start);
    }

    /// Adds a picture at its end.
    pub(crate) fn push_picture(&mut self, picture: &Picture, marks: &PictureMarks) {
        let placed = tributary_protocol::Picture {
            first: 0,
            lines: picture.rows,
            columns: picture.columns,
            hash: picture.hash,
            pixels: Pixels(picture.rgb.clone()),
        };
        self.push_placed(placed, marks);
    }

    /// The same for a picture that has been placed among other ids.
    fn push_placed(&mut self, picture: tributary_protocol::Picture, marks: &PictureMarks) {
        let at = self.text.len()..self.text.len() + STAND_IN.len();
        self.text.push_str(STAND_IN);
        self.ids.push(marks.start);
        let first = self.ids.len() as u32;
        self.ids.extend(std::iter::repeat_n(marks.row, picture.rows()));
        self.ids.push(marks.end);
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
            let range = picture.range();
            let (start, end) = (range.start - 1, range.end);
            let marks = PictureMarks { row: self.ids[range.start], start: self.ids[start], end: self.ids[end] };
            let at = self.spans[start].clone();
            trimmed.push_text(tokenizer.encode(&self.text[from..at.start])?);
            trimmed.push_placed(picture.clone(), &marks);
            from = at.end;
        }
        trimmed.push_text(tokenizer.encode(&self.text[from..of.end.max(from)])?);
        Ok(trimmed)
    }

    /// Places of the id `mark` outside of its pictures.
    pub(crate) fn stray(&self, mark: u32) -> impl Iterator<Item = usize> {
        let of_a_picture = |place: &usize| self.pictures.iter().any(|picture| picture.range().contains(place));
        (0..self.ids.len()).filter(move |&place| self.ids[place] == mark).filter(move |place| !of_a_picture(place))
    }
}
