//! Places of cached chunks, as an input of a plan.

use std::sync::Arc;

/// Place of a cached chunk.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Held {
    /// Not cached.
    #[default]
    Nowhere,
    /// In the memory of this rank.
    Memory(usize),
    /// In a store that these ranks read, ascending.
    Stored(Arc<[usize]>),
}

impl Held {
    /// The same for a group of fewer ranks.
    pub(super) fn within(&self, world: usize) -> Self {
        match self {
            Held::Memory(rank) if *rank < world => self.clone(),
            Held::Stored(ranks) if ranks.last().is_some_and(|&last| last < world) => self.clone(),
            Held::Stored(ranks) if ranks.first().is_some_and(|&first| first < world) => {
                Held::Stored(ranks.iter().copied().filter(|&rank| rank < world).collect())
            }
            _ => Held::Nowhere,
        }
    }
}

/// Contents of the ranks' chunk caches. Empty lists stand for nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Cached<'a> {
    /// Place of each chunk of the request.
    pub chunks: &'a [Held],
    /// Rows of the longest prefix of the prompt that each rank's chunk cache, or a store that it
    /// reads, has in pieces.
    pub prefix: &'a [usize],
    /// Bytes of keys and values that each rank keeps, of this request's chunks and others.
    pub bytes: &'a [u64],
}
