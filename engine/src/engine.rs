//! An opened model and the groups of ranks that run it: checks before a request, starts and ends of
//! groups.

use std::sync::Arc;

use candle_core::Device;
use tributary_coordinator::conductor::{Observed, Observer};
use tributary_coordinator::{Environment, LayerCalibration, Prepared, Readers, TraceCalibration};
use tributary_model::Model;
use tributary_planner::forecast::Profile;
use tributary_planner::{GroupShape, GroupSurvey, Machine, Planned, Planner, Slicing};
use tributary_store::Store;

use crate::answered::Answered;
use crate::auxiliary::{self, AuxiliaryModel};
use crate::carrier::Carrier;
use crate::chunk_store::ChunkStoreConfig;
use crate::config::Config;
use crate::device::{Gpu, RankDevice};
use crate::environment::environment;
use crate::error::{Error, Result};
use crate::machine::check_threads;
use crate::model::ModelFolder;
use crate::question::Question;
use crate::ranks::{Attendance, GroupSettings, Identity, Pulses, Ranks, Start};
use crate::run_config::RunConfig;
use crate::spoilt::{any_spoilt, explained};

/// A model folder, the ranks, and the known facts of both.
pub struct Engine<'a> {
    pub(crate) config: Config,
    pub(crate) folder: Arc<ModelFolder>,
    pub(crate) environment: Environment,
    rank_device: RankDevice,
    /// The weights: one for all of this process's ranks, or one a rank.
    models: Vec<Arc<dyn Model>>,
    /// The auxiliary models, once they are loaded.
    auxiliary: Option<Vec<AuxiliaryModel>>,
    pub(crate) planner: Planner,
    /// The auxiliary models, as they read requests.
    pub(crate) readers: Readers,
    pub(crate) ranks: &'a mut Ranks,
    /// Store of this process's chunk caches.
    store: Option<Arc<Store>>,
    /// Observer of the ranks' work.
    pub(crate) observed: Observed,
    /// Receiver of the answers that this engine gives itself.
    pub(crate) shown: Option<Shown>,
    /// Whether requests are planned without a memory limit.
    beyond_memory: bool,
}

/// Is shown an answer.
pub(crate) type Shown = Box<dyn Fn(&Answered)>;

impl<'a> Engine<'a> {
    /// Reads everything but the weights.
    ///
    /// # Errors
    /// Fails as [`ModelFolder::open`] and [`Ranks::open_device`] do.
    pub fn open(config: &Config, ranks: &'a mut Ranks) -> Result<Self> {
        let rank_device = ranks.open_device(&config.model, &config.group)?;
        let folder = Arc::new(ModelFolder::open(&config.model, &config.intake)?);
        let environment = environment(config, ranks.backend().label(), &rank_device, &folder)?;
        let side_by_side = ranks.fixed_world().is_none();
        let (shape, eos) = (folder.shape(), folder.config.eos.clone());
        let mut planner = Planner::new(shape, eos, config.group.chunk_cache_bytes, side_by_side);
        if let Some(calibrated) = TraceCalibration::from_folder(&folder.path)? {
            planner.trace_by(calibrated.alpha, calibrated.heads);
        }
        for (method, layers) in LayerCalibration::from_folder(&folder.path, folder.config.layers)?.layers() {
            planner.score_by(method, layers);
        }
        let readers = auxiliary::readers(&folder)?;
        if let Some(reader) = &readers.auxiliary {
            planner.read_by(reader.weight_bytes());
        }
        if let Some(writer) = &readers.draft_model {
            planner.draft_by(writer.weight_bytes());
        }
        if let Some(around) = folder.adapters.around() {
            planner.packet_by(around);
        }
        if let Some(look_ahead) = folder.adapters.look_ahead() {
            planner.look_ahead_by(look_ahead);
        }
        Ok(Self {
            config: config.clone(),
            folder,
            environment,
            rank_device,
            models: Vec::new(),
            auxiliary: None,
            planner,
            readers,
            ranks,
            store: config.group.chunk_store.as_ref().map(ChunkStoreConfig::open).transpose()?,
            observed: Observed::default(),
            shown: None,
            beyond_memory: false,
        })
    }

    /// Chooses exchanges by the rates of this machine from now on, instead of assumed ones.
    pub fn plan_by(&mut self, profile: Profile) {
        self.planner.plan_by(profile);
    }

    /// Cuts layers of long prompts in this way from now on.
    pub fn slice_by(&mut self, slicing: Slicing) {
        self.planner.slice_by(slicing);
    }

    /// Sets the observer of the ranks' work, and the receiver `shown` of each complete answer of
    /// [`answer`](Self::answer). Only the first observer counts.
    pub fn observe(&mut self, observer: Arc<dyn Observer>, shown: impl Fn(&Answered) + 'static) {
        self.observed.by(observer);
        self.shown = Some(Box::new(shown));
    }

    /// Plans requests without a memory limit from now on, for predictions of requests that are
    /// never run. Gives the free bytes for such a group here, where known.
    pub fn plan_beyond_memory(&mut self, group: GroupShape) -> Option<u64> {
        let free_bytes = self.machine(group).1.available_bytes;
        self.beyond_memory = true;
        free_bytes
    }

    /// Store of this process's chunk caches, if there is one.
    pub fn store(&self) -> Option<&Store> {
        self.store.as_deref()
    }

    /// Reader of the ranks' signs of life.
    pub fn pulses(&self) -> Pulses {
        self.ranks.backend().pulses()
    }

    /// Lets requests keep chunks in groups of these numbers of ranks from now on: checks count the
    /// chunk caches as full, and groups that start later name their chunks.
    pub fn keep_chunks(&mut self, worlds: &[usize]) {
        self.planner.keep_chunks(worlds);
    }

    /// A request as token ids.
    ///
    /// # Errors
    /// Fails as [`Question::prepare`] does.
    pub fn read(&self, question: &Question) -> Result<Prepared> {
        question.prepare(&self.folder, &self.config.intake)
    }

    /// Checks that a request can be planned, memory included, before anything is loaded or started.
    /// Gives the plan.
    ///
    /// # Errors
    /// Returns everything that is wrong with the request and the settings.
    pub fn check(&mut self, question: &Question, run_config: &RunConfig) -> Result<Planned> {
        self.check_with(question, run_config, None)
    }

    /// As [`check`](Self::check), for a request whose chunks a request under another configuration
    /// has left in the chunk caches.
    ///
    /// # Errors
    /// Fails as [`check`](Self::check) does.
    pub fn check_after(&mut self, question: &Question, run_config: &RunConfig, before: &RunConfig) -> Result<Planned> {
        let before = self.check(question, before)?;
        self.check_with(question, run_config, Some(&before))
    }

    fn check_with(&mut self, question: &Question, run_config: &RunConfig, before: Option<&Planned>) -> Result<Planned> {
        let group = run_config.group();
        check_threads(self.ranks.here(group.world), group.threads)?;
        self.ranks.backend().check(run_config.settings.method.name, group, self.config.group.threads)?;
        self.carrier(group.world)?;
        let prepared = self.read(question)?;
        self.survey(group);
        let tokens = self.readers.tokens(&prepared, &run_config.settings)?;
        let planned = self.planner.check(tokens, &run_config.settings, run_config.threads, before)?;
        self.folder.config.check_length(planned.plan.total_rows(), planned.plan.max_tokens)?;
        Ok(planned)
    }

    /// Loads the weights, if they are not loaded, and starts the ranks that `run_config` needs, if
    /// they do not run.
    ///
    /// # Errors
    /// Returns an error if the weights cannot be read, or if an operation of the operating system
    /// fails.
    pub fn start(&mut self, run_config: &RunConfig) -> Result<()> {
        self.start_ranks(run_config.group()).map_err(|error| explained(error, self.devices()))
    }

    fn start_ranks(&mut self, group: GroupShape) -> Result<()> {
        let GroupShape { world, threads } = group;
        let carrier = self.carrier(world)?;
        self.survey(group);
        let Config { model, group: run, .. } = &self.config;
        carrier.load(&self.folder, &self.rank_device, model, self.ranks.in_process(world), &mut self.models)?;
        if self.auxiliary.is_none() {
            self.auxiliary = Some(AuxiliaryModel::all(&self.folder, true)?);
        }
        let (kernels, timeout) = (model.kernels, run.collective_timeout);
        let chunk_cache_bytes = self.planner.chunk_cache_bytes(group);
        let start = Start {
            models: &self.models,
            auxiliary: self.auxiliary.clone().unwrap_or_default(),
            folder: &self.folder,
            settings: GroupSettings { world, threads, kernels, timeout, chunk_cache_bytes, carrier },
            identity: Identity::new(&self.folder, model, run, self.ranks.count(world))?,
            keeps_chunks: self.planner.keeps_chunks(),
            machine: self.planner.machine(group),
            store: self.store.clone(),
        };
        if let Some(started) = self.ranks.backend_mut().start(start)? {
            self.planner.started(group, started);
        }
        Ok(())
    }

    /// The model folder.
    pub fn folder(&self) -> &ModelFolder {
        &self.folder
    }

    /// Whether ranks that have failed can be started anew: threads can, on a device that is not
    /// poisoned and where none of them is still at work; processes end with their group.
    pub fn can_start_anew(&self) -> bool {
        self.ranks.backend().can_start_anew() && !any_spoilt(self.devices())
    }

    fn devices(&self) -> impl Iterator<Item = &Device> {
        self.models.iter().map(|model| model.device()).chain([&self.rank_device.device])
    }

    /// Whether a run computes with more threads on this host than it has cores, or a rank with more
    /// than it may use; on GPUs, with more ranks than GPUs.
    pub fn shares_cores(&self, run_config: &RunConfig) -> bool {
        let group = run_config.group();
        if let Some(gpu) = &self.rank_device.gpu {
            // A process may be shown its own GPU only.
            let is_known = gpu.count > 1 || self.config.group.allow_shared_gpu;
            return is_known && self.ranks.here(group.world) > gpu.count;
        }
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        self.ranks.backend().shares_cores(group, cores)
    }

    /// Environment of this process, for reports.
    pub fn environment(&self) -> &Environment {
        &self.environment
    }

    /// The GPU of this process's ranks, if they compute on one.
    pub fn gpu(&self) -> Option<&Gpu> {
        self.rank_device.gpu.as_ref()
    }

    /// Transport of messages between the default number of ranks, for reports.
    pub fn backend(&self) -> String {
        self.backend_of(self.ranks.world())
    }

    pub(crate) fn backend_of(&self, world: usize) -> String {
        self.carrier(world).unwrap_or(Carrier::Own).label(self.ranks.backend().label())
    }

    /// Carrier of tensors between `world` ranks.
    fn carrier(&self, world: usize) -> Result<Carrier> {
        self.ranks.carrier(&self.config.group, &self.rank_device, world)
    }

    /// Leaves the next SIGTERM, SIGINT or SIGUSR1 to the caller, who then ends what it has begun
    /// and takes up nothing new. Without this, and from the second on, a rank's process ends at
    /// once by SIGTERM and SIGINT, and passes over SIGUSR1.
    pub fn drains(&self) {
        self.ranks.backend().drains();
    }

    /// Marks this engine as serving clients. While the returned value is held, a failure that ends
    /// this process waits until clients have got the error, for at most two seconds.
    pub fn attend(&self) -> Attendance {
        self.ranks.backend().audience().attend()
    }

    /// Ends all ranks.
    ///
    /// # Errors
    /// Returns the failure that ended a group before.
    pub fn end(self) -> Result<()> {
        self.ranks.backend_mut().end()
    }

    /// A group has failed and is gone; gives the cause.
    pub(crate) fn lost(&mut self, group: GroupShape, seen: tributary_coordinator::Error) -> Error {
        self.planner.ended(group);
        let error = self.ranks.backend_mut().lost(group, seen);
        if let Some(breakage) = error.breakage() {
            self.observed.tell(|observer| observer.broken(breakage));
        }
        explained(error, self.devices())
    }

    /// Gives the planner the machines of a group and of the groups whose chunk caches count beside
    /// it, where it does not know them yet. The first look counts, before anything is loaded.
    pub(crate) fn survey(&mut self, group: GroupShape) {
        for group in self.planner.unsurveyed(group) {
            let (carrier, machine) = self.machine(group);
            let gpus = self.rank_device.gpu.as_ref().map_or(1, |gpu| gpu.count);
            let memories = if carrier.is_nccl() { gpus } else { 1 };
            self.planner.survey(group, GroupSurvey { machine, memories });
        }
    }

    /// Carrier of a group's tensors, and the current state of its machine.
    pub(crate) fn machine(&self, group: GroupShape) -> (Carrier, Machine) {
        // An impossible group was refused before.
        let carrier = self.carrier(group.world).unwrap_or(Carrier::Own);
        let machine = self.ranks.machine(&self.rank_device, carrier, group);
        let available_bytes = machine.available_bytes.filter(|_| !self.beyond_memory);
        (carrier, Machine { available_bytes, ..machine })
    }
}

impl Drop for Engine<'_> {
    /// Ranks do not outlive the engine that started them.
    fn drop(&mut self) {
        self.ranks.backend_mut().let_go();
    }
}
