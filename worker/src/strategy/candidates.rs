//! Rows of a plan that may be selected, and the order of its chunks by importance.

use std::ops::Range;

use tributary_methods::{Candidates, PictureRows, top_rows};
use tributary_protocol::{Importance, Plan, Source};

/// Candidates of a plan with chunks in `order`: all but the first chunk's rows if these are exact
/// already, unless the plan includes them; no rows of pictures if the method never selects those.
/// `auxiliary` has the readings of the plan's auxiliary models, one number a context row each.
pub fn candidates(plan: &Plan, order: &[u32], auxiliary: Vec<Vec<f32>>) -> Candidates {
    assert_eq!(order.len(), plan.chunks.len(), "chunks in the order {order:?}");
    let mut rows = plan.candidate_rows(order);
    if plan.method.picture_rows() == PictureRows::Never {
        let sources = plan.sources();
        rows.retain(|&row| !matches!(sources[row as usize], Source::Picture { .. }));
    }
    Candidates {
        first_row: plan.prefix_tokens() as u32,
        context: plan.context_rows(),
        rows,
        chunks: plan.candidates(order),
        budget: plan.budget,
        measured: plan.measured_rows(),
        query: plan.query_tokens(),
        seed: plan.sampling.seed,
        auxiliary,
        text: plan.text.clone(),
    }
}

/// Chunk numbers in ascending importance (the best next to the query), ties in request order, from
/// one score a context row. The tiles of a picture stay together: their best counts for all.
pub fn chunk_order(plan: &Plan, scores: &[f32], importance: Importance) -> Vec<u32> {
    assert_eq!(scores.len(), plan.context_rows(), "scores of the context's rows");
    let (starts, groups) = (plan.chunk_starts(), plan.groups());
    let selected: Vec<u32> = match importance {
        Importance::Mass => Vec::new(),
        Importance::Selected => {
            let rows: Vec<u32> = (0..scores.len() as u32).collect();
            top_rows(&rows, |row| scores[row as usize], plan.budget)
        }
    };
    let of_chunk = |chunk: usize| -> f64 {
        let (from, length) = (starts[chunk], plan.chunks[chunk].rows());
        match importance {
            Importance::Mass => scores[from..from + length].iter().map(|&score| f64::from(score)).sum(),
            Importance::Selected => {
                let before = |end: usize| selected.partition_point(|&row| (row as usize) < end); // ascending
                (before(from + length) - before(from)) as f64 / length as f64
            }
        }
    };
    let of_group = |group: &Range<usize>| group.clone().map(of_chunk).fold(f64::NEG_INFINITY, f64::max);
    let importances: Vec<f64> = groups.iter().map(of_group).collect();
    let mut order: Vec<u32> = (0..groups.len() as u32).collect();
    order.sort_by(|&a, &b| importances[a as usize].total_cmp(&importances[b as usize]).then(a.cmp(&b)));
    plan.chunks_of_groups(&order)
}
