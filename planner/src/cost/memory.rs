//! Peak memory of a request, of every rank and of a host. Never below the measured peak, and near
//! it.
//!
//! A rank holds the keys and values of its rows at every moment; the rest differs, and the largest
//! sum counts:
//! * prefill: activations of its rows, and one layer in transit;
//! * a measurement of drift: the cached rows of the first layers on every rank, and activations of
//!   a share of the context;
//! * a probe of anchors: their keys and values of the layers up to the scored one;
//! * ideal's full prefill: activations of its share and of its queries, a layer's fresh rows, and
//!   the query's attention to the cache;
//! * a free probe: activations of its share, the queries sent to a rank's keys, and each row's
//!   reading of each key;
//! * recompute: the fresh rows, activations of its share, and the queries sent to its keys;
//! * an eviction: kept rows beside the previous ones, one joined layer, and activations of the
//!   attending rows;
//! * decoding, if there is any: no activations, and half as much again as keys and values take.
//!   Keys are turned to their positions layer by layer and the old ones are released, so a sequence
//!   takes less than that;
//! * after the answer, if chunks are kept: a copy of the fresh chunks.
//!
//! Chunks from the chunk cache lie there once and are shared, so they are not counted again.

mod activations;
mod measuring;
#[cfg(test)]
mod tests;

use tributary_protocol::deal::{blocks, shards};
use tributary_protocol::{Activations, Evict, Exchange, Plan, Prefill};

use self::activations::{Allowance, Pass, number_bytes, slice_rows};
use super::evicting::asking_rows;
use super::{running_bytes, token_bytes};
use crate::ModelShape;
use crate::machine::{Machine, MemoryOf};

/// Memory of a process without weights and requests: program, threads, the allocator's own. About
/// 25 MB were measured.
pub const PROGRAM_BYTES: u64 = 32 << 20;

/// Workspace of cuBLAS on Hopper, 32 MiB; elsewhere 4 MiB (cuBLAS documentation,
/// `cublasSetWorkspace`).
const CUBLAS_BYTES: u64 = 32 << 20;

/// Other memory of a device: cuBLAS' workspace; parts of attention over few rows; ids, positions,
/// scores and the pool's rounding.
/// There are as many parts of attention as a GPU runs blocks: two on each of 132 multiprocessors,
/// and as many again that wait to be merged. That is 528 of 64 rows of 128 numbers in f32, 17 MB.
pub const DEVICE_BYTES: u64 = CUBLAS_BYTES + (32 << 20) + (64 << 20);

/// Positions by which rotary tables grow, as the model crate's `Decoder` lets them.
const ROTARY_STEP: usize = 4096;

/// Rows and keys of a tile in the lists that tell which rows see which keys; the smaller of the
/// kernels' tiles.
const LIST_TILE: usize = 64;

/// Rows of the prompt that attend to the cache at a time.
const EVICTING_ROWS: usize = 512;

/// Peak bytes of a request on the host whose ranks need most: weights and chunk cache included.
/// `cached_bytes` is the present size of each rank's chunk cache; empty stands for nothing.
///
/// If ranks are threads, gathered data is handed over and lies in memory once. On a device there is
/// no program, and numbers between layers have the weights' type; in addition it holds a layer's
/// keys, joined and rotated.
pub fn host_bytes(plan: &Plan, world: usize, shape: &ModelShape, machine: &Machine, cached_bytes: &[u64]) -> u64 {
    let threads = machine.ranks_here > 1 && machine.weight_copies == 1;
    let how = Counted { threads, ..Counted::of(machine.memory) };
    let mut largest_first = ranks(plan, world, shape, cached_bytes, how);
    largest_first.sort_unstable_by(|a, b| b.cmp(a));
    let of_ranks: u64 = largest_first.iter().take(machine.ranks_here).sum();
    weights_bytes(shape, machine).saturating_add(all_rotary_bytes(plan, shape, machine)).saturating_add(of_ranks)
}

/// Bytes of a request's rotary tables in all copies on the machine.
pub fn all_rotary_bytes(plan: &Plan, shape: &ModelShape, machine: &Machine) -> u64 {
    (machine.weight_copies as u64).saturating_mul(rotary_bytes(plan, shape, machine.memory))
}

/// Bytes of the rotary tables up to the last position of a request, which stay beside the weights
/// of a host: a cosine and a sine in f32 for each pair of a head's numbers; twice where some layers
/// have windows, which may have a base of their own. A head that turns in part has smaller ones.
/// Those of a device are among a layer's turned keys.
pub fn rotary_bytes(plan: &Plan, shape: &ModelShape, memory: MemoryOf) -> u64 {
    match memory {
        MemoryOf::Host => tables_bytes(plan, shape),
        MemoryOf::Device => 0,
    }
}

/// Bytes of one copy of a request's rotary tables.
fn tables_bytes(plan: &Plan, shape: &ModelShape) -> u64 {
    let positions = plan.positions(shape.max_positions).next_multiple_of(ROTARY_STEP);
    let bases = if shape.windows.is_some() { 2 } else { 1 };
    bases * 4 * (positions * shape.head_dim) as u64
}

/// Bytes of the weights, as often as the machine has them, and of everything present before any
/// request.
pub fn weights_bytes(shape: &ModelShape, machine: &Machine) -> u64 {
    (machine.weight_copies as u64).saturating_mul(shape.weight_bytes + besides(machine.memory))
}

/// Peak bytes of a request on each rank, which shares nothing with the others: weights and chunk
/// cache included.
pub fn rank_bytes(plan: &Plan, world: usize, shape: &ModelShape, memory: MemoryOf, cached_bytes: &[u64]) -> Vec<u64> {
    let with_weights = |bytes| bytes + shape.weight_bytes + rotary_bytes(plan, shape, memory) + besides(memory);
    ranks(plan, world, shape, cached_bytes, Counted::of(memory)).into_iter().map(with_weights).collect()
}

/// Peak bytes of a request on each rank, without weights and chunk caches.
pub fn peak_bytes(plan: &Plan, world: usize, shape: &ModelShape, memory: MemoryOf) -> Vec<u64> {
    ranks(plan, world, shape, &[], Counted::of(memory))
}

/// Peak bytes of a request on each rank of a host, as an allocator hands them out: as
/// [`peak_bytes`] without freed memory that stays with the process. Ranks are threads.
pub fn alive_bytes(plan: &Plan, world: usize, shape: &ModelShape) -> Vec<u64> {
    let how = Counted { threads: true, memory: MemoryOf::Host, allowance: Allowance::Alive };
    ranks(plan, world, shape, &[], how)
}

/// Bytes that a model beside the main one takes on a host: its weights, and the data of prompts of
/// `rows` rows, read one by one. That data is activations, a layer's keys and values, and the last
/// layer's attention of the queries.
pub fn beside_bytes(shape: &ModelShape, rows: usize) -> u64 {
    let pass = Pass::of(rows, Activations::Results);
    let passing = activations::bytes(shape, MemoryOf::Host, Allowance::Resident, pass);
    shape.weight_bytes + passing + rows as u64 * (shape.layer_kv_bytes() + 4 * shape.heads as u64)
}

/// Bytes that belong neither to weights nor to a request.
fn besides(memory: MemoryOf) -> u64 {
    match memory {
        MemoryOf::Host => PROGRAM_BYTES,
        MemoryOf::Device => DEVICE_BYTES,
    }
}

/// What is counted.
#[derive(Debug, Clone, Copy)]
struct Counted {
    /// Whether ranks are threads of a process.
    threads: bool,
    memory: MemoryOf,
    allowance: Allowance,
}

impl Counted {
    /// Everything that stays with ranks that are processes.
    fn of(memory: MemoryOf) -> Self {
        Self { threads: false, memory, allowance: Allowance::Resident }
    }
}

fn ranks(plan: &Plan, world: usize, shape: &ModelShape, cached_bytes: &[u64], counted: Counted) -> Vec<u64> {
    let shard_rows = shards(plan, world).iter().flatten().map(Vec::len).collect();
    let Counted { threads, memory, allowance } = counted;
    let of = Count { plan, world, shape, threads, memory, allowance, shard_rows };
    if cached_bytes.is_empty() {
        return (0..world).map(|rank| of.rank(rank, 0)).collect();
    }
    assert_eq!(cached_bytes.len(), world, "ranks with a chunk cache");
    cached_bytes.iter().enumerate().map(|(rank, &bytes)| of.rank(rank, bytes)).collect()
}

/// Rows that a rank holds or works on.
#[derive(Debug, Clone, Copy, Default)]
struct Held {
    /// Computed in prefill and kept until the end.
    own: usize,
    /// Computed in prefill and released, layer by layer.
    borrowed: usize,
    /// Other ranks' context, gathered.
    others: usize,
    /// Rows of its own context once more, joined for sending, if parts of it come from the chunk
    /// cache.
    joined: usize,
    /// Recomputed rows, and the query's.
    fresh: usize,
    /// Rows of the largest gather of one layer.
    flying: usize,
    /// Rows of its own in the recompute pass.
    recomputed: usize,
    /// All ranks' rows in the recompute pass whose queries come to its keys.
    asking: usize,
}

struct Count<'a> {
    plan: &'a Plan,
    world: usize,
    shape: &'a ModelShape,
    threads: bool,
    memory: MemoryOf,
    allowance: Allowance,
    /// Rows of each rank's shard, if the method splits the sequence.
    shard_rows: Vec<usize>,
}

impl Count<'_> {
    fn rank(&self, rank: usize, cached_bytes: u64) -> u64 {
        let (plan, shape) = (self.plan, self.shape);
        if plan.continues.is_some() {
            return cached_bytes + self.going_on(rank);
        }
        let held = self.held(rank);
        let kv = |rows: usize| rows as u64 * shape.kv_bytes();
        let in_chunks = plan.method.selection().is_some();
        // A reused prefix is in the cache, and once more in one piece before the computed rows.
        let warm = kv(match in_chunks {
            true => plan.held_warm_counts(self.world)[rank],
            false if rank == plan.owner => plan.reused_rows,
            false => 0,
        });
        let stale = kv(held.own) + kv(held.others) + kv(held.joined);
        let all = stale + kv(held.fresh);
        let flying = held.flying as u64 * shape.layer_kv_bytes();
        let logits = 2 * 4 * shape.vocab as u64;
        let passing = held.own + held.borrowed;
        // A layer of rows that do not stay is there as a whole, beside the part that stays.
        let borrowed = if held.borrowed > 0 { passing as u64 * shape.layer_kv_bytes() } else { 0 };
        let prefill = stale + flying + borrowed + self.activations(self.prefill_pass(passing)) + self.rotated(passing);
        let recompute = all + self.recompute(rank, &held) + logits;
        let generated = token_bytes(plan, shape).of(if plan.max_tokens > 1 { plan.max_tokens } else { 0 });
        let decode = if plan.evicts().is_some() {
            running_bytes(plan, self.world, shape)[rank] + logits
        } else if plan.max_tokens > 1 {
            all + all / 2 + generated + logits
        } else {
            0
        };
        let kept = if plan.keep_chunks && plan.method.reuses() { kv(held.own) } else { 0 };
        let (features, tower) = self.pictures(rank);
        let measured = self.drift(rank, stale).max(self.free_probe(rank, stale)).max(self.oracle(rank, stale));
        let measured = measured.max(self.anchored(rank, stale));
        let moments = [
            prefill,
            recompute,
            decode,
            all + kept,
            self.look_ahead(rank, &held, all),
            self.evicting(rank, &held, all),
            measured,
            tower,
        ];
        // Models beside the main one run on rank 0's host.
        let costs = plan.auxiliary.iter().map(|auxiliary| &auxiliary.cost);
        let costs = costs.chain(plan.draft_model.as_ref().map(|draft| &draft.cost));
        let costs = costs.filter(|_| rank == 0 && self.memory == MemoryOf::Host);
        let beside: u64 = costs.map(|cost| cost.memory_bytes).sum();
        cached_bytes.max(warm)
            + moments.into_iter().max().unwrap_or(0)
            + features
            + self.lists(&held)
            + beside
            + self.places(rank, &held)
    }

    /// Bytes of the features of all pictures and of the rotary tables with their places, and what
    /// is there beside them while a tower runs.
    fn pictures(&self, rank: usize) -> (u64, u64) {
        let Some(vision) = self.shape.vision.as_ref().filter(|_| self.plan.has_pictures()) else { return (0, 0) };
        let features = vision.features_bytes(self.plan, self.shape.dtype_bytes);
        // The ranks' features are there once more where they are joined.
        let tower = vision.tower_bytes(self.plan, rank, self.number_bytes());
        (features + tables_bytes(self.plan, self.shape), self.slack(tower.max(2 * features)))
    }

    /// Bytes of the recompute pass, in addition to keys and values: activations of its rows, and
    /// the queries that come to its keys.
    fn recompute(&self, rank: usize, held: &Held) -> u64 {
        let (plan, shape) = (self.plan, self.shape);
        let queries = self.number_bytes() * held.asking as u64 * (4 * shape.query_width() + shape.heads) as u64;
        let turned = self.rotated(held.own + held.others + held.fresh + plan.held_warm_counts(self.world)[rank]);
        // Cached state that recomputed rows are mixed with: picked, put in order, weighted, and the
        // sum.
        let mixed = if plan.parts().is_some() { 4 * held.fresh as u64 * 8 * shape.kv_width() as u64 } else { 0 };
        mixed + self.activations(self.recompute_pass(held.recomputed)) + self.slack(queries) + turned
    }

    /// Bytes of a request that goes on from a kept sequence: all keys and values, and the pass of
    /// the rows after it. Their queries go to every rank with a part of the keys.
    fn going_on(&self, rank: usize) -> u64 {
        let (plan, shape) = (self.plan, self.shape);
        let rows = plan.rows_after_kept().unwrap_or_default().len();
        let kept = running_bytes(&Plan { keep_sequence: true, ..plan.clone() }, self.world, shape)[rank];
        let queries = self.number_bytes() * rows as u64 * (4 * shape.query_width() + shape.heads) as u64;
        let queries = if plan.decodes_alone(self.world) { 0 } else { self.slack(queries) };
        if rank != plan.owner {
            return kept + queries;
        }
        // Pieces of later turns are joined now and then.
        let joined = plan.continues.map_or(0, |continues| continues.rows - continues.first_rows) as u64;
        let logits = 2 * 4 * shape.vocab as u64;
        kept + joined * shape.kv_bytes()
            + queries
            + self.activations(Pass::of(rows, Activations::Results).merging(3))
            + logits
    }

    /// Bytes while the rows of a look-ahead run, in addition to `all` keys and values.
    /// On the owner these are a layer's keys and values of the rows, and activations. On ranks with
    /// keys that they see: those keys and values in f32 and turned, the attention to each in every
    /// head, and the attention that each key received in every layer.
    fn look_ahead(&self, rank: usize, held: &Held, all: u64) -> u64 {
        let (plan, shape, rows) = (self.plan, self.shape, self.plan.look_ahead_count());
        let is_owner = rank == plan.owner;
        if rows == 0 || plan.max_tokens <= 1 || (plan.decodes_alone(self.world) && !is_owner) {
            return 0;
        }
        let keys = held.own + held.others + held.fresh + plan.held_warm_counts(self.world)[rank];
        let attention = 4 * shape.heads * rows * keys; // scores, masked, less the denominator, their exponentials
        let wide_keys = 8 * shape.kv_width() * keys; // joined, picked, turned, transposed; values joined, picked
        let received = shape.layers * shape.kv_heads * keys;
        let passing = if is_owner {
            rows as u64 * shape.layer_kv_bytes() + self.activations(Pass::in_whole_layers(rows))
        } else {
            0
        };
        all + passing + self.slack(4 * (attention + wide_keys + received) as u64)
    }

    /// Bytes while rows are evicted, in addition to `all` keys and values.
    /// These are activations of the attending rows, their queries and results from all ranks, a
    /// joined layer, and the kept rows. The attention that each key received in every layer is
    /// added; on the owner, all keys'.
    fn evicting(&self, rank: usize, held: &Held, all: u64) -> u64 {
        let (plan, shape) = (self.plan, self.shape);
        let is_owner = rank == plan.owner;
        if plan.evicts().is_none() || (plan.decodes_alone(self.world) && !is_owner) {
            return 0;
        }
        let asking = asking_rows(plan, self.world);
        let asking: Vec<usize> = asking.into_iter().map(|rows| rows.min(EVICTING_ROWS)).collect();
        let all_asking: usize = asking.iter().sum();
        let keys = held.own + held.others + held.fresh + plan.held_warm_counts(self.world)[rank];
        let queries = self.number_bytes() * all_asking as u64 * (4 * shape.query_width() + shape.heads) as u64;
        let of_all = if is_owner { 2 * plan.total_rows() } else { 0 };
        let received = 4 * (shape.layers * shape.kv_heads * (2 * keys + of_all)) as u64;
        let layer = 2 * keys as u64 * shape.layer_kv_bytes();
        let kept = running_bytes(plan, self.world, shape)[rank];
        let generated = plan.evicts().map_or(0, Evict::generated_tokens) as u64 * shape.kv_bytes();
        let draft = match plan.evicts().map_or(0, |evict| evict.draft_rows(plan.total_rows())) {
            0 => 0,
            rows if rows == plan.total_rows() => all + generated,
            _ => kept + generated,
        };
        all + kept
            + draft
            + layer
            + self.activations(Pass::in_whole_layers(asking[rank]))
            + self.slack(queries + received)
    }

    /// Bytes of the numbers and positions of the rows that each KV head holds of compressed chunks,
    /// in a block and in two views of it.
    fn places(&self, rank: usize, held: &Held) -> u64 {
        const BYTES: usize = 4 * (1 + 2 * 3);
        if !self.plan.compresses() {
            return 0;
        }
        let rows = held.own + held.others + self.plan.held_warm_counts(self.world)[rank];
        (rows * BYTES * self.shape.layers * self.shape.kv_heads) as u64
    }

    /// Bytes of the lists that tell a device which rows see which keys: one for each pass, kept for
    /// the next request. A row of queries has five numbers, a row of keys four, and every tile of
    /// queries names the tiles of keys that it sees.
    fn lists(&self, held: &Held) -> u64 {
        if self.memory == MemoryOf::Host {
            return 0;
        }
        let group = self.shape.heads / self.shape.kv_heads.max(1);
        let words = |queries: usize, keys: usize| {
            5 * queries + 4 * keys + (queries * group).div_ceil(LIST_TILE) * keys.div_ceil(LIST_TILE)
        };
        let there = held.own + held.others + held.fresh;
        // Each slice has lists of the keys that it sees: rows of chunks see their own alone.
        let most = slice_rows(self.memory);
        let slices = |queries: usize, keys: usize| {
            let count = queries.div_ceil(most).max(1);
            count * words(queries.div_ceil(count), keys)
        };
        let longest = self.plan.chunks.iter().map(|chunk| chunk.rows()).max().unwrap_or(0);
        let seen = match self.plan.method.in_chunks() {
            true => held.own.min(self.plan.prefix_tokens() + most + longest),
            false => held.own,
        };
        let passes = [(held.own, seen), (held.recomputed.max(held.asking), there)];
        4 * passes.into_iter().map(|(queries, keys)| slices(queries, keys) as u64).sum::<u64>()
    }

    fn held(&self, rank: usize) -> Held {
        let plan = self.plan;
        let shard = |flying: usize| {
            let flying = if self.world > 1 { flying } else { 0 };
            Held { own: self.shard_rows[rank], flying, ..Held::default() }
        };
        match plan.method.prefill {
            Prefill::Whole { .. } => {
                Held { own: if rank == plan.owner { plan.total_rows() } else { 0 }, ..Held::default() }
            }
            // The present shard and the next one.
            Prefill::Ring => shard(2 * self.shard_rows.iter().copied().max().unwrap_or(0)),
            Prefill::Gathered { .. } => shard(self.shard_rows.iter().sum()),
            // Of a slice the present queries, the next ones, and the partial results on their way
            // home.
            Prefill::Queries => shard(self.kv_rows_of_queries(4 * self.longest_slice())),
            Prefill::Anchored { .. } => self.held_of_blocks(rank),
            Prefill::Chunks(_) | Prefill::Selected(_) => self.held_of_chunks(rank),
        }
    }

    /// `rows` rows of queries, in rows of keys and values.
    fn kv_rows_of_queries(&self, rows: usize) -> usize {
        let queries = rows * self.shape.query_width() * self.shape.dtype_bytes;
        queries.div_ceil(self.shape.layer_kv_bytes() as usize)
    }

    fn held_of_blocks(&self, rank: usize) -> Held {
        let (blocks, query) = (blocks(self.plan, self.world).expect("it works in blocks"), self.plan.query_tokens());
        let of_query = if blocks.pass_on() { blocks.of_ranks[rank].len() * query } else { 0 };
        let own_query = if rank == self.plan.owner { query } else { 0 };
        Held {
            own: self.shard_rows[rank] - own_query,
            borrowed: blocks.borrowed(rank).len() + of_query,
            flying: 2 * blocks.passed_counts().iter().sum::<usize>(),
            fresh: own_query,
            recomputed: own_query,
            asking: query,
            ..Held::default()
        }
    }

    fn held_of_chunks(&self, rank: usize) -> Held {
        let (plan, all) = (self.plan, self.plan.held_counts(self.world));
        let kept = all[rank];
        let cold = kept - plan.held_warm_counts(self.world)[rank];
        let query = plan.query_tokens();
        let share = plan.budget.div_ceil(self.world) + if rank == plan.owner { query } else { 0 };
        let replicate = plan.replicates_stale() && self.world > 1;
        let is_warm = cold < kept;
        let gathers_fresh = match plan.exchange {
            Exchange::Replicate => self.world > 1,
            Exchange::PassQ => false,
            Exchange::Selected => true,
        };
        Held {
            // Rows that compressed chunks do not keep.
            borrowed: match plan.compresses() {
                true => plan.kept_counts(self.world)[rank] - plan.warm_counts(self.world)[rank] - cold,
                false => 0,
            },
            // Pieces of a lead that come from the cache are joined with the others.
            own: plan.prefix_tokens() + plan.lead_tokens() + cold,
            others: if replicate && !self.threads { all.iter().sum::<usize>() - kept } else { 0 },
            joined: if replicate && is_warm { kept } else { 0 },
            fresh: if gathers_fresh { plan.budget + query } else { share + query },
            flying: 0,
            recomputed: share,
            asking: if self.world > 1 && plan.exchange == Exchange::PassQ { plan.budget + query } else { query },
        }
    }

    /// Rows of the longest slice of a shard.
    fn longest_slice(&self) -> usize {
        self.shard_rows.iter().copied().max().unwrap_or(0).min(slice_rows(self.memory))
    }

    /// The pass of a rank's rows of the prompt, or of its chunks.
    fn prefill_pass(&self, rows: usize) -> Pass {
        let prefill = self.plan.method.prefill;
        if self.plan.compresses() {
            // Rows are chosen by the queries and results of all rows.
            return Pass::of(rows, Activations::Results);
        }
        let pass = Pass::of(rows, prefill.activations());
        match prefill {
            // Results from every rank, and their sum.
            Prefill::Queries => pass.merging(self.world + 1),
            Prefill::Ring | Prefill::Anchored { passing: Some(_), .. } => pass.merging(3),
            _ if prefill.activations() == Activations::Results => pass.merging(3),
            _ => pass,
        }
    }

    /// The pass of a rank's recomputed rows and the query's.
    fn recompute_pass(&self, rows: usize) -> Pass {
        let alive = match self.plan.exchange {
            Exchange::Replicate => Activations::Stream,
            // Queries of all ranks attend to this one's keys.
            Exchange::PassQ | Exchange::Selected => Activations::Results,
        };
        Pass::of(rows, alive).merging(3)
    }

    /// [`activations::bytes`] of the plan's model.
    fn activations(&self, pass: Pass) -> u64 {
        activations::bytes(self.shape, self.memory, self.allowance, pass)
    }

    /// Bytes with the memory that the allocator does not return.
    fn slack(&self, bytes: u64) -> u64 {
        self.allowance.slack(bytes)
    }

    /// Bytes of a number between layers.
    fn number_bytes(&self) -> u64 {
        number_bytes(self.shape, self.memory)
    }

    /// Bytes of one layer's keys and values of `rows` rows, joined, its keys once more rotated, and
    /// of the rotary tables, where that happens: on a CPU a tile at a time. Those in 8 bits are
    /// there packed too.
    fn rotated(&self, rows: usize) -> u64 {
        match self.memory {
            MemoryOf::Host => 0,
            MemoryOf::Device => {
                let layer = rows as u64 * self.shape.read_layer_kv_bytes();
                let packed = match self.shape.kv_in_eight_bits {
                    true => rows as u64 * self.shape.layer_kv_bytes(),
                    false => 0,
                };
                let after = self.plan.max_tokens.max(self.plan.passing_rows());
                let tables = 4 * (self.plan.total_rows() + after) * self.shape.head_dim;
                self.slack(packed + layer + layer / 2 + tables as u64)
            }
        }
    }
}
