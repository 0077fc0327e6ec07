//! Assignment of a pass's rows to ranks.
//! It follows from the plan, the order of the chunks and the rows, so ranks and planner compute the
//! same one.

use super::{RowCost, deal_rows};
use crate::{Exchange, Plan};

/// Rows of a pass, dealt to ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Homes {
    /// Context rows of each rank, ascending in causal order.
    pub context: Vec<Vec<u32>>,
    /// Rows of the query, if the pass has them; the owner computes them after its context rows.
    pub query: Vec<u32>,
    /// The plan's owner.
    pub owner: usize,
}

impl Homes {
    /// Deals the context rows `rows` and the rows of `query` to `world` ranks. `places` are the
    /// places of all the plan's rows in the causal order.
    ///
    /// Under `selected` a row stays with its chunk's rank. Otherwise rows are dealt evenly by cost,
    /// regardless of the rank that keeps their chunk.
    /// Under `pass-q` attention is computed where the keys are, so only a row's own arithmetic
    /// counts.
    pub fn new(
        plan: &Plan,
        world: usize,
        places: &[u32],
        (rows, query): (&[u32], Vec<u32>),
        exchange: Exchange,
        cost: RowCost,
    ) -> Self {
        assert!(plan.owner < world, "rank {} of {world} is the owner", plan.owner);
        assert_eq!(places.len(), plan.total_rows(), "places of the plan's rows");
        let mut ordered: Vec<(u32, u32)> = rows.iter().map(|&row| (row, places[row as usize])).collect();
        ordered.sort_by_key(|&(_, place)| place);
        let deal = |cost| deal_rows(&ordered, world, plan.owner, query.len(), plan.total_rows() as u32, cost);
        let context = match exchange {
            Exchange::Selected => {
                let (keepers, mut stay) = (plan.keepers(), vec![Vec::new(); world]);
                ordered.iter().for_each(|&(row, _)| stay[keepers[row as usize]].push(row));
                stay
            }
            Exchange::Replicate => deal(cost),
            Exchange::PassQ => deal(RowCost { key: 0.0, ..cost }),
        };
        assert_eq!(context.iter().map(Vec::len).sum::<usize>(), rows.len(), "rows that are dealt to ranks");
        Self { context, query, owner: plan.owner }
    }

    /// All rows of one rank: context, then the query's if it is the owner.
    pub fn of(&self, rank: usize) -> Vec<u32> {
        [&self.context[rank], self.query_of(rank)].concat()
    }

    /// The query's rows on the owner, none elsewhere.
    pub fn query_of(&self, rank: usize) -> &[u32] {
        if rank == self.owner { &self.query } else { &[] }
    }

    /// The prompt's last row, if the pass has it.
    pub fn last(&self) -> &[u32] {
        &self.query[self.query.len().saturating_sub(1)..]
    }

    /// Number of rows of each rank.
    pub fn counts(&self) -> Vec<usize> {
        (0..self.context.len()).map(|rank| self.context[rank].len() + self.query_of(rank).len()).collect()
    }

    /// Number of context rows of each rank.
    pub fn context_counts(&self) -> Vec<usize> {
        self.context.iter().map(Vec::len).collect()
    }

    /// Number of query rows of each rank.
    pub fn query_counts(&self) -> Vec<usize> {
        (0..self.context.len()).map(|rank| self.query_of(rank).len()).collect()
    }

    /// Rows of each rank in the prompt's last layer, where only the last row is needed: one on the
    /// owner, none elsewhere.
    pub fn last_counts(&self) -> Vec<usize> {
        (0..self.context.len()).map(|rank| usize::from(rank == self.owner)).collect()
    }

    /// All rows, rank by rank.
    pub fn all(&self) -> Vec<u32> {
        (0..self.context.len()).flat_map(|rank| self.of(rank)).collect()
    }

    /// All context rows, rank by rank.
    pub fn all_context(&self) -> Vec<u32> {
        self.context.concat()
    }
}
