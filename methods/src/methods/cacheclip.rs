//! CacheClip: the tokens that the query attends to most in the last layer of a small model, which
//! reads each chunk with the query on its own.
//! Isolated rows are dropped again, so that recomputed rows are contiguous. Exact where every row
//! may be selected and the budget is as large.

use crate::method::{Claim, Method, Requirement};
use crate::options::{KEEP_PER_CHUNK, RATIO};
use crate::prefill::{AuxiliaryReading, Prefill, Selection};
use crate::selector::{Candidates, Need};

/// Consecutive tokens of a chunk that are kept or dropped together.
const WINDOW: usize = 8;

/// A window is kept if more than this number of its [`WINDOW`] tokens are in the top; a shorter one
/// at a chunk's end, with the same share.
const MORE_THAN: usize = 5;

/// The declaration.
pub static CACHECLIP: Method = Method {
    name: "cacheclip",
    summary: "rows that the query attends to in a small auxiliary model, chunk by chunk, in windows of 8",
    source: "CacheClip (Yang et al. 2025)",
    claim: Claim::Approximate { exact_where: "at ratio 1", exact_with: Some(":ratio=1") },
    cost: "chunks, and beside them the small model over every chunk but the first with M rows on rank 0's host, then at most n + M rows",
    ratio: Some(0.2),
    options: &[&RATIO, &KEEP_PER_CHUNK],
    requires: Some(Requirement::AuxiliaryModel),
    default_of: &[],
    samples: &["cacheclip"],
    prefill: |_, _| Ok(Prefill::Chunks(Selection::Auxiliary(AuxiliaryReading::Chunks))),
    selector: Some(|_| Box::new(by_windows)),
};

/// Selects by the reading of the plan's only auxiliary model.
fn by_windows(candidates: &Candidates, _: &[f32]) -> Need {
    let scores = candidates.only_reading();
    let top = candidates.top(scores, candidates.budget);
    Need::Chosen { rows: together(&candidates.chunks, &top), scores: scores.to_vec() }
}

/// Rows of `top`, ascending, in windows with enough others of them. Windows lie side by side from
/// each chunk's first token on.
fn together(chunks: &[(u32, usize)], top: &[u32]) -> Vec<u32> {
    let mut rows = Vec::with_capacity(top.len());
    for &(first, length) in chunks {
        for start in (0..length).step_by(WINDOW) {
            let size = WINDOW.min(length - start);
            let window = first + start as u32..first + (start + size) as u32;
            let places = top.partition_point(|&row| row < window.start)..top.partition_point(|&row| row < window.end);
            if places.len() * WINDOW > MORE_THAN * size {
                rows.extend(&top[places]);
            }
        }
    }
    rows.sort_unstable();
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_kept_where_more_than_five_of_eight_are_in_the_top() {
        let chunk = [(10, 20)];
        let six: Vec<u32> = vec![10, 11, 12, 13, 14, 17];
        assert_eq!(together(&chunk, &six), six, "its six rows, not the two others");
        assert_eq!(together(&chunk, &[10, 11, 12, 13, 14]), [0u32; 0], "five are not enough");
        assert_eq!(together(&chunk, &[14, 15, 16, 17, 18, 19]), [0u32; 0], "windows stand side by side");
        assert_eq!(together(&chunk, &[26, 27, 28]), [26, 27, 28], "three of the last four are more than 5 / 8");
        assert_eq!(together(&chunk, &[26, 27]), [0u32; 0], "half of them is not");
        assert_eq!(together(&[(5, 3), (30, 1)], &[5, 6, 30]), [5, 6, 30], "windows do not reach into the next chunk");
        let all: Vec<u32> = (10..30).collect();
        assert_eq!(together(&chunk, &all), all, "everything, where everything is in the top");
    }
}
