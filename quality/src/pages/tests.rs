//! Pages are those of the recipe, and a reader of glyphs finds every word in its cell.

use std::collections::HashMap;

use tributary_pictures::{Limits, Pixels, decode};

use super::draw::{Cells, GLYPH, WIDE, knows};
use super::suite::open;
use crate::design::Asked;
use crate::hops::words;
use crate::kit::count_words;
use crate::random::Random;
use crate::suite::{Cell, Measure, Sample};

const BLANK: &str = "";

fn asked(tasks: &[&str], seed: u64) -> Asked {
    let tasks = tasks.iter().map(|task| (*task).to_owned()).collect();
    Asked { suite: "pages".to_owned(), tasks, samples: 3, seed, world: 1, threads: 1, ..Asked::default() }
}

fn sample(task: &str, seed: u64, number: usize) -> Sample {
    let suite = open(&asked(&[task], seed)).expect("a suite");
    suite.sample(&Cell::of(task), number, &Measure::new(&count_words)).expect("a sample")
}

/// Reads a picture cell by cell: the word whose glyph is nearest.
fn read(picture: &Pixels) -> Vec<Vec<String>> {
    let mut known: HashMap<String, Vec<u8>> = HashMap::new();
    let all = words::all();
    for word in all.iter().map(String::as_str).chain([BLANK]) {
        let cells = Cells { columns: 1, words: vec![(word != BLANK).then_some(word)] };
        known.insert(word.to_owned(), cells.drawn(&mut Random::of(word)).rgb);
    }
    let (columns, lines) = (picture.width as usize / GLYPH, picture.height as usize / GLYPH);
    let cell = |line: usize, column: usize| -> Vec<u8> {
        let row = |row: usize| {
            let from = 3 * ((line * GLYPH + row) * picture.width as usize + column * GLYPH);
            picture.rgb[from..from + 3 * GLYPH].to_vec()
        };
        (0..GLYPH).flat_map(row).collect()
    };
    let far = |a: &[u8], b: &[u8]| a.iter().zip(b).map(|(&a, &b)| u64::from(a.abs_diff(b)).pow(2)).sum::<u64>();
    let nearest = |cell: &[u8]| known.iter().min_by_key(|(_, glyph)| far(cell, glyph)).expect("words").0.clone();
    (0..lines).map(|line| (0..columns).map(|column| nearest(&cell(line, column))).collect()).collect()
}

fn pixels(png: &[u8]) -> Pixels {
    decode(png, Some("image/png"), &Limits::default()).expect("a picture")
}

/// Words of some columns of a grid, line by line.
fn text(grid: &[Vec<String>], columns: std::ops::Range<usize>) -> String {
    let words = grid.iter().flat_map(|line| &line[columns.clone()]).filter(|word| *word != BLANK);
    words.cloned().collect::<Vec<_>>().join(" ")
}

#[test]
fn every_word_has_a_glyph() {
    assert!(words::all().iter().all(|word| knows(word)));
}

#[test]
fn a_page_says_what_its_passage_says() {
    let made = sample("hop2_pages", 0, 0);
    assert_eq!((made.pages.len(), made.chunks.len()), (8, 8));
    for page in &made.pages {
        let grid = read(&pixels(&page.png));
        assert_eq!(text(&grid, 0..WIDE), made.chunks[page.chunk]);
        assert_eq!(grid[0][..2], ["passage", BLANK], "the first word has a line of its own");
        let begins = |line: &[String]| line[0] != BLANK && line[0] != ".";
        assert!(grid.iter().all(|line| begins(line)), "a sentence begins each line");
    }
    let mixed = sample("hop2_mixed", 0, 0);
    assert_eq!(mixed.pages.iter().map(|page| page.chunk).collect::<Vec<_>>(), [0, 2, 4, 6]);
}

#[test]
fn a_large_page_has_its_facts_in_different_tiles() {
    for (task, tiles) in [("hop2_tiles2", 2), ("hop2_tiles4", 4)] {
        for number in 0..3 {
            let made = sample(task, 0, number);
            assert_eq!((made.pages.len(), made.chunks.len(), made.pages[0].tiles.count() as usize), (1, 1, tiles));
            let grid = read(&pixels(&made.pages[0].png));
            assert_eq!((grid[0].len(), grid.len() % 4), (4 * WIDE, 0));
            let high = grid.len() / tiles;
            let texts: Vec<String> = (0..tiles * tiles)
                .map(|tile| {
                    let lines = &grid[tile / tiles * high..][..high];
                    let width = 4 * WIDE / tiles;
                    let blocks = (0..4 / tiles).map(|block| tile % tiles * width + block * WIDE);
                    blocks.map(|from| text(lines, from..from + WIDE)).collect::<Vec<_>>().join(" ")
                })
                .collect();
            let guest = made.query.split(' ').nth(2).expect("a guest");
            let one = |begins: &str| {
                let found: Vec<usize> = (0..texts.len()).filter(|&tile| texts[tile].contains(begins)).collect();
                assert_eq!(found.len(), 1, "{begins}");
                found[0]
            };
            let uses = one(&format!("{guest} stays with "));
            let host =
                texts[uses].split(&format!("{guest} stays with ")).nth(1).and_then(|rest| rest.split(' ').next());
            let host = host.expect("a host");
            let city = &made.scoring.references[0];
            let legend = one(&format!("house of {host} in {city} ."));
            assert_ne!(legend, uses);
        }
    }
}

#[test]
fn a_sample_follows_from_its_seed() {
    assert_eq!(sample("vt2_pages", 1, 1), sample("vt2_pages", 1, 1));
    assert_ne!(sample("vt2_pages", 1, 1).hash(), sample("vt2_pages", 2, 1).hash());
    let made = sample("single_pages", 1, 1);
    let mut other = made.clone();
    other.pages[0].png.push(0);
    assert_ne!(made.hash(), other.hash(), "pixels belong to the prompt");
}
