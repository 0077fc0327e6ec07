//! Attention that rows of prompts receive from the query's rows: the mean over those rows and over
//! heads, as a logarithm. Selection reads the same numbers in serving; here gradients flow through
//! them.

use std::ops::Range;
use std::sync::Arc;

use candle_core::Tensor;
use tributary_kernels::{Kernels, Keys, Partial, Positions, gather, join};
use tributary_model::{Attention, LayerAttention, Model, Progress, Qkv};

use crate::error::Result;
use crate::paid::{check, log_sum_exp, paid};

/// Prompts that are read side by side, and do not see each other.
#[derive(Debug, Clone, Default)]
pub struct Prompts {
    ids: Vec<u32>,
    places: Vec<u32>,
    segments: Vec<u32>,
    asking: Vec<u32>,
    /// Of each prompt the rows whose receipts are wanted, and its asking rows by their places in
    /// `asking`.
    runs: Vec<(Range<usize>, Range<usize>)>,
}

impl Prompts {
    /// Adds a prompt: the result covers the rows of `wanted`; the rows of `query`, which follow
    /// them, attend.
    pub fn add(&mut self, before: &[u32], wanted: &[u32], query: &[u32]) {
        let (from, asked) = (self.ids.len() + before.len(), self.asking.len());
        [before, wanted, query].iter().for_each(|part| self.ids.extend_from_slice(part));
        let segment = self.runs.len() as u32;
        self.places.extend(0..(self.ids.len() - self.places.len()) as u32);
        self.segments.resize(self.ids.len(), segment);
        self.asking.extend((self.ids.len() - query.len()) as u32..self.ids.len() as u32);
        self.runs.push((from..from + wanted.len(), asked..self.asking.len()));
    }
}

/// Passes prompts through layers, in which the asking rows look.
struct Look<'a> {
    of_layers: Arc<[LayerAttention]>,
    at: Positions,
    at_asking: Positions,
    prompts: &'a Prompts,
    /// The layers in which they look; the last of them ends the pass.
    layers: Range<usize>,
    progress: &'a Progress,
    found: Vec<Tensor>,
}

/// For every layer of `layers`, `[wanted]`: for each wanted row of the prompts, in their order, the
/// logarithm of the attention from the query rows of its prompt, the mean over rows and heads.
/// Softmax is over all keys that a row sees.
///
/// # Errors
/// Returns an error if the model fails.
pub fn received(
    model: &dyn Model,
    prompts: &Prompts,
    layers: Range<usize>,
    progress: &Progress,
) -> Result<Vec<Tensor>> {
    let furthest = prompts.places.iter().max().map_or(0, |&place| place as usize);
    let at = Positions::new(prompts.places.clone(), prompts.places.clone(), prompts.segments.clone());
    let at_asking = at.select(&prompts.asking);
    let (of_layers, last) = (model.layer_attention(furthest + 1)?, layers.end - 1);
    check(&of_layers)?;
    let mut look = Look { of_layers, at, at_asking, prompts, layers, progress, found: Vec::new() };
    model.up_to_attention(last, model.embed(&prompts.ids)?, &mut look)?;
    Ok(look.found)
}

impl Look<'_> {
    /// From a layer's queries of the asking rows before RoPE `[asking, heads, head_dim]`, all keys
    /// `[rows, kv_heads, head_dim]`, and the log-sum-exp of all that the former see
    /// `[asking, heads]`.
    fn of_layer(&self, layer: usize, q: &Tensor, k: &Tensor, lse: &Tensor) -> tributary_model::Result<Tensor> {
        let LayerAttention { rope, scale, .. } = &self.of_layers[layer];
        let q = rope.apply(&rope.grown(q, &self.at_asking)?, &self.at_asking)?;
        let k = rope.apply(k, &self.at)?;
        let one = |(wanted, asking): &(Range<usize>, Range<usize>)| {
            let part = |x: &Tensor| x.narrow(0, asking.start, asking.len());
            self.of_prompt(&part(&q)?, &k.narrow(0, wanted.start, wanted.len())?, &part(lse)?, *scale)
        };
        let found = self.prompts.runs.iter().map(one).collect::<tributary_model::Result<Vec<_>>>()?;
        Ok(join(&found.iter().collect::<Vec<_>>(), 0)?)
    }

    fn of_prompt(&self, q: &Tensor, k: &Tensor, lse: &Tensor, scale: f32) -> tributary_model::Result<Tensor> {
        let (asked, places) = (q.dim(0)? * q.dim(1)?, k.dim(0)?);
        let attention = paid(q, k, lse, scale)?.reshape((asked, places))?;
        Ok((log_sum_exp(&attention, 0)?.squeeze(0)? - (asked as f64).ln())?)
    }
}

impl Attention for Look<'_> {
    type Error = tributary_model::Error;

    fn progress(&self) -> &Progress {
        self.progress
    }

    fn attend(&mut self, layer: usize, Qkv { q, k, v }: Qkv) -> tributary_model::Result<Partial> {
        let ends = layer + 1 == self.layers.end;
        let keys = [Keys { k, v, at: self.at.clone() }];
        let (q, at) = match ends {
            true => (gather(&q, &self.prompts.asking)?, &self.at_asking),
            false => (q, &self.at),
        };
        let partial = self.of_layers[layer].attend(Kernels::Auto, &q, at, &keys)?;
        if self.layers.contains(&layer) {
            let asking = |x: &Tensor| if ends { Ok(x.clone()) } else { gather(x, &self.prompts.asking) };
            self.found.push(self.of_layer(layer, &asking(&q)?, &keys[0].k, &asking(&partial.lse)?)?);
        }
        Ok(partial)
    }
}

/// Rows that hold this share of `logarithms`' places, the largest ones, ascending.
pub fn top(logarithms: &[f64], share: f64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..logarithms.len()).collect();
    order.sort_by(|&a, &b| logarithms[b].total_cmp(&logarithms[a]).then(a.cmp(&b)));
    order.truncate((share * logarithms.len() as f64).round() as usize);
    order.sort_unstable();
    order
}
