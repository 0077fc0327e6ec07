//! Texts without documents: their cuts into chunks, and the part of them after all chunks.

use crate::chunking::Chunking;
use crate::tokenize::Piece;
use crate::{Error, Result};

/// Tokens of a text without documents that are computed after its one chunk, the template's tail
/// included.
pub const TEXT_QUERY_TOKENS: usize = 32;

/// Byte positions after each separator of a text that begins at `from`, if the chunking has a
/// separator.
pub fn separators(text: &str, chunking: &Chunking, from: usize) -> Vec<usize> {
    match chunking {
        Chunking::Separator(separator) if !separator.is_empty() => {
            text.match_indices(separator.as_str()).map(|(at, found)| from + at + found.len()).collect()
        }
        _ => Vec::new(),
    }
}

/// Tokens as chunks of at most `chunk_tokens`, and the last ones as the text after them. A chunk
/// begins at each of `cuts`, and tokens after the last cut follow all chunks.
pub fn text_chunks(mut ids: Vec<u32>, chunk_tokens: usize, cuts: &[usize]) -> Result<(Vec<Piece>, Vec<u32>)> {
    if ids.len() < 2 {
        // A single token has nothing before it that could be reused.
        return if ids.is_empty() { Err(Error::EmptyQuery) } else { Ok((Vec::new(), ids)) };
    }
    let mut cuts: Vec<usize> = cuts.iter().copied().filter(|&cut| cut > 0 && cut < ids.len()).collect();
    cuts.dedup();
    let last = ids.len().saturating_sub(TEXT_QUERY_TOKENS).max(1);
    let after = cuts.last().copied().filter(|&cut| ids.len() - cut <= chunk_tokens);
    let query = ids.split_off(after.unwrap_or(last));
    cuts.retain(|&cut| cut < ids.len());
    let (mut chunks, mut from) = (Vec::new(), 0);
    for to in cuts.into_iter().chain([ids.len()]) {
        let chunk = |ids: &[u32]| Piece { ids: ids.to_vec(), ..Piece::default() };
        chunks.extend(ids[from..to].chunks(chunk_tokens.max(1)).map(chunk));
        from = to;
    }
    Ok((chunks, query))
}
