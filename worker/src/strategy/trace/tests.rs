//! The chains against their formulas, worked out by hand.

use std::collections::HashMap;

use tributary_methods::Need;
use tributary_protocol::tile::TileOrder;
use tributary_protocol::{Plan, Trace};

use super::{Chains, Read};
use crate::kit;
use crate::strategy::candidates::candidates;

/// Two rows of prefix, and four chunks of three rows: rows 2 to 4, 5 to 7, 8 to 10 and 11 to 13.
fn plan(budget: usize) -> Plan {
    Plan { method: kit::method("trace"), budget, ..kit::plan(2, &[3, 3, 3, 3], 1, 1) }
}

/// Scores of the given rows; the others have 0.01.
fn chains(budget: usize, scores: &[(u32, f32)]) -> Chains {
    chains_by(Trace::default(), budget, scores)
}

fn chains_by(trace: Trace, budget: usize, scores: &[(u32, f32)]) -> Chains {
    let mut all = vec![0.01; 12];
    scores.iter().for_each(|&(row, score)| all[row as usize - 2] = score);
    Chains::new(&plan(budget), trace, all)
}

fn read(row: u32, of: u32, amount: f32) -> Read {
    Read { row, of, amount }
}

#[test]
fn the_first_rows_are_the_best_of_all_chunks() {
    assert_eq!(chains(9, &[(3, 0.5), (13, 0.2), (8, 0.1)]).first(), [3, 8, 13]);
    assert_eq!(chains(6, &[(13, 0.2)]).first(), [2, 13], "ties go to the lower row");
    assert!(chains(2, &[(13, 0.2)]).first().is_empty());
}

#[test]
fn a_reading_is_sharp_by_what_it_exceeds_its_reverse() {
    let chains = chains(9, &[]);
    let reads =
        [read(5, 2, 0.30), read(2, 5, 0.25), read(5, 6, 0.90), read(8, 2, 0.18), read(11, 2, 0.17), read(2, 13, 0.5)];
    let reverse = HashMap::from([((2, 5), 0.25), ((5, 2), 0.30), ((13, 2), 0.1)]);
    let sharp = chains.sharp(&reads, &reverse);
    assert_eq!(
        sharp,
        [read(2, 13, 0.4), read(8, 2, 0.18)],
        "each other's, the own chunk's and what is below α are none"
    );
}

#[test]
fn tiles_of_a_picture_count_as_one_chunk() {
    // A text of rows 2 to 4; tiles of rows 5, 6, 7 and 8; a text of rows 9 to 11.
    let page = kit::with_picture(kit::plan(2, &[3, 4, 3], 1, 1), 1, (0, 2, 2));
    let plan = Plan { method: kit::method("trace"), budget: 9, ..kit::in_tiles(&page, 1, 2, TileOrder::Raster) };
    let chains = Chains::new(&plan, Trace::default(), vec![0.5; 10]);
    let reads = [read(5, 8, 0.9), read(3, 6, 0.9), read(3, 10, 0.5)];
    let sharp = chains.sharp(&reads, &HashMap::new());
    assert_eq!(sharp, [read(3, 6, 0.9), read(3, 10, 0.5)], "readings between tiles are those of one chunk");
    let relevance = chains.relevance(&sharp);
    assert_eq!(chains.order(&sharp, &relevance), [1, 2, 3, 4, 5, 0], "the text needs both, and stands after them");
    let order = chains.order(&[read(9, 3, 0.5), read(7, 9, 0.9)], &relevance);
    assert_eq!(order, [0, 5, 1, 2, 3, 4]);
    // What a row of the picture reads of other tiles counts, what a later text is read does not.
    let amounts = vec![1.0; 10];
    let received = chains.received(&[(7, 2.0, &amounts)], &(2..12).collect::<Vec<_>>(), &[0, 1, 2, 3, 4, 5]);
    assert_eq!(received, [vec![2.0; 7], vec![0.0; 3]].concat());
}

#[test]
fn relevance_is_handed_on_along_sharp_readings() {
    let chains = chains(9, &[(2, 0.5), (11, 0.1)]);
    let chain = [read(2, 5, 0.3), read(5, 8, 0.3), read(11, 13, 0.3)];
    let relevance = chains.relevance(&chain);
    let of = |row: usize| relevance[row - 2];
    assert_eq!((of(2), of(5)), (0.5, 0.9 * 0.5));
    assert_eq!(of(8), 0.9 * of(5), "two steps");
    assert_eq!(of(13), 0.01, "row 11 has less than g of the largest");
    assert_eq!(of(3), 0.01);
    assert_eq!(chains.relevance(&[]), chains.relevance(&[read(11, 13, 0.3)]));
    // A row with a higher score of its own keeps it, and a circle terminates.
    let circle = [read(2, 5, 0.3), read(5, 2, 0.3)];
    assert_eq!(chains.relevance(&circle)[0], 0.5);
}

#[test]
fn the_frontier_is_relevant_and_was_not_probed() {
    let chains = chains(9, &[(2, 0.5), (3, 0.45)]);
    let sharp = [read(2, 5, 0.3), read(3, 8, 0.3), read(3, 11, 0.3), read(2, 3, 0.3)];
    let relevance = chains.relevance(&sharp);
    assert_eq!(chains.frontier(&relevance, &[2, 3]), [5, 8], "the best two, ties the lower row: four of nine in all");
    assert_eq!(chains.frontier(&relevance, &[2, 3, 5]), [8]);
    assert!(chains.frontier(&relevance, &[2, 3, 4, 6]).is_empty(), "half of the budget is probed");
    assert!(chains.frontier(&chains.relevance(&[]), &[2]).is_empty());
}

#[test]
fn chunks_that_are_needed_stand_first() {
    let chains = chains(9, &[(2, 0.5), (5, 0.1)]);
    let order = |sharp: &[Read]| chains.order(sharp, &chains.relevance(sharp));
    assert_eq!(order(&[]), [0, 1, 2, 3]);
    assert_eq!(order(&[read(2, 11, 0.3)]), [1, 2, 3, 0]);
    assert_eq!(order(&[read(2, 11, 0.3), read(11, 8, 0.3)]), [1, 2, 3, 0]);
    assert_eq!(order(&[read(2, 5, 0.3), read(5, 11, 0.2)]), [2, 3, 1, 0]);
    assert_eq!(order(&[read(5, 11, 0.9)]), [0, 1, 2, 3], "row 5 is not relevant");
    // A need of one chunk counts less the need in the other direction: 0.5 · 0.3 and 0.45 · 0.4.
    assert_eq!(order(&[read(2, 11, 0.3), read(11, 3, 0.4)]), [0, 1, 2, 3]);
}

#[test]
fn the_sharpest_reading_is_one_of_a_row_that_the_query_finds_relevant() {
    let chains = chains(9, &[(8, 0.5), (5, 0.1)]);
    let sharpest = |sharp: &[Read]| {
        let found = chains.sharpest(sharp);
        (found.any, found.behind)
    };
    assert_eq!(sharpest(&[]), (None, None));
    assert_eq!(sharpest(&[read(8, 11, 0.3), read(8, 2, 0.4), read(5, 11, 0.9)]), (Some(0.4), Some(0.3)));
    assert_eq!(sharpest(&[read(5, 11, 0.9)]), (None, None));
}

#[test]
fn chunks_stay_where_their_order_is_to_be_kept() {
    let (scores, sharp) = ([(2, 0.5), (5, 0.1)], [read(2, 11, 0.3)]);
    let with = |keep_order| chains_by(Trace { keep_order, ..Trace::default() }, 9, &scores);
    let relevance = with(false).relevance(&sharp);
    assert_eq!(with(false).order(&sharp, &relevance), [1, 2, 3, 0]);
    assert_eq!(with(true).relevance(&sharp), relevance, "rows are followed all the same");
    assert_eq!(with(true).order(&sharp, &relevance), [0, 1, 2, 3]);
}

#[test]
fn rows_receive_from_chunks_that_do_not_stand_before_them() {
    let chains = chains(9, &[]);
    let (of, first, second) = ([2, 5, 6, 13], [0.5, 0.25, 0.125, 1.0], [1.0, 1.0, 1.0, 1.0]);
    let probed = [(13, 2.0, &second[..]), (5, 1.0, &first[..])];
    // In the request's order row 5 sees chunks 0 and 1, row 13 all.
    assert_eq!(chains.received(&probed, &of, &[0, 1, 2, 3]), [2.5, 2.25, 2.125, 2.0]);
    // Chunk 3 first, chunk 0 last: row 13 sees its own chunk alone, row 5 all but chunk 0.
    assert_eq!(chains.received(&probed, &of, &[3, 1, 2, 0]), [0.0, 0.25, 0.125, 3.0]);
    assert_eq!(chains.received(&[], &of, &[0, 1, 2, 3]), [0.0; 4]);
}

#[test]
fn the_selector_asks_the_query_then_free_probes_and_adds_what_it_hears() {
    let candidates = candidates(&plan(9), &[0, 1, 2, 3], Vec::new());
    let selector = || kit::method("trace").selector().expect("a selector");
    let mut traced = selector();
    assert_eq!(traced.next(&candidates, &[]), Need::Probe);
    let evidence: Vec<f32> = (0..12).map(|row| if row == 3 { 3.0 } else { 1.0 }).collect();
    let Need::Trace(scores) = traced.next(&candidates, &evidence) else { panic!("none") };
    assert_eq!((scores[3], scores[0]), (3.0 / 14.0, 1.0 / 14.0), "normalised");
    let mut heard = vec![0.0; 12];
    (heard[7], heard[8]) = (1.0, 3.0);
    let Need::Scores(found) = traced.next(&candidates, &heard) else { panic!("no scores") };
    assert_eq!((found[0], found[7], found[8]), (scores[0], scores[7] + 0.25, scores[8] + 0.75));
    // Without a probe there are no readings.
    let mut left_out = selector();
    left_out.next(&candidates, &[]);
    left_out.next(&candidates, &evidence);
    assert_eq!(left_out.next(&candidates, &[0.0; 12]), Need::Scores(scores));
}
