//! The KV cache of one request on one rank: blocks of keys before RoPE and values, the rows of
//! each, and views of them for passes.
//!
//! A block is immutable after its pass. Recompute never writes into one: fresh rows are a block of
//! their own, and the stale rows that they replace are hidden by their positions.

mod block;
mod growing;
mod layer_rows;

use candle_core::Tensor;
use tributary_kernels::{Keys, PAD, Positions, is_in_eight_bits};
use tributary_model::LayerAttention;

pub use self::block::{Block, BlockRows, Coming, ComingLayer};
pub use self::growing::GrowingBlock;
pub use self::layer_rows::LayerRows;

use crate::error::Result;
use crate::placement::Placement;

/// Number of rows below which a part of a block may keep the memory of the whole.
const FEW_ROWS: usize = 64;

/// Number of a row in a block whose rows are known by their places only.
const NO_ROW: u32 = u32::MAX;

/// The keys and values that one rank keeps of a request.
#[derive(Debug, Clone, Default)]
pub struct KvCache {
    /// The prefix: held by every rank, so it may count on one rank only in a merge.
    pub prefix: Block,
    /// The context rows that are this rank's alone: no row is in two ranks' lists.
    pub own: Vec<Block>,
    /// The other ranks' context rows, if they were gathered.
    pub others: Vec<Block>,
    /// Recomputed rows, which replace stale ones.
    pub fresh: Vec<Block>,
    /// The query's rows, if this rank owns them.
    pub tail: Block,
}

impl KvCache {
    /// The prefix.
    pub fn view_of_prefix(&self, placement: &Placement) -> View {
        View::new(&[&self.prefix], placement, &Hidden::default())
    }

    /// The context rows that are this rank's alone, as prefilled; those of `recomputed` are hidden.
    pub fn view_of_own(&self, placement: &Placement, recomputed: &[u32]) -> View {
        View::new(&self.own.iter().collect::<Vec<_>>(), placement, &Hidden::of(recomputed))
    }

    /// Prefix and context rows as prefilled, this rank's and the gathered ones; those of
    /// `recomputed` are hidden.
    pub fn view_of_stale(&self, placement: &Placement, recomputed: &[u32]) -> View {
        let blocks = std::iter::once(&self.prefix).chain(&self.own).chain(&self.others);
        View::new(&blocks.collect::<Vec<_>>(), placement, &Hidden::of(recomputed))
    }

    /// The context after the recompute: the stale rows of `recomputed` are hidden, and their fresh
    /// ones added.
    pub fn view_of_context(&self, placement: &Placement, recomputed: &[u32]) -> View {
        let stale: Vec<&Block> = self.own.iter().chain(&self.others).collect();
        let fresh: Vec<&Block> = self.fresh.iter().collect();
        let stale = View::new(&stale, placement, &Hidden::of(recomputed));
        stale.and(View::new(&fresh, placement, &Hidden::default()))
    }

    /// Prefix and query, which count on the owner alone in a merge.
    pub fn view_at_owner(&self, placement: &Placement) -> View {
        View::new(&[&self.prefix, &self.tail], placement, &Hidden::default())
    }

    /// The remainder once no row is seen in its prefilled state: prefix, recomputed rows and the
    /// query's. Its memory is shared with no other rows.
    ///
    /// # Errors
    /// Returns an error if a candle operation fails.
    pub fn without_stale(self) -> Result<Self> {
        // A view of zero rows would still keep its tensor's memory.
        let apart = |block: Block| match block.rows() {
            [] => Ok(Block::default()),
            _ => block.in_memory_of_its_own(),
        };
        let fresh = self.fresh.into_iter().map(apart).collect::<Result<_>>()?;
        let (prefix, tail) = (apart(self.prefix)?, apart(self.tail)?);
        Ok(Self { prefix, own: Vec::new(), others: Vec::new(), fresh, tail })
    }

    /// The keys that decoding sees, turned to their positions; the cache is consumed layer by
    /// layer.
    /// They are the context after the recompute (the stale rows of `recomputed` are hidden, and
    /// their fresh ones added), and prefix and query. Those count on the owner alone in a merge:
    /// they are left out where `is_owner` is false. Layers with a sliding window keep what queries
    /// from position `from` on see, if there is such a position.
    ///
    /// # Errors
    /// Returns an error if a position is beyond the tables or a candle operation fails.
    pub fn into_turned(
        self,
        placement: &Placement,
        recomputed: &[u32],
        (is_owner, from): (bool, Option<u32>),
        layers: &[LayerAttention],
    ) -> Result<(View, View)> {
        // Fresh rows and the query's share the tensors of one pass: any of them alone would keep
        // the memory of all.
        let apart = |blocks: Vec<Block>| blocks.into_iter().map(Block::with_values_of_its_own).collect::<Result<_>>();
        let Self { prefix, own, others, fresh, tail } = self;
        let (fresh, tail) = (apart(fresh)?, tail.with_values_of_its_own()?);
        let cache = Self { prefix, own, others, fresh, tail };
        let mut context = cache.view_of_context(placement, recomputed);
        let mut at_owner = if is_owner { cache.view_at_owner(placement) } else { View::default() };
        drop(cache); // the views alone hold the keys now
        if let Some(from) = from {
            (context, at_owner) = (context.seen_from(from, layers)?, at_owner.seen_from(from, layers)?);
        }
        turn(&mut [&mut context, &mut at_owner], layers)?;
        Ok((context, at_owner))
    }
}

/// Rows that are hidden in their stale form: a table by row.
#[derive(Debug, Clone, Default)]
struct Hidden(Vec<bool>);

impl Hidden {
    /// Hides the given rows.
    fn of(rows: &[u32]) -> Self {
        let mut table = vec![false; rows.iter().max().map_or(0, |&row| row as usize + 1)];
        rows.iter().for_each(|&row| table[row as usize] = true);
        Self(table)
    }

    fn contains(&self, row: u32) -> bool {
        self.0.get(row as usize).copied().unwrap_or(false)
    }
}

/// Blocks and the positions of their rows in one pass.
#[derive(Debug, Clone, Default)]
pub struct View {
    blocks: Vec<(Block, BlockPositions)>,
}

/// Positions of a block's rows.
#[derive(Debug, Clone)]
enum BlockPositions {
    /// The same in every layer.
    Everywhere(Positions),
    /// One entry a layer.
    PerLayer(Vec<Positions>),
}

impl BlockPositions {
    fn new(rows: &BlockRows, at: &dyn Fn(&[u32]) -> Positions) -> Self {
        let of_layer = |rows: &LayerRows| match rows {
            LayerRows::AllHeads(rows) => at(rows),
            LayerRows::PerHead(heads) => Positions::per_head(heads.iter().map(|rows| at(rows)).collect()),
        };
        match rows {
            BlockRows::Everywhere(rows) => BlockPositions::Everywhere(at(rows)),
            BlockRows::PerLayer(layers) => BlockPositions::PerLayer(layers.iter().map(of_layer).collect()),
        }
    }

    fn of(&self, layer: usize) -> &Positions {
        match self {
            BlockPositions::Everywhere(at) => at,
            BlockPositions::PerLayer(layers) => &layers[layer],
        }
    }

    /// Whether two layers have the very same positions.
    fn same_in(&self, layer: usize, other: usize) -> bool {
        let rope = |layer| self.of(layer).rope().as_ptr();
        std::ptr::eq(rope(layer), rope(other))
    }
}

impl View {
    /// All of `blocks` at `placement`, with the rows in `hidden` hidden.
    fn new(blocks: &[&Block], placement: &Placement, hidden: &Hidden) -> Self {
        let at = |rows: &[u32]| {
            let at = placement.at(rows);
            let is_hidden = |&place: &u32| hidden.contains(rows[place as usize]);
            let places: Vec<u32> = (0..rows.len() as u32).filter(is_hidden).collect();
            if places.is_empty() { at } else { at.without(&places) }
        };
        let stand = |block: &&Block| ((*block).clone(), BlockPositions::new(block.held(), &at));
        Self { blocks: blocks.iter().map(stand).collect() }
    }

    /// One block at the given positions.
    pub fn of(block: Block, at: Positions) -> Self {
        assert_eq!(block.rows().len(), at.len(), "a position for every row of a block");
        Self { blocks: vec![(block, BlockPositions::Everywhere(at))] }
    }

    /// Blocks of different rows in each layer and KV head, at the positions given with each layer.
    /// A place in the future of every query is empty.
    pub fn of_layers(layers: Vec<(Tensor, Tensor)>, at: Vec<Positions>) -> Self {
        let rows = at.iter().map(|at| LayerRows::AllHeads(vec![NO_ROW; at.len()].into()));
        let block = Block::of_layers(rows.collect::<Vec<_>>(), layers);
        Self { blocks: vec![(block, BlockPositions::PerLayer(at))] }
    }

    /// The same without rows from this number on. It is a row of a query or of an answer, so that
    /// compressed chunks stay as they are. What is left of a block is copied where much of it goes:
    /// the rest would keep its memory.
    ///
    /// # Errors
    /// Returns an error if a candle operation fails.
    pub fn before(&self, row: u32) -> Result<Self> {
        let before = |(block, at): &(Block, BlockPositions)| {
            let BlockPositions::Everywhere(everywhere) = at else {
                if block.is_compressed() {
                    return Ok((block.clone(), at.clone()));
                }
                let of_layer = |layer: usize| {
                    let rows = block.rows_of_head(layer, 0);
                    let left: Vec<u32> = (0..rows.len() as u32).filter(|&place| rows[place as usize] < row).collect();
                    (left.len() < rows.len()).then_some(left)
                };
                return at_places(block, at, &(0..block.layers.len()).map(of_layer).collect::<Vec<_>>());
            };
            let is_left = |place: &u32| block.rows()[*place as usize] < row;
            let (left, later): (Vec<u32>, Vec<u32>) = (0..block.rows().len() as u32).partition(is_left);
            if later.is_empty() {
                return Ok((block.clone(), at.clone()));
            }
            if left.last().is_some_and(|&last| last as usize >= left.len()) {
                return Ok((block.clone(), BlockPositions::Everywhere(everywhere.without(&later))));
            }
            let part = block.narrow(0, left.len())?;
            let part = if later.len() < FEW_ROWS { part } else { part.in_memory_of_its_own()? };
            Ok((part, BlockPositions::Everywhere(everywhere.select(&left))))
        };
        Ok(Self { blocks: self.blocks.iter().map(before).collect::<Result<_>>()? })
    }

    /// In layers with a sliding window the rows that a query from position `from` on can see; in
    /// the others all. Compressed chunks stay as they are.
    ///
    /// # Errors
    /// Returns an error if a candle operation fails.
    pub fn seen_from(&self, from: u32, layers: &[LayerAttention]) -> Result<Self> {
        let seen = |(block, at): &(Block, BlockPositions)| {
            if block.is_compressed() || block.layers.is_empty() {
                return Ok((block.clone(), at.clone()));
            }
            let of_layer = |(layer, of): (usize, &LayerAttention)| -> Option<Vec<u32>> {
                let (at, lowest) = (at.of(layer), of.lowest_seen(from)?);
                let is_seen = |&place: &u32| at.rope()[place as usize] >= lowest && at.order()[place as usize] != PAD;
                let seen: Vec<u32> = (0..at.len() as u32).filter(is_seen).collect();
                // One of which all rows are seen may share the memory of rows that go.
                (seen.len() < at.len() || !block.is_alone()).then_some(seen)
            };
            at_places(block, at, &layers.iter().enumerate().map(of_layer).collect::<Vec<_>>())
        };
        Ok(Self { blocks: self.blocks.iter().map(seen).collect::<Result<_>>()? })
    }

    /// These blocks, then those of `more`.
    #[must_use]
    pub fn and(mut self, more: View) -> Self {
        self.blocks.extend(more.blocks);
        self
    }

    /// The keys of one layer.
    pub fn keys(&self, layer: usize) -> Vec<Keys> {
        let key = |(block, at): &(Block, BlockPositions)| {
            let (k, v) = block.layer(layer).clone();
            Keys { k, v, at: at.of(layer).clone() }
        };
        self.blocks.iter().filter(|(block, _)| block.count(layer) > 0).map(key).collect()
    }

    /// The rows, as in [`rows`](Self::rows), and whether each is visible.
    pub fn seen(&self) -> impl Iterator<Item = (u32, bool)> + '_ {
        let of_block = |(block, at): &(Block, BlockPositions)| -> Vec<(u32, bool)> {
            if block.rows().is_empty() {
                return Vec::new();
            }
            let orders = at.of(0).order();
            block.rows().iter().zip(orders).map(|(&row, &order)| (row, order != PAD)).collect()
        };
        self.blocks.iter().flat_map(of_block)
    }

    /// Keys and values of every layer of every block.
    pub fn layers(&self) -> impl Iterator<Item = &(Tensor, Tensor)> {
        self.blocks.iter().flat_map(|(block, _)| &block.layers)
    }

    /// Turns the keys to their positions, once.
    ///
    /// # Errors
    /// Returns an error if a position is beyond the tables or a candle operation fails.
    pub fn turned(mut self, layers: &[LayerAttention]) -> Result<Self> {
        turn(&mut [&mut self], layers)?;
        Ok(self)
    }

    /// The rows, block by block: in the order of [`keys`](Self::keys) if nothing was compressed.
    /// Otherwise all rows of the chunks, even those absent from a layer or KV head. Not for blocks
    /// that were cut.
    pub fn rows(&self) -> impl Iterator<Item = u32> + '_ {
        self.blocks.iter().flat_map(|(block, _)| block.chunk_rows().iter().copied())
    }

    /// Whether some of its chunks were compressed.
    pub fn is_compressed(&self) -> bool {
        self.blocks.iter().any(|(block, _)| block.is_compressed())
    }

    /// The keys of one KV head of a layer, `[rows, 1, head_dim]`, and the places of their rows
    /// among [`rows`](Self::rows).
    ///
    /// # Errors
    /// Returns an error if a candle operation fails.
    pub fn keys_of_head(&self, layer: usize, head: usize) -> Result<(Vec<Keys>, Vec<usize>)> {
        let (mut keys, mut places, mut before) = (Vec::new(), Vec::new(), 0);
        for (block, at) in &self.blocks {
            let chunk = block.chunk_rows();
            if block.count(layer) > 0 {
                let (k, v) = block.layer(layer);
                let (k, v) = (k.narrow(1, head, 1)?, v.narrow(1, head, 1)?);
                keys.push(Keys { k, v, at: at.of(layer).of_head(head).clone() });
                // A chunk's rows have consecutive numbers; other blocks hold all of theirs.
                let place = |(index, &row): (usize, &u32)| match block.is_compressed() {
                    true => before + (row - chunk[0]) as usize,
                    false => before + index,
                };
                places.extend(block.rows_of_head(layer, head).iter().enumerate().map(place));
            }
            before += chunk.len();
        }
        Ok((keys, places))
    }
}

/// The rows of a block at some places in each layer; a layer without places keeps all.
fn at_places(block: &Block, at: &BlockPositions, kept: &[Option<Vec<u32>>]) -> Result<(Block, BlockPositions)> {
    if kept.iter().all(Option::is_none) {
        return Ok((block.clone(), at.clone()));
    }
    let mut positions: Vec<Positions> = Vec::with_capacity(kept.len());
    for (layer, places) in kept.iter().enumerate() {
        // Layers of one window share a list, which a device then has once.
        let is_like = |other: &usize| at.same_in(*other, layer) && kept[*other] == *places;
        positions.push(match (places, (0..layer).rev().find(is_like)) {
            (None, _) => at.of(layer).clone(),
            (Some(_), Some(other)) => positions[other].clone(),
            (Some(places), None) => at.of(layer).select(places),
        });
    }
    Ok((block.at_places(kept)?, BlockPositions::PerLayer(positions)))
}

/// Rotates every key of `views` to its position, once, for passes of one row each; keys in 8 bits
/// stay as they are, and are turned as they are read.
/// A layer's original keys are dropped before the next layer's are turned, except for those that
/// the chunk cache holds too. Blocks of one pass share tensors, so all views are turned together.
fn turn(views: &mut [&mut View], layers: &[LayerAttention]) -> Result<()> {
    for (layer, of_layer) in layers.iter().enumerate() {
        let blocks = views.iter_mut().flat_map(|view| &mut view.blocks);
        for (block, at) in blocks.filter(|(block, _)| block.count(layer) > 0) {
            if let Some((k, _)) = block.layers.get_mut(layer).filter(|(k, _)| !is_in_eight_bits(k)) {
                *k = of_layer.rope.apply(k, at.of(layer))?;
            }
        }
    }
    Ok(())
}
