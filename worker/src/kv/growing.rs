//! The rows that a sequence gets after its prefill: generated ones arrive one by one, those of a
//! later turn of its conversation together.

use candle_core::Tensor;
use tributary_kernels::{Keys, Positions, contiguous, join, write_rows};

use crate::error::Result;

/// Rows of a piece of a growing block. A piece has fewer rows if fewer are still to come.
const PIECE_ROWS: usize = 256;

/// Number of pieces beyond which those of a kept sequence are joined to one.
const MOST_PIECES: usize = 8;

/// Keys and values of rows that arrive one by one or in runs, written in place: earlier rows are
/// never copied. Keys are turned to their positions already, but for those in 8 bits.
#[derive(Debug)]
pub struct GrowingBlock {
    /// Maximum number of rows.
    most: usize,
    /// Number of rows, those begun last included.
    len: usize,
    /// Number of rows begun last.
    begun: usize,
    pieces: Vec<Piece>,
}

/// A run of rows in storage of its own.
#[derive(Debug, Clone)]
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
        Self { most, len: 0, begun: 0, pieces: Vec::new() }
    }

    /// The first `rows` rows, which are shared, for `more` further ones: a block that takes none
    /// any more is the beginning of several.
    ///
    /// # Errors
    /// Returns an error if a candle operation fails.
    pub fn going_on(&self, rows: usize, more: usize) -> Result<Self> {
        assert!(rows <= self.len, "the first {rows} rows of {}", self.len);
        let mut pieces = Vec::new();
        for piece in self.pieces.iter().filter(|piece| piece.first < rows) {
            let count = piece.at.len().min(rows - piece.first);
            let places: Vec<u32> = (0..count as u32).collect();
            // A piece with room would keep the memory of its room.
            let own = |x: &Tensor| match count == piece.rows {
                true => Ok(x.clone()),
                false => x.narrow(0, 0, count)?.force_contiguous(),
            };
            let layers = piece.layers.iter().map(|(k, v)| Ok((own(k)?, own(v)?))).collect::<Result<_>>()?;
            pieces.push(Piece { first: piece.first, rows: count, layers, at: piece.at.select(&places) });
        }
        if pieces.len() > MOST_PIECES {
            pieces = vec![Piece::joined(&pieces)?];
        }
        Ok(Self { most: rows + more, len: rows, begun: 0, pieces })
    }

    /// Begins `count` new rows; every layer then gets their keys and values
    /// ([`push`](Self::push)). `at` gives the positions of rows by their numbers from the block's
    /// first row. Rows of a run are together in one piece.
    ///
    /// # Panics
    /// If the block is full: only a bug can cause that.
    pub fn begin_rows(&mut self, count: usize, at: impl Fn(std::ops::Range<u32>) -> Positions) {
        let end = self.len + count;
        assert!(end <= self.most, "row {} of a block of {}", end - 1, self.most);
        if self.pieces.last().is_none_or(|piece| piece.first + piece.rows < end) {
            let (first, rows) = (self.len, (count + PIECE_ROWS - 1).min(self.most - self.len));
            self.pieces.push(Piece { first, rows, layers: Vec::new(), at: Positions::run(0, 0) });
        }
        (self.len, self.begun) = (end, count);
        let piece = self.pieces.last_mut().expect("a piece was just made if there was none");
        piece.at = at(piece.first as u32..end as u32);
    }

    /// Adds keys and values `[rows, kv_heads, head_dim]` of the rows begun last in a layer. Layers
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
        assert_eq!(k.dim(0)?, self.begun, "keys of the rows begun last");
        let place = self.len - self.begun - piece.first;
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

impl Piece {
    /// Pieces without room, as one.
    fn joined(pieces: &[Piece]) -> Result<Self> {
        let (first, rows) = (pieces[0].first, pieces.iter().map(|piece| piece.rows).sum());
        let joined = |layer: usize, pick: fn(&(Tensor, Tensor)) -> &Tensor| {
            join(&pieces.iter().map(|piece| pick(&piece.layers[layer])).collect::<Vec<_>>(), 0)
        };
        let layers = 0..pieces[0].layers.len();
        let layers = layers.map(|layer| Ok((joined(layer, |pair| &pair.0)?, joined(layer, |pair| &pair.1)?)));
        let at = Positions::concat(&pieces.iter().map(|piece| &piece.at).collect::<Vec<_>>());
        Ok(Self { first, rows, layers: layers.collect::<Result<_>>()?, at })
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
            block.begin_rows(1, |rows| Positions::run(rows.start + 7, rows.len()));
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
        block.begin_rows(1, |_| Positions::run(0, 1));
        block.begin_rows(1, |_| Positions::run(0, 2));
    }
}
