//! Deals rows to ranks by their cost.
//! Pure functions: ranks and planner call them with the same arguments, so the planner can predict
//! every message.

mod homes;
mod shards;

pub use homes::Homes;
pub use shards::{Blocks, blocks, shards, usual_owner};

/// Cost of one row: a constant for its own arithmetic, and a part for each key that it sees.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RowCost {
    /// FLOPs a row in projections and MLP.
    pub row: f64,
    /// FLOPs a row and key in attention.
    pub key: f64,
}

impl RowCost {
    /// FLOPs in one layer of a decoder with these widths: residual stream, all query heads, all KV
    /// heads and MLP, of experts as [`mean_width`](crate::ExpertSizes::mean_width).
    pub fn of_decoder(hidden: usize, query_width: usize, kv_width: usize, mlp_width: usize) -> Self {
        let weights = hidden * (2 * query_width + 2 * kv_width) + 3 * hidden * mlp_width;
        Self { row: 2.0 * weights as f64, key: 4.0 * query_width as f64 }
    }

    /// Cost of a row that sees `keys` keys.
    fn of(self, keys: u32) -> f64 {
        self.row + self.key * f64::from(keys)
    }
}

/// Deals rows to `world` ranks at equal cost. `rows` are pairs of row and place in the causal
/// order, sorted by place.
/// The owner also has `query` rows, each seeing `total` keys.
/// Each rank gets two runs, one from the early and one from the late half, zigzag, so that errors
/// of the cost model cancel. The owner's runs lie in the middle.
pub fn deal_rows(
    rows: &[(u32, u32)],
    world: usize,
    owner: usize,
    query: usize,
    total: u32,
    cost: RowCost,
) -> Vec<Vec<u32>> {
    assert!(owner < world, "rank {owner} of {world} is the owner");
    assert!(rows.is_sorted_by_key(|&(_, order)| order), "rows are dealt in causal order");
    let own = |&(_, order): &(u32, u32)| cost.of(order + 1);
    let dealt_cost: f64 = rows.iter().map(own).sum();
    let query_cost = query as f64 * cost.of(total);
    let even = (dealt_cost + query_cost) / world as f64;
    // The owner's target is its share less the query's cost; the other ranks split the rest evenly.
    let owners = (even - query_cost).max(0.0);
    let others = if world > 1 { (dealt_cost - owners) / (world - 1) as f64 } else { 0.0 };
    let target = |rank: usize| if rank == owner { owners } else { others };
    let after_owner = |place: usize| (owner + 1 + place) % world;
    let runs = (0..world).chain((0..world).rev()).map(after_owner);
    let mut dealt = vec![Vec::new(); world];
    let (mut next, mut spent, mut limit) = (0, 0.0, 0.0);
    for (run, rank) in runs.enumerate() {
        limit += target(rank) / 2.0;
        let final_run = run + 1 == 2 * world;
        while next < rows.len() && (final_run || spent + own(&rows[next]) / 2.0 <= limit) {
            spent += own(&rows[next]);
            dealt[rank].push(rows[next].0);
            next += 1;
        }
    }
    dealt
}

/// Rows `0..total` in 2·world runs of nearly equal length; rank r has runs r and 2·world − 1 − r.
/// Under causal attention every rank then sees nearly the same number of keys (zigzag, as in
/// balanced ring attention).
pub fn zigzag(total: usize, world: usize) -> Vec<Vec<u32>> {
    assert!(world > 0, "{total} rows are dealt to no rank");
    let bound = |run: usize| (total * run / (2 * world)) as u32;
    let rows = |rank: usize| {
        let (early, late) = (rank, 2 * world - 1 - rank);
        (bound(early)..bound(early + 1)).chain(bound(late)..bound(late + 1)).collect()
    };
    (0..world).map(rows).collect()
}

/// Rows `0..total` in one run a rank, of nearly equal length.
pub fn contiguous(total: usize, world: usize) -> Vec<Vec<u32>> {
    assert!(world > 0, "{total} rows are dealt to no rank");
    let bound = |rank: usize| (total * rank / world) as u32;
    (0..world).map(|rank| (bound(rank)..bound(rank + 1)).collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn total_cost(rows: &[u32], cost: RowCost) -> f64 {
        rows.iter().map(|&row| cost.of(row + 1)).sum()
    }

    #[test]
    fn every_row_is_dealt_once_and_costs_are_even() {
        let table = [
            (1000, 1, 10, RowCost { row: 1.0, key: 1.0 }),
            (1000, 2, 10, RowCost { row: 1000.0, key: 1.0 }),
            (1000, 4, 10, RowCost { row: 0.0, key: 1.0 }),
            (997, 3, 40, RowCost { row: 500.0, key: 0.0 }),
            (5, 4, 1, RowCost { row: 1.0, key: 1.0 }),
            (0, 4, 3, RowCost { row: 1.0, key: 1.0 }),
            (10, 3, 5000, RowCost { row: 1.0, key: 0.1 }),
        ];
        for (count, world, query, cost) in table {
            for owner in 0..world {
                check(count, world, owner, query, cost);
            }
        }
    }

    fn check(count: u32, world: usize, owner: usize, query: usize, cost: RowCost) {
        let rows: Vec<(u32, u32)> = (0..count).map(|row| (row, row)).collect();
        let dealt = deal_rows(&rows, world, owner, query, count + query as u32, cost);
        let mut all: Vec<u32> = dealt.concat();
        all.sort_unstable();
        assert_eq!(all, (0..count).collect::<Vec<_>>(), "{count} rows, {world} ranks, owner {owner}");
        if count < 100 {
            return;
        }
        let query_cost = query as f64 * cost.of(count + query as u32);
        let of = |rank: usize| total_cost(&dealt[rank], cost) + if rank == owner { query_cost } else { 0.0 };
        let (low, high) = (0..world).map(of).fold((f64::MAX, 0f64), |(low, high), c| (low.min(c), high.max(c)));
        assert!(high / low < 1.05, "{count} rows, {world} ranks, owner {owner}: {low} to {high}");
    }

    #[test]
    fn a_query_that_costs_more_than_a_share_leaves_the_owner_nothing_else() {
        let rows: Vec<(u32, u32)> = (0..10).map(|row| (row, row)).collect();
        for owner in 0..2 {
            let dealt = deal_rows(&rows, 2, owner, 1000, 1010, RowCost { row: 1.0, key: 0.0 });
            assert_eq!(dealt[1 - owner].len(), 10);
            assert!(dealt[owner].is_empty());
        }
    }

    #[test]
    fn zigzag_balances_causal_work() {
        for (total, world) in [(64, 1), (64, 2), (1000, 3), (1001, 4), (3, 4), (0, 2)] {
            let shards = zigzag(total, world);
            let mut all = shards.concat();
            all.sort_unstable();
            assert_eq!(all, (0..total as u32).collect::<Vec<_>>());
            if total < 100 {
                continue;
            }
            let seen = |rows: &Vec<u32>| rows.iter().map(|&row| f64::from(row) + 1.0).sum::<f64>();
            let costs: Vec<f64> = shards.iter().map(seen).collect();
            let (low, high) = costs.iter().fold((f64::MAX, 0f64), |(low, high), &c| (low.min(c), high.max(c)));
            assert!(high / low < 1.02, "{total} rows, {world} ranks: {low} to {high}");
        }
        assert_eq!(zigzag(8, 2), [[0, 1, 6, 7], [2, 3, 4, 5]]);
    }

    #[test]
    fn contiguous_runs_cover_everything() {
        assert_eq!(contiguous(7, 3), [vec![0, 1], vec![2, 3], vec![4, 5, 6]]);
        assert_eq!(contiguous(1, 2), [vec![], vec![0]]);
    }
}
