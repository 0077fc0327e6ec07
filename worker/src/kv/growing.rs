//! The generated rows of a sequence, which arrive one by one.

use candle_core::Tensor;
use tributary_kernels::{Keys, Positions, contiguous, write_rows};

use crate::error::Result;

/// Rows of a piece of a growing block. A piece has fewer rows if fewer are still to come.
const PIECE_ROWS: usize = 256;

/// Keys and values of rows that arrive one by one, written in place: earlier rows are never copied.
/// Keys are turned to their positions already.
#[derive(Debug)]
pub struct GrowingBlock {
    /// Maximum number of rows.
    most: usize,
    /// Number of rows, the one begun last included.
    len: usize,
    pieces: Vec<Piece>,
}

/// A run of rows in storage of its own.
#[derive(Debug)]
struct Piece {
    first: usize,
    rows: usize,
    /// Per layer `[rows, kv_heads, head_dim]`; allocated with the layer's first row.
    layers: Vec<(Tensor, Tensor)>,
    /// Positions of the existing rows.
    at: Positions,
}

impl GrowingBlock {
    /// A block without rows, for at most `most` rows.
    pub fn new(most: usize) -> Self {
        Self { most, len: 0, pieces: Vec::new() }
    }

    /// Begins a new row; every layer then gets its key and value ([`push`](Self::push)). `at` gives
    /// the positions of rows by their numbers from the block's first row.
    ///
    /// # Panics
    /// If the block is full: only a bug can cause that.
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

    /// Adds the key and the value `[1, kv_heads, head_dim]` of the newest row in a layer. Layers
    /// come in order.
    ///
    /// # Errors
    /// Returns an error if a candle operation fails.
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
    /// Returns an error if a candle operation fails.
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
    use candle_core::Device;

    use super::*;

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
