//! Drawing of pages: every word is a glyph of 16 x 16 pixels, 4 x 4 blocks in two colours
//! (`quality/glyphs.txt`, which the demo VLM's recipe draws). A sentence begins a line.

use std::collections::HashMap;
use std::sync::LazyLock;

use tributary_pictures::Pixels;

use crate::random::Random;

/// Pixels of a side of a glyph.
pub const GLYPH: usize = 16;

/// Words in a line of a passage; none of its sentences has more.
pub const WIDE: usize = 8;

/// Greatest difference of a colour from its glyph's.
const NOISE: usize = 12;

/// The colour of cells without a word.
const BLANK: [u8; 3] = [u8::MAX; 3];

/// A word's glyph.
struct Glyph {
    /// Bit 4 · row + column of a block: ink, or paper.
    blocks: u16,
    ink: [u8; 3],
    paper: [u8; 3],
}

/// Glyphs by their words.
static GLYPHS: LazyLock<HashMap<&'static str, Glyph>> = LazyLock::new(|| {
    include_str!("../../glyphs.txt").lines().map(|line| glyph(line).expect("a line of the table of glyphs")).collect()
});

/// A line of the table: word, blocks, ink, paper.
fn glyph(line: &'static str) -> Option<(&'static str, Glyph)> {
    let mut parts = line.split(' ');
    let mut next = || parts.next();
    let (word, blocks) = (next()?, u16::from_str_radix(next()?, 16).ok()?);
    let mut colour = || {
        let [_, red, green, blue] = u32::from_str_radix(next()?, 16).ok()?.to_be_bytes();
        Some([red, green, blue])
    };
    Some((word, Glyph { blocks, ink: colour()?, paper: colour()? }))
}

/// Whether a word has a glyph.
#[cfg(test)]
pub fn knows(word: &str) -> bool {
    GLYPHS.contains_key(word)
}

/// Words in a grid, some cells of which are blank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cells<'a> {
    /// Cells of a line.
    pub columns: usize,
    /// Line by line.
    pub words: Vec<Option<&'a str>>,
}

impl<'a> Cells<'a> {
    /// Number of lines.
    pub fn lines(&self) -> usize {
        self.words.len() / self.columns
    }

    /// A passage: a sentence begins a line, and so do the words after the first.
    pub fn of_passage(text: &'a str) -> Self {
        let (mut words, mut begins): (Vec<Option<&str>>, bool) = (Vec::new(), true);
        for (place, word) in text.split_whitespace().enumerate() {
            if begins {
                words.resize(words.len().next_multiple_of(WIDE), None);
            }
            words.push(Some(word));
            begins = place == 0 || word == ".";
        }
        words.resize(words.len().next_multiple_of(WIDE), None);
        Self { columns: WIDE, words }
    }

    /// A large page of `side` x `side` passages, line by line of passages. Each has as many lines
    /// as the longest.
    pub fn of_sheet(passages: &'a [String], side: usize) -> Self {
        let blocks: Vec<Cells<'_>> = passages.iter().map(|text| Cells::of_passage(text)).collect();
        let lines = blocks.iter().map(Cells::lines).max().unwrap_or(0);
        let columns = side * WIDE;
        let mut words = vec![None; side * lines * columns];
        for (number, block) in blocks.iter().enumerate() {
            let (top, left) = (number / side * lines, number % side * WIDE);
            for (line, of_line) in block.words.chunks(WIDE).enumerate() {
                let from = (top + line) * columns + left;
                words[from..from + WIDE].copy_from_slice(of_line);
            }
        }
        Self { columns, words }
    }

    /// The drawn page, with noise in every number.
    ///
    /// # Panics
    /// If a word has no glyph: only a bug can cause that.
    pub fn drawn(&self, random: &mut Random) -> Pixels {
        let (width, height) = (self.columns * GLYPH, self.lines() * GLYPH);
        let mut rgb = Vec::with_capacity(3 * width * height);
        for row in 0..height {
            for cell in &self.words[row / GLYPH * self.columns..][..self.columns] {
                let glyph = cell.map(|word| GLYPHS.get(word).unwrap_or_else(|| panic!("`{word}` has no glyph")));
                for column in 0..GLYPH {
                    let block = row % GLYPH / 4 * 4 + column / 4;
                    let colour = glyph.map_or(BLANK, |glyph| glyph.colour(block));
                    rgb.extend(colour.map(|level| noisy(level, random)));
                }
            }
        }
        Pixels { width: width as u32, height: height as u32, rgb }
    }
}

impl Glyph {
    fn colour(&self, block: usize) -> [u8; 3] {
        if self.blocks >> block & 1 == 1 { self.ink } else { self.paper }
    }
}

fn noisy(level: u8, random: &mut Random) -> u8 {
    (usize::from(level) + random.below(2 * NOISE + 1)).saturating_sub(NOISE).min(u8::MAX.into()) as u8
}
