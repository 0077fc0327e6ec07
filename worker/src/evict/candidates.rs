//! The rows of a filled cache that an eviction chooses from.

use tributary_protocol::{Evict, Plan};

use crate::strategy::Prefilled;

/// The candidates of one eviction, the same on every rank.
#[derive(Clone, Copy)]
pub(super) struct Candidates<'a> {
    pub plan: &'a Plan,
    /// The filled cache; each rank holds a part of it.
    pub prefilled: &'a Prefilled,
    /// The method and its budget.
    pub evict: &'a Evict,
    /// The rows of the cache, in their causal order.
    pub rows: &'a [u32],
    /// The rank that holds each row of the plan.
    pub holders: &'a [usize],
    /// The first token and, if a draft model writes, its tokens.
    pub tokens: &'a [u32],
}

impl<'a> Candidates<'a> {
    /// The same candidates for another method.
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
