//! Prefill of this rank's chunks, packed in one batch after the prefix: every chunk sees the prefix
//! and itself. Under `replicate` each layer's keys and values go to all ranks while the next layer
//! is computed. Also the full prefill of one rank, which differs only in positions.

use std::ops::Range;

use candle_core::Tensor;
use tributary_comm::Communicator;
use tributary_kernels::{Keys, Partial, Positions};
use tributary_model::{Attention, Progress, Qkv, SlicedAttention, attend_whole};

use super::rounds::{join, last_of};
use super::slices::Slices;
use super::{Compression, Replication};
use crate::context::Math;
use crate::error::{Error, Result};
use crate::kv::{Block, View};

/// Rows: the prefix, unless it is cached, then this rank's chunks that are not cached; or a whole
/// prompt.
pub struct ChunkPrefill<'a> {
    /// Kernels and constants.
    math: Math,
    /// Positions of the rows. For chunks this is the LOCAL layout: one segment a chunk, the prefix
    /// shared.
    at: Positions,
    /// Positions of the rows that ask: all before the last layer.
    asking_at: Positions,
    /// Cached keys visible to all rows: the prefix, if it was cached.
    before: View,
    /// Number of rows whose output is needed after the last layer: one for a whole prompt; none for
    /// chunks, which stop at their keys.
    asked: usize,
    /// Keys and values of every layer so far.
    layers: Vec<(Tensor, Tensor)>,
    /// The replication, if there is one.
    outgoing: Option<OutgoingRows<'a>>,
    /// The compression of the chunks, if there is one: then `layers` hold only the rows before
    /// them.
    compression: Option<Compression>,
    slices: Slices,
}

/// The replication of this rank's context rows, layer by layer.
pub struct OutgoingRows<'a> {
    /// Communicator with the other ranks.
    pub comm: &'a mut dyn Communicator,
    /// The layers in flight.
    pub replication: &'a mut Replication,
    /// The rows of each chunk, in the order in which they are sent.
    pub parts: Vec<ChunkRows>,
}

/// Rows of one chunk.
pub enum ChunkRows {
    /// A block from the chunk cache.
    Cached(Block),
    /// A run of the batch; if chunks are compressed, a run of the kept rows of all computed chunks.
    Fresh {
        /// Its first row.
        from: usize,
        /// Number of rows.
        count: usize,
    },
}

impl OutgoingRows<'_> {
    /// Sends a layer whose fresh rows are in `k` and `v`.
    ///
    /// # Errors
    /// Returns an error if the communicator fails.
    pub fn layer(&mut self, layer: usize, k: &Tensor, v: &Tensor) -> Result<()> {
        let k = self.rows(k, |block| &block.layer(layer).0)?;
        let v = self.rows(v, |block| &block.layer(layer).1)?;
        self.replication.start(self.comm, &k, &v)
    }

    /// This rank's rows as one tensor: a part of the batch if nothing is cached, otherwise joined.
    fn rows(&self, fresh: &Tensor, cached: impl Fn(&Block) -> &Tensor) -> Result<Tensor> {
        let all_fresh = self.parts.iter().all(|part| matches!(part, ChunkRows::Fresh { .. }));
        if let (true, Some(ChunkRows::Fresh { from, .. })) = (all_fresh, self.parts.first()) {
            return Ok(fresh.narrow(0, *from, fresh.dim(0)? - from)?);
        }
        let part = |part: &ChunkRows| match part {
            ChunkRows::Cached(block) => Ok(cached(block).clone()),
            ChunkRows::Fresh { from, count } => Ok(fresh.narrow(0, *from, *count)?),
        };
        let parts = self.parts.iter().map(part).collect::<Result<Vec<_>>>()?;
        match parts.is_empty() {
            true => Ok(fresh.narrow(0, 0, 0)?),
            false => join(&parts),
        }
    }
}

impl<'a> ChunkPrefill<'a> {
    /// A pass of rows at the positions `at`, which see the cached keys `before`, each other, and
    /// nothing else. Without [`asking`](Self::asking) no row has an output after the last layer.
    pub fn new(math: Math, at: Positions, before: View) -> Self {
        let (layers, slices, asking_at) = (Vec::new(), Slices::default(), at.clone());
        Self { math, at, asking_at, before, asked: 0, layers, outgoing: None, compression: None, slices }
    }

    /// The same; the last `asked` rows have an output after the last layer.
    #[must_use]
    pub fn asking(self, asked: usize) -> Self {
        Self { asked, ..self }
    }

    /// The same; each layer is sent to the other ranks, if `outgoing` is given.
    #[must_use]
    pub fn sending(self, outgoing: Option<OutgoingRows<'a>>) -> Self {
        Self { outgoing, ..self }
    }

    /// The same; the chunks are compressed, if `compression` is given.
    #[must_use]
    pub fn compressing(self, compression: Option<Compression>) -> Self {
        Self { compression, ..self }
    }

    /// Whether the chunks are compressed.
    pub fn compresses(&self) -> bool {
        self.compression.is_some()
    }

    /// Keys and values of every layer, and the compression.
    pub fn into_parts(self) -> (Vec<(Tensor, Tensor)>, Option<Compression>) {
        (self.layers, self.compression)
    }

    /// As [`attend`](Attention::attend); then each chunk is cut to its kept rows, and those are
    /// sent. The output of the last layer is not needed.
    fn attend_and_compress(&mut self, layer: usize, qkv: Qkv) -> Result<Partial> {
        let compression = self.compression.as_mut().expect("chunks are compressed");
        let mut keys = self.before.keys(layer);
        keys.push(Keys { k: qkv.k.clone(), v: qkv.v.clone(), at: self.at.clone() });
        let found = match compression.is_last(layer) {
            true => None,
            false => Some(self.math.layer(layer).attend(&qkv.q, &self.at, &keys)?),
        };
        let before = compression.layer(self.math.layer(layer), &qkv, &keys, found.as_ref())?;
        if let Some(outgoing) = &mut self.outgoing {
            let (k, v) = compression.kept(layer, &before)?;
            outgoing.layer(layer, &k, &v)?;
        }
        self.layers.push(before);
        Ok(match found {
            Some(found) => found,
            None => Partial::of_output(qkv.q)?, // not needed
        })
    }
}

impl Attention for ChunkPrefill<'_> {
    type Error = Error;

    fn progress(&self) -> &Progress {
        &self.math.progress
    }

    fn attend(&mut self, layer: usize, qkv: Qkv) -> Result<Partial> {
        if self.compression.is_some() {
            return self.attend_and_compress(layer, qkv);
        }
        attend_whole(self, layer, qkv)
    }

    fn in_slices(&mut self) -> Option<&mut dyn SlicedAttention<Error = Error>> {
        if self.compression.is_some() { None } else { Some(self) }
    }

    fn last_layer(&mut self, _rows: usize) -> usize {
        if self.asked < self.at.len() {
            self.asking_at = last_of(&self.at, self.asked);
        }
        self.asked
    }
}

impl SlicedAttention for ChunkPrefill<'_> {
    type Error = Error;

    fn take(&mut self, layer: usize, k: Tensor, v: Tensor) -> Result<()> {
        if let Some(outgoing) = &mut self.outgoing {
            outgoing.layer(layer, &k, &v)?;
        }
        self.layers.push((k, v));
        Ok(())
    }

    fn slice(&mut self, layer: usize, q: Tensor, rows: Range<usize>) -> Result<Partial> {
        let (k, v) = self.layers.last().expect("the layer's keys were taken").clone();
        let mut keys = self.before.keys(layer);
        keys.push(Keys { k, v, at: self.at.clone() });
        self.slices.attend(self.math.layer(layer), (&q, rows), &self.asking_at, &keys)
    }

    fn end(&mut self, _layer: usize) -> Result<()> {
        Ok(())
    }
}
