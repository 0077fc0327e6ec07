//! Time to first token from work, bytes and a profile: per phase the slowest rank's arithmetic and the transfers that it
//! waits for, phases one after the other. Chunks from a store are read under the passes that look at them.
//!
//! Arithmetic: products with weights at the rate of matrix products, but no faster than the weights are read; attention at
//! its rate; the probing query's at a rate of its own, but no faster than the keys are read; something for every layer.
//!
//! Transfers: a latency for every group of messages ([`groups`](crate::cost::groups())) and bytes over the link's rate. Between hosts
//! that is what a gather takes whose rows cross once to each host, and so the NCCL backend sends them.
//!
//! What hides, where transfers overlap: a ring's step under the attention to what is in hand; the stale rows of one layer
//! under the prefill of the next; where all chunks are warm, stale rows in slices under the layers of the probes, and if
//! there is none, not at all; fresh rows under `replicate` under the attention to the stale ones. Everything else keeps ranks
//! waiting: their calls are waited for at once.

use tributary_comm::Collective;
use tributary_protocol::{Exchange, Phase, Plan};

use super::Profile;
use super::reading::{Pass, waits};
use crate::ModelShape;
use crate::cost::bytes::{Cargo, Flow, flows};
use crate::cost::{PhaseWork, RankWork, Selected, Work, work_of};

/// What a request is predicted to take.
#[derive(Debug, Clone, PartialEq)]
pub struct Predicted {
    /// Time to first token.
    pub ttft_s: f64,
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
}

/// A phase of the critical path.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PhaseSeconds {
    /// Which phase.
    pub phase: Phase,
    /// Its length.
    pub seconds: f64,
    /// How long of it the slowest rank waits for transfers.
    pub exposed_s: f64,
}

/// Predicts a plan's time to first token on `world` ranks of a machine, with the selection spread evenly.
pub fn ttft(plan: &Plan, world: usize, shape: &ModelShape, profile: &Profile) -> Predicted {
    let selected = Selected::expected(plan);
    let work = work_of(plan, world, shape, &selected);
    let flows = flows(plan, world, shape, &selected);
    let clock = Clock { plan, world, shape, profile, work: &work, flows: &flows };
    let phases = clock.phases();
    let mut received_bytes = vec![0; world];
    for flow in &flows {
        received_bytes.iter_mut().zip(&flow.received).for_each(|(sum, bytes)| *sum += bytes);
    }
    Predicted {
        ttft_s: phases.iter().map(|phase| phase.seconds).sum(),
        exposed_s: phases.iter().map(|phase| phase.exposed_s).sum(),
        phases,
        total_flops: work.total_flops(),
        critical_flops: work.critical_flops(),
        received_bytes,
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
        let request = PhaseSeconds { phase: Phase::Dispatch, seconds: self.profile.rank.request_s, exposed_s: 0.0 };
        let mut phases = vec![request];
        for phase in Phase::TO_FIRST_TOKEN {
            let work = self.work.phase(phase);
            let rank = |rank: usize| {
                let busy = work.map_or(0.0, |work| self.busy_s(&work.ranks[rank]));
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

    /// Seconds that each rank waits for chunks from the store, in each phase that looks at them.
    fn reading_s(&self) -> Vec<(Phase, Vec<f64>)> {
        let Some(rates) = self.profile.store.as_ref().filter(|_| self.plan.from_store) else { return Vec::new() };
        let phases = [Phase::Reorder, Phase::Probe, Phase::Recompute];
        let phases: Vec<(Phase, &PhaseWork)> =
            phases.into_iter().filter_map(|phase| Some((phase, self.work.phase(phase)?))).collect();
        let here = self.profile.ranks_per_host.min(self.world).max(1) as f64;
        let of_rank = |rank: usize| {
            let chunks = self.plan.chunks.iter().filter(|chunk| chunk.rank == rank && chunk.warm);
            let bytes = chunks.map(|chunk| chunk.rows() as f64).sum::<f64>() * self.shape.kv_bytes() as f64;
            let pass = |(_, work): &(Phase, &PhaseWork)| Pass {
                layers: work.ranks[rank].layers.min(self.shape.layers),
                seconds: self.busy_s(&work.ranks[rank]),
            };
            let passes: Vec<Pass> = phases.iter().map(pass).collect();
            waits(&passes, self.shape.layers, bytes * here / rates.cached_bytes_per_s)
        };
        let ranks: Vec<Vec<f64>> = (0..self.world).map(of_rank).collect();
        let seconds = |index: usize| ranks.iter().map(|waits| waits[index]).collect();
        phases.iter().enumerate().map(|(index, (phase, _))| (*phase, seconds(index))).collect()
    }

    /// Seconds of a rank's own arithmetic.
    fn busy_s(&self, work: &RankWork) -> f64 {
        let rank = &self.profile.rank;
        let linear = (work.linear / rank.gemm_flops_per_s).max(work.weight_bytes / rank.memory_bytes_per_s);
        let probe = (work.probe / rank.probe_flops_per_s).max(work.kv_bytes / rank.memory_bytes_per_s);
        linear + self.attention_s(work) + probe + work.layers as f64 * rank.layer_s
    }

    fn attention_s(&self, work: &RankWork) -> f64 {
        work.attention / self.profile.rank.attention_flops_per_s
    }

    /// Seconds that a rank waits for transfers in a phase.
    fn exposed_s(&self, phase: Phase, rank: usize, work: Option<&PhaseWork>) -> f64 {
        let own = work.map(|work| work.ranks[rank]).unwrap_or_default();
        let charged = |flow: &&Flow| self.charged_to(flow) == phase;
        self.flows.iter().filter(charged).map(|flow| self.waited_s(flow, rank, &own)).sum()
    }

    /// Where all chunks are warm, stale rows are on their way from the first probe on; what of them is not there in time is
    /// waited for by the pass that needs them.
    fn charged_to(&self, flow: &Flow) -> Phase {
        if flow.cargo == Cargo::WarmStale { Phase::Recompute } else { flow.phase }
    }

    /// Seconds of a flow that are not hidden under the rank's work in the phase.
    fn waited_s(&self, flow: &Flow, rank: usize, own: &RankWork) -> f64 {
        let all = self.transfer_s(flow, rank);
        if !self.profile.transfers_overlap {
            return all;
        }
        let groups = flow.groups as f64;
        let beyond = |cover_s: f64| (all - cover_s).max(0.0);
        match flow.cargo {
            // One of `world` steps has nothing to wait for.
            Cargo::Shards if flow.collective == Collective::Exchange => {
                beyond(self.attention_s(own) * (self.world - 1) as f64 / self.world as f64)
            }
            // The last layer's rows have no later layer to hide under.
            Cargo::Stale => {
                let layer = all / groups;
                let cover = self.busy_s(own) / self.shape.layers as f64;
                (groups - 1.0) * (layer - cover).max(0.0) + layer
            }
            Cargo::WarmStale => {
                let probes = [Phase::Reorder, Phase::Probe].into_iter().filter_map(|phase| self.work.phase(phase));
                let (busy_s, layers) = probes
                    .map(|work| (self.busy_s(&work.ranks[rank]), work.ranks[rank].layers))
                    .fold((0.0, 0), |(sum_s, sum), (busy_s, layers)| (sum_s + busy_s, sum + layers));
                // A slice goes under the layer behind it, as long as an average one (relay's hop included).
                let slices = self.plan.slices_behind_probes(self.shape.layers).unwrap_or(0);
                beyond(busy_s * slices as f64 / layers.max(1) as f64)
            }
            Cargo::Fresh if self.plan.exchange == Exchange::Replicate && flow.phase == Phase::Recompute => {
                beyond(self.attention_s(own))
            }
            _ => all,
        }
    }

    /// Seconds that a flow takes by itself. Over several hosts a gather brings every host's rows once into the others,
    /// shared among their ranks, and spreads them inside: NCCL's own gather of equal rows does, and so do its broadcasts, one
    /// a rank, which carry unequal rows there; a ring is as fast as the slowest link between neighbours.
    fn transfer_s(&self, flow: &Flow, rank: usize) -> f64 {
        let bytes = flow.received[rank] as f64;
        let inside = &self.profile.inside;
        let (Some(between), true) = (&self.profile.between, self.profile.hosts(self.world) > 1) else {
            return flow.groups as f64 * inside.latency_s + bytes / inside.bytes_per_s;
        };
        let here = self.profile.ranks_per_host.min(self.world) as f64;
        let foreign = bytes * (self.world as f64 - here) / (self.world as f64 - 1.0);
        let seconds = match flow.collective {
            Collective::AllGather => (bytes / inside.bytes_per_s).max(foreign / here / between.bytes_per_s),
            Collective::Exchange => bytes / between.bytes_per_s.min(inside.bytes_per_s),
            _ => ((bytes - foreign) / inside.bytes_per_s).max(foreign / between.bytes_per_s),
        };
        flow.groups as f64 * between.latency_s + seconds
    }
}
