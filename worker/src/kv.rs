//! The KV cache of one request on one rank: blocks of keys before RoPE and values, and which rows each holds.
//!
//! A block is immutable once its pass is over. Recompute never writes into one: fresh rows are a block of their own, and
//! the stale rows they replace are taken out of sight by their positions.

use std::sync::Arc;

use candle_core::Tensor;
use tributary_kernels::{Keys, Positions, Rope, contiguous, write_rows};

use crate::error::Result;
use crate::placement::Placement;

/// Keys and values of some rows, one pair a layer.
#[derive(Debug, Clone, Default)]
pub struct Block {
    /// The rows, as numbered in the plan.
    pub rows: Arc<[u32]>,
    /// Per layer `[rows, kv_heads, head_dim]`: keys before RoPE, values. Shorter while a pass is under way.
    pub layers: Vec<(Tensor, Tensor)>,
}

impl Block {
    /// A block without layers yet.
    pub fn new(rows: impl Into<Arc<[u32]>>) -> Self {
        Self { rows: rows.into(), layers: Vec::new() }
    }

    /// A block whose passes are over: every one of `layers` layers has keys and values of every row.
    ///
    /// # Panics
    /// If that is not so: only a bug can do that.
    #[must_use]
    pub fn complete(self, layers: usize) -> Self {
        assert_eq!(self.layers.len(), layers, "layers of a block");
        for (layer, (k, v)) in self.layers.iter().enumerate() {
            assert_eq!(k.dims()[0], self.rows.len(), "rows with keys in layer {layer}");
            assert_eq!(v.dims()[0], self.rows.len(), "rows with values in layer {layer}");
        }
        self
    }

    /// `count` rows of every layer from `from` on, sharing storage.
    pub fn narrow(&self, from: usize, count: usize) -> Result<Self> {
        let cut = |(k, v): &(Tensor, Tensor)| Ok((k.narrow(0, from, count)?, v.narrow(0, from, count)?));
        let layers = self.layers.iter().map(cut).collect::<Result<_>>()?;
        Ok(Self { rows: self.rows[from..from + count].into(), layers })
    }
}

/// What one rank keeps of a request.
#[derive(Debug, Clone, Default)]
pub struct KvCache {
    /// The prefix: held by every rank, so it may count on one rank only in a merge.
    pub prefix: Block,
    /// The context rows that are this rank's alone: no row is in two ranks' lists.
    pub own: Vec<Block>,
    /// The other ranks' context rows, where they were gathered.
    pub others: Vec<Block>,
    /// Recomputed rows, which stand in for stale ones.
    pub fresh: Vec<Block>,
    /// The query's and the generated rows, where this rank owns them.
    pub tail: Block,
}

/// Rows that are out of sight in their stale form: a table by row.
#[derive(Debug, Clone, Default)]
pub struct Hidden(Vec<bool>);

impl Hidden {
    /// Hides the given rows.
    pub fn of(rows: &[u32]) -> Self {
        let mut table = vec![false; rows.iter().max().map_or(0, |&row| row as usize + 1)];
        rows.iter().for_each(|&row| table[row as usize] = true);
        Self(table)
    }

    fn contains(&self, row: u32) -> bool {
        self.0.get(row as usize).copied().unwrap_or(false)
    }
}

/// Blocks and where their rows stand in one pass.
#[derive(Debug, Clone, Default)]
pub struct View {
    blocks: Vec<(Block, Positions)>,
}

impl View {
    /// All of `blocks` at `placement`, with the rows in `hidden` out of sight.
    pub fn new<'a>(blocks: impl IntoIterator<Item = &'a Block>, placement: &Placement, hidden: &Hidden) -> Self {
        let stand = |block: &Block| {
            let at = placement.at(&block.rows);
            let is_hidden = |&place: &u32| hidden.contains(block.rows[place as usize]);
            let places: Vec<u32> = (0..block.rows.len() as u32).filter(is_hidden).collect();
            if places.is_empty() { at } else { at.without(&places) }
        };
        Self { blocks: blocks.into_iter().map(|block| (block.clone(), stand(block))).collect() }
    }

    /// One block at the given positions.
    pub fn of(block: Block, at: Positions) -> Self {
        assert_eq!(block.rows.len(), at.len(), "a position for every row of a block");
        Self { blocks: vec![(block, at)] }
    }

    /// These blocks, then those of `more`.
    #[must_use]
    pub fn and(mut self, more: View) -> Self {
        self.blocks.extend(more.blocks);
        self
    }

    /// The keys of one layer.
    pub fn keys(&self, layer: usize) -> Vec<Keys> {
        let key = |(block, at): &(Block, Positions)| {
            let (k, v) = block.layers[layer].clone();
            Keys { k, v, at: at.clone() }
        };
        self.blocks.iter().filter(|(block, _)| !block.rows.is_empty()).map(key).collect()
    }

    /// The rows, block by block, in the order of [`keys`](Self::keys).
    pub fn rows(&self) -> impl Iterator<Item = u32> + '_ {
        self.blocks.iter().flat_map(|(block, _)| block.rows.iter().copied())
    }

    /// The same view with every key rotated to its position, once, for passes of one row each.
    ///
    /// # Errors
    /// A position beyond the tables.
    pub fn rotated(&self, rope: &Rope) -> Result<Self> {
        let rotate = |(block, at): &(Block, Positions)| -> Result<(Block, Positions)> {
            let turn = |(k, v): &(Tensor, Tensor)| Ok((rope.apply(k, at)?, v.clone()));
            let layers = block.layers.iter().map(turn).collect::<Result<_>>()?;
            Ok((Block { rows: block.rows.clone(), layers }, at.clone()))
        };
        Ok(Self { blocks: self.blocks.iter().map(rotate).collect::<Result<_>>()? })
    }
}

/// Rows of a piece of a growing block. A piece is as long as what is to come, if that is less.
const PIECE_ROWS: usize = 256;

/// Keys and values of rows that come one by one, written in place: what is there is never copied. The keys have been turned to
/// their positions.
#[derive(Debug)]
pub struct GrowingBlock {
    /// Rows that may come.
    most: usize,
    /// Rows that are there, the one begun last included.
    len: usize,
    pieces: Vec<Piece>,
}

/// A run of rows in storage of its own.
#[derive(Debug)]
struct Piece {
    first: usize,
    rows: usize,
    /// Per layer `[rows, kv_heads, head_dim]`; made when the layer's first row comes.
    layers: Vec<(Tensor, Tensor)>,
    /// Where the rows stand that are there.
    at: Positions,
}

impl GrowingBlock {
    /// A block without rows, to which at most so many may come.
    pub fn new(most: usize) -> Self {
        Self { most, len: 0, pieces: Vec::new() }
    }

    /// A new row begins; every layer gets its key and value ([`push`](Self::push)). `at` tells where rows of these numbers,
    /// counted from the block's first, stand.
    ///
    /// # Panics
    /// If no more rows may come: only a bug can do that.
    pub fn begin_row(&mut self, at: impl Fn(std::ops::Range<u32>) -> Positions) {
        assert!(self.len < self.most, "row {} of a block of {}", self.len, self.most);
        if self.pieces.last().is_none_or(|piece| piece.first + piece.rows == self.len) {
            let (first, rows) = (self.len, PIECE_ROWS.min(self.most - self.len));
            self.pieces.push(Piece { first, rows, layers: Vec::new(), at: Positions::run(0, 0) });
        }
        self.len += 1;
        let piece = self.pieces.last_mut().expect("a piece was just made if there was none");
        piece.at = at(piece.first as u32..self.len as u32);
    }

    /// The key and the value `[1, kv_heads, head_dim]` of the newest row in a layer. Layers come in order.
    ///
    /// # Errors
    /// The tensor library's.
    pub fn push(&mut self, layer: usize, k: &Tensor, v: &Tensor) -> Result<()> {
        let piece = self.pieces.last_mut().expect("a row has begun");
        if piece.layers.len() == layer {
            let (_, kv_heads, head_dim) = k.dims3()?;
            let zeros = || Tensor::zeros((piece.rows, kv_heads, head_dim), k.dtype(), k.device());
            piece.layers.push((zeros()?, zeros()?));
        }
        let (all_k, all_v) = &piece.layers[layer];
        let place = self.len - 1 - piece.first;
        write_rows(all_k, &contiguous(k)?, place)?;
        write_rows(all_v, &contiguous(v)?, place)?;
        Ok(())
    }

    /// The keys of one layer, the newest row's included.
    ///
    /// # Errors
    /// The tensor library's.
    pub fn keys(&self, layer: usize) -> Result<Vec<Keys>> {
        let key = |piece: &Piece| {
            let (k, v) = &piece.layers[layer];
            let rows = piece.at.len();
            Ok(Keys { k: k.narrow(0, 0, rows)?, v: v.narrow(0, 0, rows)?, at: piece.at.clone() })
        };
        self.pieces.iter().map(key).collect()
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
        let block = Block { rows: [4, 5, 6].into(), layers: vec![layer(3), layer(3)] };
        assert_eq!(block.complete(2).layers.len(), 2);
    }

    #[test]
    #[should_panic(expected = "layers of a block")]
    fn a_block_lacks_no_layer() {
        let _ = Block { rows: [4, 5, 6].into(), layers: vec![layer(3)] }.complete(2);
    }

    #[test]
    #[should_panic(expected = "rows with keys in layer 1")]
    fn a_block_lacks_no_row() {
        let _ = Block { rows: [4, 5, 6].into(), layers: vec![layer(3), layer(2)] }.complete(2);
    }

    #[test]
    fn a_growing_block_holds_every_row_and_copies_none() {
        let device = Device::Cpu;
        let most = PIECE_ROWS + 2;
        let mut block = GrowingBlock::new(most);
        let mut first_piece = None;
        for row in 0..most {
            block.begin_row(|rows| Positions::run(rows.start + 7, rows.len()));
            for layer in 0..2 {
                let k = Tensor::full((10 * row + layer) as f32, (1, 1, 2), &device).expect("a key");
                let v = Tensor::full(-((10 * row + layer) as f32), (1, 1, 2), &device).expect("a value");
                block.push(layer, &k, &v).expect("written");
            }
            let id = block.pieces[0].layers[1].0.id();
            assert_eq!(*first_piece.get_or_insert(id), id, "the storage stays the same");
        }
        let keys = block.keys(1).expect("keys");
        assert_eq!(keys.iter().map(|keys| keys.at.len()).collect::<Vec<_>>(), [PIECE_ROWS, 2]);
        assert_eq!(block.pieces[1].layers[0].0.dims(), [2, 1, 2], "no room for rows that cannot come");
        let values =
            |tensor: &Tensor| -> Vec<f32> { tensor.flatten_all().and_then(|flat| flat.to_vec1()).expect("f32") };
        let found: Vec<f32> = keys.iter().flat_map(|keys| values(&keys.k)).collect();
        let expected: Vec<f32> = (0..most).flat_map(|row| [(10 * row + 1) as f32; 2]).collect();
        assert_eq!(found, expected);
        assert_eq!(values(&keys[1].v)[0], -((10 * PIECE_ROWS + 1) as f32));
        assert_eq!(keys[1].at.order(), [PIECE_ROWS as u32 + 7, PIECE_ROWS as u32 + 8]);
    }

    #[test]
    #[should_panic(expected = "row 1 of a block of 1")]
    fn a_growing_block_has_an_end() {
        let mut block = GrowingBlock::new(1);
        block.begin_row(|_| Positions::run(0, 1));
        block.begin_row(|_| Positions::run(0, 2));
    }
}
