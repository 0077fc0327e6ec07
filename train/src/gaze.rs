//! Lookahead attention: the distribution of the attention of rows after a prompt over the prompt's
//! rows, by layer and KV head. Serving evicts by the same numbers, apart from their sum; here
//! gradients flow into the rows.

use std::sync::Arc;

use candle_core::{D, Tensor};
use tributary_kernels::{Kernels, Keys, Partial, Positions, cast, join};
use tributary_model::{Attention, LayerAttention, Model, Progress, Qkv, Rows};

use crate::error::Result;
use crate::paid::{check, log_sum_exp, paid};
use crate::pass::Layers;
use crate::teacher::log_softmax;

/// Attention of rows to a prompt while they pass through the layers.
struct Gaze<'a> {
    of_layers: Arc<[LayerAttention]>,
    at: Positions,
    prompt: &'a Layers,
    progress: &'a Progress,
    spread: Vec<Tensor>,
}

/// Runs `rows` right after a prompt of which every layer has one block of keys; they see all of it
/// and each other causally. Gives for every layer the logarithm of each prompt row's share of the
/// attention that the prompt receives, the mean over the rows and over the heads of a KV head:
/// `[kv_heads, prompt]`.
///
/// # Errors
/// Returns an error if the model fails.
pub fn gaze(model: &dyn Model, rows: Rows, prompt: &Layers, progress: &Progress) -> Result<Vec<Tensor>> {
    let start = prompt[0][0].at.len();
    let at = Positions::run(start as u32, rows.len());
    let of_layers = model.layer_attention(start + rows.len())?;
    check(&of_layers)?;
    let mut gaze = Gaze { of_layers, at, prompt, progress, spread: Vec::new() };
    model.up_to_attention(model.config().layers - 1, rows, &mut gaze)?;
    Ok(gaze.spread)
}

impl Gaze<'_> {
    /// From a layer's queries before RoPE `[rows, heads, head_dim]`, the prompt's keys and the
    /// log-sum-exp of all that the rows see `[rows, heads]`.
    fn of_layer(&self, layer: usize, q: &Tensor, prompt: &Keys, lse: &Tensor) -> tributary_model::Result<Tensor> {
        let (places, kv_heads, _) = prompt.k.dims3()?;
        let LayerAttention { rope, scale, .. } = &self.of_layers[layer];
        let q = rope.apply(&rope.grown(q, &self.at)?, &self.at)?;
        let k = rope.apply(&cast(&prompt.k, q.dtype())?, &prompt.at)?;
        let received = log_sum_exp(&paid(&q, &k, lse, *scale)?, 1)?;
        Ok(log_softmax(&received.reshape((kv_heads, places))?)?)
    }
}

impl Attention for Gaze<'_> {
    type Error = tributary_model::Error;

    fn progress(&self) -> &Progress {
        self.progress
    }

    fn attend(&mut self, layer: usize, Qkv { q, k, v }: Qkv) -> tributary_model::Result<Partial> {
        let mut keys = self.prompt[layer].clone();
        keys.push(Keys { k, v, at: self.at.clone() });
        let partial = self.of_layers[layer].attend(Kernels::Auto, &q, &self.at, &keys)?;
        self.spread.push(self.of_layer(layer, &q, &keys[0], &partial.lse)?);
        Ok(partial)
    }
}

/// The mean over layers and KV heads of KL(taught ‖ learned), both as [`gaze`] gives them.
///
/// # Errors
/// Returns an error if a candle operation fails.
pub fn apart(taught: &[Tensor], learned: &[Tensor]) -> Result<Tensor> {
    let of_layer = |(taught, learned): (&Tensor, &Tensor)| -> candle_core::Result<Tensor> {
        (taught.exp()? * (taught - learned)?)?.sum(D::Minus1)?.mean_all()?.reshape(1)
    };
    let layers = taught.iter().zip(learned).map(of_layer).collect::<candle_core::Result<Vec<_>>>()?;
    Ok(join(&layers.iter().collect::<Vec<_>>(), 0)?.mean_all()?)
}
