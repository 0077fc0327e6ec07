//! Which rows a pass computes on which rank. The same on every rank: it follows from the plan and the broadcast selection.

/// The rows of a pass, dealt to ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Homes {
    /// Context rows of each rank, ascending in causal order.
    pub context: Vec<Vec<u32>>,
    /// The query's rows; they ride on the last rank, after its context rows.
    pub query: Vec<u32>,
}

impl Homes {
    /// All rows of one rank: context, then the query's if it is the last rank.
    pub fn of(&self, rank: usize) -> Vec<u32> {
        [&self.context[rank], self.query_of(rank)].concat()
    }

    /// The query's rows on the last rank, none elsewhere.
    pub fn query_of(&self, rank: usize) -> &[u32] {
        if rank + 1 == self.context.len() { &self.query } else { &[] }
    }

    /// Number of rows of each rank.
    pub fn counts(&self) -> Vec<usize> {
        (0..self.context.len()).map(|rank| self.of(rank).len()).collect()
    }

    /// Number of context rows of each rank.
    pub fn context_counts(&self) -> Vec<usize> {
        self.context.iter().map(Vec::len).collect()
    }

    /// Number of query rows of each rank.
    pub fn query_counts(&self) -> Vec<usize> {
        (0..self.context.len()).map(|rank| self.query_of(rank).len()).collect()
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
