//! Number of context rows that the rows of a pass see on each rank.

use tributary_protocol::Plan;

use super::Selected;
use super::homes::Row;

/// The context in its causal order, rank by rank.
pub(super) struct Sight {
    /// The chunks in the order of the layout.
    chunks: Vec<Stands>,
    /// Rows of the context that each rank has, in the mean over KV heads.
    of_ranks: Vec<usize>,
    prefix: usize,
}

/// A chunk in the order of the layout.
struct Stands {
    /// Its first place.
    first: usize,
    /// Number of rows of each rank before it.
    before: Vec<usize>,
    /// Its rows, and the number present in a KV head: the kept ones, and the recomputed ones of the
    /// rest.
    rows: usize,
    seen: usize,
}

impl Sight {
    /// The context of a plan.
    pub(super) fn new(plan: &Plan, world: usize, selected: &Selected) -> Self {
        assert_eq!(selected.order.len(), plan.chunks.len(), "chunks in the layout's order, and of the plan");
        let (mut place, mut before) = (plan.prefix_tokens(), vec![0; world]);
        let chunk_rows = if plan.compresses() { plan.chunk_rows() } else { Vec::new() };
        let stand = |&number: &u32| {
            let (chunk, first) = (&plan.chunks[number as usize], place);
            let rows = chunk.rows();
            let fresh = chunk_rows.get(number as usize).map_or(0, |own| {
                selected.rows.partition_point(|&row| row < own.end)
                    - selected.rows.partition_point(|&row| row < own.start)
            });
            let seen = rows - (rows - chunk.held_rows()) * rows.saturating_sub(fresh) / rows.max(1);
            let this = Stands { first, before: before.clone(), rows, seen };
            place += rows;
            before[chunk.rank] += seen;
            this
        };
        let chunks = selected.order.iter().map(stand).collect();
        Self { chunks, of_ranks: before, prefix: plan.prefix_tokens() }
    }

    /// Rows of the context that each rank has, in the mean over KV heads.
    pub(super) fn of_ranks(&self) -> &[usize] {
        &self.of_ranks
    }

    /// Rows that a row of the context sees if its rank has the whole context, the prefix and itself
    /// included.
    pub(super) fn of_all(&self, row: &Row) -> f64 {
        let chunk = self.chunk(row.place);
        let before: usize = self.chunks[chunk].before.iter().sum();
        (self.prefix + before + self.within(row, chunk)) as f64
    }

    /// The chunk at a place, by its number in the order of the layout.
    fn chunk(&self, place: u32) -> usize {
        let after = self.chunks.partition_point(|chunk| chunk.first <= place as usize);
        assert!(after > 0, "place {place} lies before the context");
        after - 1
    }

    /// Rows of the row's own chunk that it sees, itself included.
    fn within(&self, row: &Row, chunk: usize) -> usize {
        let Stands { first, rows, seen, .. } = self.chunks[chunk];
        (row.place as usize - first + 1) * seen / rows
    }

    /// Rows of the row's own keeper that it sees, itself included.
    fn at_keeper(&self, row: &Row) -> usize {
        let chunk = self.chunk(row.place);
        self.chunks[chunk].before[row.keeper] + self.within(row, chunk)
    }

    /// Pairs of all ranks' rows with the context that each rank keeps. The rows of a chunk see the
    /// same rows of earlier chunks, so those are counted first: with many ranks that is most of the
    /// work.
    pub(super) fn kept(&self, homes: &[Vec<Row>]) -> Vec<f64> {
        let mut rows = vec![0.0; self.chunks.len()];
        let mut pairs = vec![0.0; self.of_ranks.len()];
        for row in homes.iter().flatten() {
            let chunk = self.chunk(row.place);
            rows[chunk] += 1.0;
            pairs[row.keeper] += self.within(row, chunk) as f64;
        }
        for (rows, chunk) in rows.into_iter().zip(&self.chunks) {
            pairs.iter_mut().zip(&chunk.before).for_each(|(pairs, &before)| *pairs += rows * before as f64);
        }
        pairs
    }

    /// Pairs of each rank's rows, which are rows of its own chunks, with its own context and the
    /// other ranks' rows.
    pub(super) fn own_and_fresh(&self, homes: &[Vec<Row>]) -> Vec<f64> {
        let mut ordered: Vec<&Row> = homes.iter().flatten().collect();
        ordered.sort_by_key(|row| row.place);
        let mut fresh_before = vec![0; self.of_ranks.len()];
        let mut pairs = vec![0.0; self.of_ranks.len()];
        for (number, row) in ordered.into_iter().enumerate() {
            let of_others = number - fresh_before[row.keeper];
            pairs[row.keeper] += (self.at_keeper(row) + of_others) as f64;
            fresh_before[row.keeper] += 1;
        }
        pairs
    }
}
