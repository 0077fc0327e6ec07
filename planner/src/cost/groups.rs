//! Groups of messages that a rank starts until the first token. Over NCCL every group costs a
//! thread of the host and its polling, and over any backend ranks wait for each other once a group,
//! so latency is charged for each. Related data travels in one group: keys and values, outputs and
//! their log-sum-exp, and queries with fresh keys and values.
//!
//! W ranks, L layers, E the layer after the last one that a probe measures. With W = 1 there are
//! none.
//!
//! | when | groups |
//! | --- | --- |
//! | `full` | 0 |
//! | `ring` | L · (W − 1) |
//! | `all-gather`, h heads at a time | L · ⌈KV heads / h⌉ |
//! | `pass-q` | 2 · L · (W − 1) (there, back); fewer in the last layer, where one row attends |
//! | `star` | 2 · L (there, back) |
//! | `apb` | L − 1 (passed on) + 2 · L (there, back) |
//! | chunk prefill, `replicate`; warm chunks too, whenever they are sent | L |
//! | a probe: the one that reorders, the one that selects | E partial results + 1 of scores |
//! | the same where anchors stand for chunks | E + 1 of scores; for the one that selects 1 + 1 of scores more |
//! | relay's first hop | 3 · L (there, back, log-sum-exp) + 1 of scores |
//! | R free probes of trace | R · 3 · L + 1 of scores |
//! | the same if only some heads count | R · (6 · L + 1) + 1 of scores |
//! | ideal's full prefill | 3 · L (there, back, log-sum-exp) |
//! | drift in D layers | 3 · D (cached rows, scores, fresh rows) |
//! | kvshare | 5 (cached rows twice, distances, fresh keys, attention) |
//! | recompute, `replicate`, if rows were selected | L |
//! | recompute, `pass-q` and `selected` | 2 · L (there, back) |
//! | a token of decoding, distributed | 2 · L, counted by [`Decoding`](super::Decoding) |
//!
//! A rank that neither sends nor receives in a group starts none. That happens where ranks have no
//! rows: with fewer tokens than halves of a ring's shards, or under `selected` where nothing is
//! selected.

use tributary_protocol::Plan;

use super::Selected;
use super::bytes::flows;
use crate::ModelShape;

/// Groups of messages that a rank starts until the first token, for a known selection.
pub fn groups(plan: &Plan, world: usize, shape: &ModelShape, selected: &Selected) -> usize {
    flows(plan, world, shape, selected).iter().map(|flow| flow.groups).sum()
}

#[cfg(test)]
mod tests {
    use tributary_protocol::{Exchange, Importance};

    use super::*;
    use crate::kit::{planned, warm};
    use crate::shape::tests::QWEN3_14B;

    const LAYERS: usize = 40;
    /// InfoFlow's probe of this model ends before this layer.
    const PROBED: usize = 26;
    /// A probe of anchors passes this number of layers.
    const ANCHORED: usize = 25;

    fn count(plan: &Plan) -> usize {
        groups(plan, 4, &QWEN3_14B, &Selected::expected(plan, &QWEN3_14B))
    }

    fn of(method: &str, exchange: Exchange) -> Plan {
        Plan { exchange, ..planned(method, 8192, 2048, 4, &QWEN3_14B) }
    }

    #[test]
    fn groups_follow_the_closed_formulas() {
        assert_eq!(QWEN3_14B.layers, LAYERS);
        assert_eq!(count(&of("full", Exchange::PassQ)), 0);
        assert_eq!(count(&of("ring", Exchange::PassQ)), 3 * LAYERS);
        assert_eq!(count(&of("all-gather", Exchange::PassQ)), LAYERS);
        assert_eq!(count(&of("all-gather:heads=3", Exchange::PassQ)), 3 * LAYERS, "eight KV heads, three at a time");
        assert_eq!(count(&of("pass-q", Exchange::PassQ)), 2 * 3 * LAYERS);
        assert_eq!(count(&of("star", Exchange::PassQ)), 2 * LAYERS);
        assert_eq!(count(&of("apb", Exchange::PassQ)), LAYERS - 1 + 2 * LAYERS);
        let [probe, full_probe, hop] = [PROBED + 1, LAYERS + 1, 3 * LAYERS + 1];
        for (exchange, recompute) in
            [(Exchange::Replicate, 2 * LAYERS), (Exchange::PassQ, 2 * LAYERS), (Exchange::Selected, 2 * LAYERS)]
        {
            let cases = [
                ("epic", 0),
                ("cacheclip", 0),
                ("infoflow", probe),
                ("prophetkv", full_probe),
                ("qcfuse-like", ANCHORED + 1 + 2),
                ("relay", full_probe + hop),
                ("trace", full_probe + hop),
                ("ideal", full_probe + 3 * LAYERS),
                ("samkv", full_probe),
                ("cacheblend", 3),
                ("kvshare", 5),
            ];
            for (method, evidence) in cases {
                let plan = of(method, exchange);
                assert_eq!(count(&plan), evidence + recompute, "{method}, {exchange:?}");
                assert_eq!(count(&warm(plan)), evidence + recompute, "{method}, {exchange:?}, warm");
            }
            let reordered = Plan { reorder: Some(Importance::Mass), ..of("infoflow", exchange) };
            assert_eq!(count(&reordered), 2 * probe + recompute, "{exchange:?}, reordered");
            let reordered = Plan { reorder: Some(Importance::Mass), ..of("qcfuse-like", exchange) };
            assert_eq!(count(&reordered), 2 * (ANCHORED + 1) + 2 + recompute, "{exchange:?}, reordered by anchors");
        }
        // No stale row is sent.
        assert_eq!(count(&of("spec-prefill-like", Exchange::Replicate)), LAYERS);
        assert_eq!(count(&of("spec-prefill-like", Exchange::PassQ)), 2 * LAYERS);
        for method in ["none", "ape"] {
            assert_eq!(count(&of(method, Exchange::Replicate)), LAYERS, "{method}: no fresh rows");
            assert_eq!(count(&of(method, Exchange::PassQ)), 2 * LAYERS, "{method}: the query's rows");
        }
    }
}
