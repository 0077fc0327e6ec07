//! Which exchange a request gets when the user leaves it open.

use tributary_protocol::Exchange;

use crate::ModelShape;
use crate::machine::Machine;

/// The most loaded rank's part of a request, in numbers of rows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    pub(crate) world: usize,
    pub(crate) context_tokens: usize,
    /// Selected rows and the query's.
    pub(crate) recomputed_rows: usize,
    /// FLOPs of the most loaded rank's chunks: what a gather can hide under.
    pub(crate) prefill_flops: f64,
}

impl Load {
    /// The share of the rows that the other ranks have.
    fn others(&self) -> f64 {
        (self.world - 1) as f64 / self.world as f64
    }
}

/// Bytes that one rank receives per layer.
#[derive(Debug, Clone, Copy, PartialEq)]
struct LayerBytes {
    /// During the prefill of chunks, at the same time as other layers' work.
    hidden: f64,
    /// While rows are recomputed.
    exposed: f64,
}

/// Bytes a layer under `replicate`: the other ranks' stale rows during prefill, their fresh rows later.
fn replicate_bytes(load: &Load, shape: &ModelShape) -> LayerBytes {
    let kv_bytes = shape.layer_kv_bytes() as f64;
    let others = load.others();
    let stale = load.context_tokens as f64 * others * kv_bytes;
    LayerBytes { hidden: stale, exposed: load.recomputed_rows as f64 * others * kv_bytes }
}

/// Bytes a layer under `pass-q`: the other ranks' queries, partial results for the own rows from every other rank (with one
/// f32 a head), and fresh rows to their chunks' owners.
fn pass_q_bytes(load: &Load, shape: &ModelShape) -> LayerBytes {
    let rows = load.recomputed_rows as f64 * load.others();
    let query_bytes = (shape.heads * shape.head_dim * shape.dtype_bytes) as f64;
    let partial_bytes = query_bytes + 4.0 * shape.heads as f64;
    let fresh = rows * shape.layer_kv_bytes() as f64 / load.world as f64;
    LayerBytes { hidden: 0.0, exposed: rows * (query_bytes + partial_bytes) + fresh }
}

/// The exact exchange whose bytes keep ranks waiting for the shortest time; replicate where both are level. Hidden bytes
/// count only as far as they take longer than the work they hide under.
pub(crate) fn choose(load: &Load, shape: &ModelShape, machine: &Machine) -> Exchange {
    let waiting_s = |bytes: LayerBytes| {
        let work_s = load.prefill_flops / shape.layers as f64 / machine.flops_per_s;
        let uncovered_s = (bytes.hidden / machine.link_bytes_per_s - work_s).max(0.0);
        uncovered_s + bytes.exposed / machine.link_bytes_per_s
    };
    let pass_q_waits_less = waiting_s(pass_q_bytes(load, shape)) < waiting_s(replicate_bytes(load, shape));
    if pass_q_waits_less { Exchange::PassQ } else { Exchange::Replicate }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::tests::QWEN3_14B;

    #[test]
    fn bytes_are_those_of_the_design() {
        // Qwen3-14B, 32K tokens, 4 ranks, 15 %: 101 MB gathered, 76 MB and fresh rows for pass-q, 15 MB of fresh rows.
        let load = Load { world: 4, context_tokens: 32_768, recomputed_rows: 4915, prefill_flops: 0.0 };
        let replicate = replicate_bytes(&load, &QWEN3_14B);
        assert!((replicate.hidden / 1e6 - 100.7).abs() < 0.1, "{replicate:?}");
        assert!((replicate.exposed / 1e6 - 15.1).abs() < 0.1, "{replicate:?}");
        let pass_q = pass_q_bytes(&load, &QWEN3_14B);
        let without_fresh = pass_q.exposed - replicate.exposed / 4.0;
        assert!((without_fresh / 1e6 - 76.1).abs() < 0.1, "{pass_q:?}");
    }

    #[test]
    fn a_slow_link_or_no_work_to_hide_under_asks_for_pass_q() {
        let load = Load {
            world: 4,
            context_tokens: 32_768,
            recomputed_rows: 4915,
            prefill_flops: QWEN3_14B.prefill_flops(8192, 0),
        };
        let cases = [
            (3e14, 4e11, load.prefill_flops, Exchange::Replicate),
            (3e14, 1e9, load.prefill_flops, Exchange::PassQ),
            (3e14, 4e11, 0.0, Exchange::PassQ),
        ];
        for (flops_per_s, link_bytes_per_s, prefill_flops, wanted) in cases {
            let machine = Machine {
                flops_per_s,
                link_bytes_per_s,
                memory: crate::MemoryOf::Host,
                available_bytes: None,
                ranks_here: usize::MAX,
                weight_copies: 1,
                of_rank: None,
            };
            let load = Load { prefill_flops, ..load };
            assert_eq!(choose(&load, &QWEN3_14B, &machine), wanted, "{link_bytes_per_s}, {prefill_flops}");
        }
    }
}
