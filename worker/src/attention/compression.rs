//! Chunks that keep some of their rows. Once a layer's queries are computed, each KV head keeps
//! keys and values of some rows of a chunk: those that the chunk's last rows attend to most, or the
//! method's own choice. Rows around the chunk's tokens are always kept. A chunk is compressed
//! without knowledge of any query, so it can be cached.

use std::ops::Range;

use candle_core::Tensor;
use tributary_kernels::{Keys, Partial, Positions, contiguous, cuda};
use tributary_model::Qkv;
use tributary_protocol::{Chunk, Evict};

use super::look_ahead::received_by_kv_head;
use super::rounds::join;
use crate::error::Result;
use crate::evict::kept_of_layer;
use crate::kv::{Block, LayerRows};
use crate::layer_math::LayerMath;

/// The chunks of a batch, some of which keep some of their rows.
pub struct Compression {
    /// Number of the batch's rows before the chunks.
    prefix_rows: usize,
    /// Number of the model's layers.
    layers: usize,
    chunks: Vec<Compressed>,
}

/// A chunk of the batch, with its layers so far.
struct Compressed {
    /// Its rows, as numbered in the plan.
    rows: Vec<u32>,
    /// Its rows in the batch.
    batch: Range<usize>,
    /// The choice of its kept tokens; all are kept if absent.
    choice: Option<Choice>,
    /// Its kept keys and values in each layer; their places are in `places`.
    layers: Vec<(Tensor, Tensor)>,
    places: Vec<LayerRows>,
}

/// The choice of a chunk's kept tokens.
struct Choice {
    evict: Evict,
    /// The chunk's rows that are tokens.
    tokens: Range<usize>,
    /// The chunk's rows whose attention decides on the kept rows.
    asking: Range<usize>,
    /// Positions of the chunk's rows, and of the asking ones.
    at: Positions,
    at_asking: Positions,
}

impl Compression {
    /// The compression of a batch with `prefix_rows` rows before its `chunks`, in a model with
    /// `layers` layers. The chunks come with the numbers of their rows; the batch's positions are
    /// `at`.
    pub fn new<'a>(
        prefix_rows: usize,
        chunks: impl Iterator<Item = (&'a Chunk, Range<u32>)>,
        at: &Positions,
        layers: usize,
    ) -> Self {
        let mut from = prefix_rows;
        let chunks = chunks.map(|(chunk, rows)| {
            let batch = from..from + chunk.rows();
            from = batch.end;
            let choice = chunk.compress.as_ref().map(|evict| Choice::new(evict, chunk, at, batch.clone()));
            Compressed { rows: rows.collect(), batch, choice, layers: Vec::new(), places: Vec::new() }
        });
        Self { prefix_rows, layers, chunks: chunks.collect() }
    }

    /// Whether a layer is the last one: its output is needed only for the choice of kept rows.
    pub fn is_last(&self, layer: usize) -> bool {
        layer + 1 == self.layers
    }

    /// Takes a layer of the batch, whose rows see `keys`; `found` is their attention, if it was
    /// computed. Returns the keys and values of the rows before the chunks.
    ///
    /// # Errors
    /// Returns an error if a kernel fails.
    pub fn layer(
        &mut self,
        math: LayerMath<'_>,
        qkv: &Qkv,
        keys: &[Keys],
        found: Option<&Partial>,
    ) -> Result<(Tensor, Tensor)> {
        for chunk in &mut self.chunks {
            let layer = chunk.layers.len();
            let places = match &chunk.choice {
                Some(choice) => choice.places(math, layer, (qkv, chunk.batch.clone()), keys, found)?,
                None => LayerRows::AllHeads((0..chunk.batch.len() as u32).collect()),
            };
            let of = |x: &Tensor| x.narrow(0, chunk.batch.start, chunk.batch.len());
            let whole = Block::of((0..chunk.batch.len() as u32).collect::<Vec<_>>(), vec![(of(&qkv.k)?, of(&qkv.v)?)]);
            chunk.layers.push(whole.cut([places.clone()])?.layers.swap_remove(0));
            chunk.places.push(places);
        }
        Ok((self.before(&qkv.k)?, self.before(&qkv.v)?))
    }

    /// The rows before the chunks in memory of their own, so that the batch's is freed.
    fn before(&self, x: &Tensor) -> Result<Tensor> {
        let before = x.narrow(0, 0, self.prefix_rows)?;
        if self.prefix_rows == 0 { Ok(before) } else { Ok(before.force_contiguous()?) }
    }

    /// The kept keys and values of the chunks in a layer, one chunk after the other. Without
    /// chunks, no rows of `empty`.
    ///
    /// # Errors
    /// Returns an error if a candle operation fails.
    pub fn kept(&self, layer: usize, empty: &(Tensor, Tensor)) -> Result<(Tensor, Tensor)> {
        if self.chunks.is_empty() {
            return Ok((empty.0.narrow(0, 0, 0)?, empty.1.narrow(0, 0, 0)?));
        }
        let (k, v): (Vec<_>, Vec<_>) = self.chunks.iter().map(|chunk| chunk.layers[layer].clone()).unzip();
        Ok((join(&k)?, join(&v)?))
    }

    /// The blocks of the chunks, after all layers.
    pub fn into_blocks(self) -> Vec<Block> {
        let block = |chunk: Compressed| match chunk.choice {
            Some(_) => Block::compressed(chunk.rows, &chunk.places, chunk.layers),
            None => Block::of(chunk.rows, chunk.layers).complete(self.layers),
        };
        self.chunks.into_iter().map(block).collect()
    }
}

impl Choice {
    fn new(evict: &Evict, chunk: &Chunk, at: &Positions, batch: Range<usize>) -> Self {
        let (head, rows) = (chunk.head_rows(), chunk.rows());
        let tokens = head..head + chunk.ids.len();
        let has_trailer = tokens.end < rows;
        let asking = chunk.asking();
        // The trailer's rows ask in place of the window's, and they are kept in addition to the
        // budget.
        let window = if has_trailer { 0 } else { evict.window };
        let of = |rows: Range<usize>| {
            let rows: Vec<u32> = rows.map(|row| (batch.start + row) as u32).collect();
            at.select(&rows)
        };
        Self {
            evict: Evict { window, ..evict.clone() },
            tokens,
            at: of(0..rows),
            at_asking: of(asking.clone()),
            asking,
        }
    }

    /// The places of the chunk's rows that each KV head keeps in a layer.
    fn places(
        &self,
        math: LayerMath<'_>,
        layer: usize,
        (qkv, batch): (&Qkv, Range<usize>),
        keys: &[Keys],
        found: Option<&Partial>,
    ) -> Result<LayerRows> {
        let kv_heads = qkv.k.dim(1)?;
        let scores = if self.asking.is_empty() { None } else { Some(self.scores(math, (qkv, &batch), keys, found)?) };
        let tokens: Vec<u32> = (self.tokens.start as u32..self.tokens.end as u32).collect();
        let kept = kept_of_layer(&self.evict, &tokens, (layer, self.evict.keep, kv_heads), scores.as_deref());
        let around = |kept: Vec<u32>| -> Vec<u32> {
            let after = self.tokens.end as u32..batch.len() as u32;
            (0..self.tokens.start as u32).chain(kept).chain(after).collect()
        };
        Ok(LayerRows::of_heads(kept.into_iter().map(around).collect()))
    }

    /// The attention that each token receives from the asking rows, by KV head.
    fn scores(
        &self,
        math: LayerMath<'_>,
        (qkv, batch): (&Qkv, &Range<usize>),
        keys: &[Keys],
        found: Option<&Partial>,
    ) -> Result<Vec<Vec<f32>>> {
        let asking = |x: &Tensor| x.narrow(0, batch.start + self.asking.start, self.asking.len());
        let q = contiguous(&asking(&qkv.q)?)?;
        let lse = match found {
            Some(found) => contiguous(&asking(&found.lse)?)?,
            None => math.attend(&q, &self.at_asking, keys)?.lse,
        };
        let of = |x: &Tensor| x.narrow(0, batch.start, batch.len());
        let own = [Keys { k: of(&qkv.k)?, v: of(&qkv.v)?, at: self.at.clone() }];
        let received = received_by_kv_head(math, (&q, &self.at_asking, &lse), &own, qkv.k.dim(1)?)?;
        let heads = cuda::download(&received)?.to_vec2::<f32>()?;
        Ok(heads.into_iter().map(|head| head[self.tokens.clone()].to_vec()).collect())
    }
}
