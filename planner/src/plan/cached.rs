//! The places of chunks that were prefilled before, as a plan is told of them.

use std::sync::Arc;

/// Where a chunk lies that was prefilled before.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Held {
    /// Nobody has it.
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

/// What the ranks' chunk caches hold. Empty lists stand for nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Cached<'a> {
    /// Where each chunk of the request lies.
    pub chunks: &'a [Held],
    /// Bytes of keys and values that each rank keeps, of this request's chunks and others.
    pub bytes: &'a [u64],
}
