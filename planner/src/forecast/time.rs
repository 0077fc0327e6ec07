//! Time to first token from work, bytes and a profile: per phase the slowest rank's arithmetic and
//! the transfers that it waits for, phases one after the other. Chunks from a store are read under
//! the passes that need them.
//!
//! Arithmetic: products with weights run at the rate for their number of rows; if only the rate of
//! many rows is known, after the reading of the weights. Attention runs at the rate for its number
//! of keys. The probing query's attention has its own rate, but is no faster than the keys are
//! read. Norms, rotations, activations and merges run at the rate of their memory. A constant is
//! added for every layer, which a device hides under its own work.
//!
//! Transfers: a latency for every group of messages ([`groups`](crate::cost::groups())) and bytes
//! over the link's rate. Between hosts that is the time of a gather whose rows cross once to each
//! host, which is how the NCCL backend sends them.
//!
//! An auxiliary model runs on rank 0's host during the prefill of chunks. If ranks compute on that
//! host both share its cores, so neither hides under the other. Beside a device, only the rest
//! after the prefill counts, at an assumed rate of the host.
//!
//! Hidden transfers, where transfers overlap: a ring's step under the attention to the present
//! shard; the stale rows of one layer under the prefill of the next; if all chunks are warm, stale
//! rows in slices under the layers of the probes, and without a probe not at all; fresh rows under
//! `replicate` under the attention to the stale ones. All other transfers keep ranks waiting: their
//! calls are waited for at once.

use std::ops::Range;

use tributary_protocol::Collective;
use tributary_protocol::{Exchange, Phase, Plan};

use super::arithmetic::{attention_s, order_s, work_s};
use super::interval::Interval;
use super::profile::{Link, Profile, RankRates};
use super::reading::{Pass, waits};
use super::step::Running;
use crate::ModelShape;
use crate::cost::bytes::{Cargo, Flow, flows};
use crate::cost::{Decoding, Evicting, PhaseWork, RankWork, Selected, Work, work_of};
use crate::machine::MemoryOf;

/// FLOPs a second of a device's host, which no profile of a device gives: the rate of 16 cores in
/// f32.
const HOST_FLOPS_PER_S: f64 = 4e11;

/// Prediction for a request.
#[derive(Debug, Clone, PartialEq)]
pub struct Predicted {
    /// Time to first token.
    pub ttft_s: f64,
    /// Interval of the time to first token, from the uncertainty of the profile's rates.
    pub interval: Interval,
    /// Its phases, in their order.
    pub phases: Vec<PhaseSeconds>,
    /// Seconds of it that the slowest ranks wait for transfers.
    pub exposed_s: f64,
    /// FLOPs of all ranks.
    pub total_flops: f64,
    /// FLOPs on the critical path: per phase the most loaded rank's.
    pub critical_flops: f64,
    /// Bytes that each rank receives until the first token.
    pub received_bytes: Vec<u64>,
    /// Seconds of the eviction after the first token; 0 if none takes place.
    pub evict_s: f64,
    /// Seconds of each token after the first, if the plan allows more than one.
    pub token_s: f64,
}

/// A phase of the critical path.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PhaseSeconds {
    /// The phase.
    pub phase: Phase,
    /// Its length.
    pub seconds: f64,
    /// Seconds of it that the slowest rank waits for transfers.
    pub exposed_s: f64,
}

impl Predicted {
    /// Seconds until the last of `tokens` tokens.
    pub fn all_tokens_s(&self, tokens: usize) -> f64 {
        self.ttft_s + if tokens > 1 { self.evict_s } else { 0.0 } + tokens.saturating_sub(1) as f64 * self.token_s
    }
}

/// Predicts a plan's time to first token on `world` ranks of a machine, with the selection spread
/// evenly.
pub fn ttft(plan: &Plan, world: usize, shape: &ModelShape, profile: &Profile) -> Predicted {
    Counted::new(plan, world, shape).on(plan, profile)
}

/// Counted cost of a plan on any machine: it is counted once, and then combined with the rates of
/// any number of profiles.
#[derive(Debug, Clone)]
pub struct Counted {
    world: usize,
    shape: ModelShape,
    work: Work,
    flows: Vec<Flow>,
    token: Option<Decoding>,
    evicting: Option<Evicting>,
}

impl Counted {
    /// Counts a plan for `world` ranks, with the selection spread evenly.
    pub fn new(plan: &Plan, world: usize, shape: &ModelShape) -> Self {
        Self::given(plan, world, shape, &Selected::expected(plan, shape))
    }

    /// Counts a plan for `world` ranks, for a known selection.
    pub fn given(plan: &Plan, world: usize, shape: &ModelShape, selected: &Selected) -> Self {
        let (work, flows) = (work_of(plan, world, shape, selected), flows(plan, world, shape, selected));
        let token = (plan.max_tokens > 1).then(|| Decoding::new(plan, world, shape));
        let evicting = Evicting::new(plan, world, shape);
        Self { world, shape: *shape, work, flows, token, evicting }
    }

    /// The time to first token of the plan that was counted, on the machine of a profile.
    pub fn on(&self, plan: &Plan, profile: &Profile) -> Predicted {
        let phases = self.phases(plan, profile);
        let sum = |phases: &[PhaseSeconds]| phases.iter().map(|phase| phase.seconds).sum();
        let ttft_s = sum(&phases);
        let mut received_bytes = vec![0; self.world];
        for flow in &self.flows {
            received_bytes.iter_mut().zip(&flow.received).for_each(|(sum, bytes)| *sum += bytes);
        }
        Predicted {
            ttft_s,
            interval: Interval::around(ttft_s, profile, |other| sum(&self.phases(plan, other))),
            exposed_s: phases.iter().map(|phase| phase.exposed_s).sum(),
            phases,
            total_flops: self.work.total_flops(),
            critical_flops: self.work.critical_flops(),
            received_bytes,
            evict_s: self.evict_s(plan, profile),
            token_s: self.token.as_ref().map_or(0.0, |token| self.clock(plan, profile).token_s(token)),
        }
    }

    /// The time to first token alone, in seconds.
    pub fn seconds(&self, plan: &Plan, profile: &Profile) -> f64 {
        self.phases(plan, profile).iter().map(|phase| phase.seconds).sum()
    }

    /// The phases up to the first token.
    pub fn phases(&self, plan: &Plan, profile: &Profile) -> Vec<PhaseSeconds> {
        self.clock(plan, profile).phases()
    }

    /// The plan's sequence in steps of decoding, together with others; absent if it has one token.
    pub fn running(&self, plan: &Plan, profile: &Profile) -> Option<Running> {
        let clock = self.clock(plan, profile);
        let moved_s = |flow: &Flow| clock.transfer_s(flow, plan.owner);
        self.token.as_ref().map(|token| Running::new(token, plan.owner, token.flows.iter().map(moved_s).sum()))
    }

    /// Seconds of the eviction after the first token; 0 if none takes place.
    pub fn evict_s(&self, plan: &Plan, profile: &Profile) -> f64 {
        self.evicting.as_ref().map_or(0.0, |evicting| self.clock(plan, profile).evict_s(evicting))
    }

    fn clock<'a>(&'a self, plan: &'a Plan, profile: &'a Profile) -> Clock<'a> {
        let Self { world, shape, work, flows, .. } = self;
        Clock { plan, world: *world, shape, profile, work, flows }
    }
}

struct Clock<'a> {
    plan: &'a Plan,
    world: usize,
    shape: &'a ModelShape,
    profile: &'a Profile,
    work: &'a Work,
    flows: &'a [Flow],
}

impl Clock<'_> {
    fn phases(&self) -> Vec<PhaseSeconds> {
        let reading = self.reading_s();
        let request_s = self.profile.rank_of(self.world).request_s;
        let request = PhaseSeconds { phase: Phase::Dispatch, seconds: request_s, exposed_s: 0.0 };
        let mut phases = vec![request];
        for phase in Phase::TO_FIRST_TOKEN {
            let work = self.work.phase(phase);
            let rank = |rank: usize| {
                let busy = work.map_or(0.0, |work| self.busy_s(work, rank));
                let busy = self.beside_s(phase, rank, busy);
                let read = reading.iter().find(|(of, _)| *of == phase).map_or(0.0, |(_, seconds)| seconds[rank]);
                (busy, self.exposed_s(phase, rank, work) + read)
            };
            let slowest = (0..self.world).map(rank).max_by(|a, b| f64::total_cmp(&(a.0 + a.1), &(b.0 + b.1)));
            let (busy, exposed_s) = slowest.expect("a group has at least one rank");
            if busy + exposed_s > 0.0 {
                phases.push(PhaseSeconds { phase, seconds: busy + exposed_s, exposed_s });
            }
        }
        phases
    }

    /// Seconds of a rank in a phase that takes `busy` by itself, with an auxiliary model's work
    /// during the prefill of chunks. On a host of ranks each of the two takes half of the cores
    /// until the shorter one ends.
    fn beside_s(&self, phase: Phase, rank: usize, busy: f64) -> f64 {
        let Some(auxiliary) = self.work.phase(Phase::Auxiliary).filter(|_| rank == 0) else { return busy };
        let on_device = self.profile.rank.memory_of == MemoryOf::Device;
        let prefill_s = || self.work.phase(Phase::ChunkPrefill).map_or(0.0, |work| self.busy_s(work, 0));
        let auxiliary_s = || self.host_s(&auxiliary.ranks[0]);
        match phase {
            Phase::ChunkPrefill if !on_device => busy + busy.min(auxiliary_s()),
            Phase::Auxiliary => (auxiliary_s() - prefill_s()).max(0.0),
            _ => busy,
        }
    }

    /// Seconds that each rank waits for chunks from the store, in each phase that reads them.
    fn reading_s(&self) -> Vec<(Phase, Vec<f64>)> {
        let Some(rates) = self.profile.store.as_ref().filter(|_| self.plan.from_store) else { return Vec::new() };
        let phases = [Phase::Reorder, Phase::Probe, Phase::Recompute];
        let phases: Vec<(Phase, &PhaseWork)> =
            phases.into_iter().filter_map(|phase| Some((phase, self.work.phase(phase)?))).collect();
        let here = self.profile.ranks_per_host.min(self.world).max(1) as f64;
        let of_rank = |rank: usize| {
            let chunks = self.plan.chunks.iter().filter(|chunk| chunk.rank == rank && chunk.warm);
            let bytes = chunks.map(|chunk| self.shape.chunk_bytes(chunk) as f64).sum::<f64>();
            let pass = |(phase, work): &(Phase, &PhaseWork)| Pass {
                layers: work.ranks[rank].layers.min(self.shape.layers),
                seconds: self.busy_s(work, rank),
                at_once: *phase != Phase::Recompute && self.plan.method.anchors().is_some(),
            };
            let passes: Vec<Pass> = phases.iter().map(pass).collect();
            waits(&passes, self.shape.layers, bytes * here / rates.cached_bytes_per_s)
        };
        let ranks: Vec<Vec<f64>> = (0..self.world).map(of_rank).collect();
        let seconds = |index: usize| ranks.iter().map(|waits| waits[index]).collect();
        phases.iter().enumerate().map(|(index, (phase, _))| (*phase, seconds(index))).collect()
    }

    /// Ranks of a rank's own host.
    fn host(&self, rank: usize) -> Range<usize> {
        let here = self.profile.ranks_per_host.clamp(1, self.world);
        let first = rank / here * here;
        first..(first + here).min(self.world)
    }

    /// Seconds of a rank's own arithmetic in a phase. A rank is faster while others of its host are
    /// idle: ranks with less work end earlier.
    fn busy_s(&self, phase: &PhaseWork, rank: usize) -> f64 {
        let together = |rank: usize| self.work_s(&phase.ranks[rank], &self.profile.rank);
        let Some(alone) = &self.profile.alone else { return together(rank) };
        let (own_s, alone_s) = (together(rank), self.work_s(&phase.ranks[rank], alone));
        let others = self.host(rank).filter(|&other| other != rank);
        let (count, shares) =
            others.fold((0, 0.0), |(count, sum), other| (count + 1, sum + (together(other) / own_s).min(1.0)));
        let share = if count == 0 || own_s <= 0.0 { 0.0 } else { shares / f64::from(count) };
        share * own_s + (1.0 - share) * alone_s
    }

    fn work_s(&self, work: &RankWork, rank: &RankRates) -> f64 {
        work_s(work, rank, self.shape)
    }

    fn attention_s(&self, work: &RankWork, rank: &RankRates) -> f64 {
        attention_s(work, rank, self.shape)
    }

    /// Seconds of a token after the first one: the owner's row, the attention of the rank that
    /// keeps most, transfers, and the order of the step.
    fn token_s(&self, token: &Decoding) -> f64 {
        let rates = self.profile.rank_of(if token.flows.is_empty() { 1 } else { self.world });
        let seconds = |work: &RankWork| self.work_s(work, rates);
        let only = |work: &RankWork| RankWork { probe: work.probe, kv_bytes: work.kv_bytes, ..RankWork::default() };
        let slowest_s = token.ranks.iter().map(|work| seconds(&only(work))).fold(0.0, f64::max);
        let owner = &token.ranks[self.plan.owner];
        let moved_s: f64 = token.flows.iter().map(|flow| self.transfer_s(flow, self.plan.owner)).sum();
        seconds(owner) - seconds(&only(owner)) + slowest_s + moved_s + order_s(self.profile, self.world)
    }

    /// Seconds of an eviction: the rank that computes longest, and transfers, which hide under
    /// nothing.
    fn evict_s(&self, evicting: &Evicting) -> f64 {
        let rates = self.profile.rank_of(if evicting.flows.is_empty() { 1 } else { self.world });
        let slowest_s = evicting.ranks.iter().map(|work| self.work_s(work, rates)).fold(0.0, f64::max);
        let moved_s = |rank: usize| evicting.flows.iter().map(|flow| self.transfer_s(flow, rank)).sum::<f64>();
        let drafting_s = evicting.drafting.as_ref().map_or(0.0, |work| self.host_s(work));
        drafting_s + slowest_s + (0..self.world).map(moved_s).fold(0.0, f64::max)
    }

    /// Seconds of rank 0's host for the work of a model beside the main one.
    fn host_s(&self, work: &RankWork) -> f64 {
        match self.profile.rank.memory_of {
            MemoryOf::Device => work.flops() / HOST_FLOPS_PER_S,
            MemoryOf::Host => self.work_s(work, &self.profile.rank),
        }
    }

    /// Seconds that a rank waits for transfers in a phase.
    fn exposed_s(&self, phase: Phase, rank: usize, work: Option<&PhaseWork>) -> f64 {
        let charged = |flow: &&Flow| self.charged_to(flow) == phase;
        self.flows.iter().filter(charged).map(|flow| self.waited_s(flow, rank, work)).sum()
    }

    /// If all chunks are warm, stale rows are in transit from the first probe on; the pass that
    /// needs them waits for late ones.
    fn charged_to(&self, flow: &Flow) -> Phase {
        if flow.cargo == Cargo::WarmStale { Phase::Recompute } else { flow.phase }
    }

    /// Seconds of a flow that are not hidden under the rank's work in the phase.
    fn waited_s(&self, flow: &Flow, rank: usize, own: Option<&PhaseWork>) -> f64 {
        let all = self.transfer_s(flow, rank);
        if !self.profile.transfers_overlap {
            return all;
        }
        let groups = flow.groups as f64;
        let own_attention_s = || own.map_or(0.0, |work| self.attention_s(&work.ranks[rank], &self.profile.rank));
        let beyond = |cover_s: f64| (all - cover_s).max(0.0);
        match flow.cargo {
            // One of `world` steps needs no transfer.
            Cargo::Shards if flow.collective == Collective::Exchange => {
                beyond(own_attention_s() * (self.world - 1) as f64 / self.world as f64)
            }
            // The last layer's rows have no later layer to hide under.
            Cargo::Stale => {
                let layer = all / groups;
                let cover = own.map_or(0.0, |own| self.busy_s(own, rank)) / self.shape.layers as f64;
                (groups - 1.0) * (layer - cover).max(0.0) + layer
            }
            Cargo::WarmStale => {
                let probes = [Phase::Reorder, Phase::Probe].into_iter().filter_map(|phase| self.work.phase(phase));
                let (busy_s, layers) = probes
                    .map(|work| (self.busy_s(work, rank), work.ranks[rank].layers))
                    .fold((0.0, 0), |(sum_s, sum), (busy_s, layers)| (sum_s + busy_s, sum + layers));
                // A slice hides under the layer after it, as long as an average one (relay's hop
                // included).
                let slices = self.plan.slices_behind_probes(self.shape.layers).unwrap_or(0);
                beyond(busy_s * slices as f64 / layers.max(1) as f64)
            }
            Cargo::Fresh if self.plan.exchange == Exchange::Replicate && flow.phase == Phase::Recompute => {
                beyond(own_attention_s())
            }
            _ => all,
        }
    }

    /// Seconds of a flow by itself. Over several hosts a gather sends every host's rows once to the
    /// others, shared among their ranks, and spreads them inside. NCCL's own gather of equal rows
    /// does so, and so do its broadcasts, one a rank, which carry unequal rows there. A ring is as
    /// fast as the slowest link between neighbours.
    fn transfer_s(&self, flow: &Flow, rank: usize) -> f64 {
        let bytes = flow.received[rank] as f64;
        let inside = &self.profile.inside;
        // Data in another cargo's groups is sent in every layer.
        let messages = if flow.groups == 0 { self.shape.layers } else { flow.groups } as f64;
        let each = |link: &Link, bytes: f64| bytes / link.rate(bytes / messages);
        let (Some(between), true) = (&self.profile.between, self.profile.hosts(self.world) > 1) else {
            return flow.groups as f64 * inside.latency_s + each(inside, bytes);
        };
        let here = self.profile.ranks_per_host.min(self.world) as f64;
        let foreign = bytes * (self.world as f64 - here) / (self.world as f64 - 1.0);
        let seconds = match flow.collective {
            Collective::AllGather => each(inside, bytes).max(each(between, foreign / here)),
            Collective::Exchange => each(between, bytes).max(each(inside, bytes)),
            _ => each(inside, bytes - foreign).max(each(between, foreign)),
        };
        flow.groups as f64 * between.latency_s + seconds
    }
}
