//! Sequences that stay on the ranks after their answers, for later requests of their conversations.
//! The scheduler says how long: they give way to running requests.

use std::collections::BTreeMap;

use tributary_planner::{Draft, Planned, Reservation};

use crate::intake::Prepared;

/// A kept sequence.
struct Kept {
    planned: Planned,
    /// Ids of its rows: the prompt, and the answer but for its last token.
    ids: Vec<u32>,
    /// Tokens at the end of its prompt that a later one may write in another way.
    closing: usize,
    /// Whether its prompt is a text without documents.
    is_text: bool,
}

/// A request that goes on from a kept sequence.
pub(super) struct Later {
    /// Its draft.
    pub(super) draft: Draft,
    /// Number of the request whose sequence it goes on from.
    pub(super) from: u64,
    /// Whether it takes that one's place: there is no memory for both, of which most is the same.
    pub(super) replaces: bool,
}

impl Later {
    /// Places it beside sequences that take these bytes on each rank, or in place of the one that
    /// it goes on from.
    pub(super) fn place(
        &mut self,
        mut place: impl FnMut(&mut Draft, &[u64]) -> tributary_planner::Result<()>,
        taken: &[u64],
        kept: &BTreeMap<u64, Reservation>,
    ) -> tributary_planner::Result<()> {
        match (place(&mut self.draft, taken), kept.get(&self.from)) {
            (Err(tributary_planner::Error::Memory { .. }), Some(own)) => {
                self.replaces = true;
                let others: Vec<u64> =
                    taken.iter().enumerate().map(|(rank, taken)| taken.saturating_sub(own.bytes(rank))).collect();
                place(&mut self.draft, &others)
            }
            (placed, _) => placed,
        }
    }
}

/// The kept sequences, by the numbers of their requests.
#[derive(Default)]
pub(super) struct Conversations(BTreeMap<u64, Kept>);

impl Conversations {
    /// Adds the sequence of an answered request; returns those of earlier turns that it replaces.
    pub(super) fn add(&mut self, planned: Planned, prepared: &Prepared, answer: &[u32]) -> Vec<u64> {
        let mut ids = planned.plan.all_ids();
        ids.extend(answer.iter().take(answer.len().saturating_sub(1)));
        let replaced = |kept: &Kept| {
            let plan = &kept.planned.plan;
            let said = plan.prefix_tokens() + plan.context_tokens() + plan.query_tokens();
            let said = said.saturating_sub(kept.closing);
            plan.scope == planned.plan.scope
                && plan.method == planned.plan.method
                && ids.len() > said
                && ids[..said] == kept.ids[..said]
        };
        let earlier = self.0.iter().filter(|(_, kept)| replaced(kept)).map(|(&request, _)| request).collect();
        let Prepared { closing, is_text, .. } = *prepared;
        self.0.insert(planned.plan.request, Kept { planned, ids, closing, is_text });
        earlier
    }

    /// A request as one that goes on from the sequence with which it shares most rows.
    pub(super) fn going_on(&self, draft: &Draft, prepared: &Prepared) -> Option<Later> {
        let shared = |request: u64, kept: &Kept| {
            let is_text = prepared.is_text && kept.is_text;
            draft.shared_rows(&kept.planned, (&kept.ids, kept.closing), is_text).map(|rows| (rows, request))
        };
        let (rows, request) = self.0.iter().filter_map(|(&request, kept)| shared(request, kept)).max()?;
        let kept = &self.0[&request];
        Some(Later { draft: draft.going_on(&kept.planned, rows), from: request, replaces: false })
    }

    /// These are released.
    pub(super) fn forget(&mut self, requests: &[u64]) {
        requests.iter().for_each(|request| drop(self.0.remove(request)));
    }
}
