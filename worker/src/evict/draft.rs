//! Tokens that a small model of the same vocabulary writes behind the prompt, to see what they attend to in the main model (SpecKV). Rank 0 runs
//! it, on its host's threads, while the others wait; it reads the prompt in full, whatever filled the main model's cache.

use tributary_protocol::Plan;

use crate::attention::Writing;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::first_token::logits;
use crate::sample::Sampler;

/// So many tokens, on every rank: the first one, which the main model has drawn, and those that the plan's draft model writes behind it, each the
/// likeliest of those that the main model knows.
///
/// # Errors
/// Kernels' and communicator's; [`Error::Bug`] where rank 0 lacks the model; [`Error::Cancelled`] on every rank alike.
pub(super) fn tokens(cx: &mut Context<'_>, plan: &Plan, first: u32, count: usize) -> Result<Vec<u32>> {
    let written = match (cx.rank() == 0).then(|| written(cx, plan, first, count)) {
        // The others wait for this word: they hear of it here.
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
    let mut greedy = Sampler::greedy();
    let mut tokens = vec![first];
    while tokens.len() < count {
        if tokens.len() > 1 {
            writing.begin_row();
        }
        let rows = model.layers(0..model.config().layers, model.embed(&passing)?, &mut writing)?;
        // Logits that are not finite draw some token: a guess like any other of such a model, of which the answer's own logits know nothing.
        let likely = logits(model, &rows)?.pop().expect("the newest row's logits");
        let token = greedy.draw(&likely[..known.min(likely.len())]).token;
        tokens.push(token);
        passing = vec![token];
    }
    Ok(tokens)
}
