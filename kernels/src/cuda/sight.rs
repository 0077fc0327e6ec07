//! Visibility, computed once for all layers of a pass: keys and queries are put in an order in
//! which a query sees at most two runs of keys, and for every tile of queries the tiles of keys
//! that it meets are listed.
//!
//! The order is the kernels' own; results are written back to where the caller expects them. So no
//! layout, no overlay of fresh rows and no hidden row costs more than the keys that are seen.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

use crate::positions::{PAD, Positions, Rule, SHARED};

/// Blocks of keys that a launch reaches (`MAX_BLOCKS` in attention.cuh). Where there are more, the
/// last one is all the others, joined.
pub(super) const MAX_BLOCKS: usize = 240;

/// Bits of a key's row within its block (`ROW_BITS` in attention.cuh).
pub(super) const ROW_BITS: u32 = 22;

/// An item without a partial result (`NO_SLOT` in attention.cuh).
pub(super) const NO_SLOT: u32 = u32::MAX;

/// Parts shorter than this many key tiles are not worth a merge.
const SHORTEST_PART: usize = 4;

/// The cost of an item's begin and end, in key tiles (a model, not measured).
const ITEM_TILES: usize = 3;

/// Tiling of a kernel's work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tiling {
    /// Rows of a query tile, the heads of a group counted one by one.
    pub rows: usize,
    /// Keys of a key tile.
    pub keys: usize,
    /// Query heads a KV head.
    pub group: usize,
    /// Number of KV heads; each takes every item.
    pub kv_heads: usize,
    /// Blocks that the device runs at a time.
    pub resident: usize,
}

impl Tiling {
    /// Query rows of a tile.
    pub fn queries(&self) -> usize {
        self.rows / self.group
    }
}

/// The keys in the kernels' order.
#[derive(Debug, Default)]
pub(super) struct KeyOrder {
    /// Place to block and row.
    pub source: Vec<u32>,
    /// Place to rotary position.
    pub rope: Vec<u32>,
    /// Place to number among all keys, block by block.
    pub number: Vec<u32>,
    /// Place to causal order.
    order: Vec<u32>,
    /// End of the shared keys, which come first.
    shared: usize,
    /// Segment and first place of each, ascending.
    segments: Vec<(u32, usize)>,
}

impl KeyOrder {
    /// Puts the keys of all blocks in order: shared ones, then segment by segment, each by causal
    /// order. Padding is left out.
    pub fn new(blocks: &[&Positions]) -> Self {
        let mut entries: Vec<(u64, u32, u32, u32)> = Vec::new(); // class and order, source, rope, number
        let (mut number, mut joined) = (0, 0);
        for (index, at) in blocks.iter().enumerate() {
            let block = index.min(MAX_BLOCKS - 1) as u32;
            let before = if index < MAX_BLOCKS { 0 } else { joined };
            joined = before + at.len();
            let (rope, orders, segments) = (at.rope(), at.order(), at.segment());
            for row in 0..at.len() {
                let (order, segment) = (orders[row], segments[row]);
                if order != PAD {
                    let class = if segment == SHARED { 0 } else { u64::from(segment) + 1 };
                    let source = block << ROW_BITS | (before + row) as u32;
                    entries.push((class << 32 | u64::from(order), source, rope[row], number));
                }
                number += 1;
            }
        }
        entries.sort_by_key(|entry| entry.0); // stable, and fast on what is sorted in runs
        let class = |place: usize| entries[place].0 >> 32;
        let shared = entries.partition_point(|entry| entry.0 >> 32 == 0);
        let starts = (shared..entries.len()).filter(|&place| place == shared || class(place) != class(place - 1));
        let segments = starts.map(|place| ((class(place) - 1) as u32, place)).collect();
        Self {
            source: entries.iter().map(|entry| entry.1).collect(),
            rope: entries.iter().map(|entry| entry.2).collect(),
            number: entries.iter().map(|entry| entry.3).collect(),
            order: entries.iter().map(|entry| entry.0 as u32).collect(),
            shared,
            segments,
        }
    }

    /// Number of keys that any row may see.
    pub fn len(&self) -> usize {
        self.source.len()
    }

    /// Rows that come after these keys, also in the order: their places follow these. `None` where
    /// they would have to be put between them.
    pub fn followed_by(&self, rows: &Positions) -> Option<Followed<'_>> {
        let (orders, segments) = (rows.order(), rows.segment());
        let (&segment, &first) = segments.first().zip(orders.first())?;
        let is_one_run = segments.iter().all(|&other| other == segment) && orders.is_sorted() && !orders.contains(&PAD);
        let last = self.segments.last().map(|entry| entry.0);
        let is_behind = match (last, self.order.last()) {
            (Some(last), Some(&order)) if last == segment => first >= order,
            (last, _) => last.is_none_or(|last| last < segment),
        };
        let begin = self.segments.last().filter(|entry| entry.0 == segment).map_or(self.len(), |entry| entry.1);
        (segment != SHARED && is_one_run && is_behind).then_some(Followed {
            keys: self,
            segment,
            begin,
            orders: orders.to_vec(),
        })
    }

    /// All keys but those of a segment: the end of the keys before it, begin and end of those after
    /// it.
    fn other_segments(&self, segment: u32) -> [u32; 3] {
        let all = self.order.len();
        let place = |index: usize| self.segments.get(index).map_or(all, |entry| entry.1) as u32;
        match self.segments.binary_search_by_key(&segment, |entry| entry.0) {
            Ok(index) => [place(index), place(index + 1), all as u32],
            Err(_) => [all as u32; 3],
        }
    }

    /// The keys that a query of this order and segment sees: the end of the shared keys, begin and
    /// end of its segment's.
    fn sight(&self, order: u32, segment: u32, rule: Rule) -> [u32; 3] {
        if order == PAD {
            return [0; 3];
        }
        if rule == Rule::Others {
            return self.other_segments(segment);
        }
        let shared_end = self.order[..self.shared].partition_point(|&key| key <= order) as u32;
        let Ok(index) = self.segments.binary_search_by_key(&segment, |entry| entry.0) else {
            return [shared_end, shared_end, shared_end];
        };
        let begin = self.segments[index].1;
        let end = self.segments.get(index + 1).map_or(self.order.len(), |next| next.1);
        let seen = self.order[begin..end].partition_point(|&key| key <= order);
        [shared_end, begin as u32, (begin + seen) as u32]
    }
}

/// Keys in order, and rows that follow them.
pub(super) struct Followed<'a> {
    keys: &'a KeyOrder,
    /// The segment of the rows, and the place of its first key.
    segment: u32,
    begin: usize,
    /// Causal order of the rows.
    orders: Vec<u32>,
}

impl Followed<'_> {
    /// As [`KeyOrder::sight`], by the causal rule.
    pub fn sight(&self, order: u32, segment: u32) -> [u32; 3] {
        let [shared, begin, end] = self.keys.sight(order, segment, Rule::Causal);
        if segment != self.segment || order == PAD {
            return [shared, begin, end];
        }
        let seen = self.orders.partition_point(|&key| key <= order);
        let end = if seen > 0 { self.keys.len() + seen } else { end as usize };
        [shared, self.begin as u32, end.max(self.begin) as u32]
    }
}

/// The queries in the kernels' order.
#[derive(Debug)]
pub(super) struct QueryOrder {
    /// Place to row.
    pub rows: Vec<u32>,
    /// Place to rotary position.
    pub rope: Vec<u32>,
    /// Map of places to the row's sight.
    pub sight: Vec<[u32; 3]>,
}

impl QueryOrder {
    /// Puts queries in order: by segment, then by causal order.
    pub fn new(at: &Positions, keys: &KeyOrder) -> Self {
        Self::seeing(at, |order, segment| keys.sight(order, segment, at.rule()))
    }

    /// The same, where a row of an order and a segment has the sight `sight`.
    pub fn seeing(at: &Positions, sight: impl Fn(u32, u32) -> [u32; 3]) -> Self {
        let (rope, orders, segments) = (at.rope(), at.order(), at.segment());
        let class = |&row: &u32| (segments[row as usize], orders[row as usize]);
        let mut rows: Vec<u32> = (0..at.len() as u32).collect();
        rows.sort_by_key(class);
        let sight = |&row: &u32| sight(orders[row as usize], segments[row as usize]);
        let sight = rows.iter().map(sight).collect();
        Self { rope: rows.iter().map(|&row| rope[row as usize]).collect(), rows, sight }
    }

    /// The share of pairs that see each other, among the pairs of query row and key that are worked
    /// out.
    pub fn visible_share(&self, tiling: Tiling) -> f64 {
        let seen: u64 = self.sight.iter().map(|[shared, begin, end]| u64::from(shared + end - begin)).sum();
        let seen = seen * tiling.group as u64;
        let worked: usize = self.tiles(tiling).map(|tiles| tiles.len() * tiling.keys * tiling.rows).sum();
        seen as f64 / (worked as f64).max(1.0)
    }

    /// The key tiles of every query tile.
    fn tiles(&self, tiling: Tiling) -> impl Iterator<Item = KeyTiles> {
        self.sight.chunks(tiling.queries()).map(move |rows| Hull::of(rows).tiles(tiling.keys as u32))
    }

    /// For every `count` queries, runs of keys outside which none of them sees anything.
    pub fn hulls(&self, count: usize) -> Vec<[u32; 3]> {
        self.sight.chunks(count).map(|rows| Hull::of(rows).outer()).collect()
    }
}

/// The keys that some rows of a tile see, and those that all of its rows see.
struct Hull {
    any_shared: u32,
    all_shared: u32,
    any: Option<(u32, u32)>,
    all: (u32, u32),
}

impl Hull {
    fn of(rows: &[[u32; 3]]) -> Self {
        let own = rows.iter().filter(|row| row[1] < row[2]);
        let any = own.clone().map(|row| row[1]).min().zip(own.map(|row| row[2]).max());
        Self {
            any_shared: rows.iter().map(|row| row[0]).max().unwrap_or(0),
            all_shared: rows.iter().map(|row| row[0]).min().unwrap_or(0),
            any,
            all: (rows.iter().map(|row| row[1]).max().unwrap_or(0), rows.iter().map(|row| row[2]).min().unwrap_or(0)),
        }
    }

    fn outer(&self) -> [u32; 3] {
        let (begin, end) = self.any.unwrap_or((0, 0));
        [self.any_shared, begin, end]
    }

    /// The key tiles of `size` keys that some row sees.
    fn tiles(&self, size: u32) -> KeyTiles {
        let shared = self.any_shared.div_ceil(size);
        let (begin, end) = self.any.unwrap_or((0, 0));
        let own = (begin / size).max(shared)..end.div_ceil(size).max(shared);
        let whole_shared = 0..self.all_shared / size;
        let first = self.all.0.div_ceil(size).clamp(own.start, own.end);
        let whole_own = first..(self.all.1 / size).clamp(first, own.end);
        let masked = (whole_shared.end..shared).chain(own.start..whole_own.start).chain(whole_own.end..own.end);
        KeyTiles { masked: masked.collect(), whole: [whole_shared, whole_own] }
    }
}

/// The key tiles of a query tile: first those that not all of its rows see whole, then the others,
/// in two runs. A softmax takes keys in any order; this one lets a kernel have a loop for each
/// kind, and needs no list of the many.
struct KeyTiles {
    masked: Vec<u32>,
    whole: [Range<u32>; 2],
}

impl KeyTiles {
    fn len(&self) -> usize {
        self.masked.len() + self.whole.iter().map(Range::len).sum::<usize>()
    }
}

/// The work of a launch.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct LaunchWork {
    /// The masked key tiles of all query tiles, one after the other.
    pub masked: Vec<u32>,
    /// Query tile; begin of its part of the tiles, begin of the whole ones there, end; slot; where
    /// the second run of whole ones begins; offsets that are added to a number of the first run and
    /// of the second for the tile (`Item` in attention.cuh). The longest come first.
    pub items: Vec<[u32; 8]>,
    /// Query tiles in several parts: tile, first slot, number of slots.
    pub splits: Vec<[u32; 3]>,
    /// Number of slots.
    pub slots: usize,
}

impl LaunchWork {
    /// Cuts the work so that it ends soon: long lists into parts where there are few query tiles.
    pub fn new(queries: &QueryOrder, tiling: Tiling) -> Self {
        let all: Vec<KeyTiles> = queries.tiles(tiling).collect();
        let part = best_part(&all.iter().map(KeyTiles::len).collect::<Vec<_>>(), tiling);
        let mut work = Self::default();
        for (tile, tiles) in all.iter().enumerate() {
            let (KeyTiles { masked, whole: [first, second] }, length) = (tiles, tiles.len());
            // The tiles of a query tile are numbered from the place of its masked ones in the list
            // on.
            let (begin, first_slot) = (work.masked.len(), work.slots);
            let whole = (begin + masked.len()) as u32;
            let jump = whole + first.len() as u32;
            let runs = [jump, first.start.wrapping_sub(whole), second.start.wrapping_sub(jump)];
            let parts = parts(length, part);
            work.masked.extend(masked);
            for index in 0..parts {
                let cut = |index: usize| (begin + length * index / parts) as u32;
                let slot = if parts == 1 { NO_SLOT } else { (first_slot + index) as u32 };
                let (from, to) = (cut(index), cut(index + 1));
                work.items.push([tile as u32, from, whole.clamp(from, to), to, slot, runs[0], runs[1], runs[2]]);
            }
            if parts > 1 {
                work.splits.push([tile as u32, first_slot as u32, parts as u32]);
                work.slots += parts;
            }
        }
        work.items.sort_by_key(|item| Reverse(item[3] - item[1]));
        work
    }
}

/// Into how many parts of about `part` key tiles a list is cut.
fn parts(length: usize, part: usize) -> usize {
    if length * 2 > part * 3 { length.div_ceil(part) } else { 1 }
}

/// The length of parts with which blocks that take item after item end soonest.
fn best_part(lengths: &[usize], tiling: Tiling) -> usize {
    let longest = lengths.iter().copied().max().unwrap_or(0);
    // Three rounds are even enough; where there are as many items anyway, nothing is cut.
    let most = (3 * tiling.resident / (lengths.len() * tiling.kv_heads).max(1)).max(1);
    let candidates = (1..=most).map(|count| longest.div_ceil(count).max(SHORTEST_PART));
    candidates.min_by_key(|&part| if most == 1 { 0 } else { end(lengths, part, tiling) }).unwrap_or(longest)
}

/// When the last block ends, in key tiles.
fn end(lengths: &[usize], part: usize, tiling: Tiling) -> usize {
    let of = |&length: &usize| {
        let parts = parts(length, part);
        (0..parts).map(move |index| length * (index + 1) / parts - length * index / parts)
    };
    let mut items: Vec<usize> = lengths.iter().flat_map(of).collect();
    items.sort_unstable_by(|a, b| b.cmp(a));
    let mut blocks: BinaryHeap<Reverse<usize>> = vec![Reverse(0); tiling.resident.max(1)].into();
    let mut last = 0;
    for item in (0..tiling.kv_heads).flat_map(|_| &items) {
        let Reverse(free) = blocks.pop().expect("there is a block, and it comes back");
        last = last.max(free + item + ITEM_TILES);
        blocks.push(Reverse(free + item + ITEM_TILES));
    }
    last
}

#[cfg(test)]
mod tests;
