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
    /// Places of its rows, counted from the prompt's first.
    pub rows: Range<usize>,
    /// The ids of its tokens.
    pub ids: Vec<u32>,
    /// Its name.
    pub key: ChunkKey,
    /// Bytes that its name covers besides its tokens: the name of the piece before it, and the
    /// scope.
    pub extra: Vec<u8>,
}

/// The pieces of a prompt of these tokens in a scope, named one by one, after a piece that ends at
/// row `first`.
pub fn prompt_pieces(
    space: &KeySpace,
    scope: Option<u64>,
    (mut before, first): (Option<ChunkKey>, usize),
    ids: &[u32],
) -> impl Iterator<Item = PromptPiece> {
    ids.chunks(PIECE_ROWS).enumerate().map(move |(index, ids)| {
        let mut extra = b"piece".to_vec();
        extra.extend(before.map(|before| before.bytes()).into_iter().flatten());
        extra.extend(scope.map(u64::to_le_bytes).into_iter().flatten());
        let key = space.chunk(&[], ids, &extra);
        before = Some(key);
        let start = first + index * PIECE_ROWS;
        PromptPiece { rows: start..start + ids.len(), ids: ids.to_vec(), key, extra }
    })
}

impl Plan {
    /// The pieces of the whole prompt, in the order of its rows' places.
    pub fn prompt_pieces(&self, space: &KeySpace) -> Vec<PromptPiece> {
        let chunks = self.prompt_order().into_iter().flat_map(|chunk| &self.chunks[chunk as usize].ids);
        let ids: Vec<u32> = self.prefix.iter().chain(chunks).chain(&self.query).copied().collect();
        prompt_pieces(space, self.scope, (None, 0), &ids).collect()
    }

    /// Number of entries of the chunk cache that the prompt may come from: its chunks, or the
    /// pieces of the whole prompt.
    pub fn cacheable_count(&self) -> usize {
        if self.method.reuses_prefix() { self.total_rows().div_ceil(PIECE_ROWS) } else { self.chunks.len() }
    }

    /// Rows of the prefix and of the first `share` of the chunks; no rows if that is no chunk.
    pub fn leading_rows(&self, share: f64) -> usize {
        let count = (share * self.chunks.len() as f64 + 1e-9).floor() as usize;
        let first = self.prompt_order().into_iter().take(count).map(|chunk| self.chunks[chunk as usize].rows());
        if count == 0 { 0 } else { self.prefix_tokens() + first.sum::<usize>() }
    }
}
