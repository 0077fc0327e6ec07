//! Tokens that a small model of the same vocabulary writes after the prompt, to measure their
//! attention in the main model (SpecKV).
//! Rank 0 runs it on its host's threads while the other ranks wait. It reads the whole prompt,
//! regardless of the method that filled the main model's cache.

use tributary_protocol::Plan;

use crate::attention::Writing;
use crate::context::Context;
use crate::error::{Error, Result};

/// `count` tokens, on every rank: the first one, drawn by the main model, and those that the plan's
/// draft model writes after it. Each is the likeliest of those in the main model's vocabulary.
///
/// # Errors
/// Returns an error if a kernel or the communicator fails. Returns [`Error::Bug`] if rank 0 lacks
/// the model, and [`Error::Cancelled`] on every rank alike.
pub(super) fn tokens(cx: &mut Context<'_>, plan: &Plan, first: u32, count: usize) -> Result<Vec<u32>> {
    let written = match (cx.rank() == 0).then(|| written(cx, plan, first, count)) {
        // The other ranks wait for this message, so it tells them too.
        Some(Err(Error::Cancelled)) => Some(None),
        written => written.transpose()?.map(Some),
    };
    let bytes = written.map(|tokens| tributary_protocol::encode(&tokens)).transpose()?;
    let written: Option<Vec<u32>> = tributary_protocol::decode(&cx.comm.broadcast_bytes(0, bytes)?)?;
    written.ok_or(Error::Cancelled)
}

fn written(cx: &Context<'_>, plan: &Plan, first: u32, count: usize) -> Result<Vec<u32>> {
    let draft = plan.draft_model.as_ref().ok_or(Error::Bug("an eviction asks a draft model that the plan lacks"))?;
    let model = cx.models.auxiliary(&draft.model).ok_or(Error::Bug("rank 0 lacks a model that all ranks know"))?;
    let mut passing: Vec<u32> = plan.sources().iter().filter_map(|source| source.token()).collect();
    passing.push(first);
    let known = cx.models.main.config().vocab;
    let mut writing = Writing::new(cx.math_of(model, passing.len() + count)?, passing.len(), count);
    // A token of logits that are not finite is a guess like any other, and independent of the
    // answer's own logits.
    let written = writing.tokens(model, &passing, (count.saturating_sub(1), known), &[])?;
    Ok(std::iter::once(first).chain(written).collect())
}
