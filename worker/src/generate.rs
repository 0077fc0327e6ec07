//! From a filled cache to tokens: the first one, whose arrival stops the clock, then the others.

use candle_core::Tensor;
use tributary_kernels::cuda;
use tributary_protocol::{Phase, Plan};

use crate::attention::Decode;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::kv::{Hidden, View};
use crate::model::Rows;
use crate::sample::Sampler;
use crate::strategy::Prefilled;

/// What was generated.
pub struct Generated {
    /// Token ids, on every rank.
    pub tokens: Vec<u32>,
    /// The first token's logits, on the owner.
    pub logits: Option<Vec<f32>>,
    /// The communicator's lap that began when the first token was known.
    pub decode_lap: usize,
}

/// Draws the first token, tells every rank, calls `on_first`, and goes on until an end token or the plan's limit.
///
/// # Errors
/// Logits that are not finite; kernels' and communicator's.
pub fn generate(
    cx: &mut Context<'_>,
    plan: &Plan,
    prefilled: &Prefilled,
    on_first: &mut dyn FnMut(u32) -> Result<()>,
) -> Result<Generated> {
    cx.enter(Phase::FirstToken, plan)?;
    let mut sampler = Sampler::new(plan.sampling);
    let logits = prefilled.last.as_ref().map(|last| finite_logits(cx, last)).transpose()?;
    let first = announce(cx, prefilled.owner, logits.as_ref().map(|logits| sampler.draw(logits)))?;
    on_first(first)?;
    let decode_lap = cx.timeline.close(cx.comm)?;
    let mut tokens = vec![first];
    if plan.max_tokens > 1 && !plan.eos.contains(&first) {
        cx.enter(Phase::Decode, plan)?;
        let mut decoder = Decoder::new(cx, plan, prefilled)?;
        while tokens.len() < plan.max_tokens && !tokens.last().is_some_and(|token| plan.eos.contains(token)) {
            let logits = decoder.step(cx, &tokens)?;
            tokens.push(announce(cx, prefilled.owner, logits.map(|logits| sampler.draw(&logits)))?);
        }
    }
    Ok(Generated { tokens, logits, decode_lap })
}

/// The owner's token on every rank.
fn announce(cx: &mut Context<'_>, owner: usize, token: Option<u32>) -> Result<u32> {
    let bytes = token.map(|token| tributary_protocol::encode(&token)).transpose()?;
    Ok(tributary_protocol::decode(&cx.comm.broadcast_bytes(owner, bytes)?)?)
}

fn finite_logits(cx: &Context<'_>, last: &Rows) -> Result<Vec<f32>> {
    let logits = cuda::download(&cx.model.logits(last)?)?.squeeze(0)?.to_vec1::<f32>()?;
    match logits.iter().all(|logit| logit.is_finite()) {
        true => Ok(logits),
        false => Err(Error::NotFinite { what: "logits", rank: cx.rank() }),
    }
}

/// One token after the other over the cache that prefill left.
struct Decoder<'a> {
    prefilled: &'a Prefilled,
    first_row: u32,
    own: View,
    rest: View,
    generated: Vec<(Tensor, Tensor)>,
}

impl<'a> Decoder<'a> {
    /// Rotates the cached keys, once.
    fn new(cx: &Context<'_>, plan: &Plan, prefilled: &'a Prefilled) -> Result<Self> {
        let (hidden, nothing) = (Hidden::of(&prefilled.selection.rows), Hidden::default());
        let (cache, placement) = (&prefilled.cache, &prefilled.placement);
        let stale = View::new(cache.own.iter().chain(&cache.others), placement, &hidden);
        let fresh = View::new(&cache.fresh, placement, &nothing);
        let rest = View::new([&cache.prefix, &cache.tail], placement, &nothing);
        let (is_owner, alone) = (cx.rank() == prefilled.owner, prefilled.alone);
        let rope = &cx.math.rope;
        let own = if is_owner || !alone { stale.and(fresh).rotated(rope)? } else { View::default() };
        let rest = if is_owner { rest.rotated(rope)? } else { View::default() };
        Ok(Self { prefilled, first_row: plan.total_tokens() as u32, own, rest, generated: Vec::new() })
    }

    /// Runs the newest token; the next one's logits on the owner. All ranks call it, also those with nothing to do.
    fn step(&mut self, cx: &mut Context<'_>, tokens: &[u32]) -> Result<Option<Vec<f32>>> {
        let is_owner = cx.rank() == self.prefilled.owner;
        if self.prefilled.alone && !is_owner {
            return Ok(None);
        }
        let rows: Vec<u32> = (0..tokens.len() as u32).map(|index| self.first_row + index).collect();
        let (newest, token) = (&rows[rows.len() - 1..], &tokens[tokens.len() - 1..]);
        let embedded = cx.model.embed(if is_owner { token } else { &[] })?;
        let mut counts = vec![0; cx.comm.size()];
        counts[self.prefilled.owner] = 1;
        let mut attention = Decode {
            math: cx.math.clone(),
            comm: if self.prefilled.alone { None } else { Some(&mut *cx.comm) },
            counts,
            at: self.prefilled.placement.at(newest),
            own: &self.own,
            rest: &self.rest,
            generated: &mut self.generated,
            at_generated: self.prefilled.placement.at(&rows),
        };
        let rows = cx.model.layers(0..cx.model.config().layers, embedded, &mut attention)?;
        is_owner.then(|| finite_logits(cx, &rows)).transpose()
    }
}
