//! Later requests of a conversation, which go on from the kept sequence of an earlier one.

use tributary_protocol::{Continues, Exchange, Plan, TextHints};

use super::draft::{Draft, Planned};

impl Draft {
    /// Rows that this request may take from the sequence of an earlier one, whose rows have `ids`;
    /// the last `closing` tokens of that one's prompt may differ. `None` if it does not go on with
    /// that conversation; a method that reuses prefixes need not. If both are one text, its cuts
    /// need not be the same.
    pub fn shared_rows(&self, before: &Planned, (ids, closing): (&[u32], usize), is_text: bool) -> Option<usize> {
        let (plan, kept) = (&self.plan, &*before.plan);
        let is_asked = plan.returns.scores || plan.returns.prompt_logprobs.is_some();
        let is_allowed = !plan.has_pictures() && self.conversation.takes(kept) && (kept.is_exact() || !plan.is_exact());
        if !is_allowed || is_asked || plan.scope != kept.scope || before.world != self.world {
            return None;
        }
        let as_exact = kept.method.prefill.is_whole() && kept.is_exact();
        let is_alike = || {
            let is_bare =
                |plan: &Plan| plan.chunks.iter().all(|chunk| chunk.around.is_none() && chunk.compress.is_none());
            self.is_as(before) && is_bare(plan) && is_bare(kept)
        };
        let fits = (self.is_as(before) && is_same(plan, kept)) || (is_text && (as_exact || is_alike()));
        if !fits {
            return None;
        }
        let own = plan.all_ids();
        // The last row is computed in any case: its logits are needed.
        let common = own[..own.len() - 1].iter().zip(ids).take_while(|(own, kept)| own == kept).count();
        let prompt = kept.prefix_tokens() + kept.context_tokens() + kept.query_tokens();
        let before_query = prompt - kept.query_tokens();
        // The first token of the closing ends the last message: a longer message is no later turn.
        let said = prompt - closing.saturating_sub(1).min(prompt);
        let goes_on = common >= said && own.len() > prompt;
        // What a prefix cache finds need not be a later turn. Less than half would hold the memory
        // of more than twice as many rows.
        let has_prefix = plan.method.reuses_prefix() && 2 * common >= ids.len();
        let has_context = common >= before_query && (goes_on || has_prefix);
        let around = kept.context_rows() - kept.context_tokens();
        // Its rows are computed on one rank, which others would share.
        let (new, ranks) = (own.len() - common, if kept.decodes_alone(self.world) { 1 } else { self.world });
        let is_less = common > plan.reused_rows && new * ranks <= own.len() - plan.reused_rows;
        let has_windows = common + around >= kept.windows_from;
        (has_context && is_less && has_windows).then_some(common + around)
    }

    /// Whether the method of an earlier request has the options of this one's.
    fn is_as(&self, before: &Planned) -> bool {
        let (plan, kept) = (&self.plan, &*before.plan);
        let only_selected = |exchange: Exchange| plan.method.selects() && exchange == Exchange::Selected;
        plan.method == kept.method
            && (self.ratio, &self.options) == (before.ratio, &before.options)
            && plan.include_first_chunk == kept.include_first_chunk
            && (plan.reorder, plan.order_for) == (kept.reorder, kept.order_for)
            && self.exchange.is_some_and(only_selected) == only_selected(kept.exchange)
    }

    /// The same request as one that goes on from the sequence of an earlier one, whose first `rows`
    /// rows it shares.
    #[must_use]
    pub fn going_on(&self, before: &Planned, rows: usize) -> Self {
        let (own, kept) = (&self.plan, &*before.plan);
        let query = own.all_ids().split_off(kept.prefix_tokens() + kept.context_tokens());
        let first_rows = kept.continues.map_or(kept.total_rows(), |continues| continues.first_rows).min(rows);
        let plan = Plan {
            request: own.request,
            query,
            continues: Some(Continues { request: kept.request, rows, first_rows }),
            max_tokens: own.max_tokens,
            eos: own.eos.clone(),
            sampling: own.sampling.clone(),
            timeout_ms: own.timeout_ms,
            returns: own.returns,
            reused_rows: 0,
            auxiliary: Vec::new(),
            text: TextHints::default(),
            ..kept.clone()
        };
        self.of_plan(plan, before)
    }
}

/// Whether two requests have the same context, in the same chunks.
fn is_same(one: &Plan, other: &Plan) -> bool {
    let chunk = |(one, other): (&tributary_protocol::Chunk, &tributary_protocol::Chunk)| {
        one.ids == other.ids && one.around == other.around && one.compress == other.compress
    };
    one.budget == other.budget
        && (&one.prefix, &one.lead) == (&other.prefix, &other.lead)
        && one.chunks.len() == other.chunks.len()
        && one.chunks.iter().zip(&other.chunks).all(chunk)
}

#[cfg(test)]
mod tests {
    use crate::ModelShape;
    use crate::kit::ANY;
    use crate::plan::{Cached, Conversation, Draft, RequestSettings, Tokens};
    use crate::shape::WindowShape;
    use crate::shape::tests::DEMO;

    #[test]
    fn where_windows_drop_rows_a_later_request_goes_on_from_the_last_rows_alone() {
        let windows = Some(WindowShape { tokens: 8, layers: [0, 2].into_iter().collect() });
        let settings = RequestSettings { world: 1, conversation: Conversation::Reuse, ..RequestSettings::default() };
        let settings = settings.set(&"prefix-cache".parse().expect("a method"));
        let draft = |shape: &ModelShape, query: Vec<u32>| {
            let tokens =
                Tokens { prefix: vec![1], chunks: vec![vec![7; 32]], query, eos: vec![2], ..Tokens::default() };
            let mut draft = Draft::new(tokens, &settings, shape).expect("a request");
            draft.place(5, None, Cached::default(), shape, (&ANY, None)).expect("placed");
            draft
        };
        // A row of the prefix, 32 of the context, 100 of the query.
        let query: Vec<u32> = (10..110).collect();
        for (windows, least) in [(windows, 133 - 64), (None, 0)] {
            let shape = ModelShape { windows, ..DEMO };
            let before = draft(&shape, query.clone()).planned();
            assert_eq!((before.plan.total_rows(), before.plan.windows_from), (133, least));
            // The query of another one differs from this row on.
            for row in [67, 68, 69, 70, 132, 133] {
                let others = [&query[..row - 33], &vec![8; 140 - row]].concat();
                let later = draft(&shape, others);
                let shared = later.shared_rows(&before, (&before.plan.all_ids(), 2), false);
                assert_eq!(shared, (row >= least).then_some(row), "from row {row} of {least} on");
                let Some(rows) = shared else { continue };
                let mut going_on = later.going_on(&before, rows);
                going_on.place(6, None, Cached::default(), &shape, (&ANY, None)).expect("placed");
                let expected = if least > 0 { rows.max(140 - 64) } else { 0 };
                assert_eq!(going_on.planned().plan.windows_from, expected, "it has no window of rows before its own");
            }
        }
    }
}
