//! The rows of a filled cache among which an eviction chooses, as every step of it reads them.

use tributary_protocol::{Evict, Plan};

use crate::strategy::Prefilled;

/// The candidates of one eviction, the same on every rank.
#[derive(Clone, Copy)]
pub(super) struct Candidates<'a> {
    pub plan: &'a Plan,
    /// The filled cache, of which each rank holds a part.
    pub prefilled: &'a Prefilled,
    /// The method and its budget.
    pub evict: &'a Evict,
    /// The rows of the cache, in their causal order.
    pub rows: &'a [u32],
    /// The rank that holds each row of the plan.
    pub holders: &'a [usize],
    /// The first token and, where a draft model writes, those that it wrote.
    pub tokens: &'a [u32],
}

impl<'a> Candidates<'a> {
    /// The same for another method.
    pub fn by(self, evict: &'a Evict) -> Self {
        Self { evict, ..self }
    }
}

/// The rows of a filled cache, in their causal order.
pub(super) fn in_order(plan: &Plan, prefilled: &Prefilled) -> Vec<u32> {
    let mut rows = plan.rows_there(&prefilled.selection.rows);
    rows.sort_by_key(|&row| prefilled.placement.order_of(row));
    rows
}
