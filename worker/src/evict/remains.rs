//! What an eviction leaves of a prompt's cache on a rank.

use tributary_protocol::{Evict, Evicted, KeptRows};

use crate::kv::View;

/// What a rank keeps of a prompt.
pub struct Remains {
    /// The context's rows that are kept here; where contexts do not stand beside each other, prefix and query too. Keys are turned to
    /// their positions.
    pub own: View,
    /// Where contexts stand beside each other, on the owner: prefix and query.
    pub rest: View,
    /// Whether the owner has everything now.
    pub alone: bool,
    /// The first generated row's position, where it is not the one after the query.
    pub next_position: Option<u32>,
    /// Which rows each KV head of each layer keeps, of all ranks together.
    pub kept: KeptRows,
    /// The eviction's counts and bytes.
    pub report: Evicted,
}

impl Remains {
    /// Of a rank that holds nothing the owner needs.
    pub(super) fn nothing(evict: &Evict) -> Self {
        let next_position = evict.descriptor().contiguous.then_some(evict.keep as u32);
        let (own, rest, kept) = (View::default(), View::default(), KeptRows::default());
        Self { own, rest, alone: true, next_position, kept, report: Evicted::default() }
    }
}
