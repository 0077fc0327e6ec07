//! Draws the first token from a filled cache. Its arrival stops the clock.

use tributary_model::{Model, Rows};
use tributary_protocol::{DrawnToken, Phase, Plan, Refusal, ScoredToken};

use crate::context::Context;
use crate::error::{Error, Result};
use crate::sample::{Sampler, score};
use crate::strategy::Prefilled;
use tributary_kernels::cuda;

/// The first token of a request.
pub struct FirstToken {
    /// The token that was drawn, on every rank.
    pub drawn: DrawnToken,
    /// Its logits, on the owner.
    pub logits: Option<Vec<f32>>,
    /// The draws so far.
    pub sampler: Sampler,
}

/// Draws the first token on its owner and sends it to every rank.
///
/// # Errors
/// Returns [`Error::Refused`] on every rank if the owner's logits are not finite. Returns an error
/// if a kernel or the communicator fails.
pub fn first_token(cx: &mut Context<'_>, plan: &Plan, prefilled: &Prefilled) -> Result<FirstToken> {
    cx.enter(Phase::FirstToken, plan)?;
    let last = &prefilled.output.last;
    assert_eq!(last.is_some(), cx.rank() == prefilled.owner, "the last row on rank {}", cx.rank());
    let mut sampler = Sampler::of(plan);
    let logits = last.as_ref().map(|last| logits(cx.models.main, last)).transpose()?;
    let logits = logits.map(|mut rows| {
        assert_eq!(rows.len(), 1, "rows of logits for the first token");
        rows.swap_remove(0)
    });
    let own = logits.as_ref().map(|logits| draw(&mut sampler, logits, cx.rank()));
    let bytes = own.map(|drawn| tributary_protocol::encode(&drawn)).transpose()?;
    let drawn: std::result::Result<DrawnToken, Refusal> =
        tributary_protocol::decode(&cx.comm.broadcast_bytes(prefilled.owner, bytes)?)?;
    Ok(FirstToken { drawn: drawn.map_err(Error::Refused)?, logits, sampler })
}

/// Number of rows whose logits are computed at a time when a query is scored: a row of logits is as
/// long as the vocabulary.
const SCORED_AT_A_TIME: usize = 32;

/// The scores of the query's tokens from the second one on, each given all tokens before it; the
/// same on every rank. Absent if the plan does not ask for them. Every rank scores the tokens after
/// its own rows.
///
/// # Errors
/// Returns [`Error::Refused`] on every rank if logits are not finite. Returns an error if a kernel
/// or the communicator fails.
pub fn score_query(cx: &mut Context<'_>, plan: &Plan, prefilled: &Prefilled) -> Result<Option<Vec<ScoredToken>>> {
    let Some(top) = plan.returns.prompt_logprobs else { return Ok(None) };
    // A rank that computes nothing of the prompt has none of its rows.
    let own = match &prefilled.output.scored {
        Some((rows, numbers)) => score_rows(cx, plan, (rows, numbers), top as usize)?,
        None => Ok(Vec::new()),
    };
    let gathered = cx.comm.gather_bytes(plan.owner, tributary_protocol::encode(&own)?)?;
    let told = (cx.rank() == plan.owner).then(|| merge_scores(&gathered)).transpose()?;
    let told = told.map(|told| tributary_protocol::encode(&told)).transpose()?;
    let told: std::result::Result<Vec<ScoredToken>, Refusal> =
        tributary_protocol::decode(&cx.comm.broadcast_bytes(plan.owner, told)?)?;
    let told = told.map_err(Error::Refused)?;
    assert_eq!(told.len(), plan.query_tokens() - 1, "scored tokens of the query");
    Ok(Some(told))
}

/// The tokens that a rank scored and the rows that they follow, or a refusal.
type Scores = std::result::Result<Vec<(u32, ScoredToken)>, Refusal>;

fn score_rows(cx: &Context<'_>, plan: &Plan, (rows, numbers): (&Rows, &[u32]), top: usize) -> Result<Scores> {
    let first = plan.query_rows().start;
    let mut scored = Vec::with_capacity(numbers.len());
    let places: Vec<u32> = (0..numbers.len() as u32).collect();
    for part in places.chunks(SCORED_AT_A_TIME) {
        for (&place, logits) in part.iter().zip(logits(cx.models.main, &rows.select(part)?)?) {
            if !logits.iter().all(|logit| logit.is_finite()) {
                return Ok(Err(Error::NotFinite { what: "logits", rank: cx.rank() }.refusal()));
            }
            let row = numbers[place as usize];
            scored.push((row, score(&logits, plan.query[(row - first) as usize + 1], top)));
        }
    }
    Ok(Ok(scored))
}

/// The scores of all ranks, in the order of the query.
fn merge_scores(gathered: &[Vec<u8>]) -> Result<std::result::Result<Vec<ScoredToken>, Refusal>> {
    let mut all = Vec::new();
    for bytes in gathered {
        match tributary_protocol::decode::<Scores>(bytes)? {
            Ok(scored) => all.extend(scored),
            Err(refusal) => return Ok(Err(refusal)),
        }
    }
    all.sort_by_key(|&(row, _)| row);
    Ok(Ok(all.into_iter().map(|(_, token)| token).collect()))
}

/// Logits of rows, on the host.
///
/// # Errors
/// Returns an error if a candle operation fails.
pub fn logits(model: &dyn Model, rows: &Rows) -> Result<Vec<Vec<f32>>> {
    Ok(cuda::download(&model.logits(rows)?)?.to_vec2::<f32>()?)
}

/// A token from a row's logits; a refusal if they are not finite.
pub fn draw(sampler: &mut Sampler, logits: &[f32], rank: usize) -> std::result::Result<DrawnToken, Refusal> {
    fail::fail_point!("worker::logits", |_| Err(Error::NotFinite { what: "logits", rank }.refusal()));
    match logits.iter().all(|logit| logit.is_finite()) {
        true => Ok(sampler.draw(logits)),
        false => Err(Error::NotFinite { what: "logits", rank }.refusal()),
    }
}
