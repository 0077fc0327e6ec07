//! The rows that a sequence gets after its prefill: generated ones arrive one by one, those of a
//! later turn of its conversation together.

use candle_core::Tensor;
use tributary_kernels::{Keys, Positions, contiguous, join, write_rows};
use tributary_model::LayerAttention;

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
    /// Per layer `[rows, kv_heads, head_dim]`; allocated with the layer's first row, and absent
    /// where no row is seen any more.
    layers: Vec<Option<(Tensor, Tensor)>>,
    /// Positions of the existing rows.
    at: Positions,
}

impl GrowingBlock {
    /// A block without rows, for at most `most` rows.
    pub fn new(most: usize) -> Self {
        Self { most, len: 0, begun: 0, pieces: Vec::new() }
    }

    /// The first `rows` rows, which are shared, for `more` further ones: a block that takes none
    /// any more is the beginning of several. With a position, rows that no query from there on sees
    /// are left out of layers with a sliding window.
    ///
    /// # Errors
    /// Returns an error if a candle operation fails.
    pub fn going_on(&self, (rows, more): (usize, usize), seen_from: Option<(u32, &[LayerAttention])>) -> Result<Self> {
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
            let of_layer =
                |pair: &Option<(Tensor, Tensor)>| pair.as_ref().map(|(k, v)| Ok((own(k)?, own(v)?))).transpose();
            let layers = piece.layers.iter().map(of_layer).collect::<Result<_>>()?;
            pieces.push(Piece { first: piece.first, rows: count, layers, at: piece.at.select(&places) });
        }
        let mut this = Self { most: rows + more, len: rows, begun: 0, pieces };
        if let Some((from, layers)) = seen_from {
            this.drop_unseen(from, layers);
        }
        if this.pieces.len() > MOST_PIECES {
            // Pieces that have the same layers.
            let alike = this.pieces.chunk_by(|one, next| one.lacks().eq(next.lacks()));
            this.pieces = alike.map(Piece::joined).collect::<Result<_>>()?;
        }
        Ok(this)
    }

    /// Drops pieces of which no query from position `from` on sees a row, in the layers with a
    /// sliding window.
    pub fn drop_unseen(&mut self, from: u32, layers: &[LayerAttention]) {
        let Some((_, older)) = self.pieces.split_last_mut() else { return };
        for piece in older {
            let highest = piece.at.rope().last().copied();
            for (pair, of) in piece.layers.iter_mut().zip(layers) {
                if of.lowest_seen(from).is_some_and(|lowest| highest.is_none_or(|highest| highest < lowest)) {
                    *pair = None;
                }
            }
        }
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
            piece.layers.push(Some((zeros()?, zeros()?)));
        }
        let (all_k, all_v) = piece.layers[layer].as_ref().expect("rows of the newest piece are seen");
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
            let (k, v) = piece.layers[layer].as_ref()?;
            let rows = piece.at.len();
            let narrowed = k.narrow(0, 0, rows).and_then(|k| Ok((k, v.narrow(0, 0, rows)?)));
            Some(narrowed.map(|(k, v)| Keys { k, v, at: piece.at.clone() }))
        };
        Ok(self.pieces.iter().filter_map(key).collect::<candle_core::Result<_>>()?)
    }
}

impl Piece {
    /// Whether each layer is absent.
    fn lacks(&self) -> impl Iterator<Item = bool> + '_ {
        self.layers.iter().map(Option::is_none)
    }

    /// Pieces without room that have the same layers, as one.
    fn joined(pieces: &[Piece]) -> Result<Self> {
        let (first, rows) = (pieces[0].first, pieces.iter().map(|piece| piece.rows).sum());
        let joined = |layer: usize| -> Result<Option<(Tensor, Tensor)>> {
            let pairs: Option<Vec<_>> = pieces.iter().map(|piece| piece.layers[layer].as_ref()).collect();
            let Some(pairs) = pairs else { return Ok(None) };
            let (k, v): (Vec<&Tensor>, Vec<&Tensor>) = pairs.into_iter().map(|(k, v)| (k, v)).unzip();
            Ok(Some((join(&k, 0)?, join(&v, 0)?)))
        };
        let layers = (0..pieces[0].layers.len()).map(joined);
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
            let id = block.pieces[0].layers[1].as_ref().expect("it is seen").0.id();
            assert_eq!(*first_piece.get_or_insert(id), id, "the storage stays the same");
        }
        let keys = block.keys(1).expect("keys");
        assert_eq!(keys.iter().map(|keys| keys.at.len()).collect::<Vec<_>>(), [PIECE_ROWS, 2]);
        assert_eq!(block.keys(0).expect("keys")[1].k.dims(), [2, 1, 2], "no room for rows that cannot come");
        let values =
            |tensor: &Tensor| -> Vec<f32> { tensor.flatten_all().and_then(|flat| flat.to_vec1()).expect("f32") };
        let found: Vec<f32> = keys.iter().flat_map(|keys| values(&keys.k)).collect();
        let expected: Vec<f32> = (0..most).flat_map(|row| [(10 * row + 1) as f32; 2]).collect();
        assert_eq!(found, expected);
        assert_eq!(values(&keys[1].v)[0], -((10 * PIECE_ROWS + 1) as f32));
        assert_eq!(keys[1].at.order(), [PIECE_ROWS as u32 + 7, PIECE_ROWS as u32 + 8]);
    }

    /// Two layers, the second with a window.
    fn layers(window: u32) -> Vec<LayerAttention> {
        let mut config = crate::kit::config();
        config["architectures"] = serde_json::json!(["Gemma3ForCausalLM"]);
        config["sliding_window"] = window.into();
        config["layer_types"] = serde_json::json!(["full_attention", "sliding_attention", "full_attention"]);
        let model = crate::kit::model(&config);
        model.layer_attention(16).expect("tables")[..2].to_vec()
    }

    #[test]
    fn pieces_beyond_a_window_go_from_its_layers_and_later_turns_have_the_others() {
        let (layers, device) = (layers(20), Device::Cpu);
        let mut block = GrowingBlock::new(4000);
        let add = |block: &mut GrowingBlock, count: usize, drops: bool| {
            block.begin_rows(count, |rows| Positions::run(rows.start + 100, rows.len()));
            if drops {
                block.drop_unseen(100 + (block.len - count) as u32, &layers);
            }
            let rows = Tensor::zeros((count, 1, 2), candle_core::DType::F32, &device).expect("rows");
            (0..2).for_each(|layer| block.push(layer, &rows, &rows).expect("written"));
        };
        let rows = |block: &GrowingBlock, layer: usize| {
            let keys = block.keys(layer).expect("keys");
            keys.iter().flat_map(|keys| keys.at.rope().to_vec()).collect::<Vec<u32>>()
        };
        for row in 0..2 * PIECE_ROWS + 19 {
            add(&mut block, 1, true);
            let first = if row < PIECE_ROWS + 19 { 0 } else { PIECE_ROWS };
            assert_eq!(rows(&block, 1), (100 + first as u32..=100 + row as u32).collect::<Vec<_>>(), "row {row}");
        }
        assert_eq!(rows(&block, 0).len(), 2 * PIECE_ROWS + 19, "a layer without a window keeps all");
        // A row more, and the second piece is beyond the window too.
        add(&mut block, 1, true);
        assert_eq!(rows(&block, 1)[0] as usize, 100 + 2 * PIECE_ROWS);

        // Turns of 10 rows: what is left of their pieces is joined, with and without windows.
        let mut turn = GrowingBlock::new(4000);
        for rows_before in (0..300).step_by(10) {
            turn = turn.going_on((rows_before, 4000), Some((100 + rows_before as u32, &layers))).expect("shared");
            add(&mut turn, 10, false);
            assert!(turn.pieces.len() <= MOST_PIECES + 2, "{} pieces", turn.pieces.len());
            let all: Vec<u32> = (100..100 + rows_before as u32 + 10).collect();
            assert_eq!(rows(&turn, 0), all);
            let found = rows(&turn, 1);
            assert!(all.ends_with(&found) && found.len() >= all.len().min(29), "{} rows", found.len());
            assert!(found.len() < 40 + 10 * MOST_PIECES, "{} rows of {} are in the window", found.len(), all.len());
        }
    }

    #[test]
    #[should_panic(expected = "row 1 of a block of 1")]
    fn a_growing_block_has_an_end() {
        let mut block = GrowingBlock::new(1);
        block.begin_rows(1, |_| Positions::run(0, 1));
        block.begin_rows(1, |_| Positions::run(0, 2));
    }
}
