//! Texts without documents: their cuts into chunks, and the part of them after all chunks.

use tributary_protocol::SplitMix64;

use crate::Result;
use crate::chunking::Chunking;
use crate::error::PlanError;
use crate::tokenize::Piece;

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

/// How a text that is longer than a chunk is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cutting {
    /// Into chunks of this number of tokens.
    Fixed(usize),
    /// Where the content says so, into chunks of at most this number of tokens, and a 32nd more at
    /// the end: chunks after a change in the text are as before it.
    Content(usize),
}

impl Cutting {
    /// Tokens of the longest text that is one chunk.
    pub fn most(self) -> usize {
        let (Cutting::Fixed(tokens) | Cutting::Content(tokens)) = self;
        tokens.max(1)
    }

    /// The ends of the chunks of a text.
    fn ends(self, ids: &[u32]) -> Vec<usize> {
        let most = self.most();
        match self {
            Cutting::Fixed(_) => (1..=ids.len().div_ceil(most)).map(|end| (end * most).min(ids.len())).collect(),
            Cutting::Content(_) if ids.len() <= most => vec![ids.len()],
            Cutting::Content(_) => by_content(ids, most),
        }
    }
}

/// Ends of chunks by content: a chunk ends where a hash of the tokens before that place is small (a
/// gear hash, as in FastCDC, Xia et al. 2016, over tokens instead of bytes). A chunk has at least a
/// 32nd of `most` tokens and on average about a quarter. It never ends within a run of equal
/// tokens, unless it is full; a run of a longer period has few hashes, and may have the shortest
/// chunks. A remainder that is too short belongs to the chunk before it.
fn by_content(ids: &[u32], most: usize) -> Vec<usize> {
    let (least, mean) = ((most / 32).max(1), (most / 4).max(2));
    let is_small = u64::MAX / (mean - least).max(1) as u64;
    let (mut ends, mut begin, mut hash) = (Vec::new(), 0, 0u64);
    for (index, &id) in ids.iter().enumerate() {
        // Each step forgets a bit: the hash is of the last 64 tokens, wherever the chunk began.
        hash = (hash << 1).wrapping_add(mixed(id));
        let end = index + 1;
        let repeats = index > 0 && ids[index - 1] == id || ids.get(end) == Some(&id);
        if end - begin == most || (end - begin >= least && hash < is_small && !repeats) {
            ends.push(end);
            begin = end;
        }
    }
    if begin < ids.len() {
        if ids.len() - begin < least {
            ends.pop();
        }
        ends.push(ids.len());
    }
    ends
}

/// A token id with its bits mixed: the number of SplitMix64 at that place.
fn mixed(id: u32) -> u64 {
    SplitMix64::after(0, u64::from(id)).draw()
}

/// Tokens as chunks, and the last ones as the text after them. A chunk begins at each of `cuts`,
/// tokens after the last cut follow all chunks, and what is too long between two cuts is cut by
/// `cutting`.
///
/// # Errors
/// Returns [`PlanError::EmptyQuery`] if there is no token.
pub fn text_chunks(mut ids: Vec<u32>, cutting: Cutting, cuts: &[usize]) -> Result<(Vec<Piece>, Vec<u32>)> {
    if ids.len() < 2 {
        // A single token has nothing before it that could be reused.
        return if ids.is_empty() { Err(PlanError::EmptyQuery.into()) } else { Ok((Vec::new(), ids)) };
    }
    let mut cuts: Vec<usize> = cuts.iter().copied().filter(|&cut| cut > 0 && cut < ids.len()).collect();
    cuts.dedup();
    let last = ids.len().saturating_sub(TEXT_QUERY_TOKENS).max(1);
    let after = cuts.last().copied().filter(|&cut| ids.len() - cut <= cutting.most());
    let query = ids.split_off(after.unwrap_or(last));
    cuts.retain(|&cut| cut < ids.len());
    let (mut chunks, mut from) = (Vec::new(), 0);
    for to in cuts.into_iter().chain([ids.len()]) {
        let part = &ids[from..to];
        let mut begin = 0;
        for end in cutting.ends(part) {
            chunks.push(Piece { ids: part[begin..end].to_vec(), ..Piece::default() });
            begin = end;
        }
        from = to;
    }
    Ok((chunks, query))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    const MOST: usize = 2048;

    /// A text of this number of tokens; other seeds give other texts.
    fn text(seed: u64, tokens: usize) -> Vec<u32> {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // Words by Zipf's law, roughly.
            let uniform = (state >> 33) as f64 / (1u64 << 31) as f64;
            (4000f64.powf(uniform)) as u32
        };
        (0..tokens).map(|_| next()).collect()
    }

    fn chunks(ids: &[u32], cutting: Cutting) -> Vec<Vec<u32>> {
        text_chunks(ids.to_vec(), cutting, &[]).expect("chunks").0.into_iter().map(|piece| piece.ids).collect()
    }

    /// The share of tokens whose chunk was there before, over texts that come one after the other.
    fn hits(texts: &[Vec<u32>], cutting: Cutting) -> f64 {
        let (mut seen, mut hits, mut tokens) = (HashSet::new(), 0, 0);
        for text in texts {
            for chunk in chunks(text, cutting) {
                tokens += chunk.len();
                if !seen.insert(chunk.clone()) {
                    hits += chunk.len();
                }
            }
        }
        hits as f64 / tokens as f64
    }

    #[test]
    fn chunks_by_content_are_within_their_bounds_and_lose_nothing() {
        for (seed, tokens) in [(1, 2049 + 32), (2, 10_000), (3, 100_000)] {
            let ids = text(seed, tokens);
            let (pieces, query) = text_chunks(ids.clone(), Cutting::Content(MOST), &[]).expect("chunks");
            let joined: Vec<u32> = pieces.iter().flat_map(|piece| piece.ids.clone()).chain(query).collect();
            assert_eq!(joined, ids);
            let lengths: Vec<usize> = pieces.iter().map(|piece| piece.ids.len()).collect();
            assert!(lengths.iter().all(|&length| (64..MOST + 64).contains(&length)), "{lengths:?}");
        }
        let mean = 99_968 / chunks(&text(3, 100_000), Cutting::Content(MOST)).len();
        assert!((400..700).contains(&mean), "{mean} tokens a chunk");
    }

    #[test]
    fn a_run_of_equal_tokens_is_cut_where_a_chunk_is_full() {
        for id in 0..200 {
            let lengths: Vec<usize> =
                chunks(&vec![id; 3 * MOST + 50 + 32], Cutting::Content(MOST)).iter().map(Vec::len).collect();
            assert_eq!(lengths, [MOST, MOST, MOST + 50], "token {id}");
        }
    }

    #[test]
    fn a_short_text_is_one_chunk() {
        assert_eq!(chunks(&text(4, MOST + 32), Cutting::Content(MOST)).len(), 1);
        assert_eq!(chunks(&text(4, MOST + 33), Cutting::Fixed(MOST)).len(), 2);
    }

    #[test]
    fn a_history_that_grows_hits_as_in_fixed_slices() {
        let whole = text(5, 30_000);
        let texts: Vec<Vec<u32>> = (1..=60).map(|turn| whole[..turn * 500 + turn * turn % 200].to_vec()).collect();
        let (content, fixed) = (hits(&texts, Cutting::Content(MOST)), hits(&texts, Cutting::Fixed(MOST)));
        assert!(content >= fixed - 0.02 && fixed > 0.8, "{content} by content, {fixed} in slices");
    }

    #[test]
    fn a_changed_first_line_leaves_later_chunks_as_they_are() {
        for seed in 0..10 {
            let before = text(100 + seed, 20_000);
            let line = text(200 + seed, 7 + seed as usize);
            let at = 40 * seed as usize;
            let with = |from: usize, to: usize, line: &[u32]| [&before[..from], line, &before[to..]].concat();
            for (what, after) in [
                ("changed", with(at, at + 20, &line)),
                ("added", with(at, at, &line)),
                ("deleted", with(at, at + 13, &[])),
            ] {
                // Half of all tokens are those of the first text.
                let of = |cutting| 2.0 * hits(&[before.clone(), after.clone()], cutting);
                let (content, fixed) = (of(Cutting::Content(MOST)), of(Cutting::Fixed(MOST)));
                assert!(content >= 0.8, "{what}, seed {seed}: {content} by content");
                assert!(fixed < 0.1, "{what}, seed {seed}: {fixed} in slices");
            }
        }
    }
}
