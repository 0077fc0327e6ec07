//! FLOPs of every rank in every phase, counted as the ranks compute: a multiplication and an
//! addition are two, and only keys that a row sees count.
//! Also the bytes that norms, rotations, activations and sums read and write: they are few FLOPs
//! and much memory.
//!
//! In the last layer of a prompt only the attending row goes on after its keys; chunk prefill stops
//! at the last layer's keys, a probe at the attention of its last scored layer.

mod measuring;
mod sharded;

use std::collections::BTreeSet;
use std::ops::Range;

use tributary_protocol::deal::blocks;
use tributary_protocol::{Exchange, Phase, Picture, Plan, Prefill};

use super::Selected;
use super::homes::{Row, homes};
use super::packing::packing;
use super::sight::Sight;
use crate::ModelShape;

/// Products of the same number of rows with weights. Their speed depends on the rows.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Products {
    /// Rows of each product.
    pub rows: usize,
    /// FLOPs of all of them.
    pub flops: f64,
    /// Bytes of weights that they read.
    pub weight_bytes: f64,
}

/// Work of one rank in one phase.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RankWork {
    /// Matrix products with weights, those of each pass together.
    pub products: Vec<Products>,
    /// FLOPs in attention of many rows.
    pub attention: f64,
    /// Rows that attend, each as often as it does (in every layer).
    pub attending_rows: f64,
    /// FLOPs in the probing query's attention and its scores.
    pub probe: f64,
    /// Bytes of keys and values that a probe reads.
    pub kv_bytes: f64,
    /// Numbers that norms, rotations, activations and sums read and write.
    pub elementwise: f64,
    /// Numbers of partial results that are merged, read and written.
    pub merged: f64,
    /// Layers that its passes go through.
    pub layers: usize,
}

impl RankWork {
    /// All FLOPs.
    pub fn flops(&self) -> f64 {
        self.linear() + self.attention + self.probe
    }

    /// FLOPs in matrix products with weights.
    pub fn linear(&self) -> f64 {
        self.products.iter().map(|products| products.flops).sum()
    }

    /// Mean number of keys that a row sees, given the FLOPs of a row and a key in one layer.
    pub fn mean_keys(&self, pair_flops: f64) -> f64 {
        self.attention / (pair_flops * self.attending_rows).max(1.0)
    }

    /// Leaves out the pairs that windows hide; a probe's rows come after `keys` keys.
    fn within_windows(&mut self, shape: &ModelShape, keys: f64) {
        let mean = self.mean_keys(4.0 * shape.query_width() as f64);
        self.attention *= shape.share_of_many_rows(mean);
        self.probe *= shape.share_of_row(keys);
        self.kv_bytes *= shape.share_of_row(keys);
    }

    fn add(&mut self, other: &RankWork) {
        self.products.extend(&other.products);
        self.attention += other.attention;
        self.attending_rows += other.attending_rows;
        self.probe += other.probe;
        self.kv_bytes += other.kv_bytes;
        self.elementwise += other.elementwise;
        self.merged += other.merged;
        self.layers += other.layers;
    }
}

/// Work of every rank in one phase.
#[derive(Debug, Clone, PartialEq)]
pub struct PhaseWork {
    /// The phase.
    pub phase: Phase,
    /// One entry a rank.
    pub ranks: Vec<RankWork>,
}

impl PhaseWork {
    /// FLOPs of the most loaded rank.
    pub fn critical_flops(&self) -> f64 {
        self.ranks.iter().map(RankWork::flops).fold(0.0, f64::max)
    }
}

/// Work of every rank until the first token.
#[derive(Debug, Clone, PartialEq)]
pub struct Work {
    /// The phases in their order; those without work are left out.
    pub phases: Vec<PhaseWork>,
}

impl Work {
    /// FLOPs of all ranks.
    pub fn total_flops(&self) -> f64 {
        self.phases.iter().flat_map(|phase| &phase.ranks).map(RankWork::flops).sum()
    }

    /// FLOPs on the critical path: per phase the most loaded rank's.
    pub fn critical_flops(&self) -> f64 {
        self.phases.iter().map(PhaseWork::critical_flops).sum()
    }

    /// A phase, if it has work.
    pub fn phase(&self, phase: Phase) -> Option<&PhaseWork> {
        self.phases.iter().find(|work| work.phase == phase)
    }
}

/// The work of a plan with its selection spread evenly; a warm chunk costs no prefill.
pub fn work(plan: &Plan, world: usize, shape: &ModelShape) -> Work {
    work_of(plan, world, shape, &Selected::expected(plan, shape))
}

/// The work of a plan, for a known selection.
pub fn work_of(plan: &Plan, world: usize, shape: &ModelShape, selected: &Selected) -> Work {
    let of = Count { plan, world, shape, selected };
    let first = if plan.continues.is_some() { of.going_on() } else { of.prefill() };
    let mut phases = vec![(Phase::Vision, of.pictures()), (Phase::ChunkPrefill, first)];
    let has_phases = plan.continues.is_none();
    if has_phases && plan.method.selection().is_some() {
        if plan.budget > 0 {
            phases.push((Phase::Auxiliary, of.auxiliary()));
        }
        let probed = plan.probed_layers(shape.layers);
        if plan.reorders() {
            let anchored = plan.method.anchors().is_some();
            phases.push((Phase::Reorder, if anchored { of.probe_of_anchors(&probed) } else { of.probe(&probed) }));
        }
        if plan.probes() {
            let mut probe = match (plan.parts(), plan.method.anchors()) {
                (Some(sparse), _) => of.sparse_probe(&probed, sparse),
                (_, Some(anchors)) => of.anchored_probe(&probed, anchors),
                _ => of.probe(&probed),
            };
            let passes = match () {
                () if plan.asks_oracle() => of.oracle(),
                () if selected.rounds.is_empty() => of.hop(),
                () => of.free_probes(),
            };
            probe.iter_mut().zip(&passes).for_each(|(sum, more)| sum.add(more));
            phases.push((Phase::Probe, probe));
        }
        if let Some(drift) = plan.drifts(&selected.order) {
            phases.push((Phase::Probe, of.drift(drift)));
        }
        phases.push((Phase::Recompute, of.recompute()));
    }
    if has_phases && blocks(plan, world).is_some() {
        phases.push((Phase::Recompute, of.query_over_blocks()));
    }
    phases.push((Phase::FirstToken, of.first_token()));
    if has_phases
        && let Some((phase, numbers)) = packing(plan, world, shape)
        && let Some((_, ranks)) = phases.iter_mut().find(|(of, _)| *of == phase)
    {
        ranks.iter_mut().zip(numbers).for_each(|(work, numbers)| work.elementwise += numbers);
    }
    if shape.windows.is_some() {
        let keys = plan.total_rows() as f64;
        phases.iter_mut().flat_map(|(_, ranks)| ranks).for_each(|rank| rank.within_windows(shape, keys));
    }
    let has_work = |(_, ranks): &(Phase, Vec<RankWork>)| ranks.iter().any(|rank| rank.flops() > 0.0);
    let phase = |(phase, ranks)| PhaseWork { phase, ranks };
    Work { phases: phases.into_iter().filter(has_work).map(phase).collect() }
}

struct Count<'a> {
    plan: &'a Plan,
    world: usize,
    shape: &'a ModelShape,
    selected: &'a Selected,
}

impl Count<'_> {
    /// The towers, over the pictures of each rank. Those of warm chunks are left out: a memory that
    /// keeps a chunk keeps the features of its pictures.
    fn pictures(&self) -> Vec<RankWork> {
        let mut ranks = vec![RankWork::default(); self.world];
        let Some(vision) = &self.shape.vision else { return ranks };
        let cold = self.plan.chunks.iter().filter(|chunk| !chunk.warm).flat_map(|chunk| &chunk.pictures);
        let cold: BTreeSet<[u8; 32]> = cold.map(|picture| picture.hash).collect();
        let lacks_features = |picture: &Picture| cold.contains(&picture.hash);
        for (picture, rank) in self.plan.pictures().into_iter().filter(|(picture, _)| lacks_features(picture)) {
            let patches = vision.patches(picture);
            let weight_bytes = (vision.parameters() * self.shape.dtype_bytes) as f64;
            ranks[rank].add(&RankWork {
                products: vec![Products { rows: patches, flops: vision.linear_flops(picture), weight_bytes }],
                attention: vision.attention_flops(picture),
                attending_rows: (vision.layers * patches) as f64,
                elementwise: (vision.layers * patches * (10 * vision.hidden + 3 * vision.intermediate)) as f64,
                layers: vision.layers,
                ..RankWork::default()
            });
        }
        ranks
    }

    /// A pass of `rows` rows through all layers, of which `asked` need an output: `pairs` rows and
    /// keys in each layer but the last, `last_pairs` in that.
    fn prompt(&self, rows: usize, asked: usize, pairs: f64, last_pairs: f64) -> RankWork {
        let shape = self.shape;
        let before_last = (shape.layers - 1) as f64;
        let behind_keys = shape.layer_query_flops() + shape.layer_finish_flops();
        let keys = shape.layers as f64 * rows as f64 * shape.layer_kv_flops();
        let passes = usize::from(rows > 0);
        let products = Products {
            rows,
            flops: keys + (before_last * rows as f64 + asked as f64) * behind_keys,
            weight_bytes: (passes * shape.layers) as f64 * self.layer_bytes(rows),
        };
        RankWork {
            products: if rows > 0 { vec![products] } else { Vec::new() },
            attention: self.pair_flops() * (before_last * pairs + last_pairs),
            attending_rows: before_last * rows as f64 + asked as f64,
            elementwise: (before_last * rows as f64 + asked as f64) * shape.layer_elementwise(),
            layers: passes * shape.layers,
            ..RankWork::default()
        }
    }

    /// FLOPs of a row and a key in one layer: the score and the weighted value.
    fn pair_flops(&self) -> f64 {
        4.0 * self.shape.query_width() as f64
    }

    /// Numbers that a row's partial result reads and writes in a merge: both outputs, and the sum.
    fn partial(&self) -> f64 {
        3.0 * self.shape.query_width() as f64
    }

    /// Bytes of the weights that `rows` rows read in a layer.
    fn layer_bytes(&self, rows: usize) -> f64 {
        self.shape.read_bytes(self.shape.layer_numbers_read(rows))
    }

    fn prefill(&self) -> Vec<RankWork> {
        let total = self.plan.total_rows();
        let only = |rank: usize, work: RankWork| {
            (0..self.world).map(|other| if other == rank { work.clone() } else { RankWork::default() }).collect()
        };
        match self.plan.method.prefill {
            Prefill::Whole { .. } => {
                let reused = self.plan.reused_rows;
                let pairs = triangle(total) - triangle(reused);
                only(self.plan.owner, self.prompt(total - reused, 1, pairs, total as f64))
            }
            _ => {
                let split = self.blocks().or_else(|| self.shards());
                split.unwrap_or_else(|| (0..self.world).map(|rank| self.chunks(rank)).collect())
            }
        }
    }

    /// The rows after those of a kept sequence, on the owner; ranks that hold a part of it attend
    /// for them.
    fn going_on(&self) -> Vec<RankWork> {
        let (total, owner) = (self.plan.total_rows(), self.plan.owner);
        let rows = self.plan.rows_after_kept().unwrap_or_default().len();
        let pairs = triangle(total) - triangle(total - rows);
        let shares = if self.plan.decodes_alone(self.world) { 1 } else { self.world };
        let (pairs, last_pairs) = (pairs / shares as f64, total as f64 / shares as f64);
        let rank = |rank: usize| match (rank == owner, shares) {
            (true, _) => self.prompt(rows, 1, pairs, last_pairs),
            (false, 1) => RankWork::default(),
            (false, _) => {
                RankWork { products: Vec::new(), elementwise: 0.0, ..self.prompt(rows, 1, pairs, last_pairs) }
            }
        };
        (0..self.world).map(rank).collect()
    }

    /// A rank's cold chunks after the head, which comes from the chunk cache if any chunk does. The
    /// lead counts as computed: whether its pieces are warm is not known here.
    fn chunks(&self, rank: usize) -> RankWork {
        let (head, lead) = (self.plan.head_tokens(), self.plan.lead_tokens());
        let own = || self.plan.chunks.iter().filter(|chunk| self.plan.prefills_chunks() && chunk.rank == rank);
        let cold = own().filter(|chunk| !chunk.warm).map(tributary_protocol::Chunk::rows);
        let head_rows = if own().any(|chunk| chunk.warm) { 0 } else { head };
        let after_head = |length: usize| (length * head) as f64 + triangle(length);
        let pairs = triangle(head_rows) + after_head(lead) + cold.clone().map(after_head).sum::<f64>();
        let mut work = self.prompt(head_rows + lead + cold.sum::<usize>(), 0, pairs, 0.0);
        self.compress(own().filter(|chunk| !chunk.warm), &mut work);
        work
    }

    /// Adds the work of compressing these chunks: the last layer's queries, the attention of the
    /// attending rows there, and scores in every layer.
    fn compress<'a>(&self, chunks: impl Iterator<Item = &'a tributary_protocol::Chunk>, work: &mut RankWork) {
        if !self.plan.compresses() {
            return;
        }
        let shape = self.shape;
        work.products
            .iter_mut()
            .for_each(|products| products.flops += products.rows as f64 * shape.layer_query_flops());
        for chunk in chunks {
            let asking = chunk.asking().len() as f64;
            let (own, before) = (chunk.rows() as f64, self.plan.head_tokens() as f64);
            // Scores are a second product of queries and keys: half of a pair's FLOPs.
            let scores = shape.layers as f64 * asking * own / 2.0;
            work.probe += self.pair_flops() * (scores + asking * (before + own));
        }
    }

    /// The query's rows on every rank, up to the attention of the last scored layer.
    fn probe(&self, probed: &Range<usize>) -> Vec<RankWork> {
        let (shape, query, prefix) = (self.shape, self.plan.query_tokens() as f64, self.plan.prefix_tokens() as f64);
        let before_last = (probed.end - 1) as f64;
        let keys = shape.layer_kv_flops() + shape.layer_query_flops();
        let linear = query * (probed.end as f64 * keys + before_last * shape.layer_finish_flops());
        let seen_everywhere = query * (prefix + (query + 1.0) / 2.0);
        let rank = |own: usize| {
            let own_pairs = query * own as f64;
            // Scores are a second product of queries and keys: half of a pair's FLOPs.
            let scores = probed.len() as f64 * own_pairs / 2.0;
            let pairs = probed.end as f64 * (own_pairs + seen_everywhere) + scores;
            let weight_bytes = probed.end as f64 * self.layer_bytes(self.plan.query_tokens());
            RankWork {
                products: vec![Products { rows: self.plan.query_tokens(), flops: linear, weight_bytes }],
                probe: self.pair_flops() * pairs,
                kv_bytes: probed.end as f64 * own as f64 * shape.layer_kv_bytes() as f64,
                elementwise: before_last * query * shape.layer_elementwise(),
                merged: probed.end as f64 * query * (self.world - 1) as f64 * self.partial(),
                layers: probed.end,
                ..RankWork::default()
            }
        };
        self.plan.held_counts(self.world).into_iter().map(rank).collect()
    }

    fn recompute(&self) -> Vec<RankWork> {
        let query = self.plan.query_tokens();
        let homes = self.homes((&self.selected.rows, true), self.plan.exchange);
        let kept = self.plan.held_counts(self.world);
        let dropped = self.plan.context_rows() - kept.iter().sum::<usize>();
        let pairs = match self.plan.exchange {
            _ if self.plan.drops() || !self.plan.prefills_chunks() => self.sparse_pairs(&homes),
            Exchange::Replicate => self.replicated_pairs(&homes),
            Exchange::PassQ => self.pass_q_pairs(&homes),
            Exchange::Selected => self.selected_pairs(&homes),
        };
        let rank = |(rank, (rows, (pairs, last_pairs))): (usize, (&Vec<Row>, (f64, f64)))| {
            let owns = usize::from(rank == self.plan.owner);
            let mut work = self.prompt(rows.len() + owns * query, owns, pairs, last_pairs);
            // The rows that come back from every rank they were sent to.
            let travelling = match self.plan.exchange {
                Exchange::Replicate => 0,
                Exchange::PassQ => rows.len() + owns * query,
                Exchange::Selected => owns * query,
            };
            let layers = (self.shape.layers - 1) as f64;
            work.merged = layers * (travelling * (self.world - 1)) as f64 * self.partial();
            // Few rows see many keys, so the cost of turning each key and of moving it with its
            // value to the rows is visible.
            let keys = match self.plan.exchange {
                Exchange::Replicate if !self.plan.replicates_stale() => self.selected.rows.len() + query,
                Exchange::Replicate => self.plan.total_rows() - dropped,
                Exchange::PassQ | Exchange::Selected => kept[rank],
            };
            work.elementwise += layers * keys as f64 * 4.0 * self.shape.kv_width() as f64;
            work
        };
        homes.iter().zip(pairs).enumerate().map(rank).collect()
    }

    /// Pairs of rows and keys of a layer and of the last one, for each rank: a row sees all before
    /// it, where it is computed.
    fn replicated_pairs(&self, homes: &[Vec<Row>]) -> Vec<(f64, f64)> {
        let sight = Sight::new(self.plan, self.world, self.selected);
        let of = |rows: &Vec<Row>| (rows.iter().map(|row| sight.of_all(row)).sum(), 0.0);
        let mut pairs: Vec<(f64, f64)> = homes.iter().map(of).collect();
        let total = self.plan.prefix_tokens() + sight.of_ranks().iter().sum::<usize>() + self.plan.query_tokens();
        pairs[self.plan.owner].0 += triangle(total) - triangle(total - self.plan.query_tokens());
        pairs[self.plan.owner].1 = total as f64;
        pairs
    }

    /// As [`replicated_pairs`](Self::replicated_pairs): a row sees context where that is kept,
    /// prefix and query at home.
    fn pass_q_pairs(&self, homes: &[Vec<Row>]) -> Vec<(f64, f64)> {
        let (query, prefix) = (self.plan.query_tokens(), self.plan.prefix_tokens());
        let sight = Sight::new(self.plan, self.world, self.selected);
        let (kept, seen) = (sight.of_ranks(), sight.kept(homes));
        let rank = |(rank, seen): (usize, f64)| {
            let pairs = seen + (query * kept[rank] + homes[rank].len() * prefix) as f64;
            (pairs, kept[rank] as f64)
        };
        let mut pairs: Vec<(f64, f64)> = seen.into_iter().enumerate().map(rank).collect();
        pairs[self.plan.owner].0 += (query * prefix) as f64 + triangle(query);
        pairs[self.plan.owner].1 += (prefix + query) as f64;
        pairs
    }

    /// As [`replicated_pairs`](Self::replicated_pairs): a row sees the prefix, its own rank's
    /// context and the other ranks' fresh rows; the query's rows as under pass-q.
    fn selected_pairs(&self, homes: &[Vec<Row>]) -> Vec<(f64, f64)> {
        let seen = Sight::new(self.plan, self.world, self.selected).own_and_fresh(homes);
        let none = vec![Vec::new(); self.world];
        let of_query = self.pass_q_pairs(&none);
        let prefix = self.plan.prefix_tokens();
        let rank = |((seen, rows), (pairs, last_pairs)): ((f64, &Vec<Row>), (f64, f64))| {
            (seen + (rows.len() * prefix) as f64 + pairs, last_pairs)
        };
        seen.into_iter().zip(homes).zip(of_query).map(rank).collect()
    }

    fn first_token(&self) -> Vec<RankWork> {
        let rank = |rank: usize| match rank == self.plan.owner {
            true => {
                let weight_bytes = self.shape.read_bytes((self.shape.vocab * self.shape.hidden) as f64);
                let products = vec![Products { rows: 1, flops: self.shape.logits_flops(), weight_bytes }];
                RankWork { products, ..RankWork::default() }
            }
            false => RankWork::default(),
        };
        (0..self.world).map(rank).collect()
    }

    fn homes(&self, rows: (&[u32], bool), exchange: Exchange) -> Vec<Vec<Row>> {
        homes(self.plan, self.world, self.shape, self.selected, rows, exchange)
    }
}

/// Keys that a row sees: those before it and itself.
fn sees(row: &Row) -> f64 {
    f64::from(row.place) + 1.0
}

/// Pairs of `rows` rows that see the rows before them and themselves.
fn triangle(rows: usize) -> f64 {
    let rows = rows as f64;
    rows * (rows + 1.0) / 2.0
}
