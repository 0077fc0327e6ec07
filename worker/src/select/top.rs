//! Taking the best: rows by score, chunks by importance. Ties go to the lower number, so that every rank and world agrees.

use tributary_protocol::{Importance, Plan};

/// The `count` rows with the highest score, ascending; ties go to the lower row.
pub fn top_rows(rows: &[u32], score: impl Fn(u32) -> f32, count: usize) -> Vec<u32> {
    let mut best = rows.to_vec();
    best.sort_by(|&a, &b| score(b).total_cmp(&score(a)).then(a.cmp(&b)));
    best.truncate(count);
    best.sort_unstable();
    best
}

/// The same numbers with sum 1 (unchanged where their sum is 0).
pub fn normalised(scores: &[f32]) -> Vec<f32> {
    let total: f64 = scores.iter().map(|&score| f64::from(score)).sum();
    let factor = if total > 0.0 { 1.0 / total } else { 1.0 };
    scores.iter().map(|&score| (f64::from(score) * factor) as f32).collect()
}

/// Chunk numbers in ascending importance (the best next to the query), ties in request order, from one score a context row.
pub fn chunk_order(plan: &Plan, scores: &[f32], importance: Importance) -> Vec<u32> {
    assert_eq!(scores.len(), plan.context_rows(), "scores of the context's rows");
    let starts = plan.chunk_starts();
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
    let importances: Vec<f64> = (0..plan.chunks.len()).map(of_chunk).collect();
    let mut order: Vec<u32> = (0..plan.chunks.len() as u32).collect();
    order.sort_by(|&a, &b| importances[a as usize].total_cmp(&importances[b as usize]).then(a.cmp(&b)));
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ties_go_to_the_lower_row() {
        let scores = [0.5, 1.0, 0.5, 0.5];
        let rows = [3, 0, 2, 1];
        assert_eq!(top_rows(&rows, |row| scores[row as usize], 1), [1]);
        assert_eq!(top_rows(&rows, |row| scores[row as usize], 3), [0, 1, 2]);
        assert_eq!(top_rows(&rows, |row| scores[row as usize], 9), [0, 1, 2, 3]);
        assert!(top_rows(&rows, |row| scores[row as usize], 0).is_empty());
    }
}
