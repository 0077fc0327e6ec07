//! Bytes that a rank receives until the first token: payload of tensor collectives, control
//! messages excluded. Exact for a known selection ([`received`]); before it is known, for one
//! spread evenly ([`expected`]).
//!
//! W ranks, T rows of context of which rank r keeps T_r (its chunks), N rows of prompt, M of query,
//! L layers, s selected rows of which rank r computes s_r. A row of keys and values is κ = 2 · KV
//! heads · head dim · bytes of the model's dtype, a row of queries or of partial outputs q = heads
//! · head dim · bytes of the dtype, a row of log-sum-exp e = 4 · heads (f32), a score 4 bytes
//! (f32). Where chunks are compressed, T and T_r in chunk prefill are the rows that are kept. A
//! rank's own contribution is not sent. With W = 1 nothing moves.
//!
//! | when | rank r receives |
//! | --- | --- |
//! | pictures, of which rank r reads those of its chunks: u_r bytes of pixels, F_r of features and levels in the dtype, F all ranks' | u_r (rank 0: nothing) + F − F_r |
//! | `full` | nothing |
//! | `ring` (N_r rows a zigzag shard), `all-gather` (contiguous), all heads or some at a time | L · (N − N_r) · κ |
//! | `pass-q` (N_r rows a zigzag shard) | (L − 1) · ((N − N_r) · q + (W − 1) · N_r · (q + e)) + the last layer |
//! | `star`; only the M rows of query attend | (L − 1) · M · q, on the owner (L − 1) · (W − 1) · M · (q + e), + the last layer |
//! | `apb`, whose blocks pass p rows on in all, p_r of them rank r's | (L − 1) · (p − p_r) · (κ / L + 4) + as `star` |
//! | chunk prefill, `replicate`; warm chunks too | L · (T − T_r) · κ |
//! | a request that goes on from a kept sequence with M rows of its own, where no rank holds all of it | as `star`, in the phase of chunk prefill |
//! | a probe up to layer E: the one that reorders, the one that selects | E · (W − 1) · M · (q + e) + 4 · (T − T_r) |
//! | the same where anchors stand for chunks, of which rank r keeps K_r of K | E · (W − 1) · M · (q + e) + 4 · (K − K_r); for the one that selects (W − 1) · M · (q + e) + 4 · (T − T_r) more |
//! | relay's first hop over s rows, of which a_r belong to chunks of rank r and are computed elsewhere | L · ((s − s_r) · (q + e) + a_r · κ + (W − 1) · s_r · (q + e)) + 4 · (T − T_r) |
//! | a free probe of trace over s rows | as relay's first hop, without scores; after the last one 4 · (T − T_r) |
//! | the same if only some heads count | twice that, and e · L · (W − 1) · s |
//! | ideal's full prefill; the T context rows are dealt to ranks, n_r of them and M more on the owner to rank r, a_r as above, N their sum | L · a_r · κ + (L − 1) · ((N − n_r) · q + (W − 1) · n_r · (q + e)) + M · q, of the owner (W − 1) · M · (q + e); on all but the owner L · M · e |
//! | drift in D layers; c_l rows may go on from layer l, of which rank r computes c_lr (c_0: all that may be selected) | (D + ½) · (T − T_r) · κ / L + Σ_{l<D} 4 · (c_l − c_lr) + Σ_{0<l<D} (c_l − c_lr) · κ / L |
//! | kvshare: drift in one layer, and there the attention that its c_0 rows pay each other | as drift + ½ · (T − T_r) · κ / L + ½ · (c_0 − c_0r) · κ / L + 4 · (W − 1) · c_0 |
//! | where chunks are compressed, before recompute with `replicate`, and once more if scores are requested | 4 · L · KV heads · (T − T_r) |
//! | recompute, `replicate` | L · (s − s_r) · κ |
//! | recompute, `pass-q`; n_r = s_r, and M more on the owner, n their sum | L · a_r · κ + (L − 1) · ((n − n_r) · q + (W − 1) · n_r · (q + e)) + the last layer |
//! | recompute, `selected` (s_r rows of rank r's chunks) | L · (s − s_r) · κ + as `pass-q` with n_r = M on the owner, 0 elsewhere, and a_r = 0 |
//!
//! In the last layer only the prompt's last row attends: q on every rank but the owner, (W − 1) ·
//! (q + e) on the owner.

use tributary_protocol::Collective;
use tributary_protocol::deal::{Blocks, blocks, shards};
use tributary_protocol::{Drift, DriftScore, Exchange, Phase, Picture, Plan, Prefill};

use super::Selected;
use super::homes::{Row, drifting, homes};
use crate::ModelShape;

/// Kind of data in transit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cargo {
    /// Keys and values of an exact method's shards.
    Shards,
    /// Keys and values that blocks pass on to later ones.
    Passed,
    /// Stale keys and values if some chunk is computed for this request: a layer is sent once it is
    /// computed everywhere.
    Stale,
    /// Stale keys and values if all chunks come from the chunk cache: they are present from the
    /// beginning.
    WarmStale,
    /// The probing query's partial outputs and their log-sum-exp.
    Partials,
    /// Scores of context rows, or their distances from their cached state.
    Scores,
    /// Pixels of pictures, to the ranks that read them.
    Pixels,
    /// Features of pictures, to all ranks.
    Features,
    /// Cached keys and values of the first layers, for comparison.
    Cached,
    /// Fresh keys and values of selected rows.
    Fresh,
    /// Queries to the keys.
    Queries,
    /// Partial outputs and log-sum-exp, back to their rows' home.
    Homeward,
    /// Kept keys and values of an eviction, to the owner.
    Kept,
    /// Numbers of the rows that compressed chunks keep.
    Places,
}

/// One kind of cargo in one phase.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flow {
    /// The phase of the transfer.
    pub phase: Phase,
    /// The cargo.
    pub cargo: Cargo,
    /// The collective that carries it.
    pub collective: Collective,
    /// Groups of messages that carry it, one after the other; 0 if another cargo's groups carry it
    /// too ([`groups`](super::groups())).
    pub groups: usize,
    /// Bytes that each rank receives.
    pub received: Vec<u64>,
}

/// Bytes that each rank receives until the first token, for a known selection.
pub fn received(plan: &Plan, world: usize, shape: &ModelShape, selected: &Selected) -> Vec<u64> {
    let mut sums = vec![0; world];
    for flow in flows(plan, world, shape, selected) {
        assert_eq!(flow.received.len(), world, "ranks that receive {:?}", flow.cargo);
        sums.iter_mut().zip(flow.received).for_each(|(sum, bytes)| *sum += bytes);
    }
    sums
}

/// Bytes that each rank receives until the first token, with the selection spread evenly.
pub fn expected(plan: &Plan, world: usize, shape: &ModelShape) -> Vec<u64> {
    received(plan, world, shape, &Selected::expected(plan, shape))
}

/// All transfers until the first token, in their order.
pub fn flows(plan: &Plan, world: usize, shape: &ModelShape, selected: &Selected) -> Vec<Flow> {
    if world <= 1 {
        return Vec::new();
    }
    let of = Flows { plan, world, shape, selected };
    of.pictures().into_iter().chain(of.passes()).collect()
}

impl Flows<'_> {
    /// Transfers of the passes of prompt and context, in their order.
    fn passes(&self) -> Vec<Flow> {
        let Self { plan, world, shape, .. } = *self;
        if let Some(rows) = plan.rows_after_kept() {
            return if plan.decodes_alone(world) { Vec::new() } else { self.asking(Phase::ChunkPrefill, rows.len()) };
        }
        match plan.method.prefill {
            Prefill::Whole { .. } => Vec::new(),
            Prefill::Ring => vec![self.shards(Collective::Exchange, world - 1)],
            Prefill::Gathered { heads_per_gather } => {
                let heads = heads_per_gather.unwrap_or(shape.kv_heads);
                vec![self.shards(Collective::AllGather, shape.kv_heads.div_ceil(heads.max(1)))]
            }
            Prefill::Queries => self.queries(),
            Prefill::Anchored { .. } => {
                let passed = self.passed().into_iter();
                passed.chain(self.asking(Phase::Recompute, plan.query_tokens())).collect()
            }
            Prefill::Chunks(_) | Prefill::Selected(_) => self.chunks(),
        }
    }

    /// Pixels from rank 0 to the ranks that read them, and their features to all ranks.
    fn pictures(&self) -> Vec<Flow> {
        let pictures = self.plan.pictures();
        let Some(vision) = self.shape.vision.as_ref().filter(|_| !pictures.is_empty()) else { return Vec::new() };
        let of_rank = |rank: usize| pictures.iter().filter(move |(_, of)| *of == rank).map(|(picture, _)| *picture);
        let pixels = (0..self.world).map(|rank| match rank {
            0 => 0,
            rank => of_rank(rank).map(|picture| vision.pixel_bytes(picture)).sum(),
        });
        let pixels = Flow {
            phase: Phase::Vision,
            cargo: Cargo::Pixels,
            collective: Collective::AllToAll,
            groups: 1,
            received: pixels.collect(),
        };
        let rows: Vec<usize> = (0..self.world).map(|rank| of_rank(rank).map(Picture::grid_rows).sum()).collect();
        let what = (Phase::Vision, Cargo::Features, Collective::AllGather);
        vec![pixels, self.flow(what, 1, &others(&rows), vision.feature_bytes(self.shape.dtype_bytes))]
    }
}

/// Transfers for one token after the first, if its keys lie on several ranks: its query there, its
/// partial results back.
pub fn of_token(plan: &Plan, world: usize, shape: &ModelShape) -> [Flow; 2] {
    let of = Flows { plan, world, shape, selected: &Selected::default() };
    let mut asking = vec![0; world];
    asking[plan.owner] = 1;
    of.round(Phase::Decode, shape.layers, &asking)
}

struct Flows<'a> {
    plan: &'a Plan,
    world: usize,
    shape: &'a ModelShape,
    selected: &'a Selected,
}

impl Flows<'_> {
    fn flow(
        &self,
        (phase, cargo, collective): (Phase, Cargo, Collective),
        groups: usize,
        rows: &[usize],
        row_bytes: u64,
    ) -> Flow {
        let received = rows.iter().map(|&rows| rows as u64 * row_bytes).collect();
        Flow { phase, cargo, collective, groups, received }
    }

    fn chunks(&self) -> Vec<Flow> {
        let mut flows = Vec::new();
        if self.plan.replicates_stale() {
            flows.push(self.stale());
        }
        let probed = self.plan.probed_layers(self.shape.layers).end;
        if self.plan.reorders() {
            flows.extend(self.probe(Phase::Reorder, probed));
        }
        if self.plan.probes() {
            flows.extend(self.probe(Phase::Probe, probed));
        }
        if self.plan.asks_oracle() {
            flows.extend(self.oracle());
        }
        match self.plan.drifts(&self.selected.order) {
            Some(drift) => flows.extend(self.drift(drift)),
            None if !self.selected.rounds.is_empty() => {
                let probes = self.selected.free_probes(self.plan);
                flows.extend(probes.iter().flat_map(|probe| self.free_probe(probe)));
                flows.push(self.scores(Phase::Probe));
            }
            None if !self.selected.measured.is_empty() => {
                flows.extend(self.pass(self.selected));
                flows.push(self.scores(Phase::Probe));
            }
            None => {}
        }
        flows.push(self.places());
        flows.extend(self.recompute());
        flows.retain(|flow| flow.received.iter().any(|&bytes| bytes > 0));
        flows
    }

    /// Shards that arrive `times` times a layer.
    fn shards(&self, collective: Collective, times: usize) -> Flow {
        let shards = shards(self.plan, self.world).expect("the method splits the sequence");
        let rows: Vec<usize> = shards.iter().map(Vec::len).collect();
        let what = (Phase::ChunkPrefill, Cargo::Shards, collective);
        self.flow(what, self.shape.layers * times, &others(&rows), self.shape.kv_bytes())
    }

    /// Shards' queries from rank to rank and their partial results straight back, in groups of
    /// their own for every step.
    fn queries(&self) -> Vec<Flow> {
        let shards = shards(self.plan, self.world).expect("the method splits the sequence");
        let rows: Vec<usize> = shards.iter().map(Vec::len).collect();
        let mut last = vec![0; self.world];
        last[self.plan.owner] = 1;
        let (phase, layers, steps) = (Phase::ChunkPrefill, self.shape.layers, self.world - 1);
        let rounds = [self.round(phase, layers - 1, &rows), self.round(phase, 1, &last)];
        let stepwise = |flow: Flow| Flow { collective: Collective::Exchange, groups: flow.groups * steps, ..flow };
        rounds.into_iter().flatten().map(stepwise).collect()
    }

    /// Keys and values that blocks pass on in every layer but the last, and the numbers of their
    /// rows in f32, if blocks pass any on.
    fn passed(&self) -> Option<Flow> {
        let blocks = blocks(self.plan, self.world).filter(Blocks::pass_on)?;
        let layers = self.shape.layers - 1;
        let rows: Vec<usize> = others(&blocks.passed_counts()).iter().map(|rows| rows * layers).collect();
        let what = (Phase::ChunkPrefill, Cargo::Passed, Collective::AllGather);
        Some(self.flow(what, layers, &rows, self.shape.layer_kv_bytes() + NUMBER_BYTES))
    }

    /// The query's rows attend; in the last layer only the last one.
    fn asking(&self, phase: Phase, query: usize) -> Vec<Flow> {
        let mut asking = vec![0; self.world];
        asking[self.plan.owner] = query;
        let before_last = self.round(phase, self.shape.layers - 1, &asking);
        asking[self.plan.owner] = 1;
        before_last.into_iter().chain(self.round(phase, 1, &asking)).collect()
    }

    fn stale(&self) -> Flow {
        let all_warm = self.plan.chunks.iter().all(|chunk| chunk.warm);
        let cargo = if all_warm { Cargo::WarmStale } else { Cargo::Stale };
        let what = (Phase::ChunkPrefill, cargo, Collective::AllGather);
        self.flow(what, self.shape.layers, &others(&self.plan.held_counts(self.world)), self.shape.kv_bytes())
    }

    /// Numbers of the rows that compressed chunks keep: for ranks that receive their keys and
    /// values, and for requests of such numbers.
    fn places(&self) -> Flow {
        let replicates = self.plan.exchange == Exchange::Replicate;
        let times = usize::from(replicates) + usize::from(self.plan.returns.scores);
        let times = if self.plan.compresses() { times } else { 0 };
        let rows: Vec<usize> = others(&self.plan.held_counts(self.world)).iter().map(|rows| rows * times).collect();
        let row_bytes = NUMBER_BYTES * (self.shape.layers * self.shape.kv_heads) as u64;
        self.flow((Phase::Recompute, Cargo::Places, Collective::AllGather), times, &rows, row_bytes)
    }

    fn scores(&self, phase: Phase) -> Flow {
        let rows = others(&self.plan.kept_counts(self.world));
        self.flow((phase, Cargo::Scores, Collective::AllGather), 1, &rows, SCORE_BYTES)
    }

    /// The query's rows. Where anchors stand for chunks, a score a chunk follows; then come the
    /// rows of the best chunks in one layer, unless chunks are only reordered.
    fn probe(&self, phase: Phase, layers: usize) -> Vec<Flow> {
        let gathered = (phase, Cargo::Partials, Collective::AllGather);
        let partials = |layers: usize| {
            let rows = vec![layers * (self.world - 1) * self.plan.query_tokens(); self.world];
            self.flow(gathered, layers, &rows, self.partial_bytes())
        };
        if self.plan.method.anchors().is_none() {
            return vec![partials(layers), self.scores(phase)];
        }
        let mut chunks = vec![0; self.world];
        self.plan.chunks.iter().for_each(|chunk| chunks[chunk.rank] += 1);
        let of_chunks = self.flow((phase, Cargo::Scores, Collective::AllGather), 1, &others(&chunks), SCORE_BYTES);
        match phase {
            Phase::Reorder => vec![partials(layers), of_chunks],
            _ => vec![partials(layers + 1), of_chunks, self.scores(phase)],
        }
    }

    /// Relay's first hop, or a free probe: a pass-q over the measured rows in which every layer is
    /// complete. Excludes its scores.
    fn pass(&self, measured: &Selected) -> Vec<Flow> {
        let rows = (&measured.measured[..], false);
        let homes = homes(self.plan, self.world, self.shape, measured, rows, Exchange::PassQ);
        let counts: Vec<usize> = homes.iter().map(Vec::len).collect();
        let layers = self.shape.layers;
        let mut flows = vec![self.arriving(Phase::Probe, &homes)];
        flows.extend(self.round(Phase::Probe, layers, &counts));
        let rows: Vec<usize> = others(&counts).iter().map(|rows| rows * layers).collect();
        flows.push(self.flow((Phase::Probe, Cargo::Partials, Collective::AllGather), layers, &rows, self.lse_bytes()));
        flows
    }

    /// A free probe. If only some heads count, another one before it finds them, and every rank's
    /// result is exchanged.
    fn free_probe(&self, probe: &Selected) -> Vec<Flow> {
        let (shape, rows) = (self.shape, probe.measured.len());
        let mut flows = self.pass(probe);
        if self.plan.traces().is_some_and(|trace| trace.heads.count(1).is_some()) {
            flows.extend(self.pass(probe));
            let peaks = vec![(self.world - 1) * rows; self.world];
            let row_bytes = shape.layers as u64 * self.lse_bytes();
            flows.push(self.flow((Phase::Probe, Cargo::Scores, Collective::AllGather), 1, &peaks, row_bytes));
        }
        flows
    }

    /// Ideal's full prefill: a pass-q over all context rows and the query's, of which only the
    /// latter attend in the last layer; their log-sum-exp goes to every rank.
    fn oracle(&self) -> Vec<Flow> {
        let (phase, layers, query) = (Phase::Probe, self.shape.layers, self.plan.query_tokens());
        let homes = self.homes((&self.plan.context_row_numbers(), true), Exchange::PassQ);
        let mut asking: Vec<usize> = homes.iter().map(Vec::len).collect();
        asking[self.plan.owner] += query;
        let mut flows = vec![self.arriving(phase, &homes)];
        flows.extend(self.round(phase, layers - 1, &asking));
        asking.fill(0);
        asking[self.plan.owner] = query;
        flows.extend(self.round(phase, 1, &asking));
        let rows: Vec<usize> = others(&asking).iter().map(|rows| rows * layers).collect();
        flows.push(self.flow((phase, Cargo::Partials, Collective::AllGather), layers, &rows, self.lse_bytes()));
        flows
    }

    /// Cached rows of the first layers on every rank, distances of the rows in play, and the keys
    /// and values of those that go on.
    fn drift(&self, drift: Drift) -> Vec<Flow> {
        let phase = Phase::Probe;
        let kept = others(&self.plan.kept_counts(self.world));
        let layer_bytes = self.shape.layer_kv_bytes();
        let whole: Vec<usize> = kept.iter().map(|rows| rows * drift.layers).collect();
        let cached = (phase, Cargo::Cached, Collective::AllGather);
        let attended = drift.score == DriftScore::Attended;
        let last_bytes = if attended { layer_bytes } else { layer_bytes / 2 };
        let mut flows =
            vec![self.flow(cached, drift.layers, &whole, layer_bytes), self.flow(cached, 1, &kept, last_bytes)];
        let in_play = drifting(self.plan, self.world, self.shape, self.selected, drift);
        for (layer, homes) in in_play.iter().enumerate() {
            let counts: Vec<usize> = homes.iter().map(Vec::len).collect();
            if layer > 0 {
                flows.push(self.flow((phase, Cargo::Fresh, Collective::AllGather), 1, &others(&counts), layer_bytes));
            }
            flows.push(self.flow((phase, Cargo::Scores, Collective::AllGather), 1, &others(&counts), SCORE_BYTES));
        }
        if attended {
            let counts: Vec<usize> = in_play.last().map_or(Vec::new(), |homes| homes.iter().map(Vec::len).collect());
            flows.push(self.flow((phase, Cargo::Fresh, Collective::AllGather), 1, &others(&counts), layer_bytes / 2));
            let paid = vec![(self.world - 1) * counts.iter().sum::<usize>(); self.world];
            flows.push(self.flow((phase, Cargo::Scores, Collective::AllGather), 1, &paid, SCORE_BYTES));
        }
        flows
    }

    fn recompute(&self) -> Vec<Flow> {
        let (phase, layers, query) = (Phase::Recompute, self.shape.layers, self.plan.query_tokens());
        let homes = self.homes((&self.selected.rows, true), self.plan.exchange);
        let mut asking: Vec<usize> = homes.iter().map(Vec::len).collect();
        // If queries travel, fresh rows go in their groups.
        let gathered = |groups| {
            let what = (phase, Cargo::Fresh, Collective::AllGather);
            self.flow(what, groups, &others(&asking), self.shape.kv_bytes())
        };
        let mut flows = match self.plan.exchange {
            Exchange::PassQ => vec![self.arriving(phase, &homes)],
            Exchange::Replicate => vec![gathered(layers)],
            Exchange::Selected => vec![gathered(0)],
        };
        if self.plan.exchange == Exchange::Replicate {
            return flows;
        }
        if self.plan.exchange == Exchange::Selected {
            asking.fill(0);
        }
        asking[self.plan.owner] += query;
        flows.extend(self.round(phase, layers - 1, &asking));
        asking.fill(0);
        asking[self.plan.owner] = 1;
        flows.extend(self.round(phase, 1, &asking));
        flows
    }

    fn homes(&self, rows: (&[u32], bool), exchange: Exchange) -> Vec<Vec<Row>> {
        homes(self.plan, self.world, self.shape, self.selected, rows, exchange)
    }

    /// Fresh keys and values sent to the rank of their chunk, all layers, in the groups of the
    /// queries.
    fn arriving(&self, phase: Phase, homes: &[Vec<Row>]) -> Flow {
        let mut rows = vec![0; self.world];
        for (home, row) in homes.iter().enumerate().flat_map(|(home, rows)| rows.iter().map(move |row| (home, row))) {
            rows[row.keeper] += usize::from(row.keeper != home);
        }
        let what = (phase, Cargo::Fresh, Collective::AllToAll);
        self.flow(what, 0, &rows, self.shape.kv_bytes())
    }

    /// Queries to the keys and partial results back, `layers` times, where rank r attends with
    /// `asking[r]` rows.
    fn round(&self, phase: Phase, layers: usize, asking: &[usize]) -> [Flow; 2] {
        let there: Vec<usize> = others(asking).iter().map(|rows| rows * layers).collect();
        let back: Vec<usize> = asking.iter().map(|rows| rows * (self.world - 1) * layers).collect();
        [
            self.flow((phase, Cargo::Queries, Collective::AllGather), layers, &there, self.query_bytes()),
            self.flow((phase, Cargo::Homeward, Collective::AllToAll), layers, &back, self.partial_bytes()),
        ]
    }

    fn query_bytes(&self) -> u64 {
        (self.shape.query_width() * self.shape.dtype_bytes) as u64
    }

    fn lse_bytes(&self) -> u64 {
        4 * self.shape.heads as u64
    }

    fn partial_bytes(&self) -> u64 {
        self.query_bytes() + self.lse_bytes()
    }
}

/// Scores are sent in f32.
const SCORE_BYTES: u64 = 4;

/// Numbers of rows are sent in f32.
const NUMBER_BYTES: u64 = 4;

/// For each rank, the rows of the others.
fn others(rows: &[usize]) -> Vec<usize> {
    let all: usize = rows.iter().sum();
    rows.iter().map(|rows| all - rows).collect()
}
