//! Prefill of every chunk on its own, behind the prefix, on the rank that the plan gave it to.

use tributary_comm::wire::{Exchange, Phase, Plan};
use tributary_kernels::{Positions, SHARED};

use crate::attention::{ChunkPrefill, Gather};
use crate::context::Context;
use crate::error::Result;
use crate::kv::{Block, KvCache};

/// Runs this rank's chunks packed in one batch; under `replicate`, every rank's keys and values on every rank.
///
/// # Errors
/// Kernels' and communicator's.
pub(super) fn prefill(cx: &mut Context<'_>, plan: &Plan) -> Result<KvCache> {
    cx.enter(Phase::ChunkPrefill, plan);
    let (rank, size, prefix) = (cx.rank(), cx.comm.size(), plan.prefix_tokens());
    let chunks: Vec<usize> = chunks_of(plan, rank).collect();
    let own = chunks.iter().flat_map(|&chunk| &plan.chunks[chunk].ids);
    let ids: Vec<u32> = plan.prefix.iter().chain(own).copied().collect();
    let replicate = plan.exchange == Exchange::Replicate && size > 1;
    let gather = match replicate {
        true => {
            let counts = (0..size).map(|rank| rows_of(plan, rank).len()).collect();
            Some(Gather::new(&mut *cx.comm, prefix, counts))
        }
        false => None,
    };
    let at = local_positions(plan, &chunks);
    let mut attention = ChunkPrefill { math: cx.math.clone(), at, asked: 0, layers: Vec::new(), gather };
    cx.model.prompt(cx.model.embed(&ids)?, &mut attention)?;
    let received = attention.gather.map(Gather::into_received).transpose()?.unwrap_or_default();
    let all_rows: Vec<u32> = (0..prefix as u32).chain(rows_of(plan, rank)).collect();
    let all = Block { rows: all_rows.into(), layers: attention.layers };
    cx.prefilled_rows = ids.len();

    let mut cache = KvCache { prefix: all.narrow(0, prefix)?, ..KvCache::default() };
    let mut from = prefix;
    for chunk in chunks {
        let length = plan.chunks[chunk].ids.len();
        cache.own.push(all.narrow(from, length)?);
        from += length;
    }
    for (other, layers) in received.into_iter().enumerate().filter(|&(other, _)| other != rank) {
        cache.others.push(Block { rows: rows_of(plan, other).into(), layers });
    }
    Ok(cache)
}

/// Numbers of a rank's chunks, ascending.
fn chunks_of(plan: &Plan, rank: usize) -> impl Iterator<Item = usize> + '_ {
    plan.chunks.iter().enumerate().filter(move |(_, chunk)| chunk.rank == rank).map(|(index, _)| index)
}

/// Context rows of a rank's chunks, in the order in which its blocks hold them.
pub(super) fn rows_of(plan: &Plan, rank: usize) -> Vec<u32> {
    let (starts, prefix) = (plan.chunk_starts(), plan.prefix_tokens());
    let rows = |chunk: usize| {
        let first = (prefix + starts[chunk]) as u32;
        first..first + plan.chunks[chunk].ids.len() as u32
    };
    chunks_of(plan, rank).flat_map(rows).collect()
}

/// LOCAL layout: the prefix, seen by all, then each chunk right after the prefix, in a segment of its own.
fn local_positions(plan: &Plan, chunks: &[usize]) -> Positions {
    let prefix = plan.prefix_tokens() as u32;
    let mut places: Vec<u32> = (0..prefix).collect();
    let mut segments = vec![SHARED; plan.prefix_tokens()];
    for &chunk in chunks {
        let length = plan.chunks[chunk].ids.len();
        places.extend(prefix..prefix + length as u32);
        segments.extend(std::iter::repeat_n(chunk as u32, length));
    }
    Positions::new(places.clone(), places, segments)
}
