//! A cache with the positions that a pass sees it at.

use crate::kv::KvCache;
use crate::placement::Placement;

/// A cache whose rows have the positions of a placement.
#[derive(Clone, Copy)]
pub struct Placed<'a> {
    /// The cache.
    pub cache: &'a KvCache,
    /// Placement of its rows.
    pub placement: &'a Placement,
    /// The context rows that the pass computes itself: their cached form is hidden.
    pub hidden: &'a [u32],
}

impl<'a> Placed<'a> {
    /// The same cache at another placement.
    #[must_use]
    pub fn at(self, placement: &'a Placement) -> Self {
        Self { placement, ..self }
    }
}
