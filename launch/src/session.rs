//! A loaded model and the groups of ranks that run it: what a request needs to be answered.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use candle_core::Device;
use tributary_coordinator::{
    Answer, Cached, Clock, Directory, Environment, Machine, PlanInput, Planned, Prepared, Report, Settings, dispatch,
    plan, report,
};
use tributary_kernels::Kernels;
use tributary_protocol::KeySpace;
use tributary_worker::Model;

use crate::args::{IntakeArgs, ModelArgs, RunArgs};
use crate::caches::{self, key_space};
use crate::carrier::Carrier;
use crate::device::{Gpu, Place};
use crate::environment::environment;
use crate::failure::{Exhausted, usage};
use crate::group::{Group, GroupSettings};
use crate::machine::{check_threads, chunk_cache_bytes, machine};
use crate::model::ModelFolder;
use crate::ranks::{Identity, Ranks, Room, Serving};
use crate::request::Question;
use crate::spoilt::{any_spoilt, judged};
use crate::taken::{Key, Taken};

/// What one request came to.
pub struct Answered {
    /// The request as token ids.
    pub prepared: Prepared,
    /// Its plan.
    pub planned: Planned,
    /// What came back.
    pub answer: Answer,
    /// Everything that is known about it.
    pub report: Report,
}

/// One way to run: a method's settings on ranks of so many threads.
#[derive(Debug, Clone, PartialEq)]
pub struct Way {
    /// The method's settings, the number of ranks among them.
    pub settings: Settings,
    /// Threads a rank.
    pub threads: usize,
}

/// A model folder and how requests to it are read.
pub struct Session<'a> {
    folder: ModelFolder,
    intake: &'a IntakeArgs,
    environment: Environment,
    place: Place,
    kernels: Kernels,
    timeout: Duration,
    machines: BTreeMap<(usize, usize), Machine>,
    /// The weights: one for all of this process's ranks, or one a rank.
    models: Vec<Arc<dyn Model>>,
    ranks: &'a mut Ranks,
    /// Groups of threads, by ranks and threads a rank.
    groups: BTreeMap<(usize, usize), Group>,
    /// What names the chunks that groups of threads keep.
    space: Option<KeySpace>,
    /// Numbers of ranks of the groups in which requests leave chunks behind for later ones: every plan must fit beside their
    /// full chunk caches.
    keeping: Vec<usize>,
    /// What each group keeps.
    directories: BTreeMap<(usize, usize), Directory>,
    /// This process's rank, where ranks are processes.
    serving: Option<Serving>,
    /// Of all ranks' memory the least, where ranks are processes.
    narrowest: Option<(usize, Room)>,
    /// What running groups have taken of the memory.
    taken: Taken,
    args: (&'a ModelArgs, &'a RunArgs),
    requests: u64,
    /// Whether a rank that was stuck is left behind in a thread of this process.
    left_behind: bool,
}

impl<'a> Session<'a> {
    /// Reads everything but the weights.
    ///
    /// # Errors
    /// As [`ModelFolder::open`].
    pub fn open(
        model: &'a ModelArgs,
        intake: &'a IntakeArgs,
        run: &'a RunArgs,
        ranks: &'a mut Ranks,
    ) -> anyhow::Result<Self> {
        let place = Place::open(model, &run.group, ranks)?;
        let folder = ModelFolder::open(model, intake, run.seed)?;
        let environment = environment(model, intake, run, ranks.backend(), &place, folder.template.is_some());
        Ok(Self {
            folder,
            intake,
            environment,
            place,
            kernels: model.kernels.into(),
            timeout: Duration::from_secs(run.group.collective_timeout),
            machines: BTreeMap::new(),
            models: Vec::new(),
            ranks,
            groups: BTreeMap::new(),
            space: None,
            keeping: Vec::new(),
            directories: BTreeMap::new(),
            serving: None,
            narrowest: None,
            taken: Taken::default(),
            args: (model, run),
            requests: 0,
            left_behind: false,
        })
    }

    /// From now on requests may leave chunks behind in groups of so many ranks: checks count the chunk caches as full, and groups
    /// that start later name their chunks.
    pub fn keep_chunks(&mut self, worlds: &[usize]) {
        self.keeping = worlds.to_vec();
        self.keeping.sort_unstable();
        self.keeping.dedup();
    }

    /// Checks that a request can be planned, memory included, before anything is loaded or started. Gives the plan.
    ///
    /// # Errors
    /// Everything that is wrong with request and settings.
    pub fn check(&mut self, question: &Question, way: &Way) -> anyhow::Result<Planned> {
        self.check_with(question, way, &[])
    }

    /// As [`check`](Self::check), for a request whose chunks another way has left in the chunk caches.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub fn check_after(&mut self, question: &Question, way: &Way, before: &Way) -> anyhow::Result<Planned> {
        let chunks = self.check(question, before)?.plan.chunks;
        let cached: Vec<Option<usize>> = chunks.iter().map(|chunk| Some(chunk.rank)).collect();
        self.check_with(question, way, &cached)
    }

    fn check_with(&mut self, question: &Question, way: &Way, ranks: &[Option<usize>]) -> anyhow::Result<Planned> {
        check_threads(self.ranks.here(way.settings.world), way.threads)?;
        self.check_ranks(way)?;
        self.carrier(way.settings.world)?;
        let prepared = question.prepare(&self.folder, self.intake)?;
        let (machine, bytes) = (self.machine(key(way)), self.full_caches(way));
        let planned = self.plan(&prepared, way, &machine, 0, Cached { ranks, bytes: &bytes })?;
        self.folder.config.check_length(planned.plan.total_tokens(), planned.plan.max_tokens)?;
        Ok(planned)
    }

    /// Loads the weights, if they are not loaded, and starts the ranks that `way` needs, if they do not run.
    ///
    /// # Errors
    /// The weights', the system's.
    pub fn start(&mut self, way: &Way) -> anyhow::Result<()> {
        self.start_ranks(way).map_err(|error| judged(error, self.devices()))
    }

    fn start_ranks(&mut self, way: &Way) -> anyhow::Result<()> {
        let carrier = self.carrier(way.settings.world)?;
        let chunk_cache_bytes = self.chunk_cache_bytes(way.settings.world, way.threads);
        let (model_args, run) = self.args;
        let ranks_in_process = self.ranks.in_process(way.settings.world);
        carrier.load(&self.folder, &self.place, model_args, ranks_in_process, &mut self.models)?;
        let (kernels, timeout, key) = (self.kernels, self.timeout, key(way));
        let machine = self.machine(key);
        let settings = GroupSettings { world: key.0, threads: key.1, kernels, timeout, chunk_cache_bytes, carrier };
        if let Ranks::Process(process) = &mut *self.ranks {
            if self.serving.is_none() {
                let identity = Identity::new(&self.folder, model_args, &run.group, process.facts.size);
                let serving = process.serve(&self.models[0], settings, identity, Some(Room::of(&machine)))?;
                let Some(agreed) = serving.ready() else { return serving.end() };
                (self.serving, self.narrowest) = (Some(serving), agreed.narrowest);
                // What messages take is out of the narrowest room already.
                self.taken.add(key, chunk_cache_bytes, 0);
                self.directories.insert(key, Directory::new(agreed.space));
            }
            return Ok(());
        }
        if let std::collections::btree_map::Entry::Vacant(slot) = self.groups.entry(key) {
            let space = match &self.space {
                Some(space) => space,
                None => self.space.insert(key_space(&self.folder, model_args, !self.keeping.is_empty())?),
            };
            let models = &self.models[..carrier.weight_copies(key.0)];
            let group = Group::start(models, space, settings).map_err(|cause| Exhausted { cause, settings })?;
            // What messages take of the GPU's budget is known now.
            self.taken.add(key, chunk_cache_bytes, group.message_bytes());
            slot.insert(group);
            self.directories.insert(key, Directory::new(space.clone()));
        }
        Ok(())
    }

    /// Answers a request; the clock starts here. [`start`](Self::start) comes before.
    ///
    /// # Errors
    /// The request's and the ranks'. After a rank's failure the group is gone.
    pub fn answer(&mut self, question: &Question, way: &Way) -> anyhow::Result<Answered> {
        let machine = self.machine(key(way));
        self.requests += 1;
        let clock = Clock::start();
        fail::fail_point!("launch::request");
        let prepared = question.prepare(&self.folder, self.intake)?;
        let directory = self.directories.get(&key(way));
        let rank_of = |ids: &[u32]| directory.and_then(|directory| directory.rank_of(&prepared.prefix, ids));
        let ranks: Vec<Option<usize>> = prepared.chunks.iter().map(|chunk| rank_of(&chunk.ids)).collect();
        let bytes = self.cached_bytes(way);
        let cached = Cached { ranks: &ranks, bytes: &bytes };
        let planned = self.plan(&prepared, way, &machine, self.requests, cached)?;
        let key = key(way);
        let link = match &self.serving {
            Some(serving) => serving.link(),
            None => self.groups.get(&key).map(Group::link),
        };
        let link = link.ok_or_else(|| anyhow::anyhow!("the ranks were not started"))?;
        let answer = match dispatch::run(link, &planned.plan, &clock, &mut |_| {}) {
            Ok(answer) => answer,
            Err(error) => return Err(self.blame(key, error)),
        };
        if let Some(directory) = self.directories.get_mut(&key) {
            directory.note(&answer.reports);
        }
        let text = self.folder.text(&answer.outcome.tokens)?;
        let backend = self.backend_of(way.settings.world);
        let environment = Environment { threads: way.threads, backend, ..self.environment.clone() };
        let shape = self.folder.shape();
        let report = report(&planned, &answer, &environment, &shape, text, prepared.notes.clone());
        Ok(Answered { prepared, planned, answer, report })
    }

    /// The model folder.
    pub fn folder(&self) -> &ModelFolder {
        &self.folder
    }

    /// Whether ranks that have failed can be started anew: threads can, on a device that is not spoilt and where none of them
    /// is still at work; processes end with their group.
    pub fn can_start_anew(&self) -> bool {
        matches!(&*self.ranks, Ranks::Threads { .. }) && !self.left_behind && !any_spoilt(self.devices())
    }

    fn devices(&self) -> impl Iterator<Item = &Device> {
        self.models.iter().map(|model| model.device()).chain([&self.place.device])
    }

    /// Whether a way computes with more threads on this host than it has cores, or a rank with more than it may use; on GPUs,
    /// with more ranks than GPUs.
    pub fn shares_cores(&self, way: &Way) -> bool {
        if let Some(gpu) = &self.place.gpu {
            let here = self.ranks.here(way.settings.world);
            // A process may be shown its own GPU only.
            return here > gpu.count && (gpu.count > 1 || self.args.1.group.allow_shared_gpu);
        }
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        match &*self.ranks {
            Ranks::Threads { .. } => way.settings.world * way.threads > cores,
            Ranks::Process(process) => {
                let host = crate::machine::online_cores().unwrap_or(cores);
                way.threads > cores || process.facts.local_size * way.threads > host
            }
        }
    }

    /// The GPU of this process's ranks, if they compute on one.
    pub fn gpu(&self) -> Option<&Gpu> {
        self.place.gpu.as_ref()
    }

    /// What carries messages between as many ranks as a method has where it does not say, for reports.
    pub fn backend(&self) -> String {
        self.backend_of(self.ranks.world())
    }

    fn backend_of(&self, world: usize) -> String {
        self.carrier(world).unwrap_or(Carrier::Own).label(self.ranks.backend())
    }

    /// What carries tensors between so many ranks.
    fn carrier(&self, world: usize) -> anyhow::Result<Carrier> {
        Carrier::choose(&self.args.1.group, self.ranks, &self.place, world)
    }

    /// Ends all ranks.
    ///
    /// # Errors
    /// A failure that ended a group before.
    pub fn end(self) -> anyhow::Result<()> {
        for group in self.groups.into_values() {
            group.end()?;
        }
        self.serving.map_or(Ok(()), Serving::end)
    }

    /// The rank's own account of a failure, where it has one; the coordinator's otherwise.
    fn blame(&mut self, key: (usize, usize), error: tributary_coordinator::Error) -> anyhow::Error {
        self.directories.remove(&key);
        self.taken.remove(key);
        let error = match (self.serving.take().map(Serving::end), self.groups.remove(&key).map(Group::end)) {
            (Some(Err(cause)), _) => cause,
            (_, Some(Err(cause))) => cause.into(),
            _ => error.into(),
        };
        self.left_behind |=
            matches!(error.downcast_ref(), Some(tributary_worker::Error::Comm(tributary_comm::Error::Stalled { .. })));
        judged(error, self.devices())
    }

    /// Processes are as many as were started; only threads can be made as a method likes.
    fn check_ranks(&self, way: &Way) -> anyhow::Result<()> {
        let (_, run) = self.args;
        let asked = (way.settings.world, way.threads);
        match &*self.ranks {
            Ranks::Process(process) if asked != (process.facts.size, run.group.threads) => Err(usage(format!(
                "{}: world {} with {} threads a rank, but {} processes of {} threads were started",
                way.settings.method.name, asked.0, asked.1, process.facts.size, run.group.threads
            ))),
            _ => Ok(()),
        }
    }

    /// Bytes of chunks that each rank of a group of `world` may keep.
    fn chunk_cache_bytes(&mut self, world: usize, threads: usize) -> u64 {
        if let Some(bytes) = self.taken.chunk_cache_bytes((world, threads)) {
            return bytes;
        }
        let side_by_side = matches!(&*self.ranks, Ranks::Threads { .. });
        let groups = if side_by_side { self.keeping.len().max(1) } else { 1 };
        let machine = self.machine((world, threads));
        chunk_cache_bytes(&self.args.1.group, &machine, self.folder.shape().weight_bytes, groups)
    }

    /// Bytes that each rank's chunk cache, and those of other groups beside it, have when they are full; nothing where requests
    /// leave nothing behind.
    fn full_caches(&mut self, way: &Way) -> Vec<u64> {
        let mut full = BTreeMap::new();
        for world in self.keeping.clone() {
            full.insert((world, way.threads), vec![self.chunk_cache_bytes(world, way.threads); world]);
        }
        if full.is_empty() { Vec::new() } else { caches::beside(way, &full, |world, rank| self.memory_of(world, rank)) }
    }

    /// The same of what they have now.
    fn cached_bytes(&self, way: &Way) -> Vec<u64> {
        let used = self.directories.iter().map(|(key, directory)| (*key, directory.used_bytes().to_vec())).collect();
        caches::beside(way, &used, |world, rank| self.memory_of(world, rank))
    }

    /// The number of the memory that holds what a rank of a group of `world` threads keeps: that of its GPU where NCCL gives
    /// each its own, else there is one.
    fn memory_of(&self, world: usize, rank: usize) -> usize {
        match (&self.place.gpu, self.carrier(world)) {
            (Some(gpu), Ok(Carrier::Nccl(_))) => rank % gpu.count.max(1),
            _ => 0,
        }
    }

    fn plan(
        &self,
        prepared: &Prepared,
        way: &Way,
        machine: &Machine,
        request: u64,
        cached: Cached<'_>,
    ) -> anyhow::Result<Planned> {
        let chunks: Vec<Vec<u32>> = prepared.chunks.iter().map(|chunk| chunk.ids.clone()).collect();
        let eos = &self.folder.config.eos;
        let (prefix, query) = (&prepared.prefix, &prepared.query);
        let input = PlanInput { request, prefix, chunks: &chunks, cached, query, eos };
        Ok(plan(&input, &way.settings, &self.folder.shape(), machine)?)
    }

    /// The machine as it was before anything was loaded, so that every plan of a session is made alike; but without what messages
    /// between GPUs take of their memory, once they are connected, and with another rank's memory, once that is known to be less.
    fn machine(&mut self, key: (usize, usize)) -> Machine {
        // What cannot run was refused before.
        let carrier = self.carrier(key.0).unwrap_or(Carrier::Own);
        let own = *self.machines.entry(key).or_insert_with(|| machine(self.ranks, &self.place, carrier, key.0, key.1));
        match self.narrowest {
            Some((0, room)) => Machine { available_bytes: room.available_bytes, ..own },
            Some((rank, room)) => room.of_rank(rank, &own),
            None => self.taken.left_of(own),
        }
    }
}

/// A group of threads: its ranks, and threads a rank.
fn key(way: &Way) -> Key {
    (way.settings.world, way.threads)
}
