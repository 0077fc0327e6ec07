//! Which rows a request recomputes: as it turned out, or as it may be expected before the query has been asked.

use tributary_protocol::{Method, Outcome, Plan};

/// The rows that a request recomputes, and the order in which its chunks stand. Rows are numbered as in the plan.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selected {
    /// Chunk numbers in the order of the layout.
    pub order: Vec<u32>,
    /// The recomputed rows, ascending.
    pub rows: Vec<u32>,
    /// The rows that are recomputed once before, to measure what they attend to (relay's first hop), ascending.
    pub measured: Vec<u32>,
}

impl From<&Outcome> for Selected {
    fn from(outcome: &Outcome) -> Self {
        Self { order: outcome.order.clone(), rows: outcome.selected.clone(), measured: outcome.measured.clone() }
    }
}

impl Selected {
    /// What may be expected of a plan: chunks in the request's own order; the budget spread evenly over the candidates
    /// (all chunks but the first, unless the plan includes it), where the method does not fix the rows itself.
    pub fn expected(plan: &Plan) -> Self {
        let order: Vec<u32> = (0..plan.chunks.len() as u32).collect();
        if plan.method.is_exact() {
            return Self { order, ..Self::default() };
        }
        let first = usize::from(!plan.include_first_chunk);
        let starts = plan.chunk_starts();
        let place = |chunk: usize| (plan.prefix_tokens() + starts[chunk], plan.chunks[chunk].ids.len());
        let runs: Vec<(usize, usize)> = (first..plan.chunks.len()).map(place).collect();
        let rows = match plan.method {
            Method::None => Vec::new(),
            Method::Epic { per_chunk } => {
                let per_chunk = per_chunk.unwrap_or(plan.budget / runs.len().max(1));
                let head = |&(from, length): &(usize, usize)| from as u32..(from + per_chunk.min(length)) as u32;
                if plan.budget == 0 { Vec::new() } else { runs.iter().flat_map(head).collect() }
            }
            _ => spread(&runs, plan.budget),
        };
        let measured = match plan.method {
            Method::Relay { .. } => spread(&runs, plan.budget / 3),
            _ => Vec::new(),
        };
        Self { order, rows, measured }
    }

    /// The place of every row of prefix, context and query in the causal order.
    pub(crate) fn places(&self, plan: &Plan) -> Vec<u32> {
        let mut places: Vec<u32> = (0..plan.total_tokens() as u32).collect();
        let starts = plan.chunk_starts();
        let mut next = plan.prefix_tokens();
        for &chunk in &self.order {
            let first = plan.prefix_tokens() + starts[chunk as usize];
            for row in 0..plan.chunks[chunk as usize].ids.len() {
                places[first + row] = next as u32;
                next += 1;
            }
        }
        let expected = plan.prefix_tokens() + plan.context_tokens();
        assert_eq!(next, expected, "rows of prefix and chunks in the order {:?}", self.order);
        places
    }
}

/// `count` rows, or all there are, at even distances in the runs of rows given by their first row and length.
fn spread(runs: &[(usize, usize)], count: usize) -> Vec<u32> {
    let candidates: usize = runs.iter().map(|&(_, length)| length).sum();
    let count = count.min(candidates);
    let mut rows = Vec::with_capacity(count);
    let (mut next, mut before) = (0, 0);
    for &(first, length) in runs {
        // The middle of the next-th of `count` equal parts.
        let wanted = |index: usize| (2 * index + 1) * candidates / (2 * count);
        while next < count && wanted(next) < before + length {
            rows.push((first + wanted(next) - before) as u32);
            next += 1;
        }
        before += length;
    }
    assert_eq!(rows.len(), count, "rows spread over {candidates}");
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_spread_evenly() {
        assert_eq!(spread(&[(10, 4), (20, 4)], 4), [11, 13, 21, 23]);
        assert_eq!(spread(&[(5, 3)], 9), [5, 6, 7], "there are no more");
        assert_eq!(spread(&[(5, 3)], 0), [0u32; 0]);
        assert_eq!(spread(&[], 3), [0u32; 0]);
        let many = spread(&[(100, 1000)], 150);
        assert_eq!(many.len(), 150);
        let mean = many.iter().map(|&row| f64::from(row)).sum::<f64>() / 150.0;
        assert!((mean - 599.5).abs() < 1.0, "{mean}");
    }
}
