//! A whole prompt on one rank, and tokens written after it one at a time, for a draft model, and
//! for an auxiliary model whose writing rows are read. Rows see themselves and all rows before
//! them.

use candle_core::Tensor;
use tributary_kernels::{Keys, Partial, Positions, Readings, cuda, join};
use tributary_model::{Attention, Model, Progress, Qkv};

use super::reading::Watched;
use super::rounds::last_of;
use crate::context::Math;
use crate::error::{Error, Result};
use crate::kv::GrowingBlock;
use crate::sample::Sampler;

/// Rows: the prompt's, all at once, then each written token alone.
pub struct Writing<'a> {
    math: Math,
    /// Positions of the rows in the current pass.
    at: Positions,
    /// Per layer, the prompt's keys, rotated to their positions, and values.
    prompt: Vec<Keys>,
    written: GrowingBlock,
    is_reading: bool,
    /// Counts layers, if another thread waits for the tokens.
    watched: Option<&'a Watched>,
    /// Per layer, the rows that have written tokens, if they are read.
    writers: Option<Vec<Writers>>,
}

/// The rows that have written tokens, in a layer: for each its queries `[1, heads, head_dim]`,
/// rotated, and their log-sum-exp `[1, heads]`.
#[derive(Default)]
struct Writers {
    queries: Vec<Tensor>,
    lse: Vec<Tensor>,
}

impl<'a> Writing<'a> {
    /// With `math` of the model, for a prompt of `prompt_rows` rows, which are computed first, and
    /// at most `most` tokens after it.
    pub fn new(math: Math, prompt_rows: usize, most: usize) -> Self {
        let at = Positions::run(0, prompt_rows);
        let written = GrowingBlock::new(most);
        Self { math, at, prompt: Vec::new(), written, is_reading: true, watched: None, writers: None }
    }

    /// Keeps what [`read`](Self::read) needs, and counts layers for the thread that waits.
    #[must_use]
    pub fn reading(self, watched: &'a Watched) -> Self {
        Self { watched: Some(watched), writers: Some(Vec::new()), ..self }
    }

    /// Runs the prompt `ids` through `model`, and writes the likeliest tokens after it: at most
    /// `most`, and none after one of `ends`. Each is among the first `known` ids. Logits that are
    /// not finite draw an arbitrary token.
    ///
    /// # Errors
    /// Returns an error if a kernel fails. Returns [`Error::Bug`] if the waiting thread has given
    /// up.
    pub fn tokens(
        &mut self,
        model: &dyn Model,
        ids: &[u32],
        (most, known): (usize, usize),
        ends: &[u32],
    ) -> Result<Vec<u32>> {
        let mut greedy = Sampler::greedy();
        let (mut tokens, mut passing) = (Vec::new(), ids.to_vec());
        while tokens.len() < most && !tokens.last().is_some_and(|token| ends.contains(token)) {
            if !tokens.is_empty() {
                self.begin_row();
            }
            let rows = model.layers(0..model.config().layers, model.embed(&passing)?, self)?;
            let likely =
                cuda::download(&model.logits(&rows)?)?.to_vec2::<f32>()?.pop().expect("the newest row's logits");
            let token = greedy.draw(&likely[..known.min(likely.len())]).token;
            tokens.push(token);
            passing = vec![token];
        }
        Ok(tokens)
    }

    /// Begins the row of the next token, after the prompt or a token's row has been computed.
    fn begin_row(&mut self) {
        let prompt_rows = self.prompt[0].at.len() as u32;
        self.at = Positions::run(if self.is_reading { prompt_rows } else { self.at.order()[0] + 1 }, 1);
        self.written.begin_rows(1, |rows| Positions::run(prompt_rows + rows.start, rows.len()));
        self.is_reading = false;
    }

    /// The attention to each row of the prompt from the rows that have written tokens, of which the
    /// prompt's last row is the first: the largest over heads and layers, then the mean over those
    /// rows, `[prompt rows]`. Each softmax is over all that a row sees. Layers with a sliding
    /// window do not count, unless all have one.
    ///
    /// # Errors
    /// Returns an error if a kernel fails. Returns [`Error::Bug`] if nothing was kept or written.
    pub fn read(&self) -> Result<Vec<f32>> {
        let writers = self.writers.as_deref().unwrap_or_default();
        let mut largest: Option<Tensor> = None;
        for layer in self.math.scored(&(0..writers.len())) {
            let Writers { queries, lse } = &writers[layer];
            let at = Positions::run(self.prompt[layer].at.len() as u32 - 1, queries.len());
            let joined = |rows: &[Tensor]| join(&rows.iter().collect::<Vec<_>>(), 0);
            let (q, lse, keys) = (joined(queries)?, joined(lse)?, self.keys(layer)?);
            let read = self.math.layer(layer).readings_rotated(&q, &at, &keys, &lse, Readings::Largest)?;
            let read = read.narrow(1, 0, self.prompt[layer].at.len())?;
            largest = Some(match largest {
                Some(largest) => largest.maximum(&read)?,
                None => read,
            });
        }
        let largest = largest.ok_or(Error::Bug("no row has written a token"))?;
        Ok(cuda::download(&largest.mean(0)?)?.to_vec1()?)
    }

    /// The keys of a layer: the prompt's, then those of written tokens.
    fn keys(&self, layer: usize) -> Result<Vec<Keys>> {
        let written = if self.is_reading { Vec::new() } else { self.written.keys(layer)? };
        Ok(std::iter::once(self.prompt[layer].clone()).chain(written).collect())
    }
}

impl Attention for Writing<'_> {
    type Error = Error;

    fn progress(&self) -> &Progress {
        &self.math.progress
    }

    fn attend(&mut self, layer: usize, Qkv { q, k, v }: Qkv) -> Result<Partial> {
        self.watched.map_or(Ok(()), Watched::step)?;
        let asking = last_of(&self.at, q.dim(0)?);
        let (q, k) = self.math.layer(layer).turned((&q, &asking), (&k, &self.at))?;
        if self.is_reading {
            self.prompt.push(Keys { k, v, at: self.at.clone() });
        } else {
            self.written.push(layer, &k, &v)?;
        }
        let partial = self.math.layer(layer).attend_rotated(&q, &asking, &self.keys(layer)?)?;
        if let Some(writers) = &mut self.writers {
            writers.resize_with(writers.len().max(layer + 1), Writers::default);
            // A copy, lest the whole prompt's queries stay.
            let last = |x: &Tensor| x.narrow(0, x.dim(0)? - 1, 1)?.force_contiguous();
            writers[layer].queries.push(last(&q)?);
            writers[layer].lse.push(last(&partial.lse)?);
        }
        Ok(partial)
    }

    /// Only the newest row is needed of the last layer.
    fn last_layer(&mut self, rows: usize) -> usize {
        rows.min(1)
    }
}
