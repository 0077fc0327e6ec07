//! The remainder of a prompt's cache on a rank after an eviction.

use tributary_protocol::{Evict, Evicted, KeptRows};

use crate::kv::View;

/// The part of a prompt that a rank keeps.
pub struct Remains {
    /// Context rows kept here, with keys turned to their positions. Includes prefix and query
    /// unless contexts are parallel.
    pub own: View,
    /// Prefix and query on the owner, if contexts are parallel.
    pub rest: View,
    /// Whether the owner now holds everything.
    pub alone: bool,
    /// Position of the first generated row, if it is not the one after the query.
    pub next_position: Option<u32>,
    /// Rows that each KV head of each layer keeps, of all ranks together.
    pub kept: KeptRows,
    /// The eviction's counts and bytes.
    pub report: Evicted,
}

impl Remains {
    /// The remainder on a rank that holds nothing the owner needs.
    pub(super) fn nothing(evict: &Evict) -> Self {
        let next_position = evict.descriptor().contiguous.then_some(evict.keep as u32);
        let (own, rest, kept) = (View::default(), View::default(), KeptRows::default());
        Self { own, rest, alone: true, next_position, kept, report: Evicted::default() }
    }
}
