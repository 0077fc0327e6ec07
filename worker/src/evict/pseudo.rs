//! Temporary tokens generated from a draft of the kept rows, to measure their attention (LAQ, and
//! the ideal eviction, whose draft is everything).

use super::candidates::Candidates;
use super::remains::Remains;
use crate::attention::{Decode, DecodeRun, SharedCaches};
use crate::context::Context;
use crate::error::{Error, Result};
use crate::first_token::logits;
use crate::sample::Sampler;
use crate::sequence::{Sequence, Start};

/// `count` tokens on the owner, none elsewhere: the first one, already drawn, and those that follow
/// it from the remaining rows, each the likeliest.
/// Every rank that holds a part of the rows takes every step.
///
/// # Errors
/// Returns an error if a kernel or the communicator fails.
pub(super) fn tokens(cx: &mut Context<'_>, of: &Candidates<'_>, remains: Remains, count: usize) -> Result<Vec<u32>> {
    let (plan, first) = (of.plan, of.tokens[0]);
    let (rank, is_owner, alone) = (cx.rank(), cx.rank() == plan.owner, remains.alone);
    if alone && !is_owner {
        // The owner's steps have control points, which all ranks pass.
        cx.math.progress.idle_layers((count - 1) * cx.models.main.config().layers)?;
        return Ok(Vec::new());
    }
    let start =
        Start { placement: of.prefilled.placement.reaching(count), tokens: count, first, sampler: Sampler::greedy() };
    let mut sequence = Sequence::of_remains(plan, start, remains, rank);
    let (mut tokens, model) = (vec![first], cx.models.main);
    for _ in 1..count {
        let turned = sequence.turned().ok_or(Error::Bug("a rank takes a step and holds nothing"))?;
        let at = turned.begin_row(is_owner);
        let mut counts = vec![0; cx.comm.size()];
        counts[plan.owner] = 1;
        let parts = vec![(0, at.clone())];
        let shared = (!alone).then(|| SharedCaches { comm: &mut *cx.comm, counts, parts });
        let runs = if is_owner { vec![DecodeRun { cache: 0, at: at.clone(), alone }] } else { Vec::new() };
        let ids = if is_owner { vec![*tokens.last().expect("the first one")] } else { Vec::new() };
        let mut attention = Decode { math: cx.math.clone(), caches: vec![turned], runs, at, shared };
        let rows = model.layers(0..model.config().layers, model.embed(&ids)?, &mut attention)?;
        if let Some(drawing) = sequence.drawing() {
            let logits = logits(model, &rows)?;
            // Logits that are not finite are detected where a token of the answer is drawn from
            // them, on all ranks alike.
            tokens.push(drawing.sampler.draw(&logits[0]).token);
        }
    }
    Ok(if is_owner { tokens } else { Vec::new() })
}
