//! The rows that a request recomputes: actual, or expected before the query's probe.

use tributary_protocol::{Drift, Evidence, Outcome, Plan, SamKv, Selection, Trace, leading};

use crate::ModelShape;

/// The rows that a request recomputes, and the order of its chunks. Rows are numbered as in the
/// plan.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selected {
    /// Chunk numbers in the order of the layout.
    pub order: Vec<u32>,
    /// The recomputed rows, ascending.
    pub rows: Vec<u32>,
    /// The rows that are computed before for measurements ([`Outcome::measured`]).
    pub measured: Vec<u32>,
    /// Number of rows that each free probe measures ([`Outcome::rounds`]).
    pub rounds: Vec<usize>,
}

impl From<&Outcome> for Selected {
    fn from(outcome: &Outcome) -> Self {
        Self {
            order: outcome.order.clone(),
            rows: outcome.selected.clone(),
            measured: outcome.measured.clone(),
            rounds: outcome.rounds.clone(),
        }
    }
}

impl Selected {
    /// Expected selection of a plan: chunks in the request's own order; the budget spread evenly
    /// over the candidates (all chunks but the first, unless the plan includes it), unless the
    /// method fixes the rows itself.
    /// One free probe, its rows spread over all chunks: later ones have a row or two if a request
    /// has a chain, and none otherwise.
    pub fn expected(plan: &Plan, shape: &ModelShape) -> Self {
        let order = plan.request_order();
        let runs = plan.candidates(&order);
        let rows = match plan.method.selection() {
            None => return Self { order, ..Self::default() },
            Some(Selection::Nothing | Selection::Parallel(_)) => Vec::new(),
            Some(Selection::Leading { per_chunk }) => leading(&runs, plan.budget, per_chunk),
            Some(Selection::Evidence(Evidence { sparse: Some(sparse), .. })) => kept(&runs, sparse, plan.budget),
            // Isolated rows among an auxiliary model's best are dropped; the whole budget is the
            // maximum.
            Some(Selection::Random | Selection::Evidence(_) | Selection::Drift(_) | Selection::Auxiliary(_)) => {
                spread(&runs, plan.budget)
            }
        };
        let traces = plan.traces().filter(|_| plan.traced_positions() <= shape.max_positions);
        let measured = match (plan.method.drift(), traces) {
            (Some(drift), _) => went_on(&runs, drift, plan.budget),
            (_, Some(_)) => {
                let tokens = plan.token_rows();
                let places = spread(&[(0, tokens.len())], Trace::rows_of_round(plan.budget));
                places.into_iter().map(|place| tokens[place as usize]).collect()
            }
            _ => spread(&runs, plan.measured_rows()),
        };
        let rounds = traces.map_or_else(Vec::new, |_| vec![measured.len()]);
        Self { order, rows, measured, rounds }
    }

    /// The rows of each free probe, in the request's own order, in which they are dealt.
    pub fn free_probes(&self, plan: &Plan) -> Vec<Self> {
        let mut rest = &self.measured[..];
        let mut next = |count: &usize| {
            let (rows, after) = rest.split_at(*count);
            rest = after;
            Self { order: plan.request_order(), measured: rows.to_vec(), ..Self::default() }
        };
        self.rounds.iter().map(&mut next).collect()
    }

    /// Expected selection of a model with random weights. Its attention is nearly even, so measured
    /// rows attend most to rows early in the context, which every row sees.
    pub fn of_random_weights(plan: &Plan, shape: &ModelShape) -> Self {
        let expected = Self::expected(plan, shape);
        if expected.measured.is_empty() || plan.method.drift().is_some() {
            return expected;
        }
        let candidates =
            plan.candidates(&expected.order).into_iter().flat_map(|(first, rows)| first..first + rows as u32);
        Self { rows: candidates.take(plan.budget).collect(), ..expected }
    }
}

/// Rows kept of documents, given by their first row and length, with the blocks evenly spread;
/// empty without a budget.
fn kept(runs: &[(u32, usize)], sparse: SamKv, budget: usize) -> Vec<u32> {
    let of = |&(first, length): &(u32, usize)| {
        let ([head, tail], blocks) = (sparse.always_of(length), sparse.blocks_of(length));
        let places = spread(&[(0, blocks.len())], sparse.blocks);
        let middle = places.into_iter().flat_map(|place| blocks[place as usize].clone()).collect::<Vec<_>>();
        head.chain(middle).chain(tail).map(|row| first + row as u32).collect::<Vec<u32>>()
    };
    let mut rows: Vec<u32> = if budget > 0 { runs.iter().flat_map(of).collect() } else { Vec::new() };
    rows.sort_unstable();
    rows
}

/// Rows that go on from the layers in which drift is measured, evenly spread, each layer's among
/// those of the one before.
fn went_on(runs: &[(u32, usize)], drift: Drift, budget: usize) -> Vec<u32> {
    let counts = drift.left(budget);
    let Some((&first, rest)) = counts[..drift.layers - 1].split_first() else { return Vec::new() };
    let mut lists = vec![spread(runs, first)];
    for &count in rest {
        let last = lists.last().map_or(&[][..], Vec::as_slice);
        let places = spread(&[(0, last.len())], count);
        lists.push(places.into_iter().map(|place| last[place as usize]).collect());
    }
    Drift::longest_first(&lists)
}

/// `count` rows, or all available, at even distances in the runs of rows given by their first row
/// and length.
fn spread(runs: &[(u32, usize)], count: usize) -> Vec<u32> {
    let candidates: usize = runs.iter().map(|&(_, length)| length).sum();
    let count = count.min(candidates);
    let mut rows = Vec::with_capacity(count);
    let (mut next, mut before) = (0, 0);
    for &(first, length) in runs {
        // The middle of the next-th of `count` equal parts.
        let wanted = |index: usize| (2 * index + 1) * candidates / (2 * count);
        while next < count && wanted(next) < before + length {
            rows.push(first + (wanted(next) - before) as u32);
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
    fn random_weights_select_the_first_rows_where_rows_are_measured() {
        use crate::kit::planned;
        use crate::shape::tests::QWEN3_14B;
        let plan = planned("relay", 4096, 1024, 2, &QWEN3_14B);
        let (expected, found) = (Selected::expected(&plan, &QWEN3_14B), Selected::of_random_weights(&plan, &QWEN3_14B));
        assert_eq!(
            (&found.order, &found.measured, found.rows.len()),
            (&expected.order, &expected.measured, plan.budget)
        );
        assert_eq!(found.rows[..2], [1025, 1026], "neither the prefix nor the first chunk is a candidate");
        assert!(found.rows.is_sorted() && found.rows.last() < expected.rows.last());
        for method in ["infoflow", "prophetkv", "cacheblend", "epic", "ring"] {
            let plan = planned(method, 4096, 1024, 2, &QWEN3_14B);
            let expected = Selected::expected(&plan, &QWEN3_14B);
            assert_eq!(Selected::of_random_weights(&plan, &QWEN3_14B), expected, "{method}");
        }
    }

    #[test]
    fn one_free_probe_is_expected_and_none_beyond_the_models_positions() {
        use crate::kit::planned;
        use crate::shape::tests::QWEN3_14B;
        let plan = planned("trace", 4096, 1024, 2, &QWEN3_14B);
        let found = Selected::expected(&plan, &QWEN3_14B);
        assert_eq!((&found.rounds[..], found.measured.len()), (&[204][..], 204));
        assert!(found.measured[0] < 1025 && found.measured.is_sorted(), "the first chunk is probed too");
        let short = ModelShape { max_positions: plan.traced_positions() - 1, ..QWEN3_14B };
        let found = Selected::expected(&plan, &short);
        assert!(found.rounds.is_empty() && found.measured.is_empty() && found.rows.len() == plan.budget);
    }

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
