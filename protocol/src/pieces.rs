//! Pieces in which a prompt is cached by methods that reuse its longest cached prefix. A piece is
//! named by its tokens and the name of the piece before it, so its name covers all tokens up to its
//! end.

use std::ops::Range;

use crate::{ChunkKey, KeySpace, Plan};

/// Rows of a piece: a prompt that departs from a cached one inside a piece computes that piece.
pub const PIECE_ROWS: usize = 64;

/// A run of a prompt's rows in the chunk cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PromptPiece {
    /// Its rows, counted from the prompt's first.
    pub rows: Range<usize>,
    /// The ids of its tokens.
    pub ids: Vec<u32>,
    /// Its name.
    pub key: ChunkKey,
    /// Bytes that its name covers besides its tokens: the name of the piece before it, and the
    /// scope.
    pub extra: Vec<u8>,
}

impl Plan {
    /// The pieces of the whole prompt, in its order: [`PIECE_ROWS`] rows each, the last one fewer.
    pub fn prompt_pieces(&self, space: &KeySpace) -> Vec<PromptPiece> {
        let all = self.all_ids();
        let mut pieces: Vec<PromptPiece> = Vec::new();
        for rows in self.piece_rows() {
            let mut extra = b"piece".to_vec();
            extra.extend(pieces.last().map(|before| before.key.bytes()).into_iter().flatten());
            extra.extend(self.scope.map(u64::to_le_bytes).into_iter().flatten());
            let ids = all[rows.clone()].to_vec();
            let key = space.chunk(&[], &ids, &extra);
            pieces.push(PromptPiece { rows, ids, key, extra });
        }
        pieces
    }

    fn piece_rows(&self) -> impl Iterator<Item = Range<usize>> {
        let total = self.total_rows();
        (0..total).step_by(PIECE_ROWS).map(move |from| from..total.min(from + PIECE_ROWS))
    }

    /// Number of entries of the chunk cache that the prompt may come from: its chunks, or the
    /// pieces of the whole prompt.
    pub fn cacheable_count(&self) -> usize {
        if self.method.reuses_prefix() { self.piece_rows().count() } else { self.chunks.len() }
    }

    /// Rows of the prefix and of the first `share` of the chunks; no rows if that is no chunk.
    pub fn leading_rows(&self, share: f64) -> usize {
        let chunks = (share * self.chunks.len() as f64 + 1e-9).floor() as usize;
        let rows =
            |count: usize| self.prefix_tokens() + self.chunks[..count].iter().map(|chunk| chunk.rows()).sum::<usize>();
        if chunks == 0 { 0 } else { rows(chunks.min(self.chunks.len())) }
    }
}
