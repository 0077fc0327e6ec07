//! Groups of chunks: the tiles of one picture are a group, every other chunk is one by itself. A
//! group has one place among the chunks, and its positions are those of one chunk.

use std::ops::Range;

use crate::place::extent;
use crate::tile::{Area, Tile, TileOrder};
use crate::{Chunk, Picture, Plan};

impl Chunk {
    /// The picture that it has a tile of, and the tile, if it is one of several.
    pub fn tile(&self) -> Option<(&Picture, Tile)> {
        let picture = self.pictures.first()?;
        picture.tile.map(|tile| (picture, tile))
    }
}

impl Plan {
    /// The chunks of each group, by their numbers, in the request's own order.
    pub fn groups(&self) -> Vec<Range<usize>> {
        let mut groups: Vec<Range<usize>> = Vec::with_capacity(self.chunks.len());
        for (number, chunk) in self.chunks.iter().enumerate() {
            match groups.last_mut().filter(|_| chunk.tile().is_some_and(|(_, tile)| tile.number > 0)) {
                Some(group) => group.end = number + 1,
                None => groups.push(number..number + 1),
            }
        }
        groups
    }

    /// The group of each chunk, by the groups' numbers.
    pub fn group_of_chunks(&self) -> Vec<usize> {
        let groups = self.groups();
        groups.into_iter().enumerate().flat_map(|(number, group)| std::iter::repeat_n(number, group.len())).collect()
    }

    /// Number of positions that a group takes: the same as if its picture was not cut.
    pub fn extent_of(&self, group: &Range<usize>) -> usize {
        let chunks = self.chunks[group.clone()].iter();
        chunks.map(|chunk| extent(&chunk.stretches()) as usize).max().unwrap_or(0)
    }

    /// Rows of the longest group.
    pub fn longest_group_rows(&self) -> usize {
        let rows = |group: Range<usize>| self.chunks[group].iter().map(Chunk::rows).sum();
        self.groups().into_iter().map(rows).max().unwrap_or(0)
    }

    /// Chunk numbers if groups, by their numbers, stand in this order.
    pub fn chunks_of_groups(&self, groups: &[u32]) -> Vec<u32> {
        let all = self.groups();
        groups.iter().flat_map(|&group| all[group as usize].clone()).map(|chunk| chunk as u32).collect()
    }

    /// Whether the rows of a group's chunks alternate in the causal order.
    pub fn is_in_raster(&self, group: &Range<usize>) -> bool {
        // A method that computes the whole prompt computes that of the uncut picture.
        let raster = |tile: Tile| tile.order == TileOrder::Raster || !self.method.in_chunks();
        group.len() > 1 && self.chunks[group.start].tile().is_some_and(|(_, tile)| raster(tile))
    }

    /// Whether a picture's rows are in another causal order than those of the uncut picture.
    pub fn is_tile_after_tile(&self) -> bool {
        self.groups().iter().any(|group| group.len() > 1 && !self.is_in_raster(group))
    }

    /// Whether the first group, with chunks in `order`, is a picture whose rows keep the raster
    /// order. Its first chunk is then not exact: rows of other tiles come before some of its rows.
    pub(crate) fn begins_in_raster(&self, order: &[u32]) -> bool {
        let Some(&first) = order.first() else { return false };
        let is_first = |group: &Range<usize>| group.start == first as usize;
        self.groups().iter().find(|group| is_first(group)).is_some_and(|group| self.is_in_raster(group))
    }

    /// The rows of the context in their causal order, with chunks in `order`, in runs of rows of
    /// one chunk; each with the chunk's number.
    ///
    /// # Panics
    /// If `order` does not hold every chunk once, with the chunks of a group one after the other:
    /// only a bug can cause that.
    pub fn runs(&self, order: &[u32]) -> Vec<(u32, Range<u32>)> {
        let (rows, groups, group_of) = (self.chunk_rows(), self.groups(), self.group_of_chunks());
        let (mut runs, mut placed, mut next) = (Vec::with_capacity(order.len()), vec![false; rows.len()], 0);
        while let Some(&chunk) = order.get(next) {
            assert!((chunk as usize) < rows.len(), "chunk {chunk} of {} in the order {order:?}", rows.len());
            let group = groups[group_of[chunk as usize]].clone();
            for number in group.clone() {
                assert_eq!(order.get(next).copied(), Some(number as u32), "chunks {group:?} in the order {order:?}");
                assert!(!placed[number], "chunk {number} stands twice in the order {order:?}");
                (placed[number], next) = (true, next + 1);
            }
            match self.is_in_raster(&group) {
                true => self.raster_runs(group, &rows, &mut runs),
                false => runs.extend(group.map(|number| (number as u32, rows[number].clone()))),
            }
        }
        assert!(placed.iter().all(|&placed| placed), "rows of prefix and chunks in the order {order:?}");
        runs
    }

    /// The same for a group by itself, in the request's own order.
    pub fn runs_of(&self, group: &Range<usize>) -> Vec<(u32, Range<u32>)> {
        let (rows, mut runs) = (self.chunk_rows(), Vec::new());
        match self.is_in_raster(group) {
            true => self.raster_runs(group.clone(), &rows, &mut runs),
            false => runs.extend(group.clone().map(|number| (number as u32, rows[number].clone()))),
        }
        runs
    }

    /// Adds the runs of a picture in tiles: the tokens before it, its rows line by line, the tokens
    /// after it.
    fn raster_runs(&self, group: Range<usize>, rows: &[Range<u32>], runs: &mut Vec<(u32, Range<u32>)>) {
        let tile = |number: usize| -> (u32, Area) {
            let picture = &self.chunks[number].pictures[0];
            (rows[number].start + picture.first, picture.area())
        };
        let mut push = |number: usize, of: Range<u32>| match runs.last_mut() {
            _ if of.is_empty() => {}
            Some((last, run)) if *last == number as u32 && run.end == of.start => run.end = of.end,
            _ => runs.push((number as u32, of)),
        };
        push(group.start, rows[group.start].start..tile(group.start).0);
        let mut from = group.start;
        while from < group.end {
            let band = tile(from).1;
            let end = (from..group.end).find(|&other| tile(other).1.top != band.top).unwrap_or(group.end);
            for line in 0..band.lines {
                for number in from..end {
                    let (first, area) = tile(number);
                    push(number, first + line * area.columns..first + (line + 1) * area.columns);
                }
            }
            from = end;
        }
        let last = group.end - 1;
        let (first, area) = tile(last);
        push(last, first + area.rows() as u32..rows[last].end);
    }
}
