//! The stage between prefill and generation: rows attend to the filled cache, and the attention
//! that its rows receive tells which of them an answer will need.
//! The attending rows are rows of an adapter or tokens right after the query, or rows of the prompt
//! once more. They are discarded without a trace in the cache.

use candle_core::Tensor;
use tributary_kernels::{Positions, add, cuda};
use tributary_model::Rows;
use tributary_protocol::{LOOK_TILE_ROWS, Plan, Source};

use super::interface::Prefilled;
use crate::attention::LookAhead;
use crate::context::Context;
use crate::error::Result;
use crate::kv::View;

/// The attention that this rank's rows of the cache received.
pub struct LookAheadScores {
    /// The rows, as numbered in the plan, and whether they are visible. A recomputed row is listed
    /// twice: stale, hidden and without attention; and fresh.
    pub rows: Vec<(u32, bool)>,
    /// Per layer `[kv_heads, rows]` f32: the sum of the attending rows' attention, the mean over a
    /// KV head's heads.
    pub received: Vec<Tensor>,
    /// Number of rows that this rank ran.
    pub asking_rows: usize,
}

/// The part of the cache that a rank's rows see: on the owner with prefix and query, which count
/// once.
pub fn sight(plan: &Plan, prefilled: &Prefilled, rank: usize) -> View {
    let Prefilled { owner, cache, placement, selection, .. } = prefilled;
    let context = cache.view_of_context(placement, &plan.out_of_sight(&selection.rows));
    if rank == *owner { context.and(cache.view_at_owner(placement)) } else { context }
}

/// Runs the plan's look-ahead over the filled cache, which stays unchanged. `None` if the plan has
/// none, and on ranks that hold nothing the owner needs.
/// Every rank calls it after the first token, if another follows.
///
/// # Errors
/// Returns an error if a kernel or the communicator fails.
pub fn look_ahead(cx: &mut Context<'_>, plan: &Plan, prefilled: &Prefilled) -> Result<Option<LookAheadScores>> {
    let (rank, is_owner) = (cx.rank(), cx.rank() == prefilled.owner);
    if plan.look_ahead.is_none() {
        return Ok(None);
    }
    if prefilled.alone && !is_owner {
        cx.math.progress.idle_layers(cx.models.main.config().layers)?;
        return Ok(None);
    }
    let embedded = embed(cx, plan, is_owner)?;
    let rows: Vec<u32> = plan.look_ahead_rows().collect();
    let ahead = after_query(cx, plan, prefilled, (prefilled.placement.at(&rows), embedded))?;
    if tracing::enabled!(tracing::Level::DEBUG) {
        let (rows, kept, share) = (plan.look_ahead_count(), ahead.rows.len(), ahead.share(plan.look_ahead_count())?);
        tracing::debug!(rank, rows, kept, share, "looked ahead");
    }
    Ok(Some(ahead))
}

/// Runs `count` tokens, known on the owner alone, right after the query over the filled cache.
/// Every rank that takes part calls it: the owner alone if it holds everything.
///
/// # Errors
/// Returns an error if a kernel or the communicator fails.
pub fn tokens_behind(
    cx: &mut Context<'_>,
    plan: &Plan,
    prefilled: &Prefilled,
    (tokens, count): (&[u32], usize),
) -> Result<LookAheadScores> {
    let sources: Vec<Source> = tokens.iter().map(|&id| Source::Token(id)).collect();
    let embedded = cx.embed(&sources)?;
    let first = plan.total_rows() as u32;
    let rows: Vec<u32> = (first..first + count as u32).collect();
    let at = prefilled.placement.reaching(count).at(&rows);
    after_query(cx, plan, prefilled, (at, embedded))
}

/// Runs rows after the query, embedded on the owner alone, over the filled cache.
fn after_query(
    cx: &mut Context<'_>,
    plan: &Plan,
    prefilled: &Prefilled,
    (at, embedded): (Positions, Rows),
) -> Result<LookAheadScores> {
    let mut counts = vec![0; cx.comm.size()];
    counts[prefilled.owner] = at.len();
    let own = if cx.rank() == prefilled.owner { at.clone() } else { Positions::run(0, 0) };
    looked(cx, plan, prefilled, (embedded, counts, at, Some(own)))
}

/// Runs rows of the prompt over the filled cache, which contains them already. `of_ranks[r]` are
/// the rows of rank r; this rank runs its own a tile at a time.
/// Every rank that takes part calls it: the owner alone if it holds everything.
///
/// # Errors
/// Returns an error if a kernel or the communicator fails.
pub fn look_again(
    cx: &mut Context<'_>,
    plan: &Plan,
    prefilled: &Prefilled,
    of_ranks: &[Vec<u32>],
) -> Result<LookAheadScores> {
    let (sources, rank) = (plan.sources(), cx.rank());
    let tiles = of_ranks.iter().map(|rows| rows.len().div_ceil(LOOK_TILE_ROWS)).max().unwrap_or(0);
    let mut sum: Option<LookAheadScores> = None;
    for tile in 0..tiles {
        let part = |rows: &Vec<u32>| -> Vec<u32> {
            rows.iter().skip(tile * LOOK_TILE_ROWS).take(LOOK_TILE_ROWS).copied().collect()
        };
        let parts: Vec<Vec<u32>> = of_ranks.iter().map(part).collect();
        let own: Vec<Source> = parts[rank].iter().map(|&row| sources[row as usize]).collect();
        let embedded = cx.embed(&own)?;
        let counts = parts.iter().map(Vec::len).collect();
        let at = prefilled.placement.at(&parts.concat());
        let found = looked(cx, plan, prefilled, (embedded, counts, at, None))?;
        sum = Some(match sum {
            None => found,
            Some(before) => before.and(&found)?,
        });
    }
    Ok(sum.expect("some row of the prompt looks"))
}

/// Runs this rank's rows through all layers over the filled cache. Takes the number of rows of each
/// rank, the positions of all, and those of this rank's rows if the cache lacks them.
fn looked(
    cx: &mut Context<'_>,
    plan: &Plan,
    prefilled: &Prefilled,
    (embedded, counts, at_all, behind): (Rows, Vec<usize>, Positions, Option<Positions>),
) -> Result<LookAheadScores> {
    let cache = sight(plan, prefilled, cx.rank());
    let (rows, asking_rows) = (cache.seen().collect(), embedded.len());
    let mut attention = LookAhead {
        math: cx.math.clone(),
        comm: if prefilled.alone { None } else { Some(&mut *cx.comm) },
        counts,
        at_all,
        behind,
        cache,
        received: Vec::new(),
    };
    let model = cx.models.main;
    model.up_to_attention(model.config().layers - 1, embedded, &mut attention)?;
    assert_eq!(attention.received.len(), model.config().layers, "layers that rows looked at");
    Ok(LookAheadScores { rows, received: attention.received, asking_rows })
}

/// The look-ahead's rows on the owner, with the adapter's low-rank matrices if it has them; no rows
/// elsewhere.
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
    /// Adds the attention that the same rows received from others.
    fn and(self, more: &LookAheadScores) -> Result<Self> {
        assert_eq!(self.rows, more.rows, "rows that were looked at");
        let sums = self.received.iter().zip(&more.received).map(|(a, b)| Ok(add(a, b)?)).collect::<Result<_>>()?;
        Ok(Self { received: sums, asking_rows: self.asking_rows + more.asking_rows, ..self })
    }

    /// This rank's share of the attention of `rows` rows, the mean over layers and heads.
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
