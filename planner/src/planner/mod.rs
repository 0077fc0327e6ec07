//! The coordinator's knowledge of its groups of ranks for planning: the memory of their machine,
//! the sizes of chunk caches, and the rank of each chunk. Pure state: it measures nothing, but is
//! informed of measurements, starts and ends.

mod caches;
mod room;
mod taken;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ops::Range;

use tributary_methods::{ALPHA, LAYERS, SHARPEST};
use tributary_protocol::{Around, Chunk, KeySpace, LookAhead, Packets, Picture, Plan, RankReport, TraceHeads};

use self::caches::bytes_seen_by_ranks;
use self::taken::Taken;
use crate::directory::{Directory, StoreInventory};
use crate::forecast::{LongStep, Profile};
use crate::machine::{FreeMemory, GroupShape, Machine, MemoryOf};
use crate::plan::{Cached, Draft, Held, Planned, RequestSettings, Tokens};
use crate::reservation::STEP_TOKENS;
use crate::slicing::{MeasuredRate, Slicing};
use crate::{ModelShape, Result};

pub use self::caches::chunk_cache_bytes;

/// Measurements of a group before anything is loaded or started.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GroupSurvey {
    /// The machine as its ranks see it.
    pub machine: Machine,
    /// Number of consecutive memories that its ranks have in this process: a GPU each, or one for
    /// all.
    pub memories: usize,
}

/// Facts of a group known after its start.
#[derive(Debug, Clone)]
pub struct Started {
    /// Key space of the chunks that its ranks keep.
    pub space: KeySpace,
    /// Bytes of chunks that each of its ranks may keep.
    pub chunk_cache_bytes: u64,
    /// Bytes of a GPU in message buffers.
    pub message_bytes: u64,
    /// Contents of stores at its start.
    pub inventory: Vec<StoreInventory>,
    /// If ranks have exchanged it: the least memory of one of them, and that rank. Message buffers
    /// are already subtracted.
    pub narrowest: Option<(usize, FreeMemory)>,
}

/// Plans requests for the groups of one model.
#[derive(Debug)]
pub struct Planner {
    model: ModelShape,
    eos: Vec<u32>,
    /// Configured maximum bytes of chunks on each rank.
    chunk_cache_bytes: Option<u64>,
    /// Whether groups of several sizes may coexist.
    side_by_side: bool,
    /// Numbers of ranks of the groups in which requests leave chunks for later ones.
    keeping: Vec<usize>,
    surveys: BTreeMap<GroupShape, GroupSurvey>,
    taken: Taken,
    directories: BTreeMap<GroupShape, Directory>,
    narrowest: Option<(usize, FreeMemory)>,
    /// Rates of the machine, if known.
    profile: Option<Profile>,
    /// Calibrated α of trace for the model, if any.
    trace: Option<(f32, TraceHeads)>,
    /// Calibrated scoring layers of the model, by the method's name.
    scoring: BTreeMap<String, Range<usize>>,
    /// The rows of an adapter around chunks, for requests that use them.
    around: Option<Around>,
    /// The rows of an adapter for a look-ahead, for requests that evict by it.
    look_ahead: Option<LookAhead>,
    /// Bytes of the weights of the auxiliary model, which reads contexts for methods that need it.
    auxiliary_bytes: u64,
    /// Bytes of the weights of the draft model, which writes what an eviction listens to.
    draft_model_bytes: u64,
    /// How layers of long prompts are cut.
    slicing: Slicing,
    /// The rate at which ranks have prefilled.
    measured: MeasuredRate,
    /// How many requests were planned to be answered.
    requests: u64,
}

impl Planner {
    /// A planner for a model whose answers end at one of the tokens `eos`. `chunk_cache_bytes` is
    /// the configured maximum of each rank; `side_by_side` tells whether groups of several sizes
    /// may coexist.
    pub fn new(model: ModelShape, eos: Vec<u32>, chunk_cache_bytes: Option<u64>, side_by_side: bool) -> Self {
        Self {
            model,
            eos,
            chunk_cache_bytes,
            side_by_side,
            keeping: Vec::new(),
            surveys: BTreeMap::new(),
            taken: Taken::default(),
            directories: BTreeMap::new(),
            narrowest: None,
            profile: None,
            trace: None,
            scoring: BTreeMap::new(),
            around: None,
            look_ahead: None,
            auxiliary_bytes: 0,
            draft_model_bytes: 0,
            slicing: Slicing::Whole,
            measured: MeasuredRate::default(),
            requests: 0,
        }
    }

    /// From now on exchanges are chosen by the rates of this machine, instead of assumed ones.
    pub fn plan_by(&mut self, profile: Profile) {
        self.profile = Some(profile);
    }

    /// From now on layers of long prompts are cut in this way.
    pub fn slice_by(&mut self, slicing: Slicing) {
        self.slicing = slicing;
    }

    /// From now on trace has this α, which belongs to the attention of these heads, unless a
    /// request asks for others.
    pub fn trace_by(&mut self, alpha: f32, heads: TraceHeads) {
        self.trace = Some((alpha, heads));
    }

    /// From now on the method of this name scores rows by these layers, unless a request asks for
    /// others.
    pub fn score_by(&mut self, method: String, layers: Range<usize>) {
        self.scoring.insert(method, layers);
    }

    /// Counts the weights of an auxiliary model from now on: they are in the host's memory,
    /// whatever is asked.
    pub fn read_by(&mut self, weight_bytes: u64) {
        self.auxiliary_bytes = weight_bytes;
    }

    /// Counts the weights of a draft model from now on: they are in the host's memory, whatever is
    /// asked.
    pub fn draft_by(&mut self, weight_bytes: u64) {
        self.draft_model_bytes = weight_bytes;
    }

    /// From now on these rows of an adapter stand around chunks, for requests that use them.
    pub fn packet_by(&mut self, around: Around) {
        self.around = Some(around);
    }

    /// From now on these rows of an adapter are the look-ahead of requests that evict by one.
    pub fn look_ahead_by(&mut self, look_ahead: LookAhead) {
        self.look_ahead = Some(look_ahead);
    }

    /// The profile by which exchanges are chosen, if one was given.
    pub fn profile(&self) -> Option<&Profile> {
        self.profile.as_ref()
    }

    /// From now on requests may leave chunks in groups of these numbers of ranks: checks count
    /// their chunk caches as full.
    pub fn keep_chunks(&mut self, worlds: &[usize]) {
        self.keeping = worlds.to_vec();
        self.keeping.sort_unstable();
        self.keeping.dedup();
    }

    /// Whether requests may leave chunks for later ones.
    pub fn keeps_chunks(&self) -> bool {
        !self.keeping.is_empty()
    }

    /// The groups that must be surveyed before a request is planned for this one: itself, and those
    /// whose chunk caches share its memory.
    pub fn unsurveyed(&self, group: GroupShape) -> Vec<GroupShape> {
        let beside = self.keeping.iter().map(|&world| GroupShape { world, ..group });
        std::iter::once(group).chain(beside).filter(|group| !self.surveys.contains_key(group)).collect()
    }

    /// A group has been surveyed. The first survey counts, so that every plan is made alike.
    pub fn survey(&mut self, group: GroupShape, survey: GroupSurvey) {
        self.surveys.entry(group).or_insert(survey);
    }

    /// A group has started.
    pub fn started(&mut self, group: GroupShape, started: Started) {
        let Started { space, chunk_cache_bytes, message_bytes, inventory, narrowest } = started;
        self.taken.add(group, chunk_cache_bytes, message_bytes);
        self.directories.insert(group, Directory::new(space).with(inventory));
        self.narrowest = narrowest.or(self.narrowest);
    }

    /// A group has ended, and its cached chunks are gone.
    pub fn ended(&mut self, group: GroupShape) {
        self.directories.remove(&group);
        self.taken.remove(group);
    }

    /// Takes the ranks' reports on chunks kept and dropped during a request. Returns the stores
    /// behind their chunk caches: the first of the ranks that read each, and its last reported
    /// bytes.
    pub fn note(&mut self, group: GroupShape, reports: &[RankReport]) -> Vec<(usize, u64)> {
        // Coexisting groups are threads of one process, which has one store: it reports each event
        // once.
        self.directories
            .iter_mut()
            .filter(|(other, _)| **other != group)
            .for_each(|(_, other)| other.overhear(reports));
        let Some(directory) = self.directories.get_mut(&group) else { return Vec::new() };
        directory.note(reports);
        directory.stores()
    }

    /// The machine of a group before anything was loaded. Message buffers between GPUs are
    /// subtracted once they are connected, and another rank's memory is used once it is known to be
    /// less.
    pub fn machine(&self, group: GroupShape) -> Machine {
        let own = self.surveys.get(&group).expect("a group is surveyed before it is planned for").machine;
        match self.narrowest {
            Some((0, room)) => Machine { available_bytes: room.available_bytes, ..own },
            Some((rank, room)) => room.of_rank(rank, &own),
            None => self.taken.left_of(own),
        }
    }

    /// Bytes of chunks that each rank of a group may keep.
    pub fn chunk_cache_bytes(&self, group: GroupShape) -> u64 {
        self.taken.chunk_cache_bytes(group).unwrap_or_else(|| {
            let groups = if self.side_by_side { self.keeping.len().max(1) } else { 1 };
            chunk_cache_bytes(self.chunk_cache_bytes, &self.machine(group), self.model.weight_bytes, groups)
        })
    }

    /// Checks that a request can be planned, with full chunk caches; returns the plan. With
    /// `before` its chunks are in the chunk caches of the ranks that this plan sent them to.
    ///
    /// # Errors
    /// As [`plan()`](crate::plan()).
    pub fn check(
        &self,
        tokens: Tokens,
        settings: &RequestSettings,
        threads: usize,
        before: Option<&Planned>,
    ) -> Result<Planned> {
        let group = GroupShape { world: settings.world, threads };
        let chunks = before.into_iter().flat_map(|before| &before.plan.chunks);
        let held: Vec<Held> = chunks.map(|chunk| Held::Memory(chunk.rank)).collect();
        let mut draft = self.read(tokens, settings)?;
        let owned = |before: &Planned, rank| if rank == before.plan.owner { before.plan.leading_rows(1.0) } else { 0 };
        let prefix: Vec<usize> =
            before.map_or_else(Vec::new, |before| (0..group.world).map(|rank| owned(before, rank)).collect());
        self.place_beside_full_caches(&mut draft, settings.owner, group, (&held, &prefix))?;
        Ok(draft.planned())
    }

    /// Checks that a request can be planned, with full chunk caches; returns its draft for later
    /// placement, with memory for the first step of its answer.
    ///
    /// # Errors
    /// As [`plan()`](crate::plan()).
    pub fn draft(&self, tokens: Tokens, settings: &RequestSettings, threads: usize) -> Result<Draft> {
        let mut draft = self.read(tokens, settings)?;
        let group = GroupShape { world: settings.world, threads };
        self.place_beside_full_caches(&mut draft, settings.owner, group, (&[], &[]))?;
        draft.reserve_first(STEP_TOKENS);
        Ok(draft)
    }

    /// The same for chunks ahead of use: the request's query is not read; of the settings only
    /// those of ranks and memory count.
    ///
    /// # Errors
    /// As [`plan()`](crate::plan()).
    pub fn draft_chunks(&self, tokens: Tokens, settings: &RequestSettings, threads: usize) -> Result<Draft> {
        let mut draft = Draft::of_chunks(self.completed(tokens, settings), settings, &self.model)?;
        let group = GroupShape { world: settings.world, threads };
        self.place_beside_full_caches(&mut draft, settings.owner, group, (&[], &[]))?;
        Ok(draft)
    }

    /// Plans a request to be answered now: cached chunks stay on their ranks.
    ///
    /// # Errors
    /// As [`plan()`](crate::plan()).
    pub fn plan(&mut self, tokens: Tokens, settings: &RequestSettings, threads: usize) -> Result<Planned> {
        self.requests += 1;
        let mut draft = self.read(tokens, settings)?;
        let group = GroupShape { world: settings.world, threads };
        self.place_beside(self.requests, &mut draft, settings.owner, group, &[])?;
        Ok(draft.planned())
    }

    /// Plans chunks ahead of use, to be computed now.
    ///
    /// # Errors
    /// As [`plan()`](crate::plan()).
    pub fn plan_chunks(&mut self, tokens: Tokens, settings: &RequestSettings, threads: usize) -> Result<Planned> {
        self.requests += 1;
        let mut draft = Draft::of_chunks(self.completed(tokens, settings), settings, &self.model)?;
        let group = GroupShape { world: settings.world, threads };
        self.place_beside(self.requests, &mut draft, settings.owner, group, &[])?;
        Ok(draft.planned())
    }

    /// Whether a store of a group is known to have a chunk after this head, in the form that
    /// these settings need.
    pub fn stores(
        &self,
        group: GroupShape,
        head: &[u32],
        (ids, pictures): (&[u32], &[Picture]),
        settings: &RequestSettings,
    ) -> bool {
        let chunk = settings.chunk((ids.to_vec(), pictures.to_vec()), self.around(settings));
        let held =
            self.directories.get(&group).map(|directory| directory.held(head, &chunk, (settings.cache_scope, true)));
        matches!(held, Some(Held::Stored(_)))
    }

    /// Places a draft now, as the request of this number with this owner, beside sequences that
    /// take these bytes on each rank: cached chunks stay on their ranks.
    ///
    /// # Errors
    /// Returns [`Error::Memory`](crate::Error::Memory) if it does not fit now; it may fit after
    /// those sequences have ended.
    pub fn place_beside(
        &self,
        number: u64,
        draft: &mut Draft,
        owner: Option<usize>,
        group: GroupShape,
        running_bytes: &[u64],
    ) -> Result<()> {
        let directory = self.directories.get(&group);
        let is_ordered = draft.plan().method.orders_chunks() && draft.plan().continues.is_none();
        if let Some(directory) = directory.filter(|_| is_ordered) {
            draft.order_chunks(directory.order(draft.plan(), group.world));
        }
        let (held, prefix) = self.found(draft.plan(), group);
        let mut bytes = self.cached_bytes(group);
        bytes.iter_mut().zip(running_bytes).for_each(|(bytes, running)| *bytes += running);
        let cached = Cached { chunks: &held, prefix: &prefix, bytes: &bytes };
        let machine = self.machine_of(group, draft);
        draft.slice(self.slicing.slices(draft.plan(), &self.model, self.flops_per_s(&machine)));
        draft.place(number, owner, cached, &self.model, (&machine, self.profile.as_ref()))
    }

    /// Rows that a draft's prefill would have to compute now: those of its prompt that are not
    /// known to be cached, and those that its method recomputes.
    pub fn rows_to_compute(&self, draft: &Draft, group: GroupShape) -> usize {
        let (held, prefix) = self.found(draft.plan(), group);
        draft.rows_to_compute(&held, &prefix)
    }

    /// The place of each chunk of a plan, and the cached rows of its prompt's prefix on each rank,
    /// as far as a group is known to have them.
    fn found(&self, plan: &Plan, group: GroupShape) -> (Vec<Held>, Vec<usize>) {
        let directory = self.directories.get(&group);
        let (head, from) = (plan.head(), (plan.scope, plan.from_store));
        let held = |chunk: &Chunk| directory.map(|directory| directory.held(head, chunk, from)).unwrap_or_default();
        let reuses = directory.filter(|_| plan.method.reuses_prefix());
        let prefix = reuses.map_or_else(Vec::new, |directory| directory.prefix(plan, group.world));
        (plan.chunks.iter().map(held).collect(), prefix)
    }

    /// FLOPs of a rank in a second: as measured while it prefilled, by the profile, or assumed.
    fn flops_per_s(&self, machine: &Machine) -> f64 {
        let rank = self.profile.as_ref().map(|profile| &profile.rank);
        let profiled = rank.map(|rank| rank.attention_flops_per_s.min(rank.gemm_flops_per_s));
        self.measured.flops_per_s.or(profiled).unwrap_or(machine.flops_per_s)
    }

    /// Takes the times of a prefill, by which later ones are cut into slices.
    pub fn learn(&mut self, plan: &Plan, reports: &[RankReport]) {
        self.measured.learn(plan, reports, &self.model);
    }

    /// The machine of a group for a request: models that read or write for other requests take
    /// memory of it too.
    fn machine_of(&self, group: GroupShape, draft: &Draft) -> Machine {
        let machine = self.machine(group);
        let Plan { auxiliary, draft_model, .. } = draft.plan();
        let idle = [(self.auxiliary_bytes, !auxiliary.is_empty()), (self.draft_model_bytes, draft_model.is_some())];
        let idle = idle.into_iter().filter(|(_, is_used)| machine.memory == MemoryOf::Host && !is_used);
        let taken: u64 = idle.map(|(bytes, _)| bytes).sum();
        Machine { available_bytes: machine.available_bytes.map(|bytes| bytes.saturating_sub(taken)), ..machine }
    }

    /// Warning before a planned request is computed, if the machine's profile is known: a layer is
    /// predicted to take longer than a rank may compute without progress. It is no reason to
    /// refuse, since a layer's tiles count as progress.
    pub fn foretold(&self, planned: &Planned) -> Option<String> {
        let Planned { plan, world, .. } = planned;
        LongStep::beyond_timeout(plan, *world, &self.model, self.profile.as_ref()?).map(|step| step.note())
    }

    fn read(&self, tokens: Tokens, settings: &RequestSettings) -> Result<Draft> {
        Draft::new(self.completed(tokens, settings), &self.calibrated(settings), &self.model)
    }

    /// Settings with the calibrated α and the calibrated layers, for a method that takes them,
    /// unless a request asks for others, or for an α of other heads.
    fn calibrated(&self, settings: &RequestSettings) -> RequestSettings {
        let mut settings = settings.clone();
        if let Some((alpha, heads)) = self.trace.filter(|_| settings.method.takes(&ALPHA)) {
            let options = &mut settings.options;
            if let TraceHeads::Sharpest(share) = heads {
                options.set_default(&SHARPEST, &share.to_string());
            }
            if TraceHeads::from(options.get::<f32>(&SHARPEST)) == heads {
                options.set_default(&ALPHA, &alpha.to_string());
            }
        }
        if let Some(layers) = self.scoring.get(settings.method.name).filter(|_| settings.method.takes(&LAYERS)) {
            settings.options.set_default(&LAYERS, &format!("{}..{}", layers.start, layers.end));
        }
        settings
    }

    /// The rows of an adapter around every chunk of requests with these settings.
    fn around(&self, settings: &RequestSettings) -> Option<Around> {
        self.around.filter(|_| settings.chunk_packets() != Packets::Off)
    }

    /// Tokens with the tokens that end answers, and an adapter's rows.
    fn completed(&self, tokens: Tokens, settings: &RequestSettings) -> Tokens {
        Tokens {
            eos: self.eos.clone(),
            around: self.around(settings),
            look_ahead: self.look_ahead.filter(|_| settings.eviction.looks_ahead()),
            ..tokens
        }
    }

    fn place_beside_full_caches(
        &self,
        draft: &mut Draft,
        owner: Option<usize>,
        group: GroupShape,
        (chunks, prefix): (&[Held], &[usize]),
    ) -> Result<()> {
        let cached = Cached { chunks, prefix, bytes: &self.full_caches(group) };
        draft.place(0, owner, cached, &self.model, (&self.machine_of(group, draft), self.profile.as_ref()))
    }

    /// Bytes of each rank's chunk cache, and of other groups' beside it, when they are full; empty
    /// if requests leave no chunks.
    fn full_caches(&self, group: GroupShape) -> Vec<u64> {
        let groups = self.keeping.iter().map(|&world| GroupShape { world, ..group });
        let full: BTreeMap<_, _> =
            groups.map(|group| (group, vec![self.chunk_cache_bytes(group); group.world])).collect();
        if full.is_empty() {
            Vec::new()
        } else {
            bytes_seen_by_ranks(group, &full, |group, rank| self.memory_of(group, rank))
        }
    }

    /// Bytes of each rank's chunk cache, and of other groups' beside it, now.
    fn cached_bytes(&self, group: GroupShape) -> Vec<u64> {
        let used =
            self.directories.iter().map(|(group, directory)| (*group, directory.used_bytes().to_vec())).collect();
        bytes_seen_by_ranks(group, &used, |group, rank| self.memory_of(group, rank))
    }

    /// Number of the memory with the chunks of a group's rank.
    fn memory_of(&self, group: GroupShape, rank: usize) -> usize {
        self.surveys.get(&group).map_or(0, |survey| rank % survey.memories.max(1))
    }
}
