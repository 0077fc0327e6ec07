//! Which keys the rows of a tile may see: keys of packed segments that no row of a tile sees are
//! left out before anything is computed.

use crate::{PAD, Positions, Rule, SHARED};

/// Query rows of a tile, at most.
const TILE_ROWS: usize = 128;

/// Consecutive query rows of one segment, and the keys that at least one of them may see.
pub(super) struct Tile {
    pub from: usize,
    pub count: usize,
    /// Places of the keys.
    pub keys: Vec<u32>,
    /// Whether a row sees a key, `[count, keys]`.
    pub visible: Vec<bool>,
}

/// The tiles of all queries. None for queries that do not see causally or have a window,
/// and for positions that differ by KV head.
pub(super) fn tiles(at_q: &Positions, at_k: &Positions) -> Option<Vec<Tile>> {
    if at_q.heads().is_some() || at_k.heads().is_some() || at_q.rule() != Rule::Causal || at_q.window().is_some() {
        return None;
    }
    let (segments, mut found, mut from) = (at_q.segment(), Vec::new(), 0);
    while from < segments.len() {
        let run = segments[from..].iter().take_while(|&&segment| segment == segments[from]).count();
        found.push(tile(at_q, at_k, from, run.min(TILE_ROWS)));
        from += run.min(TILE_ROWS);
    }
    Some(found)
}

fn tile(at_q: &Positions, at_k: &Positions, from: usize, count: usize) -> Tile {
    let orders = &at_q.order()[from..from + count];
    let own = at_q.segment()[from];
    let latest = orders.iter().copied().filter(|&order| order != PAD).max();
    let in_sight = |&key: &u32| {
        let (order, segment) = (at_k.order()[key as usize], at_k.segment()[key as usize]);
        order != PAD && latest.is_some_and(|latest| order <= latest) && (segment == own || segment == SHARED)
    };
    let keys: Vec<u32> = (0..at_k.len() as u32).filter(in_sight).collect();
    let mut visible = Vec::with_capacity(count * keys.len());
    for &order in orders {
        visible.extend(keys.iter().map(|&key| order != PAD && at_k.order()[key as usize] <= order));
    }
    Tile { from, count, keys, visible }
}
