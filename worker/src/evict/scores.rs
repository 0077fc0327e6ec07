//! Scores of the candidates: sends every rank's to the owner, and the owner's choice to every rank.

use candle_core::{DType, Tensor};
use tributary_comm::Start;
use tributary_kernels::cuda;
use tributary_protocol::KeptRows;

use super::candidates::Candidates;
use super::select::some_layers;
use crate::context::Context;
use crate::error::Result;
use crate::strategy::ahead::LookAheadScores;

/// Maximum bytes of kept rows' numbers in one message.
const MESSAGE_BYTES: usize = 8 << 20;

/// Every row's score by layer and KV head, on the owner: `[layer][kv_head][place]`, places in
/// causal order.
pub(super) fn at_owner(
    cx: &mut Context<'_>,
    of: &Candidates<'_>,
    found: &LookAheadScores,
) -> Result<Option<Vec<Vec<Vec<f32>>>>> {
    let Candidates { plan, prefilled, rows: there, holders, .. } = *of;
    let (rank, world) = (cx.rank(), cx.comm.size());
    let held: Vec<Vec<u32>> =
        (0..world).map(|rank| there.iter().copied().filter(|&row| holders[row as usize] == rank).collect()).collect();
    let own = rows_of(found, plan.total_rows(), &held[rank])?;
    let parts = if prefilled.alone { vec![Vec::new(); world] } else { sent(cx, plan.owner, &own, &held)? };
    if rank != plan.owner {
        return Ok(None);
    }
    let config = cx.models.main.config();
    let width = config.layers * config.kv_heads;
    let mut place = vec![0; plan.total_rows()];
    there.iter().enumerate().for_each(|(index, &row)| place[row as usize] = index);
    let mut scores = vec![vec![vec![0.0; there.len()]; config.kv_heads]; config.layers];
    for (of, rows) in held.iter().enumerate() {
        let numbers = if of == rank { &own } else { &parts[of] };
        assert_eq!(numbers.len(), rows.len() * width, "scores of the rows of rank {of}");
        for (row, numbers) in rows.iter().zip(numbers.chunks(width)) {
            let place = place[*row as usize];
            for (column, &number) in numbers.iter().enumerate() {
                scores[column / config.kv_heads][column % config.kv_heads][place] = number;
            }
        }
    }
    Ok(Some(scores))
}

/// The scores of these rows, row by row: layers and in each its KV heads.
fn rows_of(found: &LookAheadScores, total_rows: usize, rows: &[u32]) -> Result<Vec<f32>> {
    const NOWHERE: usize = usize::MAX;
    let mut place = vec![NOWHERE; total_rows];
    let seen = found.rows.iter().enumerate().filter(|(_, (_, seen))| *seen);
    seen.for_each(|(index, (row, _))| place[*row as usize] = index);
    let mut heads: Vec<Vec<f32>> = Vec::new();
    for layer in &found.received {
        heads.extend(cuda::download(layer)?.to_vec2::<f32>()?);
    }
    let mut numbers = Vec::with_capacity(rows.len() * heads.len());
    for &row in rows {
        let place = place[row as usize];
        assert_ne!(place, NOWHERE, "row {row} is not in sight of the rank that holds it");
        numbers.extend(heads.iter().map(|head| head[place]));
    }
    Ok(numbers)
}

/// Sends every rank's scores to the owner, which gets one list a rank.
fn sent(cx: &mut Context<'_>, owner: usize, own: &[f32], held: &[Vec<u32>]) -> Result<Vec<Vec<f32>>> {
    let (config, device) = (cx.models.main.config(), cx.models.main.device());
    let (rank, width) = (cx.rank(), config.layers * config.kv_heads);
    let none = Tensor::zeros((1, width), DType::F32, device)?.narrow(0, 0, 0)?;
    let mut send = vec![none; held.len()];
    if rank != owner && !own.is_empty() {
        send[owner] = Tensor::from_slice(own, (own.len() / width, width), device)?;
    }
    let comes = |from: usize| if rank == owner && from != owner { held[from].len() } else { 0 };
    let rows: Vec<usize> = (0..held.len()).map(comes).collect();
    let pending = cx.comm.start_together(&[Start::AllToAll { send: &send, rows: &rows }])?;
    let mut parts = Vec::new();
    for pending in pending {
        for part in cx.comm.wait(pending)? {
            parts.push(cuda::download(&part)?.flatten_all()?.to_vec1::<f32>()?);
        }
    }
    Ok(parts)
}

/// The owner's choice on every rank, in messages of bounded size.
pub(super) fn told(cx: &mut Context<'_>, owner: usize, kept: Option<KeptRows>) -> Result<KeptRows> {
    let (layers, kv_heads) = (cx.models.main.config().layers, cx.models.main.config().kv_heads);
    let mut all = Vec::with_capacity(layers);
    while all.len() < layers {
        let from = all.len();
        let next = kept.as_ref().map(|kept| some_layers(kept, from, MESSAGE_BYTES));
        let bytes = next.map(|layers| tributary_protocol::encode(&layers)).transpose()?;
        let next: Vec<Vec<Vec<u32>>> = tributary_protocol::decode(&cx.comm.broadcast_bytes(owner, bytes)?)?;
        if next.is_empty() {
            return Ok(KeptRows(all));
        }
        assert!(next.iter().all(|layer| layer.len() == kv_heads), "layers of kept rows");
        all.extend(next);
    }
    Ok(KeptRows(all))
}
