//! Placements: the rotary position and the causal order of every row of a request. A pure function
//! of the plan, the order of the chunks and the layout. A rotary position is a row of a table of
//! rotations: a plain position, or the number of a place on three axes.
//!
//! Rows keep their numbers (prefix, chunks in the request's own order, query, generated); a
//! placement gives their positions. Stored rows do not move.

use tributary_kernels::{Positions, Rule, SHARED};
use tributary_protocol::place::{PlaceNumbers, places};
use tributary_protocol::{Chunk, Layout, Plan};

/// Positions of every row of a request, indexed by row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    rope: Vec<u32>,
    order: Vec<u32>,
    /// The segment of every row, if chunks are apart.
    segment: Option<Vec<u32>>,
    /// The second position of every row, if chunks are apart.
    behind: Vec<u32>,
    /// The position after the last of prefix, context and query in their sequence.
    end: u32,
    /// Number of the first look-ahead row; generated rows have the numbers before it.
    look_ahead: u32,
}

impl Placement {
    /// Prefix, chunks in `order` (a permutation of their numbers), query: causal order as in that
    /// sequence, rotary positions of `layout` (methods.md: P positions of prefix, T of context, C
    /// of the longest group). A chunk with pictures takes fewer positions than it has rows; the
    /// place of a picture's row gets its number from `numbers`. Chunks with tiles of one picture
    /// begin at one position.
    pub fn numbered(plan: &Plan, order: &[u32], layout: Layout, numbers: &mut PlaceNumbers) -> Self {
        let (prefix, groups, group_of) = (plan.prefix_tokens(), plan.groups(), plan.group_of_chunks());
        let extents: Vec<usize> = groups.iter().map(|group| plan.extent_of(group)).collect();
        let (context, longest) = (extents.iter().sum::<usize>(), extents.iter().copied().max().unwrap_or(0));
        // The position at which each group begins, in the order of chunks.
        let (mut global, mut next) = (vec![prefix; extents.len()], prefix);
        for &chunk in order {
            let group = group_of[chunk as usize];
            if groups[group].start == chunk as usize {
                global[group] = next;
                next += extents[group];
            }
        }
        let causal = plan.places(order);
        let mut rope: Vec<u32> = (0..plan.total_rows() as u32).collect();
        for (chunk, rows) in plan.chunk_rows().into_iter().enumerate() {
            let group = group_of[chunk];
            let first = match layout {
                Layout::Global => global[group],
                Layout::HlHp | Layout::HlTp => prefix,
                Layout::TlTp => prefix + context - extents[group],
            };
            let standing = standing(&plan.chunks[chunk], first as u32, numbers);
            rope[rows.start as usize..rows.end as usize].copy_from_slice(&standing);
        }
        let query_rope = match layout {
            Layout::HlHp => prefix + longest,
            Layout::Global | Layout::HlTp | Layout::TlTp => prefix + context,
        };
        for (index, row) in plan.query_rows().enumerate() {
            rope[row as usize] = (query_rope + index) as u32;
        }
        let look_ahead = plan.look_ahead_rows().start;
        let end = (prefix + context + plan.query_tokens()) as u32;
        Self { rope, order: causal, segment: None, behind: Vec::new(), end, look_ahead }
    }

    /// The same of a plan without pictures, whose rows stand at positions.
    ///
    /// # Panics
    /// If it has some: only a bug can cause that.
    #[cfg(test)]
    pub fn new(plan: &Plan, order: &[u32], layout: Layout) -> Self {
        let mut numbers = PlaceNumbers::after(u32::MAX);
        let this = Self::numbered(plan, order, layout, &mut numbers);
        assert!(numbers.composed().is_empty(), "places of pictures have numbers of their own");
        this
    }

    /// Every group of chunks alone after the prefix, in a segment of its own; every segment sees
    /// the prefix. Orders are those of rows in their group. Query rows take no part.
    pub fn apart(plan: &Plan, numbers: &mut PlaceNumbers) -> Self {
        let (prefix, groups) = (plan.prefix_tokens() as u32, plan.groups());
        let mut order: Vec<u32> = (0..plan.total_rows() as u32).collect();
        let (mut rope, mut behind) = (order.clone(), order.clone());
        let mut segment = vec![SHARED; order.len()];
        let longest = groups.iter().map(|group| plan.extent_of(group)).max().unwrap_or(0) as u32;
        for (of, rows) in plan.chunks.iter().zip(plan.chunk_rows()) {
            let range = rows.start as usize..rows.end as usize;
            rope[range.clone()].copy_from_slice(&standing(of, prefix, numbers));
            behind[range].copy_from_slice(&standing(of, prefix + longest, numbers));
        }
        for group in groups {
            let rows = plan.runs_of(&group).into_iter().flat_map(|(_, rows)| rows);
            for (place, row) in (prefix..).zip(rows) {
                order[row as usize] = place;
                segment[row as usize] = group.start as u32;
            }
        }
        let (end, look_ahead) = (plan.total_rows() as u32, plan.look_ahead_rows().start);
        Self { rope, order, segment: Some(segment), behind, end, look_ahead }
    }

    /// Second positions of context rows that are apart: as if the longest group were before their
    /// own. There they see the prefix and all of the other groups, but not their own.
    pub fn behind_others(&self, rows: &[u32]) -> Positions {
        let rope: Vec<u32> = rows.iter().map(|&row| self.behind[row as usize]).collect();
        let at = self.at(rows);
        Positions::new(rope, at.order(), at.segment()).seeing(Rule::Others)
    }

    /// Positions of the given rows. Generated rows follow the query one by one; so do look-ahead
    /// rows, independent of generated ones.
    pub fn at(&self, rows: &[u32]) -> Positions {
        let rope: Vec<u32> = rows.iter().map(|&row| self.rope_of(row)).collect();
        let order: Vec<u32> = rows.iter().map(|&row| self.order_of(row)).collect();
        match &self.segment {
            None => Positions::in_sequence(rope, order),
            Some(segment) => {
                Positions::new(rope, order, rows.iter().map(|&row| segment[row as usize]).collect::<Vec<_>>())
            }
        }
    }

    /// The same placement for `generated` generated rows.
    #[must_use]
    pub fn reaching(&self, generated: usize) -> Self {
        Self { look_ahead: (self.rows() + generated) as u32, ..self.clone() }
    }

    /// The placement of a later request of a conversation, which has all of these rows before
    /// `from`, the first of them before its query, and `total` rows of its own: rows of its query
    /// go on where these end. At most `generated` rows follow.
    ///
    /// # Panics
    /// If rows are missing, or chunks are apart: only a bug can cause that.
    #[must_use]
    pub fn going_on(&self, (query_start, from): (usize, usize), total: usize, generated: usize) -> Self {
        assert!(self.segment.is_none() && query_start <= from.min(self.rows()), "rows before {from} that others share");
        let (first, mut rope, mut order) = (self.rope_of(query_start as u32), self.rope.clone(), self.order.clone());
        rope.truncate(query_start);
        order.truncate(query_start);
        rope.extend((0..(total - query_start) as u32).map(|row| first + row));
        order.extend(query_start as u32..total as u32);
        let end = self.end.max(first + (total - query_start) as u32);
        Self { rope, order, end, look_ahead: (total + generated) as u32, ..self.clone() }
    }

    /// Number of rows of prefix, context and query.
    pub fn rows(&self) -> usize {
        self.rope.len()
    }

    /// Causal order of one row.
    pub fn order_of(&self, row: u32) -> u32 {
        self.order.get(row as usize).copied().unwrap_or_else(|| self.rows() as u32 + self.after_query(row))
    }

    /// Place of every row of prefix, context and query in the causal order.
    pub fn places(&self) -> &[u32] {
        &self.order
    }

    /// Number of positions that the rotary tables must cover, with `after` rows after the query.
    pub fn positions(&self, after: usize) -> usize {
        (self.end as usize).max(self.rope.len()) + 1 + after
    }

    fn rope_of(&self, row: u32) -> u32 {
        let Some(&position) = self.rope.get(row as usize) else {
            let last = self.rope.last().copied().unwrap_or(0);
            return last + 1 + self.after_query(row);
        };
        position
    }

    /// Number of rows between the query and a row after it.
    fn after_query(&self, row: u32) -> u32 {
        if row >= self.look_ahead { row - self.look_ahead } else { row - self.rope.len() as u32 }
    }
}

/// The numbers of a chunk's rows in a table of rotations, if its group begins at this position.
pub fn standing(chunk: &Chunk, first: u32, numbers: &mut PlaceNumbers) -> Vec<u32> {
    if chunk.pictures.is_empty() {
        return (first..first + chunk.rows() as u32).collect();
    }
    places(&chunk.stretches(), first).0.into_iter().map(|place| numbers.number(place)).collect()
}

#[cfg(test)]
mod tests {
    use tributary_protocol::LookAhead;
    use tributary_protocol::tile::{TileOrder, areas};

    use super::*;
    use crate::kit;

    const LAYOUTS: [Layout; 4] = [Layout::Global, Layout::HlHp, Layout::HlTp, Layout::TlTp];

    #[test]
    fn layouts_follow_their_definitions() {
        let plan = kit::plan(1, &[2, 3], 2, 1);
        let order = [1, 0];
        let rope = |layout| Placement::new(&plan, &order, layout).rope;
        assert_eq!(rope(Layout::Global), [0, 4, 5, 1, 2, 3, 6, 7]);
        assert_eq!(rope(Layout::HlHp), [0, 1, 2, 1, 2, 3, 4, 5]);
        assert_eq!(rope(Layout::HlTp), [0, 1, 2, 1, 2, 3, 6, 7]);
        assert_eq!(rope(Layout::TlTp), [0, 4, 5, 3, 4, 5, 6, 7]);
        for layout in [Layout::Global, Layout::HlHp, Layout::HlTp, Layout::TlTp] {
            assert_eq!(Placement::new(&plan, &order, layout).order, [0, 4, 5, 1, 2, 3, 6, 7]);
        }
    }

    #[test]
    fn chunks_that_are_apart_stand_behind_the_prefix_and_behind_each_other() {
        let placement = Placement::apart(&kit::plan(2, &[2, 3], 2, 1), &mut PlaceNumbers::after(u32::MAX));
        let at = placement.at(&[0, 1, 2, 3, 4, 5, 6]);
        assert_eq!((at.rope(), at.order()), (&[0, 1, 2, 3, 2, 3, 4][..], &[0, 1, 2, 3, 2, 3, 4][..]));
        assert_eq!(at.segment(), [SHARED, SHARED, 0, 0, 1, 1, 1]);
        let behind = placement.behind_others(&[3, 6]);
        assert_eq!((behind.rope(), behind.segment(), behind.rule()), (&[6, 7][..], &[0, 1][..], Rule::Others));
        let sees = |query| (0..7).filter(|&key| behind.sees(query, &at, key)).collect::<Vec<_>>();
        assert_eq!([sees(0), sees(1)], [vec![0, 1, 4, 5, 6], vec![0, 1, 2, 3]]);
    }

    #[test]
    #[should_panic(expected = "chunk 1 stands twice in the order [1, 1]")]
    fn an_order_has_no_chunk_twice() {
        Placement::new(&kit::plan(1, &[2, 3], 2, 1), &[1, 1], Layout::Global);
    }

    #[test]
    #[should_panic(expected = "rows of prefix and chunks in the order [1]")]
    fn an_order_has_every_chunk() {
        Placement::new(&kit::plan(1, &[2, 3], 2, 1), &[1], Layout::Global);
    }

    /// Three texts, the second with a picture of 3 x 5 rows among its tokens; the same with the
    /// picture in 2 x 2 tiles; and the row of the first plan for each row of the second.
    fn uncut_and_tiles(order: TileOrder) -> (Plan, Plan, Vec<u32>) {
        let uncut = kit::with_picture(kit::plan(2, &[3, 2 + 15 + 1, 2], 2, 1), 1, (2, 3, 5));
        let tiles = kit::in_tiles(&uncut, 1, 2, order);
        let places =
            areas(3, 5, 2).into_iter().flat_map(|area| area.cells()).map(|(line, column)| 7 + 5 * line + column);
        let rows: Vec<u32> = (0..7).chain(places).chain(22..27).collect();
        assert_eq!((rows.len(), tiles.total_rows()), (27, uncut.total_rows()));
        (uncut, tiles, rows)
    }

    #[test]
    fn tiles_stand_where_the_uncut_picture_does() {
        let (uncut, tiles, rows) = uncut_and_tiles(TileOrder::Raster);
        let mut numbers = PlaceNumbers::after(1000);
        for (order, of_tiles) in [([0, 1, 2], [0, 1, 2, 3, 4, 5]), ([2, 1, 0], [5, 1, 2, 3, 4, 0])] {
            for layout in LAYOUTS {
                let whole = Placement::numbered(&uncut, &order, layout, &mut numbers);
                let found = Placement::numbered(&tiles, &of_tiles, layout, &mut numbers);
                assert_eq!(found.at(&(0..27).collect::<Vec<_>>()), whole.at(&rows), "{layout:?} {order:?}");
                assert_eq!(found.positions(0), whole.positions(0));
            }
        }
        let [whole, found] = [&uncut, &tiles].map(|plan| Placement::apart(plan, &mut numbers));
        let context: Vec<u32> = (0..25).collect();
        let of = |placement: &Placement, rows: &[u32]| {
            let (at, behind) = (placement.at(rows), placement.behind_others(rows));
            (at.rope().to_vec(), at.order().to_vec(), behind.rope().to_vec())
        };
        assert_eq!(of(&found, &context), of(&whole, &rows[..25]));
        let segments = found.at(&context).segment().to_vec();
        assert_eq!(segments, [vec![SHARED; 2], vec![0; 3], vec![1; 18], vec![5; 2]].concat());
    }

    #[test]
    fn tile_after_tile_rows_stand_in_the_same_places_in_the_order_of_their_numbers() {
        let (uncut, tiles, rows) = uncut_and_tiles(TileOrder::Tile);
        let mut numbers = PlaceNumbers::after(1000);
        for layout in LAYOUTS {
            let whole = Placement::numbered(&uncut, &[0, 1, 2], layout, &mut numbers);
            let found = Placement::numbered(&tiles, &tiles.request_order(), layout, &mut numbers);
            assert_eq!(found.at(&(0..27).collect::<Vec<_>>()).rope(), whole.at(&rows).rope(), "{layout:?}");
            assert_eq!(found.places(), (0..27).collect::<Vec<_>>(), "{layout:?}");
        }
    }

    #[test]
    #[should_panic(expected = "chunks 1..5 in the order [0, 1, 2, 5, 3, 4]")]
    fn nothing_stands_between_the_tiles_of_a_picture() {
        let (_, tiles, _) = uncut_and_tiles(TileOrder::Raster);
        Placement::numbered(&tiles, &[0, 1, 2, 5, 3, 4], Layout::Global, &mut PlaceNumbers::after(1000));
    }

    #[test]
    fn generated_rows_follow_the_query() {
        let plan = Plan { max_tokens: 3, ..kit::plan(0, &[4, 2], 1, 1) };
        let placement = Placement::new(&plan, &[0, 1], Layout::HlHp);
        let at = placement.at(&[6, 7, 8]);
        assert_eq!(at.rope(), [4, 5, 6]);
        assert_eq!(at.order(), [6, 7, 8]);
    }

    #[test]
    fn rows_of_a_look_ahead_follow_the_query_and_are_no_generated_rows() {
        let look_ahead = Some(LookAhead { adapter: 0, rows: 2 });
        let plan = Plan { max_tokens: 3, look_ahead, ..kit::plan(0, &[4, 2], 1, 1) };
        let (placement, rows) = (Placement::new(&plan, &[0, 1], Layout::HlHp), plan.look_ahead_rows());
        assert_eq!(rows, 10..12, "seven rows of prompt and three that may be generated");
        let at = placement.at(&rows.collect::<Vec<_>>());
        assert_eq!((at.rope(), at.order()), (&[5, 6][..], &[7, 8][..]));
        assert_eq!(placement.at(&[9]).order(), [9], "the last that may be generated");
    }
}
