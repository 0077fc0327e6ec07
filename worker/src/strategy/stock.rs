//! Cached chunks of a request on a rank before it computes: those in its memory, and those that are
//! read from the store behind it.

use std::ops::Range;

use tributary_kernels::{Positions, SHARED, cuda};
use tributary_protocol::{FromStore, KeySpace, Plan, Source};
use tributary_store::{Identity, Shape};

use super::arrivals::Arrivals;
use crate::attention::{ChunkRows, Compression};
use crate::context::Context;
use crate::error::Result;
use crate::kv::{Block, KvCache, View};
use crate::load_choice::{self, Expected};
use crate::loading::Loading;
use crate::numbers;

/// The blocks that this rank has of a request, chunk by chunk. They share storage with the chunk
/// cache.
pub struct Stock {
    /// The head, if present.
    pub head: Option<Block>,
    /// The first pieces of the lead, as far as they are present; none without the head.
    lead: Vec<Block>,
    /// This rank's chunks, ascending, and their blocks if the chunk cache has them.
    chunks: Vec<(usize, Option<Block>)>,
    /// Rotary positions of each of them right after the head.
    standing: Vec<Vec<u32>>,
    /// Chunks that are being read.
    pub arrivals: Arrivals,
}

impl Stock {
    /// Looks up the chunks that the plan calls warm, and head and lead if there are any. Stored
    /// chunks are read if reading is faster than computing.
    ///
    /// # Errors
    /// Returns an error if a candle operation fails.
    pub fn look_up(cx: &mut Context<'_>, plan: &Plan) -> Result<Self> {
        let layers = cx.models.main.config().layers;
        let chunk_rows = plan.chunk_rows();
        let is_warm = plan.prefills_chunks() && plan.chunks.iter().any(|chunk| chunk.warm);
        let head = if is_warm { head(cx, plan)? } else { None };
        let lead = if head.is_some() { lead(cx, plan)? } else { Vec::new() };
        let (mut chunks, mut stored) = (Vec::new(), Vec::new());
        let own: Vec<usize> = chunks_of(plan, cx.rank()).collect();
        let standing = cx.standing(own.iter().map(|&chunk| &plan.chunks[chunk]), plan.head_tokens())?;
        for chunk in chunks_of(plan, cx.rank()) {
            let mut block = None;
            if plan.chunks[chunk].warm {
                let identity = chunk_identity(cx.chunk_cache.space(), plan, chunk);
                let found = if plan.from_store { None } else { cx.chunk_cache.get(&identity.key) };
                match found {
                    Some(found) => block = Some(found.block(chunk_rows[chunk].clone().collect()).complete(layers)),
                    None if head.is_some() && cx.chunk_cache.may_be_stored() => {
                        stored.push((chunks.len(), identity));
                    }
                    None => cx.chunk_cache.miss(),
                }
            }
            chunks.push((chunk, block));
        }
        let mut stock = Self { head, lead, chunks, standing, arrivals: Arrivals::default() };
        stock.begin_to_read(cx, plan, stored)?;
        Ok(stock)
    }

    /// Begins to read those stored chunks that reading is faster for; `stored` has their places
    /// among this rank's chunks.
    fn begin_to_read(&mut self, cx: &mut Context<'_>, plan: &Plan, stored: Vec<(usize, Identity)>) -> Result<()> {
        let (Some(head), Some(store)) = (self.head.clone(), cx.chunk_cache.store().cloned()) else { return Ok(()) };
        let of = |place: usize| &plan.chunks[self.chunks[place].0];
        let shape = |place: usize| {
            let with_places = of(place).compress.is_some();
            shape(cx, of(place).held_rows()).map(|shape| Shape { with_places, ..shape })
        };
        let shapes: Option<Vec<Shape>> = stored.iter().map(|(place, _)| shape(*place)).collect();
        let Some(shapes) = shapes.filter(|shapes| !shapes.is_empty()) else { return Ok(()) };
        let read_s =
            |((_, identity), shape): (&(usize, Identity), &Shape)| store.expected_s(&identity.key, shape.bytes());
        let read_s: Option<Vec<f64>> = stored.iter().zip(&shapes).map(read_s).collect();
        let is_read = match (cx.chunk_cache.row_s(), read_s) {
            (Some(row_s), Some(read_s)) => {
                let expected = |((place, _), &read_s): (&(usize, Identity), &f64)| Expected {
                    read_s,
                    computed_s: of(*place).rows() as f64 * row_s,
                };
                let computed: usize = self.missing().map(|chunk| plan.chunks[chunk].rows()).sum();
                let stored_rows: usize = stored.iter().map(|(place, _)| of(*place).rows()).sum();
                let beside_s = (computed - stored_rows) as f64 * row_s;
                load_choice::read(&stored.iter().zip(&read_s).map(expected).collect::<Vec<_>>(), beside_s)
            }
            // Without measurements, every stored chunk is read.
            _ => vec![true; shapes.len()],
        };
        let mut from_store =
            FromStore { computed: is_read.iter().filter(|read| !**read).count(), ..FromStore::default() };
        let read = stored.into_iter().zip(shapes).zip(is_read).filter(|(_, is_read)| *is_read).map(|(read, _)| read);
        let (mut places, mut wanted, mut chunks) = (Vec::new(), Vec::new(), Vec::new());
        for ((place, identity), shape) in read {
            from_store.loaded += 1;
            from_store.loaded_tokens += identity.ids.len();
            from_store.loaded_bytes += shape.bytes();
            chunks.push((plan.chunks[self.chunks[place].0].clone(), self.standing[place].clone()));
            places.push(place);
            wanted.push((identity, shape));
        }
        let loading = (Loading::begin(&store, wanted), cx.math.alone());
        self.arrivals = Arrivals::new(loading, chunks, head, cx.models.main.config().layers).of(from_store);
        let chunk_rows = plan.chunk_rows();
        for (index, place) in places.into_iter().enumerate() {
            let (chunk, block) = &mut self.chunks[place];
            let rows: Vec<u32> = chunk_rows[*chunk].clone().collect();
            *block = Some(Block::coming(rows, self.arrivals.coming(index)));
        }
        Ok(())
    }

    fn missing(&self) -> impl Iterator<Item = usize> + '_ {
        self.chunks.iter().filter(|(_, block)| block.is_none()).map(|&(chunk, _)| chunk)
    }

    /// The compression of the batch, whose rows stand at `at`, of a model with `layers` layers.
    pub fn compression(&self, plan: &Plan, at: &Positions, layers: usize) -> Compression {
        let rows = plan.chunk_rows();
        let chunks = self.missing().map(|chunk| (&plan.chunks[chunk], rows[chunk].clone()));
        Compression::new(self.prefix_rows_missing(plan), chunks, at, layers)
    }

    /// Number of prefix rows at the beginning of the batch.
    pub fn prefix_rows_missing(&self, plan: &Plan) -> usize {
        self.missing_prefix(plan).len()
    }

    /// Prefix rows at the beginning of the batch.
    fn missing_prefix(&self, plan: &Plan) -> Range<usize> {
        let there = self.head.iter().chain(&self.lead).map(|block| block.rows().len()).sum();
        there..plan.prefix_tokens()
    }

    /// The cached keys that rows of the batch see: the head, seen by all, and pieces of the lead,
    /// seen by its later ones.
    pub fn before(&self, plan: &Plan) -> View {
        let mut view = View::default();
        for block in self.head.iter().chain(&self.lead) {
            view = view.and(View::of(block.clone(), prefix_positions(plan, block.rows().iter().copied())));
        }
        view
    }

    /// Sources of the rows that the batch computes.
    pub fn missing_sources(&self, plan: &Plan) -> Vec<Source> {
        let chunks = self.missing().flat_map(|chunk| plan.chunks[chunk].sources());
        let prefix = &plan.prefix[self.missing_prefix(plan)];
        prefix.iter().map(|&id| Source::Token(id)).chain(chunks).collect()
    }

    /// Numbers of those rows.
    pub fn missing_rows(&self, plan: &Plan) -> Vec<u32> {
        let prefix = self.missing_prefix(plan).map(|row| row as u32);
        let chunks = plan.chunk_rows();
        prefix.chain(self.missing().flat_map(|chunk| chunks[chunk].clone())).collect()
    }

    /// LOCAL layout of the batch: the head, seen by all, then the lead and each chunk right after
    /// the head, each in a segment of its own.
    pub fn missing_positions(&self, plan: &Plan) -> Positions {
        let head = plan.head_tokens() as u32;
        let prefix = prefix_positions(plan, self.missing_prefix(plan).map(|row| row as u32));
        let (mut rope, mut orders) = (prefix.rope().to_vec(), prefix.order().to_vec());
        let mut segments = prefix.segment().to_vec();
        let missing = self.chunks.iter().zip(&self.standing).filter(|((_, block), _)| block.is_none());
        for ((chunk, _), standing) in missing {
            rope.extend(standing);
            orders.extend(head..head + standing.len() as u32);
            segments.extend(std::iter::repeat_n(*chunk as u32, standing.len()));
        }
        Positions::new(rope, orders, segments)
    }

    /// Place of each of this rank's chunks: the chunk cache, or a run of the batch.
    pub fn parts(&self, plan: &Plan) -> Vec<ChunkRows> {
        // Of compressed chunks, the kept rows are joined.
        let mut from = if plan.compresses() { 0 } else { self.missing_prefix(plan).len() };
        let part = |(chunk, block): &(usize, Option<Block>)| match block {
            Some(block) => ChunkRows::Cached(block.clone()),
            None => {
                let count = plan.chunks[*chunk].held_rows();
                from += count;
                ChunkRows::Fresh { from: from - count, count }
            }
        };
        self.chunks.iter().map(part).collect()
    }

    /// The cache, with the rest from the batch: the batch has its chunks too, unless they were
    /// `compressed`.
    ///
    /// # Errors
    /// Returns an error if a candle operation fails.
    pub fn filled(self, plan: &Plan, batch: &Block, compressed: Option<Vec<Block>>) -> Result<(KvCache, Arrivals)> {
        let parts = self.parts(plan);
        let mut compressed = compressed.map(Vec::into_iter);
        let own = parts.into_iter().map(|part| match (part, &mut compressed) {
            (ChunkRows::Cached(block), _) => Ok(block),
            (ChunkRows::Fresh { .. }, Some(blocks)) => Ok(blocks.next().expect("a block of every chunk of the batch")),
            (ChunkRows::Fresh { from, count }, None) => batch.narrow(from, count),
        });
        let own = own.collect::<Result<_>>()?;
        let computed = self.missing_prefix(plan).len();
        let mut prefix: Vec<Block> = self.head.into_iter().chain(self.lead).collect();
        if prefix.is_empty() || computed > 0 {
            prefix.push(batch.narrow(0, computed)?);
        }
        let prefix = Block::joined(prefix)?;
        Ok((KvCache { prefix, own, ..KvCache::default() }, self.arrivals))
    }
}

/// Positions of prefix rows: at their places; the head seen by every segment, the lead in one of
/// its own.
fn prefix_positions(plan: &Plan, rows: impl Iterator<Item = u32>) -> Positions {
    let (head, lead) = (plan.head_tokens() as u32, plan.chunks.len() as u32);
    let rows: Vec<u32> = rows.collect();
    let segments = rows.iter().map(|&row| if row < head { SHARED } else { lead }).collect::<Vec<_>>();
    Positions::new(rows.clone(), rows, segments)
}

/// The head from the chunk cache, or from the store, which is waited for: chunks from there are
/// useless without it.
fn head(cx: &mut Context<'_>, plan: &Plan) -> Result<Option<Block>> {
    let rows: Vec<u32> = (0..plan.head_tokens() as u32).collect();
    let (space, layers) = (cx.chunk_cache.space().clone(), cx.models.main.config().layers);
    if let Some(found) = cx.chunk_cache.get_prefix(&space.prefix(plan.head())).filter(|_| !plan.from_store) {
        return Ok(Some(Block::of(rows, found).complete(layers)));
    }
    let Some((_, shape)) = cx.chunk_cache.store().cloned().zip(shape(cx, rows.len())) else { return Ok(None) };
    if rows.is_empty() {
        let (device, dtype) = (cx.models.main.device(), cx.models.main.kv_dtype());
        let empty = || cuda::nothing((0, shape.kv_heads, shape.head_dim), dtype, device);
        let found = (0..layers).map(|_| Ok((empty()?, empty()?))).collect::<Result<Vec<_>>>()?;
        return Ok(Some(Block::of(rows, found).complete(layers)));
    }
    stored(cx, rows, |rank| head_identity(&space, plan, rank))
}

/// The first pieces of the lead from the chunk cache or the store, up to the first that neither
/// has.
fn lead(cx: &mut Context<'_>, plan: &Plan) -> Result<Vec<Block>> {
    let (space, layers) = (cx.chunk_cache.space().clone(), cx.models.main.config().layers);
    let mut blocks = Vec::new();
    for rows in plan.lead_rows() {
        let identity = |rank| lead_identity(&space, plan, &rows, rank);
        let cached = cx.chunk_cache.get_prefix(&identity(cx.rank()).key).filter(|_| !plan.from_store);
        let rows: Vec<u32> = rows.clone().collect();
        let found = match cached {
            Some(found) => Some(Block::of(rows, found).complete(layers)),
            None => stored(cx, rows, identity)?,
        };
        let Some(found) = found else { break };
        blocks.push(found);
    }
    Ok(blocks)
}

/// Rows of the prefix from the store, under this rank's name or another's, which differs in
/// rounding only.
fn stored(cx: &Context<'_>, rows: Vec<u32>, identity: impl Fn(usize) -> Identity) -> Result<Option<Block>> {
    let (device, layers) = (cx.models.main.device(), cx.models.main.config().layers);
    let Some((store, shape)) = cx.chunk_cache.store().cloned().zip(shape(cx, rows.len())) else { return Ok(None) };
    let mut found = std::iter::once(cx.rank()).chain(0..cx.comm.size()).map(identity);
    let Some(identity) = found.find(|identity| cx.chunk_cache.is_stored(&identity.key)) else { return Ok(None) };
    let loading = Loading::begin(&store, vec![(identity, shape)]);
    let found: Option<Vec<_>> = (0..layers).map(|layer| loading.layer(0, layer)).collect();
    let Some(found) = found else { return Ok(None) };
    let found =
        found.into_iter().map(|layer| layer.pair).map(|(k, v)| Ok((k.to_device(device)?, v.to_device(device)?)));
    Ok(Some(Block::of(rows, found.collect::<Result<Vec<_>>>()?).complete(layers)))
}

/// The shape of a chunk of `rows` rows; `None` for a model whose numbers are not stored.
pub(super) fn shape(cx: &Context<'_>, rows: usize) -> Option<Shape> {
    let config = cx.models.main.config();
    let numbers = numbers::numbers(cx.models.main.kv_dtype())?;
    let (layers, kv_heads, head_dim) = (config.layers, config.kv_heads, cx.models.main.kv_width());
    Some(Shape { layers, rows, kv_heads, head_dim, numbers, with_places: false })
}

/// Identity of a chunk of the plan.
pub fn chunk_identity(space: &KeySpace, plan: &Plan, chunk: usize) -> Identity {
    let (ids, extra) = (&plan.chunks[chunk].ids, plan.chunks[chunk].extra(plan.scope));
    let key = space.chunk(plan.head(), ids, &extra);
    Identity { key, model: space.model(), prefix: plan.head().to_vec(), extra, ids: ids.clone() }
}

/// Identity of the plan's head in a store: a chunk without tokens, of a rank. Every rank computes
/// the head in its own batch, and its chunks share that rounding, so that a later run continues
/// with the very same bits.
pub fn head_identity(space: &KeySpace, plan: &Plan, rank: usize) -> Identity {
    let extra = (rank as u32).to_le_bytes().to_vec();
    let key = space.chunk(plan.head(), &[], &extra);
    Identity { key, model: space.model(), prefix: plan.head().to_vec(), extra, ids: Vec::new() }
}

/// Identity of a piece of the plan's lead: a chunk of a rank, after head and earlier pieces.
pub fn lead_identity(space: &KeySpace, plan: &Plan, rows: &Range<u32>, rank: usize) -> Identity {
    let (before, ids) = plan.prefix[..rows.end as usize].split_at(rows.start as usize);
    let scope = plan.scope.map(u64::to_le_bytes);
    let mut extra = [&b"lead"[..], &(rank as u32).to_le_bytes()].concat();
    extra.extend(scope.into_iter().flatten());
    let key = space.chunk(before, ids, &extra);
    Identity { key, model: space.model(), prefix: before.to_vec(), extra, ids: ids.to_vec() }
}

/// Numbers of the chunks that a rank prefills, ascending.
pub fn chunks_of(plan: &Plan, rank: usize) -> impl Iterator<Item = usize> + '_ {
    let prefilled = plan.chunks.iter().enumerate().filter(|_| plan.prefills_chunks());
    prefilled.filter(move |(_, chunk)| chunk.rank == rank).map(|(index, _)| index)
}
