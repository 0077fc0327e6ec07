//! How many context rows the rows of a pass see on each rank.

use tributary_protocol::Plan;

use super::Selected;
use super::homes::Row;

/// The context in its causal order, rank by rank.
pub(super) struct Sight {
    /// Per chunk in the order of the layout: its first place, and how many rows each rank keeps before it.
    chunks: Vec<(usize, Vec<usize>)>,
    world: usize,
}

impl Sight {
    /// The context of a plan.
    pub(super) fn new(plan: &Plan, world: usize, selected: &Selected) -> Self {
        assert_eq!(selected.order.len(), plan.chunks.len(), "chunks in the layout's order, and of the plan");
        let (mut place, mut before) = (plan.prefix_tokens(), vec![0; world]);
        let stand = |&number: &u32| {
            let chunk = &plan.chunks[number as usize];
            let this = (place, before.clone());
            place += chunk.rows();
            before[chunk.rank] += chunk.rows();
            this
        };
        Self { chunks: selected.order.iter().map(stand).collect(), world }
    }

    /// The chunk at a place, by its number in the order of the layout.
    fn chunk(&self, place: u32) -> usize {
        let behind = self.chunks.partition_point(|(first, _)| *first <= place as usize);
        assert!(behind > 0, "place {place} lies before the context");
        behind - 1
    }

    /// Rows of the row's own chunk that it sees, itself included.
    fn within(&self, row: &Row, chunk: usize) -> usize {
        row.place as usize - self.chunks[chunk].0 + 1
    }

    /// Rows of the row's own keeper that it sees, itself included.
    fn at_keeper(&self, row: &Row) -> usize {
        let chunk = self.chunk(row.place);
        self.chunks[chunk].1[row.keeper] + self.within(row, chunk)
    }

    /// Pairs of all ranks' rows with the context that each rank keeps. The rows of a chunk see the same of the chunks before it, so
    /// they are counted first: with many ranks that is most of it.
    pub(super) fn kept(&self, homes: &[Vec<Row>]) -> Vec<f64> {
        let mut rows = vec![0.0; self.chunks.len()];
        let mut pairs = vec![0.0; self.world];
        for row in homes.iter().flatten() {
            let chunk = self.chunk(row.place);
            rows[chunk] += 1.0;
            pairs[row.keeper] += self.within(row, chunk) as f64;
        }
        for (rows, (_, before)) in rows.into_iter().zip(&self.chunks) {
            pairs.iter_mut().zip(before).for_each(|(pairs, &before)| *pairs += rows * before as f64);
        }
        pairs
    }

    /// Pairs of each rank's rows, which are rows of its own chunks, with its own context and the other ranks' rows.
    pub(super) fn own_and_fresh(&self, homes: &[Vec<Row>]) -> Vec<f64> {
        let mut ordered: Vec<&Row> = homes.iter().flatten().collect();
        ordered.sort_by_key(|row| row.place);
        let mut fresh_before = vec![0; self.world];
        let mut pairs = vec![0.0; self.world];
        for (number, row) in ordered.into_iter().enumerate() {
            let of_others = number - fresh_before[row.keeper];
            pairs[row.keeper] += (self.at_keeper(row) + of_others) as f64;
            fresh_before[row.keeper] += 1;
        }
        pairs
    }
}
