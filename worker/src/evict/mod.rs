//! Eviction between prefill and generation: each KV head of each layer keeps the rows that an
//! answer will need, and releases the memory of the others.
//! *Approximate*; exact where everything is kept, since nothing is cut then.
//!
//! Rows attend to the filled cache (`strategy::ahead`), the owner selects by the attention that
//! every key received, and every rank cuts its part. If the plan gathers kept rows, they go to the
//! owner, which then decodes alone.

mod candidates;
mod cut;
mod draft;
mod pseudo;
pub(crate) mod remains;
mod scores;
mod select;
#[cfg(test)]
mod tests;

use tributary_protocol::{Evict, Eviction, EvictionEvidence, KeptRows, Phase, Plan, Traffic};

use self::candidates::{Candidates, in_order};
pub use self::remains::Remains;
use self::scores::{at_owner, told};
pub(crate) use self::select::kept_of_layer;
use self::select::select;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::strategy::Prefilled;
use crate::strategy::ahead::{LookAheadScores, look_again, look_ahead, tokens_behind};

/// Evicts the rows that the plan does not keep, after the `first` token; `None` if everything is
/// kept.
/// Every rank calls it if another token follows. The filled cache stays unchanged and may be
/// dropped afterwards.
///
/// # Errors
/// Returns an error if a kernel or the communicator fails.
pub fn evict(cx: &mut Context<'_>, plan: &Plan, prefilled: &Prefilled, first: u32) -> Result<Option<Remains>> {
    let rows = in_order(plan, prefilled);
    let Some(evict) = plan.evicts().filter(|evict| evict.keep < rows.len()) else { return Ok(None) };
    cx.enter(Phase::Evict, plan)?;
    let before = cx.comm.laps().len() - 1;
    let holders = plan.holders(cx.comm.size());
    let tokens =
        if evict.asks_draft_model() { draft::tokens(cx, plan, first, evict.pseudo_tokens())? } else { vec![first] };
    let takes_part = !prefilled.alone || cx.rank() == plan.owner;
    let mut remains = if takes_part {
        let of = Candidates { plan, prefilled, evict, rows: &rows, holders: &holders, tokens: &tokens };
        let (kept, asking_rows) = chosen(cx, &of)?;
        let mut remains = cut::cut(cx, &of, kept)?;
        remains.report.asking_rows = asking_rows;
        remains
    } else {
        // The owner's passes have control points, which all ranks pass.
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

/// The rows to keep, the same on every rank that takes part, and the number of rows that this rank
/// ran to choose them.
fn chosen(cx: &mut Context<'_>, of: &Candidates<'_>) -> Result<(KeptRows, usize)> {
    let config = cx.models.main.config();
    let sizes = (config.layers, config.kv_heads);
    let Some(found) = looked(cx, of)? else {
        return Ok((select(of.evict, of.rows, sizes, None), 0));
    };
    let scores = at_owner(cx, of, &found)?;
    // Scores that are not finite select nothing: the owner reports no layers, and every rank
    // refuses alike.
    let kept = scores.map(|scores| match scores.iter().flatten().flatten().all(|score| score.is_finite()) {
        true => select(of.evict, of.rows, sizes, Some(&scores)),
        false => KeptRows(Vec::new()),
    });
    let kept = if of.prefilled.alone { kept.expect("the owner selects") } else { told(cx, of.plan.owner, kept)? };
    if kept.0.is_empty() {
        return Err(Error::NotFinite { what: "an eviction's scores", rank: of.plan.owner });
    }
    Ok((kept, found.asking_rows))
}

/// The attention that the candidates receive from the rows that the method chooses; `None` if it
/// needs none.
fn looked(cx: &mut Context<'_>, of: &Candidates<'_>) -> Result<Option<LookAheadScores>> {
    let Candidates { plan, prefilled, evict, rows, holders, tokens } = *of;
    let mut asking = vec![Vec::new(); cx.comm.size()];
    match evict.descriptor().evidence {
        EvictionEvidence::Places | EvictionEvidence::Draw => return Ok(None),
        EvictionEvidence::LookAhead => {
            let found = look_ahead(cx, plan, prefilled)?;
            return Ok(Some(found.ok_or(Error::Bug("an eviction asks a look-ahead that the plan lacks"))?));
        }
        EvictionEvidence::PseudoTokens => {
            // Tokens generated from the cache that SnapKV's window keeps.
            let draft = Evict { method: Eviction::SnapKv, ..evict.clone() };
            let draft = of.by(&draft);
            let (kept, asking_rows) = chosen(cx, &draft)?;
            let found = generated(cx, &draft, kept)?;
            return Ok(Some(LookAheadScores { asking_rows: asking_rows + found.asking_rows, ..found }));
        }
        EvictionEvidence::OwnTokens => {
            let config = cx.models.main.config();
            let kept = KeptRows(vec![vec![rows.to_vec(); config.kv_heads]; config.layers]);
            return Ok(Some(generated(cx, of, kept)?));
        }
        EvictionEvidence::DraftTokens => {
            let own = if cx.rank() == plan.owner { tokens } else { &[] };
            return Ok(Some(tokens_behind(cx, plan, prefilled, (own, tokens.len()))?));
        }
        EvictionEvidence::LastRow => asking[plan.owner] = rows[rows.len() - 1..].to_vec(),
        EvictionEvidence::Window => {
            asking[plan.owner] = rows[rows.len() - evict.window_rows().min(rows.len())..].to_vec();
        }
        EvictionEvidence::AllRows => rows.iter().for_each(|&row| asking[holders[row as usize]].push(row)),
    }
    Ok(Some(look_again(cx, plan, prefilled, &asking)?))
}

/// The attention that the candidates receive from tokens generated from a draft of the kept rows.
fn generated(cx: &mut Context<'_>, of: &Candidates<'_>, kept: KeptRows) -> Result<LookAheadScores> {
    let remains = cut::cut(cx, of, kept)?;
    let count = of.evict.pseudo.max(1);
    let tokens = pseudo::tokens(cx, of, remains, count)?;
    tokens_behind(cx, of.plan, of.prefilled, (&tokens, count))
}
