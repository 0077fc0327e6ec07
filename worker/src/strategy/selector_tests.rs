//! Selectors and rules on hand-made evidence.

use tributary_methods::{Candidates, Need, Selector};
use tributary_protocol::tile::TileOrder;
use tributary_protocol::{Importance, Plan};

use super::candidates::{candidates, chunk_order};
use crate::kit;

fn given(plan: &Plan, order: &[u32]) -> Candidates {
    candidates(plan, order, Vec::new())
}

fn selector(spec: &str) -> Box<dyn Selector> {
    kit::method(spec).selector().expect("a method that works in chunks")
}

/// Prefix of 2 rows; chunks hold rows 2..5, 5..9, 9..11 and 11..17.
fn plan(budget: usize) -> Plan {
    Plan { budget, ..kit::plan(2, &[3, 4, 2, 6], 2, 1) }
}

#[test]
fn the_layouts_first_chunk_is_no_candidate() {
    let request = given(&plan(5), &[0, 1, 2, 3]);
    assert_eq!(request.rows, (5..17).collect::<Vec<_>>());
    assert_eq!(request.chunks, [(5, 4), (9, 2), (11, 6)]);
    assert_eq!((request.first_row, request.context, request.budget, request.query), (2, 15, 5, 2));
    let reordered = given(&plan(5), &[2, 3, 0, 1]);
    assert_eq!(reordered.rows, [2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 14, 15, 16]);
    assert_eq!(reordered.chunks, [(11, 6), (2, 3), (5, 4)]);
    let all = given(&Plan { include_first_chunk: true, ..plan(5) }, &[2, 3, 0, 1]);
    assert_eq!(all.rows, (2..17).collect::<Vec<_>>());
    assert_eq!(all.chunks[0], (9, 2));
    let single = given(&kit::plan(2, &[3], 2, 1), &[0]);
    assert!(single.rows.is_empty() && single.chunks.is_empty());
}

#[test]
fn the_first_tile_is_a_candidate_where_rows_of_other_tiles_come_before_its_own() {
    // A text of rows 2 to 4; tiles of rows 5 to 7, 8 and 9, 10 to 12, 13 and 14; a text.
    let of = |order: TileOrder| {
        let page = kit::with_picture(kit::plan(2, &[3, 10, 2], 2, 1), 1, (0, 2, 5));
        Plan { budget: 5, ..kit::in_tiles(&page, 1, 2, order) }
    };
    let chunks = |order, chunks: [u32; 6]| given(&of(order), &chunks).chunks.into_iter().map(|(first, _)| first);
    let first = |order, of: [u32; 6]| chunks(order, of).next().expect("a candidate");
    assert_eq!(first(TileOrder::Raster, [0, 1, 2, 3, 4, 5]), 5, "behind a text all tiles are");
    assert_eq!(first(TileOrder::Raster, [1, 2, 3, 4, 0, 5]), 5, "the first tile");
    assert_eq!(chunks(TileOrder::Raster, [1, 2, 3, 4, 0, 5]).count(), 6);
    assert_eq!(first(TileOrder::Tile, [1, 2, 3, 4, 0, 5]), 8, "tile after tile the first is exact");
}

#[test]
fn tiles_move_as_one_by_the_best_of_them() {
    let page = kit::with_picture(kit::plan(2, &[3, 10, 2], 2, 1), 1, (0, 2, 5));
    let plan = Plan { budget: 2, ..kit::in_tiles(&page, 1, 2, TileOrder::Raster) };
    let order = |best: &[(usize, f32)], importance| {
        let mut scores = vec![0.0; 15];
        best.iter().for_each(|&(row, score)| scores[row - 2] = score);
        chunk_order(&plan, &scores, importance)
    };
    // The tiles' sum exceeds the text's score, none of them does.
    assert_eq!(order(&[(2, 2.0), (5, 1.5), (8, 1.5)], Importance::Mass), [5, 1, 2, 3, 4, 0]);
    assert_eq!(order(&[(5, 3.0), (2, 2.0)], Importance::Mass), [5, 0, 1, 2, 3, 4]);
    // Two rows of the third tile's two: more than one of the text's three.
    assert_eq!(order(&[(11, 2.0), (12, 1.0)], Importance::Selected), [0, 5, 1, 2, 3, 4]);
}

#[test]
fn the_best_candidates_are_taken_and_never_the_first_chunk() {
    let candidates = given(&plan(3), &[3, 0, 1, 2]);
    // The highest scores stand in chunk 3, which comes first; among the others rows 3, 5 and 9 tie.
    let mut scores = vec![0.0; 15];
    scores[9..15].fill(9.0);
    for row in [3, 5, 9] {
        scores[row - 2] = 1.0;
    }
    scores[8 - 2] = 2.0;
    assert_eq!(candidates.top(&scores, 3), [3, 5, 8]);
    assert_eq!(candidates.top(&scores, 99), (2..11).collect::<Vec<_>>());
}

#[test]
fn chunks_stand_in_ascending_mass_ties_in_request_order() {
    let order = |scores: [f32; 15]| chunk_order(&plan(4), &scores, Importance::Mass);
    assert_eq!(order([0.0; 15]), [0, 1, 2, 3]);
    let mut scores = [0.0; 15];
    (scores[0], scores[4], scores[7], scores[14]) = (3.0, 1.0, 2.0, 1.0);
    assert_eq!(order(scores), [1, 3, 2, 0], "masses 3, 1, 2, 1: the best comes last, 1 before 3");
}

#[test]
fn chunks_stand_in_ascending_share_of_the_selection() {
    let order = |scores: [f32; 15], budget| chunk_order(&plan(budget), &scores, Importance::Selected);
    let mut scores = [0.0; 15];
    // The four best: one of chunk 0 (1/3), one of chunk 2 (1/2), two of chunk 3 (1/3).
    (scores[1], scores[8], scores[9], scores[12]) = (5.0, 4.0, 3.0, 2.0);
    assert_eq!(order(scores, 4), [1, 0, 3, 2], "shares 1/3, 0, 1/2, 1/3: 0 before 3");
    assert_eq!(order(scores, 1), [1, 2, 3, 0], "chunk 0 alone has a share");
    // All scores alike: the lowest rows are the selection, so chunk 0 is whole in it and chunk 1
    // for a quarter.
    assert_eq!(order([1.0; 15], 4), [2, 3, 1, 0]);
}

#[test]
fn epic_spends_evenly_and_leaves_what_short_chunks_cannot_take() {
    let rows = |spec: &str, budget, order: [u32; 4]| {
        let need = selector(spec).next(&given(&plan(budget), &order), &[]);
        let Need::Rows(rows) = need else { panic!("{need:?}") };
        rows
    };
    assert_eq!(rows("epic", 7, [0, 1, 2, 3]), [5, 6, 9, 10, 11, 12], "7/3 = 2 rows a chunk");
    assert_eq!(rows("epic", 9, [0, 1, 2, 3]), [5, 6, 7, 9, 10, 11, 12, 13], "chunk 2 has two rows only: one unspent");
    assert!(rows("epic", 2, [0, 1, 2, 3]).is_empty(), "less than a row a chunk");
    assert_eq!(
        rows("epic:rows=1", 2, [1, 0, 2, 3]),
        [2, 9, 11],
        "the layout's first chunk is left out, whichever it is"
    );
    assert_eq!(rows("epic:rows=64", 2, [0, 1, 2, 3]), (5..17).collect::<Vec<_>>());
}

#[test]
fn prophetkv_takes_the_mean_over_the_querys_rows() {
    let candidates = given(&plan(3), &[0, 1, 2, 3]);
    let mut selector = selector("prophetkv");
    assert_eq!(selector.next(&candidates, &[]), Need::Probe);
    let answer = selector.next(&candidates, &[3.0; 15]);
    assert_eq!(answer, Need::Scores(vec![1.5; 15]));
}

#[test]
fn a3_takes_the_best_of_the_first_layer_as_they_are() {
    let (candidates, mut a3) = (given(&plan(3), &[0, 1, 2, 3]), selector("a3"));
    assert_eq!(a3.next(&candidates, &[]), Need::Probe);
    // The first chunk has the highest scores; of the others row 16 is the best, then 7, then 5
    // before 9.
    let mut evidence = vec![0.0; 15];
    (evidence[0], evidence[3], evidence[5], evidence[7], evidence[14]) = (9.0, 1.0, 2.0, 1.0, 3.0);
    let Need::Scores(scores) = a3.next(&candidates, &evidence) else { panic!("no scores") };
    assert_eq!(scores, evidence);
    assert_eq!(candidates.top(&scores, 3), [5, 7, 16]);
}

#[test]
fn relay_asks_twice_and_adds_what_it_hears() {
    let candidates = given(&Plan { method: kit::method("relay"), ..plan(7) }, &[0, 1, 2, 3]);
    assert_eq!(candidates.measured, 2, "a third of the budget");
    let mut relay = selector("relay");
    assert_eq!(relay.next(&candidates, &[]), Need::Probe);
    // Sum 20. Row 2 has the highest score but stands in the first chunk; rows 6 and 15 are the best
    // two, 7/3 = 2.
    let mut first = vec![0.0; 15];
    (first[0], first[4], first[9], first[13], first[14]) = (10.0, 6.0, 1.0, 2.0, 1.0);
    let Need::Pass { rows, weights } = relay.next(&candidates, &first) else { panic!("no pass") };
    assert_eq!(rows, [6, 15]);
    assert_eq!(weights, [0.75, 0.25], "s¹ over the sum of S¹: 6/8 and 2/8");
    let mut second = vec![0.0; 15];
    (second[3], second[4]) = (0.1, 0.3);
    let Need::Scores(scores) = relay.next(&candidates, &second) else { panic!("no scores") };
    let mut expected = first.iter().map(|score| score / 20.0).collect::<Vec<f32>>();
    expected[3] += 0.25;
    expected[4] += 0.75;
    for (row, (found, expected)) in scores.iter().zip(&expected).enumerate() {
        assert!((found - expected).abs() < 1e-6, "row {row}: {found} for {expected}");
    }
    // The best of both hops: 6 (first and second), then 5 (second only), then 15.
    assert_eq!(candidates.top(&scores, 3), [5, 6, 15]);
}

#[test]
fn relay_with_a_budget_below_three_answers_after_the_probe() {
    let candidates = given(&plan(2), &[0, 1, 2, 3]);
    let mut relay = selector("relay");
    let Need::Scores(scores) = relay.next(&candidates, &[2.0; 15]) else { panic!("a second stage") };
    assert!(scores.iter().all(|score| (score - 1.0 / 15.0).abs() < 1e-7));
}

#[test]
#[should_panic(expected = "selected row 9 stands before row 7")]
fn selected_rows_ascend() {
    given(&plan(3), &[0, 1, 2, 3]).check(&[6, 9, 7], 3);
}

#[test]
#[should_panic(expected = "row 4 may not be selected")]
fn selected_rows_are_candidates() {
    given(&plan(3), &[0, 1, 2, 3]).check(&[4, 6], 2);
}

#[test]
#[should_panic(expected = "scores of the context's rows")]
fn every_context_row_has_a_score() {
    given(&plan(3), &[0, 1, 2, 3]).top(&[1.0; 14], 3);
}

#[test]
#[should_panic(expected = "2 selected rows, at most 1")]
fn more_rows_than_the_budget_are_a_bug() {
    given(&plan(3), &[0, 1, 2, 3]).check(&[6, 7], 1);
}
