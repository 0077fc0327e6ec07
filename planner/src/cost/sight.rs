//! Number of context rows that the rows of a pass see on each rank.

use std::ops::Range;

use tributary_protocol::{Chunk, Plan};

use super::Selected;
use super::homes::Row;

/// The context in its causal order, rank by rank.
pub(super) struct Sight {
    /// Runs of rows of one chunk in causal order: chunks in the order of the layout, or lines of
    /// the tiles of a picture.
    runs: Vec<Stands>,
    /// Rows of the context that each rank has, in the mean over KV heads.
    of_ranks: Vec<usize>,
    prefix: usize,
}

/// A run of rows in the causal order.
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
        let rows_of = plan.chunk_rows();
        let seen: Vec<usize> =
            plan.chunks.iter().zip(&rows_of).map(|(chunk, own)| seen(plan, chunk, own, selected)).collect();
        let stand = |(number, run): (u32, Range<u32>)| {
            let (chunk, own, seen) = (&plan.chunks[number as usize], &rows_of[number as usize], seen[number as usize]);
            let until = |row: u32| (row - own.start) as usize * seen / chunk.rows().max(1);
            let (first, rows, seen) = (place, run.len(), until(run.end) - until(run.start));
            let this = Stands { first, before: before.clone(), rows, seen };
            place += rows;
            before[chunk.rank] += seen;
            this
        };
        let runs = plan.runs(&selected.order).into_iter().map(stand).collect();
        Self { runs, of_ranks: before, prefix: plan.prefix_tokens() }
    }

    /// Rows of the context that each rank has, in the mean over KV heads.
    pub(super) fn of_ranks(&self) -> &[usize] {
        &self.of_ranks
    }

    /// Rows that a row of the context sees if its rank has the whole context, the prefix and itself
    /// included.
    pub(super) fn of_all(&self, row: &Row) -> f64 {
        let run = self.run(row.place);
        let before: usize = self.runs[run].before.iter().sum();
        (self.prefix + before + self.within(row, run)) as f64
    }

    /// The run at a place, by its number.
    fn run(&self, place: u32) -> usize {
        let after = self.runs.partition_point(|run| run.first <= place as usize);
        assert!(after > 0, "place {place} lies before the context");
        after - 1
    }

    /// Rows of the row's own run that it sees, itself included.
    fn within(&self, row: &Row, run: usize) -> usize {
        let Stands { first, rows, seen, .. } = self.runs[run];
        (row.place as usize - first + 1) * seen / rows
    }

    /// Rows of the row's own keeper that it sees, itself included.
    fn at_keeper(&self, row: &Row) -> usize {
        let run = self.run(row.place);
        self.runs[run].before[row.keeper] + self.within(row, run)
    }

    /// Pairs of all ranks' rows with the context that each rank keeps. The rows of a run see the
    /// same rows of earlier runs, so those are counted first: with many ranks that is most of the
    /// work.
    pub(super) fn kept(&self, homes: &[Vec<Row>]) -> Vec<f64> {
        let mut rows = vec![0.0; self.runs.len()];
        let mut pairs = vec![0.0; self.of_ranks.len()];
        for row in homes.iter().flatten() {
            let run = self.run(row.place);
            rows[run] += 1.0;
            pairs[row.keeper] += self.within(row, run) as f64;
        }
        for (rows, run) in rows.into_iter().zip(&self.runs) {
            pairs.iter_mut().zip(&run.before).for_each(|(pairs, &before)| *pairs += rows * before as f64);
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

/// The rows of a chunk, numbered `own`, that are present in a KV head.
fn seen(plan: &Plan, chunk: &Chunk, own: &Range<u32>, selected: &Selected) -> usize {
    let rows = chunk.rows();
    if !plan.compresses() {
        return rows;
    }
    let before = |end: u32| selected.rows.partition_point(|&row| row < end);
    rows - (rows - chunk.held_rows()) * rows.saturating_sub(before(own.end) - before(own.start)) / rows.max(1)
}
