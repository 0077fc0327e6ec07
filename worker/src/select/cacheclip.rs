//! CacheClip (arXiv 2510.10129, v1): what the query attends to in the last layer of an auxiliary model, which reads each chunk with the
//! query on its own. Rows that stand alone are dropped again, so that what is recomputed hangs together. Exact where every row may be
//! selected and the budget is as large.

use super::selector::{Candidates, Need, Selector};
use crate::error::{Error, Result};

/// Consecutive tokens of a chunk that are kept or dropped together.
const WINDOW: usize = 8;

/// A window is kept if it has more than so many of [`WINDOW`] tokens in the top; a shorter one at a chunk's end, the same share.
const MORE_THAN: usize = 5;

/// Selects by the readings of the plan's only auxiliary model.
pub struct CacheClip;

impl Selector for CacheClip {
    fn next(&mut self, candidates: &Candidates, _: &[f32]) -> Result<Need> {
        let [scores] = &candidates.auxiliary[..] else {
            return Err(Error::Plan(format!(
                "cacheclip wants one auxiliary model, not {}",
                candidates.auxiliary.len()
            )));
        };
        let top = candidates.top(scores, candidates.budget);
        Ok(Need::Chosen { rows: together(&candidates.chunks, &top), scores: scores.clone() })
    }
}

/// Those rows of `top`, ascending, that stand in windows with enough others of them. Windows lie side by side from each chunk's first
/// token on.
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
