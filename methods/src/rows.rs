//! Selection of rows: the best by score, or the first of each chunk. Ties go to the lower number,
//! so that every rank and world agrees.

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

/// The share of each row in the sum of their scores; 0 where that is 0.
pub fn shares(rows: &[u32], score: impl Fn(u32) -> f32) -> Vec<f32> {
    let total: f32 = rows.iter().map(|&row| score(row)).sum();
    rows.iter().map(|&row| score(row) / total.max(f32::MIN_POSITIVE)).collect()
}

/// Number of rows selected at the head of each chunk: `per_chunk` of each, or the budget divided
/// evenly. Budget that short chunks leave is not spent.
pub fn leading_counts(lengths: &[usize], budget: usize, per_chunk: Option<usize>) -> Vec<usize> {
    if budget == 0 {
        return vec![0; lengths.len()];
    }
    let per_chunk = per_chunk.unwrap_or(budget / lengths.len().max(1));
    lengths.iter().map(|&length| per_chunk.min(length)).collect()
}

/// Rows at the heads of the chunks in `candidates`, ascending; their number is that of
/// [`leading_counts`].
pub fn leading(candidates: &[(u32, usize)], budget: usize, per_chunk: Option<usize>) -> Vec<u32> {
    let lengths: Vec<usize> = candidates.iter().map(|&(_, length)| length).collect();
    let counts = leading_counts(&lengths, budget, per_chunk);
    let head = |(&(first, _), count): (&(u32, usize), usize)| first..first + count as u32;
    let mut rows: Vec<u32> = candidates.iter().zip(counts).flat_map(head).collect();
    rows.sort_unstable();
    rows
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
