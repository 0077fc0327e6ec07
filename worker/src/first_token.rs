//! Draws the first token from a filled cache. Its arrival stops the clock.

use tributary_protocol::{DrawnToken, Phase, Plan, Refusal};

use crate::context::Context;
use crate::error::{Error, Result};
use crate::model::{Model, Rows};
use crate::sample::Sampler;
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

/// Draws the first token on its owner and tells every rank.
///
/// # Errors
/// [`Error::Refused`] on every rank if the owner's logits are not finite; kernels' and communicator's.
pub fn first_token(cx: &mut Context<'_>, plan: &Plan, prefilled: &Prefilled) -> Result<FirstToken> {
    cx.enter(Phase::FirstToken, plan)?;
    assert_eq!(prefilled.last.is_some(), cx.rank() == prefilled.owner, "the last row on rank {}", cx.rank());
    let mut sampler = Sampler::new(plan.sampling, plan.returns.logprobs);
    let logits = prefilled.last.as_ref().map(|last| logits(cx.models.main, last)).transpose()?;
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

/// Logits of rows, on the host.
///
/// # Errors
/// The tensor library's.
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
