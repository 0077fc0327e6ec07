//! Eviction between prefill and generation: each KV head of each layer keeps the rows that an answer will need, and the memory of the
//! others is let go of. *Approximate*; exact where everything is kept, where nothing is cut at all.
//!
//! Rows look at the filled cache (`strategy::ahead`), the owner selects from what every key received, and every rank cuts what it
//! holds. Where the plan says so, kept rows go to the owner, which then decodes alone.

mod cut;
mod draft;
mod pseudo;
mod select;
#[cfg(test)]
mod tests;

use candle_core::{DType, Tensor};
use tributary_comm::Start;
use tributary_kernels::cuda;
use tributary_protocol::{Evict, Evicted, Eviction, EvictionEvidence, KeptRows as Kept, Phase, Plan, Traffic};

pub(crate) use self::select::kept_of_layer;
use self::select::{select, some_layers};
use crate::context::Context;
use crate::error::{Error, Result};
use crate::kv::View;
use crate::strategy::Prefilled;
use crate::strategy::ahead::{LookAheadScores, look_again, look_ahead, tokens_behind};

/// Bytes of kept rows' numbers that go to the ranks in one message, at most.
const MESSAGE_BYTES: usize = 8 << 20;

/// What a rank keeps of a prompt.
pub struct Remains {
    /// The context's rows that are kept here; where contexts do not stand beside each other, prefix and query too. Keys are turned to
    /// their positions.
    pub own: View,
    /// Where contexts stand beside each other, on the owner: prefix and query.
    pub rest: View,
    /// Whether the owner has everything now.
    pub alone: bool,
    /// The first generated row's position, where it is not that behind the query.
    pub next_position: Option<u32>,
    /// Which rows each KV head of each layer keeps, of all ranks together.
    pub kept: Kept,
    /// What has been done.
    pub report: Evicted,
}

/// Evicts what the plan does not keep, behind the `first` token; nothing where everything is kept. Every rank calls it if another token is to
/// follow; the filled cache stays as it is, and may be let go of then.
///
/// # Errors
/// Kernels' and communicator's.
pub fn evict(cx: &mut Context<'_>, plan: &Plan, prefilled: &Prefilled, first: u32) -> Result<Option<Remains>> {
    let there = in_order(plan, prefilled);
    let Some(evict) = plan.evicts().filter(|evict| evict.keep < there.len()) else { return Ok(None) };
    cx.enter(Phase::Evict, plan)?;
    let before = cx.comm.laps().len() - 1;
    let holders = plan.holders(cx.comm.size());
    let tokens =
        if evict.asks_draft_model() { draft::tokens(cx, plan, (first, evict.pseudo_tokens()))? } else { vec![first] };
    let takes_part = !prefilled.alone || cx.rank() == plan.owner;
    let mut remains = if takes_part {
        let (kept, asking_rows) = chosen(cx, plan, (prefilled, &tokens), evict, (&there, &holders))?;
        let mut remains = cut::cut(cx, plan, prefilled, evict, (kept, &holders))?;
        remains.report.asking_rows = asking_rows;
        remains
    } else {
        // The owner's passes have points, which all pass.
        let (layers, world) = (cx.models.main.config().layers, cx.comm.size());
        let points = plan.points_after_first_token(layers, world, &prefilled.selection.rows);
        cx.math.progress.idle_layers(points)?;
        Remains::nothing(evict)
    };
    cx.timeline.close(cx.comm)?;
    let traffic = Traffic::sum(&cx.comm.laps()[before..]);
    remains.report.received_bytes = traffic.tensor_bytes_received();
    Ok(Some(remains))
}

impl Remains {
    /// Of a rank that holds nothing the owner needs.
    fn nothing(evict: &Evict) -> Self {
        let next_position = evict.descriptor().contiguous.then_some(evict.keep as u32);
        let (own, rest, kept) = (View::default(), View::default(), Kept::default());
        Self { own, rest, alone: true, next_position, kept, report: Evicted::default() }
    }
}

/// The rows that are there, in their causal order.
fn in_order(plan: &Plan, prefilled: &Prefilled) -> Vec<u32> {
    let mut there = plan.rows_there(&prefilled.selection.rows);
    there.sort_by_key(|&row| prefilled.placement.order_of(row));
    there
}

/// The rows to keep, the same on every rank that takes part; and how many rows this rank ran to know. `tokens` are the first token and, where a
/// draft model writes, those that it wrote.
fn chosen(
    cx: &mut Context<'_>,
    plan: &Plan,
    (prefilled, tokens): (&Prefilled, &[u32]),
    evict: &Evict,
    (there, holders): (&[u32], &[usize]),
) -> Result<(Kept, usize)> {
    let config = cx.models.main.config();
    let sizes = (config.layers, config.kv_heads);
    let Some(found) = looked(cx, plan, (prefilled, tokens), evict, (there, holders))? else {
        return Ok((select(evict, there, sizes, None), 0));
    };
    let scores = at_owner(cx, plan, prefilled, &found, (there, holders))?;
    // Scores that are no numbers select nothing: the owner says so by no layer at all, and every rank refuses alike.
    let kept = scores.map(|scores| match scores.iter().flatten().flatten().all(|score| score.is_finite()) {
        true => select(evict, there, sizes, Some(&scores)),
        false => Kept(Vec::new()),
    });
    let kept = if prefilled.alone { kept.expect("the owner selects") } else { told(cx, plan.owner, kept, sizes)? };
    if kept.0.is_empty() {
        return Err(Error::NotFinite { what: "an eviction's scores", rank: plan.owner });
    }
    Ok((kept, found.asking_rows))
}

/// What the cache's rows receive from those that the method lets look at it, given the first token and what a draft model wrote behind it; nothing
/// where it needs none of that.
fn looked(
    cx: &mut Context<'_>,
    plan: &Plan,
    (prefilled, tokens): (&Prefilled, &[u32]),
    evict: &Evict,
    (there, holders): (&[u32], &[usize]),
) -> Result<Option<LookAheadScores>> {
    let mut asking = vec![Vec::new(); cx.comm.size()];
    match evict.descriptor().evidence {
        EvictionEvidence::Places | EvictionEvidence::Draw => return Ok(None),
        EvictionEvidence::LookAhead => {
            let found = look_ahead(cx, plan, prefilled)?;
            return Ok(Some(found.ok_or(Error::Bug("an eviction asks a look-ahead that the plan lacks"))?));
        }
        EvictionEvidence::PseudoTokens => {
            // What follows from the cache as its window keeps it.
            let draft = Evict { method: Eviction::SnapKv, ..evict.clone() };
            let (kept, asking_rows) = chosen(cx, plan, (prefilled, tokens), &draft, (there, holders))?;
            let found = generated(cx, plan, (prefilled, tokens[0]), &draft, (kept, holders))?;
            return Ok(Some(LookAheadScores { asking_rows: asking_rows + found.asking_rows, ..found }));
        }
        EvictionEvidence::OwnTokens => {
            let config = cx.models.main.config();
            let kept = Kept(vec![vec![there.to_vec(); config.kv_heads]; config.layers]);
            return Ok(Some(generated(cx, plan, (prefilled, tokens[0]), evict, (kept, holders))?));
        }
        EvictionEvidence::DraftTokens => {
            let own = if cx.rank() == plan.owner { tokens } else { &[] };
            return Ok(Some(tokens_behind(cx, plan, prefilled, (own, tokens.len()))?));
        }
        EvictionEvidence::LastRow => asking[plan.owner] = there[there.len() - 1..].to_vec(),
        EvictionEvidence::Window => {
            asking[plan.owner] = there[there.len() - evict.window_rows().min(there.len())..].to_vec();
        }
        EvictionEvidence::AllRows => there.iter().for_each(|&row| asking[holders[row as usize]].push(row)),
    }
    Ok(Some(look_again(cx, plan, prefilled, &asking)?))
}

/// What the cache's rows receive from the tokens that follow from a draft of what is kept.
fn generated(
    cx: &mut Context<'_>,
    plan: &Plan,
    (prefilled, first): (&Prefilled, u32),
    draft: &Evict,
    (kept, holders): (Kept, &[usize]),
) -> Result<LookAheadScores> {
    let remains = cut::cut(cx, plan, prefilled, draft, (kept, holders))?;
    let count = draft.pseudo.max(1);
    let tokens = pseudo::tokens(cx, plan, (prefilled, remains), (first, count))?;
    tokens_behind(cx, plan, prefilled, (&tokens, count))
}

/// Every row's score by layer and KV head, on the owner: `[layer][kv_head][place]`, places in causal order.
fn at_owner(
    cx: &mut Context<'_>,
    plan: &Plan,
    prefilled: &Prefilled,
    found: &LookAheadScores,
    (there, holders): (&[u32], &[usize]),
) -> Result<Option<Vec<Vec<Vec<f32>>>>> {
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

/// Sends every rank's scores to the owner: there one list a rank.
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
fn told(cx: &mut Context<'_>, owner: usize, kept: Option<Kept>, (layers, kv_heads): (usize, usize)) -> Result<Kept> {
    let mut all = Vec::with_capacity(layers);
    while all.len() < layers {
        let from = all.len();
        let next = kept.as_ref().map(|kept| some_layers(kept, from, MESSAGE_BYTES));
        let bytes = next.map(|layers| tributary_protocol::encode(&layers)).transpose()?;
        let next: Vec<Vec<Vec<u32>>> = tributary_protocol::decode(&cx.comm.broadcast_bytes(owner, bytes)?)?;
        if next.is_empty() {
            return Ok(Kept(all));
        }
        assert!(next.iter().all(|layer| layer.len() == kv_heads), "layers of kept rows");
        all.extend(next);
    }
    Ok(Kept(all))
}
