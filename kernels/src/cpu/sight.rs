//! Visibility between whole groups of rows: keys are kept in panels with a summary each, so that
//! most pairs of query rows and keys are decided without looking at them one by one. Nothing is
//! sorted.

use std::ops::Range;

use super::lanes::{CausalPosition, PANEL, PART};
use crate::{Keys, PAD, Positions, SHARED};

/// The range of orders, segments and rotary positions in a group of rows.
#[derive(Debug, Clone, Copy)]
pub(super) struct Span {
    /// Smallest and largest order.
    order: (u32, u32),
    /// Smallest and largest segment, of keys without the shared ones; (MAX, 0) where there is none.
    segment: (u32, u32),
    /// Smallest and largest rotary position of keys; of query rows, of the lowest that each sees.
    rope: (u32, u32),
    /// Whether a key is seen by every segment.
    shared: bool,
    /// Whether query rows see the other segments and not their own.
    others: bool,
    /// Whether the group is complete: a panel that is not must be masked.
    whole: bool,
}

/// Part of a panel of keys that a group of query rows sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sight {
    /// No row sees a key.
    Nothing,
    /// To be decided pair by pair.
    Some,
    /// Every row sees every key.
    All,
}

/// The keys of a panel that a strip has to look at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) sight: Sight,
    /// Whole parts of the panel; no key outside is seen. Empty where nothing is seen.
    pub(super) keys: Range<usize>,
    /// Those of `keys` without the first and last ones that are outside the order or the window of
    /// every row; begins with an even key.
    pub(super) weighed: Range<usize>,
    /// A bit for each part of which some row does not see some key.
    pub(super) masked: u32,
}

impl Seen {
    pub(super) const NOTHING: Self = Self { sight: Sight::Nothing, keys: 0..0, weighed: 0..0, masked: 0 };
}

impl Span {
    const EMPTY: Self = Self {
        order: (u32::MAX, 0),
        segment: (u32::MAX, 0),
        rope: (u32::MAX, 0),
        shared: false,
        others: false,
        whole: true,
    };

    /// The span of query rows.
    pub(super) fn of_rows(places: &[CausalPosition]) -> Self {
        let mut span = Self::EMPTY;
        for place in places {
            span.order = (span.order.0.min(place.order), span.order.1.max(place.order));
            span.segment = (span.segment.0.min(place.segment), span.segment.1.max(place.segment));
            span.rope = (span.rope.0.min(place.lowest), span.rope.1.max(place.lowest));
            span.others = place.others; // one call, one rule
        }
        span
    }

    /// The span of up to `whole` keys with these orders, segments and rotary positions.
    fn of_keys((order, segment, rope): (&[u32], &[u32], &[u32]), whole: usize) -> Self {
        let mut span = Self { whole: order.len() == whole, ..Self::EMPTY };
        for ((&order, &segment), &rope) in order.iter().zip(segment).zip(rope) {
            span.order = (span.order.0.min(order), span.order.1.max(order));
            span.rope = (span.rope.0.min(rope), span.rope.1.max(rope));
            if segment == SHARED {
                span.shared = true;
            } else {
                span.segment = (span.segment.0.min(segment), span.segment.1.max(segment));
            }
        }
        span
    }

    /// Part of another span's keys that query rows of this span see.
    pub(super) fn sees(&self, keys: &Span) -> Sight {
        let only_shared = keys.segment.0 > keys.segment.1;
        let apart = keys.segment.0 > self.segment.1 || self.segment.0 > keys.segment.1;
        let one_segment = self.segment.0 == self.segment.1 && keys.segment == self.segment;
        let (none_meet, all_meet) = if self.others { (one_segment, apart) } else { (apart, one_segment) };
        if keys.order.0 > self.order.1 || keys.rope.1 < self.rope.0 || (none_meet && !keys.shared) {
            return Sight::Nothing;
        }
        // Shared keys among others are seen as well.
        let in_window = keys.rope.0 >= self.rope.1;
        if keys.whole && in_window && keys.order.1 <= self.order.0 && (only_shared || all_meet) {
            return Sight::All;
        }
        Sight::Some
    }
}

/// The query rows that see anything at all: those that are not padding.
#[derive(Debug)]
pub(super) struct Rows {
    /// Row of the query tensor.
    pub(super) index: Vec<u32>,
    /// Rotary position.
    pub(super) rope: Vec<u32>,
    pub(super) place: Vec<CausalPosition>,
}

impl Rows {
    pub(super) fn new(at: &Positions) -> Self {
        let mut rows = Self { index: Vec::new(), rope: Vec::new(), place: Vec::new() };
        let rope = at.rope();
        for (i, &order) in at.order().iter().enumerate() {
            if order != PAD {
                rows.index.push(i as u32);
                rows.rope.push(rope[i]);
                rows.place.push(CausalPosition::new(at, i));
            }
        }
        rows
    }

    pub(super) fn len(&self) -> usize {
        self.index.len()
    }

    /// The least number of rotary positions that a row sees up to its own, where earlier ones are
    /// outside its window.
    pub(super) fn window(&self) -> Option<usize> {
        let rows = self.place.iter().zip(&self.rope).filter(|(place, _)| place.lowest > 0);
        rows.map(|(place, rope)| rope.saturating_sub(place.lowest) as usize + 1).min()
    }

    /// The only segment of rows that see the other segments alone, if there is just one: no row
    /// sees its keys.
    fn unseen_segment(&self) -> Option<u32> {
        let first = self.place.first().filter(|place| place.others)?;
        self.place.iter().all(|place| place.segment == first.segment).then_some(first.segment)
    }

    /// The largest order in each segment, ascending by segment.
    fn horizons(&self) -> Vec<(u32, u32)> {
        let mut sorted: Vec<(u32, u32)> = self.place.iter().map(|place| (place.segment, place.order)).collect();
        sorted.sort_unstable_by_key(|&(segment, order)| (segment, std::cmp::Reverse(order)));
        sorted.dedup_by_key(|&mut (segment, _)| segment);
        sorted
    }
}

/// The keys of all blocks that at least one query row sees, in the order of the blocks. Built once
/// a call: stale rows that something else replaces (their order is `PAD`) cost nothing later, and a
/// key that no query sees is never read.
#[derive(Debug, Default)]
pub(super) struct KeyList {
    /// Block of each key.
    pub(super) block: Vec<u32>,
    /// Row of each key in its block.
    pub(super) row: Vec<u32>,
    /// Rotary position of each key; filled up with 0 to a whole number of panels.
    pub(super) rope: Vec<u32>,
    /// Order of each key; filled up with `PAD` to a whole number of panels.
    pub(super) order: Vec<u32>,
    /// Segment of each key; filled up likewise.
    pub(super) segment: Vec<u32>,
    /// One a panel.
    pub(super) panels: Vec<Span>,
    /// One a part of each panel.
    parts: Vec<Span>,
}

impl KeyList {
    pub(super) fn new(rows: &Rows, keys: &[Keys]) -> Self {
        let mut list = Self::default();
        let horizons = rows.horizons();
        let furthest = horizons.iter().map(|&(_, order)| order).max();
        let Some(furthest) = furthest else {
            return list;
        };
        let (others, unseen) = (rows.place[0].others, rows.unseen_segment());
        let lowest = rows.place.iter().map(|place| place.lowest).min().unwrap_or(0);
        let mut last = horizons[0]; // neighbours mostly share a segment
        for (block, keys) in keys.iter().enumerate() {
            let rope = keys.at.rope();
            for (row, (&order, &segment)) in keys.at.order().iter().zip(keys.at.segment()).enumerate() {
                if others {
                    if segment != SHARED && Some(segment) == unseen {
                        continue;
                    }
                } else if segment != SHARED && segment != last.0 {
                    let found = horizons.binary_search_by_key(&segment, |&(segment, _)| segment);
                    let Ok(found) = found else { continue };
                    last = horizons[found];
                }
                let horizon = if others || segment == SHARED { furthest } else { last.1 };
                if order <= horizon && rope[row] >= lowest {
                    list.block.push(block as u32);
                    list.row.push(row as u32);
                    list.rope.push(rope[row]);
                    list.order.push(order);
                    list.segment.push(segment);
                }
            }
        }
        list.close();
        list
    }

    fn close(&mut self) {
        self.panels = self.spans(PANEL);
        let filled = self.panels.len() * PANEL;
        self.order.resize(filled, PAD);
        self.segment.resize(filled, 0);
        self.rope.resize(filled, 0);
        self.parts = self.spans(PART);
    }

    /// The spans of groups of this many keys.
    fn spans(&self, count: usize) -> Vec<Span> {
        let groups = self.order.chunks(count).zip(self.segment.chunks(count)).zip(self.rope.chunks(count));
        groups.map(|((order, segment), rope)| Span::of_keys((order, segment, rope), count)).collect()
    }

    /// The keys of a panel that query rows of this span have to look at.
    pub(super) fn seen(&self, rows: &Span, panel: usize) -> Seen {
        match rows.sees(&self.panels[panel]) {
            Sight::Nothing => Seen::NOTHING,
            Sight::All => Seen { sight: Sight::All, keys: 0..PANEL, weighed: 0..PANEL, masked: 0 },
            Sight::Some => {
                let parts = &self.parts[panel * PANEL / PART..][..PANEL / PART];
                let (mut keys, mut masked) = (0..0, 0);
                for (i, part) in parts.iter().enumerate() {
                    let sight = rows.sees(part);
                    masked |= u32::from(sight != Sight::All) << i;
                    if sight != Sight::Nothing {
                        keys = if keys.is_empty() { i * PART } else { keys.start }..(i + 1) * PART;
                    }
                }
                if keys.is_empty() {
                    return Seen::NOTHING;
                }
                let weighed = self.weighed(rows, panel, keys.clone());
                Seen { sight: Sight::Some, keys, weighed, masked }
            }
        }
    }

    /// The keys of a panel from the first one to the last one that query rows of this span may see.
    fn weighed(&self, rows: &Span, panel: usize, keys: Range<usize>) -> Range<usize> {
        let [orders, _, ropes] = self.of_panel(panel);
        let may_see = |key: &usize| orders[*key] <= rows.order.1 && ropes[*key] >= rows.rope.0;
        let first = keys.clone().find(may_see).unwrap_or(keys.start);
        let last = keys.clone().rfind(may_see).unwrap_or(first);
        first / 2 * 2..last + 1
    }

    /// Order, segment and rotary position of the keys of one panel.
    pub(super) fn of_panel(&self, panel: usize) -> [&[u32]; 3] {
        [&self.order, &self.segment, &self.rope].map(|list| &list[panel * PANEL..][..PANEL])
    }

    /// The keys of one panel.
    pub(super) fn keys_of(&self, panel: usize) -> Range<usize> {
        panel * PANEL..self.row.len().min((panel + 1) * PANEL)
    }
}
