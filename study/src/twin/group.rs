//! One group of ranks in simulated time: the service's planner and scheduler decide, and predicted
//! times pass. It follows the conductor: releases, then prefills, then a step of all sequences, and
//! steps at halts of long prefills.

use std::collections::BTreeMap;
use std::time::Duration;

use tributary_coordinator::scheduler::{Arrival, Next, Pace, Scheduler};
use tributary_planner::forecast::{Counted, Running, UnderLoad, step_s};
use tributary_planner::{Draft, Error, GroupShape, GroupSurvey, Machine, MemoryOf, Planner, Reservation, Started};
use tributary_planner::{RequestSettings, Room, StoreInventory, Tokens};
use tributary_protocol::{KeySpace, Phase, Plan};

use super::caches::{Caches, Hits};
use super::service::Service;
use crate::error::Result;

/// The end of a request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Outcome {
    /// It was answered.
    Answered(Answered),
    /// Its prompt and answer are longer than the model's context.
    TooLong,
    /// A rank has not the memory for it, even alone.
    Memory,
    /// The queue was full when it came.
    QueueFull,
}

/// An answered request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Answered {
    /// Seconds in the queue.
    pub queue_s: f64,
    /// Seconds of its prefill, up to the first token.
    pub prefill_s: f64,
    /// Source of its prompt's tokens.
    pub hits: Hits,
}

/// Time of a group by its use, and the most that it had at once.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Usage {
    /// Seconds of prefills.
    pub prefill_s: f64,
    /// Seconds of steps of decoding.
    pub decode_s: f64,
    /// Number of those steps.
    pub steps: u64,
    /// Most requests that waited.
    pub waiting: usize,
    /// Most sequences in decoding.
    pub running: usize,
    /// Most sequences in decoding that paused for lack of memory.
    pub paused: usize,
}

/// A waiting request.
struct Waiting {
    draft: Draft,
    at_s: f64,
}

/// A sequence in decoding.
struct Sequence {
    running: Running,
    /// Tokens that are missing.
    left: usize,
}

/// A group.
pub struct Group<'a> {
    service: &'a Service,
    shape: GroupShape,
    planner: Planner,
    scheduler: Scheduler,
    /// Decoding's share of the time beside prefills.
    pace: Pace,
    /// What the service takes for a forecast second.
    load: UnderLoad,
    caches: Caches,
    /// Memory for sequences: it changes with what caches keep.
    room: Room,
    waiting: BTreeMap<u64, Waiting>,
    running: BTreeMap<u64, Sequence>,
    now_s: f64,
    /// Requests that ended with the last order, at the present moment.
    just_ended: usize,
    /// The last step's sequences, and its seconds.
    last_step: (Vec<u64>, f64),
    usage: Usage,
    outcomes: Vec<(u64, Outcome)>,
}

/// A request that begins: its number, the time when it came, and its placed draft.
type Begun = (u64, f64, Draft);

impl<'a> Group<'a> {
    /// An idle group with empty caches.
    pub fn new(service: &'a Service) -> Self {
        let shape = GroupShape { world: service.world, threads: 1 };
        let mut planner = Planner::new(service.shape, Vec::new(), service.chunk_cache_bytes, false);
        planner.plan_by(service.profile.clone());
        planner.keep_chunks(&[shape.world]);
        let memories = if service.profile.rank.memory_of == MemoryOf::Host { 1 } else { shape.world };
        planner.survey(shape, GroupSurvey { machine: machine(service), memories });
        let (space, chunk_cache_bytes) = (KeySpace::new([0; 32], "twin"), planner.chunk_cache_bytes(shape));
        let ranks = (0..shape.world).collect();
        let inventory = service.store_bytes.map(|_| StoreInventory { ranks, chunks: Vec::new() });
        let inventory = inventory.into_iter().collect();
        let started = Started { space: space.clone(), chunk_cache_bytes, message_bytes: 0, inventory, narrowest: None };
        planner.started(shape, started);
        Self {
            service,
            shape,
            room: planner.room(shape),
            planner,
            scheduler: Scheduler::new(shape.world, service.limits),
            pace: Pace::new(service.limits.decode_share, service.limits.max_gap),
            load: service.profile.under_load.unwrap_or_default(),
            caches: Caches::new(space, service.shape, shape.world, (chunk_cache_bytes, service.store_bytes)),
            waiting: BTreeMap::new(),
            running: BTreeMap::new(),
            now_s: 0.0,
            just_ended: 0,
            last_step: (Vec::new(), 0.0),
            usage: Usage::default(),
            outcomes: Vec::new(),
        }
    }

    /// Requests that wait or run at a moment up to which the group has advanced.
    pub fn in_flight(&self, at_s: f64) -> usize {
        let ending = if self.now_s > at_s { self.just_ended } else { 0 };
        self.waiting.len() + self.running.len() + ending
    }

    /// A request comes, at a moment up to which the group has advanced.
    pub fn submit(&mut self, request: u64, at_s: f64, (tokens, settings): (Tokens, RequestSettings)) -> Result<()> {
        let prompt_tokens =
            tokens.prefix.len() + tokens.chunks.iter().map(Vec::len).sum::<usize>() + tokens.query.len();
        let draft = self.planner.draft(tokens, &settings, self.shape.threads);
        let outcome = match draft.map(|draft| (self.arrival((request, at_s), prompt_tokens, &draft), draft)) {
            Err(Error::TooManyTokens { .. }) => Outcome::TooLong,
            Err(Error::Memory { .. } | Error::MemoryOfWeights { .. }) => Outcome::Memory,
            Err(error) => return Err(crate::Error::from(tributary_engine::Error::from(error))),
            Ok((arrival, _)) if !self.scheduler.submit(arrival) => Outcome::QueueFull,
            Ok((_, draft)) => {
                self.waiting.insert(request, Waiting { draft, at_s });
                self.usage.waiting = self.usage.waiting.max(self.waiting.len());
                return Ok(());
            }
        };
        self.outcomes.push((request, outcome));
        Ok(())
    }

    /// A request as the scheduler takes it, as in the conductor; all are of one client.
    fn arrival(&self, (request, at_s): (u64, f64), tokens: usize, draft: &Draft) -> Arrival {
        let reads_work = self.service.limits.policy.reads_work();
        let work = if reads_work { self.planner.rows_to_compute(draft, self.shape) } else { tokens };
        Arrival { request, asker: 0, tokens: tokens as u64, work: work as u64, at: moment(at_s), is_held: false }
    }

    /// Carries out orders that begin before a moment; an idle group waits for it.
    pub fn advance(&mut self, until_s: f64) -> Result<()> {
        while self.now_s < until_s {
            let (next, begun) = self.next()?;
            if !matches!(next, Next::Release(_)) {
                self.just_ended = 0;
            }
            match (next, begun) {
                (Next::Release(_), _) => self.scheduler.released(),
                (Next::Prefill(_), Some(begun)) => self.prefill(begun),
                // Refused, or gone: there is nothing to compute.
                (Next::Prefill(_), None) => {}
                (Next::Decode(requests), _) => self.step(requests),
                (Next::Nothing, _) if until_s.is_infinite() => return Ok(()),
                (Next::Nothing, _) => self.now_s = until_s,
            }
        }
        Ok(())
    }

    /// The next order; for a prefill also its request. As in the conductor, it is placed now.
    fn next(&mut self) -> Result<(Next, Option<Begun>)> {
        let now = moment(self.now_s);
        let Self { scheduler, planner, waiting, shape, room, .. } = self;
        // They are asked for by waiting requests only.
        let (taken, owner) = if waiting.is_empty() { (Vec::new(), 0) } else { (scheduler.taken(), scheduler.owner()) };
        let busy = scheduler.running() > 0;
        let nothing = || Some(Reservation::nothing(shape.world));
        let mut failed = None;
        let next = scheduler.next(now, room, |request| {
            failed = None;
            let Some(Waiting { draft, .. }) = waiting.get_mut(&request) else { return nothing() };
            match planner.place_beside(request, draft, Some(owner), *shape, &taken) {
                Ok(()) => Some(planner.reservation(draft.plan(), shape.world)),
                // Memory comes free after a running request ends.
                Err(Error::Memory { .. }) if busy => None,
                Err(error) => {
                    failed = Some(error);
                    nothing()
                }
            }
        });
        let Next::Prefill(request) = next else { return Ok((next, None)) };
        let Some(Waiting { draft, at_s }) = self.waiting.remove(&request) else { return Ok((next, None)) };
        match failed {
            None => Ok((next, Some((request, at_s, draft)))),
            Some(Error::Memory { .. }) => {
                self.outcomes.push((request, Outcome::Memory));
                Ok((next, None))
            }
            Some(error) => Err(crate::Error::from(tributary_engine::Error::from(error))),
        }
    }

    fn prefill(&mut self, (request, at_s, draft): Begun) {
        let plan = draft.plan();
        let names = self.caches.names(plan);
        let hits = self.caches.hits(plan, &names);
        let counted = Counted::new(plan, self.shape.world, &self.service.shape);
        let prefill_s = self.load.prefill * self.prefill_s(plan, &counted, hits);
        let (queue_s, begins_s) = (self.now_s - at_s, self.now_s);
        self.scheduler.prefills(self.planner.peak(plan, self.shape));
        self.compute(prefill_s);
        let answered = Answered { queue_s, prefill_s: self.now_s - begins_s, hits };
        self.outcomes.push((request, Outcome::Answered(answered)));
        let goes_on = plan.max_tokens > 1;
        let evict_s = if goes_on { counted.evict_s(plan, &self.service.profile) } else { 0.0 };
        let evict_s = self.load.prefill * evict_s;
        self.compute(evict_s);
        self.usage.prefill_s += prefill_s + evict_s;
        let reports = self.caches.keep(plan, &names);
        self.planner.note(self.shape, &reports);
        self.room = self.planner.room(self.shape);
        let running = counted.running(plan, &self.service.profile).filter(|_| goes_on);
        let Some(running) = running else {
            self.just_ended += 1;
            return;
        };
        self.scheduler.runs(request, self.planner.reservation(plan, self.shape.world));
        self.running.insert(request, Sequence { running, left: plan.max_tokens - 1 });
        self.usage.running = self.usage.running.max(self.running.len());
    }

    /// Computes a prefill for so long; it halts whenever decoding is owed steps, at any moment
    /// rather than at a control point.
    fn compute(&mut self, seconds: f64) {
        self.pace.begins();
        let mut left_s = seconds;
        while let Some(until_due) = self.pace.until_due().filter(|_| self.scheduler.running() > 0) {
            if until_due.as_secs_f64() >= left_s {
                break;
            }
            left_s -= until_due.as_secs_f64();
            self.now_s += until_due.as_secs_f64();
            // At least the clock's unit, or rounding would leave it due in no time for ever.
            self.pace.prefilled(until_due.max(Duration::from_nanos(1)));
            self.take_steps();
        }
        self.now_s += left_s;
        self.pace.prefilled(Duration::from_secs_f64(left_s));
    }

    /// Takes the steps that decoding is owed, as the conductor does at a halt.
    fn take_steps(&mut self) {
        while self.scheduler.releases() || self.pace.is_due() {
            match self.scheduler.beside_prefill(&self.room) {
                Next::Release(_) => self.scheduler.released(),
                Next::Decode(requests) => self.step(requests),
                Next::Prefill(_) | Next::Nothing => return self.pace.begins(),
            }
        }
    }

    /// Forecast seconds to the first token. The forecast counts the lead as computed and, unless a
    /// plan says otherwise, cached chunks as in memory; both are corrected here.
    fn prefill_s(&self, plan: &Plan, counted: &Counted, hits: Hits) -> f64 {
        let (profile, world) = (&self.service.profile, self.shape.world);
        let mut seconds = counted.seconds(plan, profile);
        if hits.lead > 0 {
            let chunks_s = |counted: &Counted, plan: &Plan| {
                let phases = counted.phases(plan, profile);
                phases.iter().filter(|phase| phase.phase == Phase::ChunkPrefill).map(|phase| phase.seconds).sum::<f64>()
            };
            let without = without_lead(plan, hits.lead);
            let shorter = Counted::new(&without, world, &self.service.shape);
            seconds -= (chunks_s(counted, plan) - chunks_s(&shorter, &without)).max(0.0);
        }
        if let (1.., Some(rates)) = (hits.store, &profile.store) {
            seconds += if plan.method.reuses_prefix() {
                (hits.store as u64 * self.service.shape.kv_bytes()) as f64 / rates.cached_bytes_per_s
            } else {
                let read = Plan { from_store: true, ..plan.clone() };
                let share = hits.store as f64 / (hits.store + hits.memory) as f64;
                share * (counted.seconds(&read, profile) - counted.seconds(plan, profile)).max(0.0)
            };
        }
        seconds
    }

    fn step(&mut self, requests: Vec<u64>) {
        if self.last_step.0 != requests {
            let sequences = requests.iter().map(|request| &self.running[request].running);
            let seconds = step_s(sequences, self.shape.world, &self.service.shape, &self.service.profile);
            self.last_step = (requests, self.load.decode * seconds);
        }
        let (requests, seconds) = (&self.last_step.0, self.last_step.1);
        self.now_s += seconds;
        self.usage.decode_s += seconds;
        self.pace.stepped(Duration::from_secs_f64(seconds));
        self.usage.steps += 1;
        self.usage.paused = self.usage.paused.max(self.scheduler.paused());
        for request in requests {
            let sequence = self.running.get_mut(request).expect("the scheduler knows running sequences");
            sequence.left -= 1;
            if sequence.left == 0 {
                self.running.remove(request);
                self.scheduler.over(*request);
                self.just_ended += 1;
            }
        }
    }

    /// The moment up to which it has computed.
    pub fn now_s(&self) -> f64 {
        self.now_s
    }

    /// Its caches.
    pub fn caches(&self) -> &Caches {
        &self.caches
    }

    /// Its time by use, and the end of each request, in no order.
    pub fn ended(self) -> (Usage, Vec<(u64, Outcome)>) {
        (self.usage, self.outcomes)
    }
}

/// A moment on the scheduler's clock.
fn moment(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}

/// The machine of a group, as a planner sees it. On a host, ranks are threads that share its memory
/// and one copy of the weights; a device is its rank's own.
fn machine(service: &Service) -> Machine {
    let (profile, rank) = (&service.profile, &service.profile.rank);
    let overhead = tributary_planner::forecast::overhead::Overhead::of(profile, service.world);
    let each_bytes = rank.memory_bytes.saturating_sub(overhead.bytes());
    let ranks_here = if rank.memory_of == MemoryOf::Host { service.world.min(profile.ranks_per_host) } else { 1 };
    Machine {
        flops_per_s: rank.gemm_flops_per_s,
        link_bytes_per_s: profile.inside.bytes_per_s,
        memory: rank.memory_of,
        available_bytes: Some(each_bytes.saturating_mul(ranks_here as u64)),
        ranks_here,
        weight_copies: 1,
        of_rank: None,
    }
}

/// A plan without the first tokens of its lead.
fn without_lead(plan: &Plan, tokens: usize) -> Plan {
    let mut plan = plan.clone();
    let head = plan.head_tokens();
    plan.prefix.drain(head..head + tokens);
    let mut left = tokens as u32;
    plan.lead.retain(|piece| {
        let is_cut = left > 0;
        left = left.saturating_sub(*piece);
        !is_cut
    });
    plan
}
