//! Cuts a filled cache down to the kept rows.
//! Their keys and values are copied layer by layer into memory of their own, with keys turned to
//! their positions. If the plan gathers them, they go to the owner. Cached chunks stay unchanged.
//!
//! Heads of one layer may keep different numbers of rows on a rank. Shorter ones are padded with
//! places in the future of every query.

use candle_core::Tensor;
use tributary_comm::Start;
use tributary_kernels::{PAD, Positions, contiguous, gather, join};
use tributary_protocol::{Evicted, KeptRows};

use super::candidates::Candidates;
use super::remains::Remains;
use crate::context::Context;
use crate::error::Result;
use crate::kv::View;
use crate::strategy::Prefilled;
use crate::strategy::ahead::sight;

/// A row that a head keeps.
struct KeptRow {
    row: u32,
    rope: u32,
    order: u32,
    holder: usize,
}

/// The rows kept of the candidates.
struct Cut<'a> {
    of: &'a Candidates<'a>,
    kept: &'a KeptRows,
}

/// Cuts this rank's part of the candidates to the rows of `kept`.
///
/// # Errors
/// Returns an error if a kernel or the communicator fails.
pub(super) fn cut(cx: &mut Context<'_>, candidates: &Candidates<'_>, kept: KeptRows) -> Result<Remains> {
    let Candidates { plan, prefilled, evict, holders, .. } = *candidates;
    let (rank, gathers) = (cx.rank(), evict.gather && !prefilled.alone);
    let Prefilled { cache, placement, selection, alone, .. } = prefilled;
    let of = Cut { of: candidates, kept: &kept };
    let whole = sight(plan, prefilled, rank);
    let (rows, row_bytes) = (whole.seen().filter(|(_, seen)| *seen).count() as u64, row_bytes(cx));
    let (own, rest) = match plan.method.parallel() {
        // Generated rows attend to contexts with parameters of their own, so prefix and query stay
        // apart.
        Some(_) => {
            let context = cache.view_of_context(placement, &plan.out_of_sight(&selection.rows));
            let rest = if rank == plan.owner { cache.view_at_owner(placement) } else { View::default() };
            let around = plan.query_rows().start;
            let is_rest = |row: u32| (row as usize) < plan.prefix_tokens() || row >= around;
            drop(whole);
            let own = of.view(cx, context, &|row| !is_rest(row), gathers)?;
            let rest = if rank == plan.owner { of.view(cx, rest, &is_rest, false)? } else { View::default() };
            (own, rest)
        }
        None => (of.view(cx, whole, &|_| true, gathers)?, View::default()),
    };
    let entries = (cx.models.main.config().layers * cx.models.main.config().kv_heads) as u64;
    let held = |row: &&u32| if gathers { rank == plan.owner } else { holders[**row as usize] == rank };
    let report = Evicted {
        rows_before: rows * entries,
        rows_kept: kept.0.iter().flatten().flatten().filter(held).count() as u64,
        bytes_before: rows * row_bytes,
        bytes_kept: bytes(&own) + bytes(&rest),
        ..Evicted::default()
    };
    let next_position = evict.descriptor().contiguous.then_some(evict.keep as u32);
    Ok(Remains { own, rest, alone: *alone || gathers, next_position, kept, report })
}

/// Bytes of a row's keys and values in all layers.
fn row_bytes(cx: &Context<'_>) -> u64 {
    let (config, model) = (cx.models.main.config(), cx.models.main);
    (2 * config.layers * config.kv_heads * model.kv_width() * model.kv_dtype().size_in_bytes()) as u64
}

fn bytes(view: &View) -> u64 {
    let of = |tensor: &Tensor| (tensor.elem_count() * tensor.dtype().size_in_bytes()) as u64;
    view.layers().flat_map(|(k, v)| [of(k), of(v)]).sum()
}

impl Cut<'_> {
    /// The kept part of a view, here or, if rows are gathered, on the owner.
    fn view(&self, cx: &mut Context<'_>, view: View, takes: &dyn Fn(u32) -> bool, gathers: bool) -> Result<View> {
        let mut layers = Vec::new();
        for layer in 0..cx.models.main.config().layers {
            layers.push(self.layer(cx, layer, (&view, takes), gathers)?);
        }
        drop(view);
        self.stood(cx, layers)
    }

    /// Layers as a view of keys turned to their positions; empty if they have gone to the owner.
    fn stood(&self, cx: &Context<'_>, layers: Vec<Option<(Tensor, Tensor, Positions)>>) -> Result<View> {
        let Some(layers) = layers.into_iter().collect::<Option<Vec<_>>>() else { return Ok(View::default()) };
        let (pairs, at) = layers.into_iter().map(|(k, v, at)| ((k, v), at)).unzip();
        View::of_layers(pairs, at).turned(&cx.math.layers)
    }

    /// The kept rows of one layer: keys before RoPE and values `[rows, kv_heads, head_dim]`, and
    /// their positions. `None` if they have gone to the owner.
    fn layer(
        &self,
        cx: &mut Context<'_>,
        layer: usize,
        (view, takes): (&View, &dyn Fn(u32) -> bool),
        gathers: bool,
    ) -> Result<Option<(Tensor, Tensor, Positions)>> {
        let (rank, owner) = (cx.rank(), self.of.plan.owner);
        let heads: Vec<Vec<KeptRow>> = self.kept.0[layer].iter().map(|rows| self.rows(rows, takes)).collect();
        let (k, v) = self.own(cx, layer, view, &heads)?;
        let (parts, ranks) = match gathers {
            true => (self.brought(cx, &heads, [k, v])?, 0..cx.comm.size()),
            false => (vec![[k, v]], rank..rank + 1),
        };
        if gathers && rank != owner {
            return Ok(None);
        }
        // Place of the next row of each rank and head in the joined rows, head by head.
        let mut next = Vec::new();
        let mut count = 0;
        for of in ranks.clone() {
            for head in &heads {
                next.push(count);
                count += head.iter().filter(|row| row.holder == of).count() as u32;
            }
        }
        let here = |row: &&KeptRow| ranks.contains(&row.holder);
        let longest = heads.iter().map(|head| head.iter().filter(here).count()).max().unwrap_or(0).max(1);
        let mut places = vec![0; longest * heads.len()];
        let mut at = Vec::new();
        for (head, rows) in heads.iter().enumerate() {
            let (mut rope, mut order) = (vec![0; longest], vec![PAD; longest]);
            for (index, row) in rows.iter().filter(here).enumerate() {
                let next = &mut next[(row.holder - ranks.start) * heads.len() + head];
                places[index * heads.len() + head] = *next;
                *next += 1;
                (rope[index], order[index]) = (row.rope, row.order);
            }
            at.push(Positions::in_sequence(rope, order));
        }
        let [k, v] = [0, 1].map(|which| {
            let parts: Vec<&Tensor> =
                parts.iter().map(|part| &part[which]).filter(|part| part.elem_count() > 0).collect();
            picked(cx, &parts, &places, (longest, heads.len()))
        });
        let at = if at.iter().all(|head| *head == at[0]) { at.swap_remove(0) } else { Positions::per_head(at) };
        Ok(Some((k?, v?, at)))
    }

    /// The rows of one head, in causal order, and their new positions.
    fn rows(&self, rows: &[u32], takes: &dyn Fn(u32) -> bool) -> Vec<KeptRow> {
        let at = self.of.prefilled.placement.at(rows);
        let contiguous = self.of.evict.descriptor().contiguous;
        let stand = |(index, &row): (usize, &u32)| KeptRow {
            row,
            rope: if contiguous { index as u32 } else { at.rope()[index] },
            order: at.order()[index],
            holder: self.of.holders[row as usize],
        };
        rows.iter().enumerate().map(stand).filter(|kept| takes(kept.row)).collect()
    }

    /// This rank's kept keys and values, head by head: `[rows of all heads, head_dim]`.
    fn own(&self, cx: &Context<'_>, layer: usize, view: &View, heads: &[Vec<KeptRow>]) -> Result<(Tensor, Tensor)> {
        const NOWHERE: u32 = u32::MAX;
        let mut place = vec![NOWHERE; self.of.plan.total_rows()];
        let seen = view.seen().enumerate().filter(|(_, (_, seen))| *seen);
        seen.for_each(|(index, (row, _))| place[row as usize] = index as u32);
        let mut places = Vec::new();
        for (head, rows) in heads.iter().enumerate() {
            for kept in rows.iter().filter(|kept| kept.holder == cx.rank()) {
                let place = place[kept.row as usize];
                assert_ne!(place, NOWHERE, "row {} is not in sight of the rank that holds it", kept.row);
                places.push(place * heads.len() as u32 + head as u32);
            }
        }
        let head_dim = cx.models.main.kv_width();
        let keys = view.keys(layer);
        if places.is_empty() {
            return Ok((none(cx, head_dim)?, none(cx, head_dim)?));
        }
        let taken = |parts: Vec<&Tensor>| -> Result<Tensor> {
            let all = contiguous(&join(&parts, 0)?)?;
            let flat = all.reshape((all.dim(0)? * heads.len(), head_dim))?;
            Ok(gather(&flat, &places)?)
        };
        Ok((taken(keys.iter().map(|block| &block.k).collect())?, taken(keys.iter().map(|block| &block.v).collect())?))
    }

    /// Kept keys and values of all ranks on the owner, rank by rank.
    fn brought(&self, cx: &mut Context<'_>, heads: &[Vec<KeptRow>], own: [Tensor; 2]) -> Result<Vec<[Tensor; 2]>> {
        let (rank, world, owner) = (cx.rank(), cx.comm.size(), self.of.plan.owner);
        let of = |rank: usize| heads.iter().flatten().filter(|row| row.holder == rank).count();
        let rows: Vec<usize> =
            (0..world).map(|from| if rank == owner && from != owner { of(from) } else { 0 }).collect();
        let mut sends = Vec::new();
        for part in &own {
            let mut send = vec![none(cx, part.dim(1)?)?; world];
            if rank != owner {
                send[owner] = part.clone();
            }
            sends.push(send);
        }
        let starts: Vec<Start<'_>> = sends.iter().map(|send| Start::AllToAll { send, rows: &rows }).collect();
        let mut brought = Vec::new();
        for pending in cx.comm.start_together(&starts)? {
            brought.push(cx.comm.wait(pending)?);
        }
        let (k, v) = (brought.swap_remove(0), brought.swap_remove(0));
        let mut parts: Vec<[Tensor; 2]> = k.into_iter().zip(v).map(|(k, v)| [k, v]).collect();
        parts[rank] = own;
        Ok(parts)
    }
}

/// The rows at `places` of the concatenated `parts`, as `[rows, kv_heads, head_dim]`; zeros at
/// missing places.
fn picked(cx: &Context<'_>, parts: &[&Tensor], places: &[u32], (rows, heads): (usize, usize)) -> Result<Tensor> {
    let (head_dim, model) = (cx.models.main.kv_width(), cx.models.main);
    if parts.is_empty() {
        return Ok(Tensor::zeros((rows, heads, head_dim), model.kv_dtype(), model.device())?);
    }
    Ok(gather(&join(parts, 0)?, places)?.reshape((rows, heads, head_dim))?)
}

/// No rows of one head.
fn none(cx: &Context<'_>, head_dim: usize) -> Result<Tensor> {
    Ok(Tensor::zeros((1, head_dim), cx.models.main.kv_dtype(), cx.models.main.device())?.narrow(0, 0, 0)?)
}
