//! A cache as a pass over it finds it.

use crate::kv::KvCache;
use crate::placement::Placement;

/// A cache whose rows stand at a placement.
#[derive(Clone, Copy)]
pub struct Placed<'a> {
    /// The cache.
    pub cache: &'a KvCache,
    /// Where its rows stand.
    pub placement: &'a Placement,
    /// The context rows that the pass computes itself: what is cached of them is hidden.
    pub hidden: &'a [u32],
}

impl<'a> Placed<'a> {
    /// The same cache at another placement.
    #[must_use]
    pub fn at(self, placement: &'a Placement) -> Self {
        Self { placement, ..self }
    }
}
