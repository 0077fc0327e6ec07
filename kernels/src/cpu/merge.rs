//! The exact merge of partial results over disjoint keys, in one pass.

use rayon::prelude::*;

/// Rows that a thread merges at a time.
const ROWS_AT_ONCE: usize = 64;

/// Merges `parts`, each (out `[rows · head_dim]`, lse `[rows]`), into one such pair. A part with
/// lse = −∞ leaves the others unchanged; where every part has, the result is (0, −∞).
pub(crate) fn merge(parts: &[(&[f32], &[f32])], head_dim: usize) -> (Vec<f32>, Vec<f32>) {
    let rows = parts.first().map_or(0, |(_, lse)| lse.len());
    for (out, lse) in parts {
        assert_eq!(lse.len(), rows, "rows of a part");
        assert_eq!(out.len(), rows * head_dim, "outputs of a part");
    }
    let mut out = vec![0.0; rows * head_dim];
    let mut lse = vec![f32::NEG_INFINITY; rows];
    let pieces = out.par_chunks_mut((ROWS_AT_ONCE * head_dim).max(1)).zip(lse.par_chunks_mut(ROWS_AT_ONCE));
    pieces.enumerate().for_each(|(piece, (out, lse))| {
        for (i, (out, lse)) in out.chunks_exact_mut(head_dim).zip(lse).enumerate() {
            *lse = merge_row(parts, piece * ROWS_AT_ONCE + i, out);
        }
    });
    (out, lse)
}

/// One row into `out` `[head_dim]`, which is 0 on entry; returns its lse.
fn merge_row(parts: &[(&[f32], &[f32])], row: usize, out: &mut [f32]) -> f32 {
    let head_dim = out.len();
    let top = parts.iter().map(|(_, lse)| lse[row]).fold(f32::NEG_INFINITY, f32::max);
    if top == f32::NEG_INFINITY && parts.iter().all(|(_, lse)| !lse[row].is_nan()) {
        return top;
    }
    let total: f32 = parts.iter().map(|(_, lse)| (lse[row] - top).exp()).sum();
    for (part, lse) in parts {
        let weight = (lse[row] - top).exp() / total;
        if weight == 0.0 {
            continue; // so that not even a NaN comes through from a side that saw nothing
        }
        for (merged, value) in out.iter_mut().zip(&part[row * head_dim..][..head_dim]) {
            *merged += weight * value;
        }
    }
    top + total.ln()
}
