//! The stage between prefill and generation: rows of an adapter that stand right behind the query look at what the prefill has left.
//! The attention that the cache's rows receive from them says which rows an answer will need. The look-ahead's rows leave nothing
//! behind: generation goes on as if they had never been.

use candle_core::Tensor;
use tributary_kernels::cuda;
use tributary_protocol::Plan;

use super::Prefilled;
use crate::attention::LookAhead;
use crate::context::Context;
use crate::error::Result;
use crate::model::Rows;

/// The attention that this rank's rows of the cache received.
pub struct LookAheadScores {
    /// The rows, as numbered in the plan. A row that was recomputed is there twice: stale, which receives nothing, and fresh.
    pub rows: Vec<u32>,
    /// Per layer `[kv_heads, rows]` f32: the sum over the look-ahead's rows of their attention, the mean over a KV head's heads.
    pub received: Vec<Tensor>,
}

/// Runs the plan's look-ahead over the filled cache, which stays as it is; nothing where the plan has none, and on ranks that hold
/// nothing the owner needs. Every rank calls it behind the first token, if another is to follow.
///
/// # Errors
/// Kernels' and communicator's.
pub fn look_ahead(cx: &mut Context<'_>, plan: &Plan, prefilled: &Prefilled) -> Result<Option<LookAheadScores>> {
    let Prefilled { owner, cache, alone, placement, selection, .. } = prefilled;
    let (rank, is_owner) = (cx.rank(), cx.rank() == *owner);
    if plan.look_ahead.is_none() || (*alone && !is_owner) {
        return Ok(None);
    }
    let rows: Vec<u32> = plan.look_ahead_rows().collect();
    let mut counts = vec![0; cx.comm.size()];
    counts[*owner] = rows.len();
    let context = cache.view_of_context(placement, &plan.out_of_sight(&selection.rows));
    let rest = is_owner.then(|| cache.view_at_owner(placement));
    let kept = context.rows().chain(rest.iter().flat_map(|rest| rest.rows())).collect();
    let embedded = embed(cx, plan, is_owner)?;
    let mut attention = LookAhead {
        math: cx.math.clone(),
        comm: if *alone { None } else { Some(&mut *cx.comm) },
        counts,
        at: placement.at(&rows),
        context,
        rest,
        received: Vec::new(),
    };
    let model = cx.models.main;
    model.up_to_attention(model.config().layers - 1, embedded, &mut attention)?;
    assert_eq!(attention.received.len(), model.config().layers, "layers of a look-ahead");
    let ahead = LookAheadScores { rows: kept, received: attention.received };
    if tracing::enabled!(tracing::Level::DEBUG) {
        let share = ahead.share(rows.len())?;
        tracing::debug!(rank, rows = rows.len(), kept = ahead.rows.len(), share, "looked ahead");
    }
    Ok(Some(ahead))
}

/// The look-ahead's rows on the owner, with the adapter's low-rank matrices where it has them; no rows elsewhere.
fn embed(cx: &Context<'_>, plan: &Plan, is_owner: bool) -> Result<Rows> {
    let Some(ahead) = plan.look_ahead.filter(|_| is_owner) else { return cx.embed(&[]) };
    let rows = cx.embed(&plan.look_ahead_sources())?;
    let low_rank = &cx.models.adapters.get(ahead.adapter)?.low_rank;
    let count = rows.len();
    Ok(match low_rank {
        Some(low_rank) => rows.adapted(0..count, low_rank),
        None => rows,
    })
}

impl LookAheadScores {
    /// The share of the attention of so many rows that this rank's keys received, the mean over layers and heads.
    fn share(&self, rows: usize) -> Result<f64> {
        let mut given = 0.0;
        for layer in &self.received {
            let heads = cuda::download(layer)?.to_vec2::<f32>()?;
            let sum: f64 = heads.iter().flatten().map(|&reading| f64::from(reading)).sum();
            given += sum / (heads.len() * rows) as f64;
        }
        Ok(given / self.received.len().max(1) as f64)
    }
}
