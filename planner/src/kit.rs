//! Plans for tests of costs and times.

use tributary_protocol::{Around, Auxiliary, Exchange, Packets, Plan};

use crate::ModelShape;
use crate::machine::{Machine, MemoryOf};
use crate::outlook;
use crate::plan::{Cached, MethodInputs, PlanInput, RequestSettings, plan};
use crate::shape::tests::{DUMMY_25M, QWEN3_14B};

/// A machine that refuses nothing.
pub(crate) const ANY: Machine = Machine {
    flops_per_s: 1e14,
    link_bytes_per_s: 1e11,
    memory: MemoryOf::Host,
    available_bytes: None,
    ranks_here: 1,
    weight_copies: 1,
    of_rank: None,
};

/// Qwen3-14B, without a limit of positions.
pub(crate) const QWEN: ModelShape = ModelShape { max_positions: usize::MAX, ..QWEN3_14B };

/// The plan of a method under `replicate`, with its own defaults.
pub(crate) fn planned(method: &str, tokens: usize, chunk_tokens: usize, world: usize, shape: &ModelShape) -> Plan {
    let shape = &ModelShape { max_positions: usize::MAX, ..*shape };
    let settings = RequestSettings {
        world,
        exchange: Some(Exchange::Replicate),
        max_tokens: 1,
        ..RequestSettings::default().set(&method.parse().unwrap())
    };
    with_settings(&settings, tokens, chunk_tokens, shape)
}

/// The plan of `tokens` tokens in chunks of equal length.
pub(crate) fn with_settings(
    settings: &RequestSettings,
    tokens: usize,
    chunk_tokens: usize,
    shape: &ModelShape,
) -> Plan {
    let chunks = vec![vec![7; chunk_tokens]; tokens / chunk_tokens];
    // Of examples/models/dummy-25m, which reads all chunks but the first.
    let lengths = vec![chunk_tokens; tokens / chunk_tokens];
    let reading = settings.auxiliary_reading().unwrap();
    let auxiliary: Vec<Auxiliary> =
        reading.into_iter().map(|reading| outlook::auxiliary(reading, &DUMMY_25M, [1, 32], &lengths, 1)).collect();
    let wants_packets = settings.chunk_packets() == Packets::On;
    let around = wants_packets.then_some(Around { adapter: 1, head: 8, tail: 8 });
    let input = PlanInput {
        request: 1,
        prefix: &[1],
        lead: &[],
        chunks: &chunks,
        cached: Cached::default(),
        query: &[3; 32],
        eos: &[],
        method_inputs: MethodInputs { around, auxiliary: &auxiliary, ..MethodInputs::default() },
    };
    Plan::clone(&plan(&input, settings, shape, &ANY, None).unwrap().plan)
}

/// The same with every chunk in a chunk cache.
pub(crate) fn warm(mut plan: Plan) -> Plan {
    plan.chunks.iter_mut().for_each(|chunk| chunk.warm = true);
    plan
}
