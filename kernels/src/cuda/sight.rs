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

/// What a query row sees: begin and end of a run of shared keys, and of one of its segment's
/// (`Sight` in attention.cuh).
pub(super) type Seen = [u32; 4];

/// What decides on the keys that a query row sees.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asking {
    /// Its causal order.
    pub order: u32,
    /// Its segment.
    pub segment: u32,
    /// Its rule.
    pub rule: Rule,
    /// The lowest rotary position in its window; 0 without a window.
    pub lowest: u32,
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
    /// Whether rotary positions rise with the order, among the shared keys and in each segment:
    /// then the keys in a window are one run of each.
    rises: bool,
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
        let places = 1..entries.len();
        let rises = places
            .into_iter()
            .all(|place| class(place) != class(place - 1) || entries[place - 1].2 <= entries[place].2);
        Self {
            rises,
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
            ropes: rows.rope().to_vec(),
        })
    }

    /// Whether what these queries see is two runs of keys at most.
    pub fn are_runs_for(&self, at: &Positions) -> bool {
        let one_class = self.segments.len() + usize::from(self.shared > 0) <= 1;
        at.window().is_none() || (self.rises && (at.rule() == Rule::Causal || one_class))
    }

    /// All keys but those of a segment: begin and end of the keys before it and of those after it.
    fn other_segments(&self, segment: u32) -> Seen {
        let all = self.order.len();
        let place = |index: usize| self.segments.get(index).map_or(all, |entry| entry.1) as u32;
        match self.segments.binary_search_by_key(&segment, |entry| entry.0) {
            Ok(index) => [0, place(index), place(index + 1), all as u32],
            Err(_) => [0, all as u32, all as u32, all as u32],
        }
    }

    /// The keys that a query sees.
    fn sight(&self, query: Asking) -> Seen {
        let Asking { order, segment, rule, lowest } = query;
        if order == PAD {
            return [0; 4];
        }
        // The begin is never beyond the end.
        let in_window = |from: usize, end: usize| {
            let begin = if lowest == 0 { 0 } else { self.rope[from..end].partition_point(|&key| key < lowest) };
            [(from + begin) as u32, end as u32]
        };
        if rule == Rule::Others {
            let [first, end, second, all] = self.other_segments(segment).map(|place| place as usize);
            let ([first, end], [second, all]) = (in_window(first, end), in_window(second, all));
            return [first, end, second, all];
        }
        let run =
            |from: usize, to: usize| in_window(from, from + self.order[from..to].partition_point(|&key| key <= order));
        let [shared, shared_end] = run(0, self.shared);
        let Ok(index) = self.segments.binary_search_by_key(&segment, |entry| entry.0) else {
            return [shared, shared_end, shared_end, shared_end];
        };
        let begin = self.segments[index].1;
        let end = self.segments.get(index + 1).map_or(self.order.len(), |next| next.1);
        let [begin, end] = run(begin, end);
        [shared, shared_end, begin, end]
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
    /// Rotary position of the rows.
    ropes: Vec<u32>,
}

impl Followed<'_> {
    /// As [`KeyOrder::are_runs_for`].
    pub fn are_runs_for(&self, at: &Positions) -> bool {
        let own = self.keys.rope[self.begin..].iter().chain(&self.ropes);
        self.keys.are_runs_for(at) && (at.window().is_none() || own.is_sorted())
    }

    /// As [`KeyOrder::sight`], by the causal rule.
    pub fn sight(&self, query: Asking) -> Seen {
        let Asking { order, segment, lowest, .. } = query;
        let [first, shared, begin, end] = self.keys.sight(query);
        if segment != self.segment || order == PAD {
            return [first, shared, begin, end];
        }
        let seen = self.orders.partition_point(|&key| key <= order);
        let end = if seen > 0 { self.keys.len() + seen } else { end as usize };
        let outside = |ropes: &[u32]| ropes.partition_point(|&key| key < lowest);
        let begin = match self.begin + outside(&self.keys.rope[self.begin..]) {
            all if all == self.keys.len() => all + outside(&self.ropes),
            within => within,
        };
        let end = end.max(self.begin);
        [first, shared, begin.min(end) as u32, end as u32]
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
    pub sight: Vec<Seen>,
}

impl QueryOrder {
    /// Puts queries in order: by segment, then by causal order.
    pub fn new(at: &Positions, keys: &KeyOrder) -> Self {
        Self::seeing(at, |query| keys.sight(query))
    }

    /// The same, where a row has the sight `sight`.
    pub fn seeing(at: &Positions, sight: impl Fn(Asking) -> Seen) -> Self {
        let (rope, orders, segments) = (at.rope(), at.order(), at.segment());
        let class = |&row: &u32| (segments[row as usize], orders[row as usize]);
        let mut rows: Vec<u32> = (0..at.len() as u32).collect();
        rows.sort_by_key(class);
        let asking = |row: usize| {
            let (order, segment) = (orders[row], segments[row]);
            Asking { order, segment, rule: at.rule(), lowest: at.lowest(row) }
        };
        let sight = rows.iter().map(|&row| sight(asking(row as usize))).collect();
        Self { rope: rows.iter().map(|&row| rope[row as usize]).collect(), rows, sight }
    }

    /// The share of pairs that see each other, among the pairs of query row and key that are worked
    /// out.
    pub fn visible_share(&self, tiling: Tiling) -> f64 {
        let seen: u64 =
            self.sight.iter().map(|[first, shared, begin, end]| u64::from(shared - first + end - begin)).sum();
        let seen = seen * tiling.group as u64;
        let worked: usize = self.tiles(tiling).map(|tiles| tiles.len() * tiling.keys * tiling.rows).sum();
        seen as f64 / (worked as f64).max(1.0)
    }

    /// The key tiles of every query tile.
    fn tiles(&self, tiling: Tiling) -> impl Iterator<Item = KeyTiles> {
        self.sight.chunks(tiling.queries()).map(move |rows| Hull::of(rows).tiles(tiling.keys as u32))
    }

    /// For every `count` queries, runs of keys outside which none of them sees anything.
    pub fn hulls(&self, count: usize) -> Vec<Seen> {
        self.sight.chunks(count).map(|rows| Hull::of(rows).outer()).collect()
    }
}

/// The keys that some rows of a tile see, and those that all of its rows see.
struct Hull {
    any_shared: (u32, u32),
    all_shared: (u32, u32),
    any: Option<(u32, u32)>,
    all: (u32, u32),
}

impl Hull {
    fn of(rows: &[Seen]) -> Self {
        let any = |run: usize| {
            let there = rows.iter().filter(|row| row[run] < row[run + 1]);
            there.clone().map(|row| row[run]).min().zip(there.map(|row| row[run + 1]).max())
        };
        let all = |run: usize| {
            let begin = rows.iter().map(|row| row[run]).max().unwrap_or(0);
            (begin, rows.iter().map(|row| row[run + 1]).min().unwrap_or(0))
        };
        Self { any_shared: any(0).unwrap_or((0, 0)), all_shared: all(0), any: any(2), all: all(2) }
    }

    fn outer(&self) -> Seen {
        let (begin, end) = self.any.unwrap_or((0, 0));
        [self.any_shared.0, self.any_shared.1, begin, end]
    }

    /// The key tiles of `size` keys that some row sees.
    fn tiles(&self, size: u32) -> KeyTiles {
        let shared = self.any_shared.0 / size..self.any_shared.1.div_ceil(size);
        let (begin, end) = self.any.unwrap_or((0, 0));
        let own = (begin / size).max(shared.end)..end.div_ceil(size).max(shared.end);
        // The tiles of a run that all rows see whole.
        let whole = |run: &Range<u32>, all: (u32, u32)| {
            let first = all.0.div_ceil(size).clamp(run.start, run.end);
            first..(all.1 / size).clamp(first, run.end)
        };
        let (whole_shared, whole_own) = (whole(&shared, self.all_shared), whole(&own, self.all));
        let masked = [(&shared, &whole_shared), (&own, &whole_own)];
        let masked = masked.into_iter().flat_map(|(run, whole)| (run.start..whole.start).chain(whole.end..run.end));
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
