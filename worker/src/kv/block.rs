//! Blocks: keys before RoPE and values of some rows.
//! A cut block has its own rows in each layer, and perhaps in each KV head. So does the block of a
//! compressed chunk, which also knows all the chunk's rows.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use candle_core::Tensor;
use tributary_kernels::{contiguous, cuda, gather, join};

use super::LayerRows;
use crate::error::{Error, Result};

/// Rows of a block, as numbered in the plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BlockRows {
    /// The same in every layer and KV head, as every pass leaves them.
    Everywhere(Arc<[u32]>),
    /// Different in each layer, as an eviction leaves them.
    PerLayer(Arc<[LayerRows]>),
}

/// Layers of a block that arrive one by one, each set on arrival. Clones see the same arrivals.
pub type Coming = Arc<[OnceLock<ComingLayer>]>;

/// A layer that has arrived.
#[derive(Debug, Clone)]
pub struct ComingLayer {
    /// `[rows, kv_heads, head_dim]`: keys before RoPE, values.
    pub pair: (Tensor, Tensor),
    /// Its rows in the chunk, counted from the chunk's first, if it was compressed.
    pub places: Option<LayerRows>,
}

/// Keys and values of some rows, one pair a layer.
#[derive(Debug, Clone)]
pub struct Block {
    rows: BlockRows,
    /// All rows of the chunk that it was compressed from, consecutive; absent if it was not.
    chunk: Option<Arc<[u32]>>,
    /// Per layer `[rows, kv_heads, head_dim]`: keys before RoPE, values. Shorter while a pass is in
    /// progress.
    pub layers: Vec<(Tensor, Tensor)>,
    /// Layers of a block that is being read, instead of `layers`.
    coming: Option<Coming>,
    /// Whether its tensors share no memory with other rows'.
    is_alone: bool,
}

/// Invariant of every access to a layer.
const WAITED_FOR: &str = "a layer is waited for before it is looked at";

impl Default for Block {
    fn default() -> Self {
        Self::new([])
    }
}

impl Block {
    /// A block without layers yet.
    pub fn new(rows: impl Into<Arc<[u32]>>) -> Self {
        Self::of(rows, Vec::new())
    }

    /// A block of the same rows in all these layers.
    pub fn of(rows: impl Into<Arc<[u32]>>, layers: Vec<(Tensor, Tensor)>) -> Self {
        Self { rows: BlockRows::Everywhere(rows.into()), chunk: None, layers, coming: None, is_alone: false }
    }

    /// A block of different rows in each layer, in memory of its own.
    pub fn of_layers(rows: impl Into<Arc<[LayerRows]>>, layers: Vec<(Tensor, Tensor)>) -> Self {
        let count = layers.len();
        Self { rows: BlockRows::PerLayer(rows.into()), chunk: None, layers, coming: None, is_alone: true }
            .complete(count)
    }

    /// The block of a chunk that has these consecutive `rows`. Each layer holds those at `places`,
    /// counted from the first, in memory of its own.
    ///
    /// # Panics
    /// If a place is beyond the chunk: only a bug can cause that.
    pub fn compressed(rows: impl Into<Arc<[u32]>>, places: &[LayerRows], layers: Vec<(Tensor, Tensor)>) -> Self {
        let rows = rows.into();
        let held = places.iter().map(|places| places.renumbered(|place| rows[place as usize]));
        Self { chunk: Some(Arc::clone(&rows)), ..Self::of_layers(held.collect::<Vec<_>>(), layers) }
    }

    /// Places of its rows in the chunk, layer by layer, if the chunk was compressed.
    pub fn places(&self) -> Option<Vec<LayerRows>> {
        let first = *self.chunk.as_ref()?.first()?;
        match &self.rows {
            BlockRows::Everywhere(_) => None,
            BlockRows::PerLayer(layers) => Some(layers.iter().map(|rows| rows.renumbered(|row| row - first)).collect()),
        }
    }

    /// Rows of its source: of the chunk if that was compressed, else its own.
    ///
    /// # Panics
    /// As [`rows`](Self::rows).
    pub fn chunk_rows(&self) -> &[u32] {
        self.chunk.as_deref().unwrap_or_else(|| self.rows())
    }

    /// Whether its chunk was compressed.
    pub fn is_compressed(&self) -> bool {
        self.chunk.is_some()
    }

    /// A block whose layers arrive one by one, in memory of its own. Every reader of a layer has
    /// waited for it.
    pub fn coming(rows: impl Into<Arc<[u32]>>, layers: Coming) -> Self {
        Self { coming: Some(layers), is_alone: true, ..Self::new(rows) }
    }

    /// The same block after all its layers have arrived.
    ///
    /// # Panics
    /// If one has not: only a bug can cause that.
    #[must_use]
    pub fn arrived(mut self) -> Self {
        if let Some(coming) = self.coming.take() {
            let layers: Vec<&ComingLayer> = coming.iter().map(|layer| layer.get().expect(WAITED_FOR)).collect();
            let pairs = layers.iter().map(|layer| layer.pair.clone()).collect();
            let places: Option<Vec<LayerRows>> = layers.into_iter().map(|layer| layer.places.clone()).collect();
            match places.filter(|places| !places.is_empty()) {
                Some(places) => return Self::compressed(self.rows(), &places, pairs),
                None => self.layers = pairs,
            }
        }
        self
    }

    /// Keys before RoPE and values of a layer, `[rows, kv_heads, head_dim]`.
    ///
    /// # Panics
    /// If the layer is missing: only a bug can cause that.
    pub fn layer(&self, layer: usize) -> &(Tensor, Tensor) {
        match &self.coming {
            Some(coming) => &coming[layer].get().expect(WAITED_FOR).pair,
            None => &self.layers[layer],
        }
    }

    /// Whether its tensors share no memory with other rows', so that keeping them keeps nothing
    /// else.
    pub fn is_alone(&self) -> bool {
        self.is_alone
    }

    /// The rows that it holds.
    pub fn held(&self) -> &BlockRows {
        &self.rows
    }

    /// The rows of a block that was never cut.
    ///
    /// # Panics
    /// If the block was cut: only a bug can cause that, since callers work on rows of all layers.
    pub fn rows(&self) -> &[u32] {
        match &self.rows {
            BlockRows::Everywhere(rows) => rows,
            BlockRows::PerLayer(layers) => panic!("the rows of a block that differ in {} layers", layers.len()),
        }
    }

    /// Number of rows in a layer.
    pub fn count(&self, layer: usize) -> usize {
        match &self.rows {
            BlockRows::Everywhere(rows) => rows.len(),
            BlockRows::PerLayer(layers) => layers[layer].len(),
        }
    }

    /// The block with values that share no memory with anything else.
    ///
    /// # Errors
    /// Returns an error if a candle operation fails.
    pub fn with_values_of_its_own(mut self) -> Result<Self> {
        for (_, v) in &mut self.layers {
            // A device cannot allocate zero bytes.
            if v.elem_count() > 0 {
                *v = v.force_contiguous()?;
            }
        }
        Ok(self)
    }

    /// The block in memory that it shares with nothing else.
    ///
    /// # Errors
    /// Returns an error if a candle operation fails.
    pub fn in_memory_of_its_own(self) -> Result<Self> {
        let mut this = self.with_values_of_its_own()?;
        for (k, _) in this.layers.iter_mut().filter(|(k, _)| k.elem_count() > 0) {
            *k = k.force_contiguous()?;
        }
        Ok(this)
    }

    /// A block whose passes are over: each of `layers` layers has keys and values of every row.
    ///
    /// # Panics
    /// If one lacks them: only a bug can cause that.
    #[must_use]
    pub fn complete(self, layers: usize) -> Self {
        if let Some(coming) = &self.coming {
            assert_eq!(coming.len(), layers, "layers of a block that is being read");
            return self;
        }
        assert_eq!(self.layers.len(), layers, "layers of a block");
        for (layer, (k, v)) in self.layers.iter().enumerate() {
            assert_eq!(k.dims()[0], self.count(layer), "rows with keys in layer {layer}");
            assert_eq!(v.dims()[0], self.count(layer), "rows with values in layer {layer}");
        }
        self
    }

    /// `count` rows of every layer from `from` on, sharing storage. For a block that was never cut.
    ///
    /// # Errors
    /// Returns an error if a candle operation fails.
    pub fn narrow(&self, from: usize, count: usize) -> Result<Self> {
        let cut = |(k, v): &(Tensor, Tensor)| Ok((k.narrow(0, from, count)?, v.narrow(0, from, count)?));
        let layers = self.layers.iter().map(cut).collect::<Result<_>>()?;
        Ok(Self::of(&self.rows()[from..from + count], layers))
    }

    /// Blocks that were never cut as one: the block itself if there is only one, otherwise a copy.
    ///
    /// # Errors
    /// Returns an error if a candle operation fails.
    ///
    /// # Panics
    /// If there is none: only a bug can cause that.
    pub fn joined(mut blocks: Vec<Self>) -> Result<Self> {
        if blocks.len() == 1 {
            return Ok(blocks.swap_remove(0));
        }
        let rows: Vec<u32> = blocks.iter().flat_map(|block| block.rows().iter().copied()).collect();
        let layer = |layer: usize| {
            let filled = blocks.iter().filter(|block| !block.rows().is_empty());
            let (k, v): (Vec<_>, Vec<_>) = filled.map(|block| block.layer(layer)).map(|(k, v)| (k, v)).unzip();
            Ok((join(&k, 0)?, join(&v, 0)?))
        };
        let layers = (0..blocks[0].layers.len()).map(layer).collect::<Result<Vec<_>>>()?;
        let count = layers.len();
        Ok(Self::of(rows, layers).complete(count))
    }

    /// The block with only the rows of `kept` in each layer, copied, so that the memory of the
    /// others can be released.
    ///
    /// # Errors
    /// Returns an error if a candle operation fails.
    ///
    /// # Panics
    /// If `kept` names other layers than the block has, heads of different lengths, or a missing
    /// row: only a bug can cause that.
    pub fn cut(&self, kept: impl Into<Arc<[LayerRows]>>) -> Result<Self> {
        let kept = kept.into();
        assert_eq!(kept.len(), self.layers.len(), "layers of a block that is cut");
        let cut = |(layer, kept): (usize, &LayerRows)| {
            let (k, v) = &self.layers[layer];
            Ok((self.picked(layer, kept, k)?, self.picked(layer, kept, v)?))
        };
        let layers = kept.iter().enumerate().map(cut).collect::<Result<Vec<_>>>()?;
        let count = layers.len();
        let rows = BlockRows::PerLayer(kept);
        Ok(Self { rows, chunk: None, layers, coming: None, is_alone: true }.complete(count))
    }

    /// The block with only the rows at the places of `kept` in each layer, copied, so that the
    /// memory of the others can be released; a layer without places keeps all, which are shared.
    ///
    /// # Errors
    /// Returns an error if a candle operation fails.
    ///
    /// # Panics
    /// If heads of a layer have different rows: only a bug can cause that.
    pub fn at_places(&self, kept: &[Option<Vec<u32>>]) -> Result<Self> {
        assert_eq!(kept.len(), self.layers.len(), "layers of a block that is cut");
        let picked = |(layer, places): (usize, &Option<Vec<u32>>)| {
            let (rows, (k, v)) = (self.rows_of_layer(layer), &self.layers[layer]);
            Ok(match places {
                None => (LayerRows::AllHeads(rows), (k.clone(), v.clone())),
                Some(places) => {
                    let of_places = |x: &Tensor| match places.as_slice() {
                        // A view of no rows would keep the memory of all.
                        [] => Ok::<_, Error>(cuda::nothing((0, x.dim(1)?, x.dim(2)?), x.dtype(), x.device())?),
                        places => Ok(gather(&contiguous(x)?, places)?),
                    };
                    let rows = places.iter().map(|&place| rows[place as usize]).collect();
                    (LayerRows::AllHeads(rows), (of_places(k)?, of_places(v)?))
                }
            })
        };
        let layers = kept.iter().enumerate().map(picked).collect::<Result<Vec<_>>>()?;
        let (rows, layers): (Vec<_>, Vec<_>) = layers.into_iter().unzip();
        let count = layers.len();
        Ok(Self { rows: BlockRows::PerLayer(rows.into()), layers, ..self.clone() }.complete(count))
    }

    /// The rows that all KV heads of a layer have.
    fn rows_of_layer(&self, layer: usize) -> Arc<[u32]> {
        match &self.rows {
            BlockRows::Everywhere(rows) => Arc::clone(rows),
            BlockRows::PerLayer(layers) => match &layers[layer] {
                LayerRows::AllHeads(rows) => Arc::clone(rows),
                LayerRows::PerHead(heads) => panic!("the rows of a layer that differ in {} heads", heads.len()),
            },
        }
    }

    /// The rows of `kept` out of a layer's keys or values `x`.
    fn picked(&self, layer: usize, kept: &LayerRows, x: &Tensor) -> Result<Tensor> {
        let places = |head: usize| -> Vec<u32> {
            let numbered = self.rows_of_head(layer, head).iter().zip(0..);
            let place: BTreeMap<u32, u32> = numbered.map(|(&row, place)| (row, place)).collect();
            let of = |row| *place.get(row).unwrap_or_else(|| panic!("row {row} is not in layer {layer}, head {head}"));
            kept.of_head(head).iter().map(of).collect()
        };
        let apart = matches!(kept, LayerRows::PerHead(_)) || matches!(&self.rows, BlockRows::PerLayer(_));
        if !apart {
            return Ok(gather(x, &places(0))?);
        }
        let of_head = |head: usize| -> Result<Tensor> {
            Ok(gather(&contiguous(&x.narrow(1, head, 1)?)?, &places(head))?) // [kept, 1, head_dim]
        };
        let heads = (0..x.dim(1)?).map(of_head).collect::<Result<Vec<_>>>()?;
        Ok(join(&heads.iter().collect::<Vec<_>>(), 1)?)
    }

    /// The rows that it holds in a KV head of a layer.
    pub fn rows_of_head(&self, layer: usize, head: usize) -> &[u32] {
        match &self.rows {
            BlockRows::Everywhere(rows) => rows,
            BlockRows::PerLayer(layers) => layers[layer].of_head(head),
        }
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};

    use super::*;

    fn layer(rows: usize) -> (Tensor, Tensor) {
        let tensor = || Tensor::zeros((rows, 1, 2), DType::F32, &Device::Cpu).expect("zeros");
        (tensor(), tensor())
    }

    #[test]
    fn a_whole_block_is_complete() {
        let block = Block::of([4, 5, 6], vec![layer(3), layer(3)]);
        assert_eq!(block.complete(2).layers.len(), 2);
    }

    #[test]
    #[should_panic(expected = "layers of a block")]
    fn a_block_lacks_no_layer() {
        let _ = Block::of([4, 5, 6], vec![layer(3)]).complete(2);
    }

    #[test]
    #[should_panic(expected = "rows with keys in layer 1")]
    fn a_block_lacks_no_row() {
        let _ = Block::of([4, 5, 6], vec![layer(3), layer(2)]).complete(2);
    }

    /// Two KV heads with one number a row: 10 · row, and 1 more in the second head.
    fn numbered(rows: &[u32]) -> Block {
        let values: Vec<f32> = rows.iter().flat_map(|&row| [10.0 * row as f32, 10.0 * row as f32 + 1.0]).collect();
        let tensor = Tensor::from_vec(values, (rows.len(), 2, 1), &Device::Cpu).expect("numbers");
        Block::of(rows, vec![(tensor.clone(), tensor.clone()), (tensor.clone(), tensor)])
    }

    fn values(tensor: &Tensor) -> Vec<f32> {
        tensor.flatten_all().and_then(|flat| flat.to_vec1()).expect("f32")
    }

    #[test]
    fn a_block_is_cut_to_other_rows_in_each_layer_and_head_and_again() {
        let kept =
            [LayerRows::AllHeads([6, 4].into()), LayerRows::PerHead([[4, 5, 7].into(), [7, 6, 4].into()].into())];
        let cut = numbered(&[4, 5, 6, 7]).cut(kept).expect("cut");
        assert_eq!((cut.count(0), cut.count(1)), (2, 3));
        assert_eq!(values(&cut.layers[0].0), [60.0, 61.0, 40.0, 41.0]);
        assert_eq!(values(&cut.layers[1].1), [40.0, 71.0, 50.0, 61.0, 70.0, 41.0]);
        let again = [LayerRows::AllHeads([4].into()), LayerRows::PerHead([[7].into(), [6].into()].into())];
        let again = cut.cut(again).expect("cut again");
        assert_eq!((values(&again.layers[0].1), values(&again.layers[1].0)), (vec![40.0, 41.0], vec![70.0, 61.0]));
    }

    #[test]
    #[should_panic(expected = "row 5 is not in layer 1, head 1")]
    fn a_block_is_not_cut_to_rows_that_it_lacks() {
        let kept = [LayerRows::AllHeads([4].into()), LayerRows::PerHead([[4].into(), [5].into()].into())];
        let _ = numbered(&[4, 6]).cut(kept);
    }

    #[test]
    #[should_panic(expected = "the rows of a block that differ in 2 layers")]
    fn a_block_that_was_cut_has_no_rows_of_all_layers() {
        let kept = [LayerRows::AllHeads([4].into()), LayerRows::AllHeads([6].into())];
        let _ = numbered(&[4, 6]).cut(kept).expect("cut").rows();
    }
}
