//! The service's own thread: its start and its end.

use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::sync::watch;
use tributary_engine::{Attendance, Client};
use tributary_planner::forecast::Profile;
use tributary_protocol::exit;

use crate::connections;
use crate::deadline::Deadlines;
use crate::decoder::Decoder;
use crate::guard::{Access, Doors};
use crate::hand_over::held::HandOvers;
use crate::limits::ClientLimits;
use crate::metrics::{Basis, Metrics, Setup};
use crate::readers::Readers;
use crate::ready::{Readiness, keep_testing};
use crate::reasoning::{Reasoning, ReasoningParser};
use crate::routes::routes;
use crate::shared::Shared;
use crate::signals;

/// Interval of the metrics' upkeep.
const UPKEEP: Duration = Duration::from_secs(5);

/// Time that connections have left when the service ends and no request is computed any more: a
/// client that does not read its answer, or never ends its request, does not delay the end.
const LINGER: Duration = Duration::from_secs(5);

/// Time that connections have left when the ranks have failed: the process waits for it.
const LAST_ANSWERS: Duration = Duration::from_millis(1500);

/// Interval at which a service looks whether its ranks have failed, and an ending one whether a
/// request is still computed.
const LOOK: Duration = Duration::from_millis(100);

/// Time that the service stays for clients when the time to drain is over and no request is
/// computed any more.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// Time beyond the drain time in which ranks must come to their next control point.
const OVERTIME: Duration = Duration::from_secs(1);

/// Connections that the system holds until they are taken, if it allows as many
/// (`net.core.somaxconn`).
const QUEUE: i32 = 4096;

/// File descriptors that are left to ranks, logs and the model when connections take the rest.
const OTHER_FILES: usize = 256;

/// Options of a service.
#[derive(Debug, Clone)]
pub struct Options {
    /// Address on which it listens.
    pub listen: SocketAddr,
    /// Access rule.
    pub access: Access,
    /// Other names that it answers by, and web pages that may ask.
    pub doors: Doors,
    /// The name that the model has for clients.
    pub model: String,
    /// Limits of clients' requests.
    pub limits: ClientLimits,
    /// Parser that separates the model's reasoning from its answer, where a request does not
    /// choose.
    pub reasoning: ReasoningParser,
    /// Time without requests after which the ranks are tested; zero for no test at all.
    pub self_test: Duration,
    /// Whether fields of bodies that are not known pass; else they are refused by name.
    pub ignores_unknown: bool,
    /// Whether a client finds only its own chunks in the caches.
    pub caches_apart: bool,
    /// Tokens of an answer where a request does not say how many; where absent 2048 of a chat, and
    /// 16 of a text.
    pub default_tokens: Option<usize>,
    /// Time without use after which a prompt that is held for another program is released.
    pub hand_over_expiry: Duration,
    /// The server that decodes, if another one does.
    pub decoder: Option<Decoder>,
}

/// Why a service cannot be.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It cannot listen.
    #[error("--listen {address}: {cause}")]
    Listen {
        /// Address.
        address: SocketAddr,
        /// Why not.
        cause: std::io::Error,
    },
    /// A job cannot listen for scrapes.
    #[error("--metrics-listen {address}: {cause}")]
    ListenForScrapes {
        /// Address.
        address: SocketAddr,
        /// Why not.
        cause: std::io::Error,
    },
    /// The metrics of a job cannot be written.
    #[error("--metrics-file {path}: {cause}")]
    File {
        /// Path.
        path: std::path::PathBuf,
        /// Why not.
        cause: std::io::Error,
    },
    /// The system has no thread, timer or signal to give.
    #[error("the service cannot start: {0}")]
    Start(#[from] std::io::Error),
    /// The model cannot answer in the format of a parser.
    #[error("--reasoning-parser harmony: the tokenizer has no token `{0}`; choose another parser")]
    Reasoning(&'static str),
    /// The metrics cannot be made.
    #[error("a bug: {0}")]
    Metrics(#[from] metrics_exporter_prometheus::BuildError),
}

impl Error {
    /// Exit code of the error.
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::Reasoning(_) => exit::USAGE,
            Error::Listen { .. } | Error::ListenForScrapes { .. } => exit::CONFIGURATION,
            Error::File { .. } => exit::DISK,
            Error::Start(_) => exit::OUT_OF_MEMORY,
            Error::Metrics(_) => exit::BUG,
        }
    }
}

/// Asks the system for `wanted` file descriptors; returns the number that this process has.
fn open_files(wanted: usize) -> usize {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let number = |limit: Option<u64>| limit.and_then(|files| usize::try_from(files).ok()).unwrap_or(usize::MAX);
    let most = wanted.min(number(maximum));
    if number(current) >= most {
        return number(current);
    }
    let raised = setrlimit(Resource::Nofile, Rlimit { current: Some(most as u64), maximum });
    if raised.is_ok() { most } else { number(current) }
}

/// A service that listens, and answers once it has an engine.
pub struct Service {
    listener: TcpListener,
    options: Options,
}

impl Service {
    /// Takes the address, so that one that is in use is known before anything is loaded.
    ///
    /// # Errors
    /// Returns [`Error::Listen`].
    pub fn bind(mut options: Options) -> Result<Self, Error> {
        let address = options.listen;
        let listener = TcpListener::bind(address).map_err(|cause| Error::Listen { address, cause })?;
        listener.set_nonblocking(true)?;
        // It listens already, with the library's own short queue; Linux takes a second word on its
        // length.
        socket2::SockRef::from(&listener).listen(QUEUE)?;
        let ClientLimits { connections, .. } = &mut options.limits;
        *connections = (*connections).min(open_files(*connections + OTHER_FILES).saturating_sub(OTHER_FILES)).max(1);
        Ok(Self { listener, options })
    }

    /// Address on which it listens.
    ///
    /// # Errors
    /// Returns an error if an operation of the operating system fails.
    pub fn address(&self) -> Result<SocketAddr, Error> {
        Ok(self.listener.local_addr()?)
    }

    /// Answers on a separate thread, until SIGTERM, SIGINT or SIGUSR1: then in-flight requests are
    /// answered, no more are accepted, and the client is dropped. SIGTERM or SIGINT after another
    /// signal ends the process at once. The service also ends when the engine takes no more
    /// requests, because its ranks have failed; waiting clients have got the error by then. The
    /// `attendance` lasts as long.
    ///
    /// # Errors
    /// Returns an error if no thread can be started, or if the model has no token that the
    /// parser of reasoning needs.
    pub fn start(
        self,
        client: Client,
        world: usize,
        attendance: Attendance,
    ) -> Result<JoinHandle<Result<(), Error>>, Error> {
        let reasoning = Reasoning::by(self.options.reasoning, &client).map_err(Error::Reasoning)?;
        let settings = client.settings();
        let (method, eviction) =
            (Some(settings.method.name), settings.eviction.method.map(|method| method.descriptor().name));
        let setup = Setup { method, eviction, has_store: client.has_store() };
        let metrics = Arc::new(Metrics::new(world, &setup)?);
        metrics.attach(&client);
        let basis = match client.profile() {
            Some(profile) => Basis::Given(profile.clone()),
            None => Basis::Assumed(Profile::assumed(client.machine())),
        };
        metrics.predict_on(basis, client.shape());
        // Two threads suffice for sockets; computation has its own.
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let (drain, draining) = watch::channel(false);
        {
            // The service handles signals before other handlers leave them to it.
            let _inside = runtime.enter();
            signals::listen(drain.clone())?;
        }
        let run = move || {
            let desk = client.desk().clone();
            let served = runtime.block_on(self.serve((client, reasoning), metrics, (drain, draining), &attendance));
            // Texts that are still being read into tokens hold up neither the engine's end nor this
            // one.
            desk.leave();
            runtime.shutdown_background();
            drop(attendance);
            served
        };
        Ok(std::thread::Builder::new().name("service".to_owned()).spawn(run)?)
    }

    async fn serve(
        self,
        (client, reasoning): (Client, Reasoning),
        metrics: Arc<Metrics>,
        (drain, draining): (watch::Sender<bool>, watch::Receiver<bool>),
        attendance: &Attendance,
    ) -> Result<(), Error> {
        let Options { model, access, doors, limits, self_test, .. } = self.options;
        let Options { ignores_unknown, caches_apart, default_tokens, hand_over_expiry, decoder, .. } = self.options;
        let has_keys = matches!(access, Access::Keys { .. });
        let hand_overs = Arc::new(HandOvers::new(hand_over_expiry, has_keys));
        let listener = tokio::net::TcpListener::from_std(self.listener)?;
        let (cut, is_cut) = watch::channel(false);
        let (tested, readiness) = watch::channel(Readiness::Starting);
        let mut beside = tokio::task::JoinSet::new();
        beside.spawn(keep_tidy(Arc::clone(&metrics)));
        beside.spawn(fails(client.clone(), drain));
        beside.spawn(keep_testing(client.clone(), self_test, tested, draining.clone()));
        beside.spawn(tells(draining.clone(), Arc::clone(&metrics)));
        let (since, time) = (OnceLock::new(), limits.drain_time);
        let relaying = Arc::clone(&hand_overs);
        let overtime = Overtime { draining: draining.clone(), since, time, attendance, relaying };
        let (asked, lingering) = (client.clone(), lingering(client.clone(), &overtime, cut));
        let deadlines = Deadlines { request_time: limits.request_time, cut: is_cut, metrics: Arc::clone(&metrics) };
        let (model, readers, told) = (model.into(), Readers::default(), draining.clone());
        let shared = Shared {
            client,
            model,
            metrics,
            hand_overs,
            decoder: decoder.map(Arc::new),
            limits,
            reasoning,
            readers,
            readiness,
            draining: told,
            ignores_unknown,
            caches_apart,
            default_tokens,
        };
        let app = routes(shared, access, doors, deadlines);
        tokio::select! {
            () = connections::serve(listener, app, limits, draining) => {}
            () = lingering => {}
        }
        overtime.wait(&asked).await;
        Ok(())
    }
}

/// Drops data that no scrape of metrics needs any more, at intervals.
async fn keep_tidy(metrics: Arc<Metrics>) {
    let mut timer = tokio::time::interval(UPKEEP);
    loop {
        timer.tick().await;
        metrics.upkeep();
    }
}

/// Notes in the metrics that the service drains.
async fn tells(mut draining: watch::Receiver<bool>, metrics: Arc<Metrics>) {
    if draining.wait_for(|draining| *draining).await.is_ok() {
        metrics.drains();
    }
}

/// Ends the service when the engine takes no more requests.
async fn fails(client: Client, drain: watch::Sender<bool>) {
    while !client.desk().is_closed() {
        tokio::time::sleep(LOOK).await;
    }
    // The service may have ended already.
    let _ = drain.send(true);
}

/// Returns when the service ends and no request has been computed for a while. Requests that are
/// still computed when the time to drain is over are cut: the ranks drop them at their next control
/// point.
async fn lingering(client: Client, overtime: &Overtime<'_>, cut: watch::Sender<bool>) {
    let mut draining = overtime.draining.clone();
    if draining.wait_for(|draining| *draining).await.is_err() {
        // The sender is gone: no signal will come.
        return std::future::pending().await;
    }
    let mut idle = Duration::ZERO;
    let enough = || match overtime.is_up() {
        true => LAST_WORDS,
        false if client.desk().is_closed() => LAST_ANSWERS,
        false => LINGER,
    };
    while idle < enough() {
        tokio::time::sleep(LOOK).await;
        idle = if overtime.is_busy(&client) { Duration::ZERO } else { idle + LOOK };
        if overtime.is_up() {
            // Handlers of requests get the signal, unless all are gone.
            cut.send_replace(true);
        }
        overtime.end_if_over(&client);
    }
}

/// The time to drain, and the end of the process where ranks do not come to a control point soon
/// after it.
struct Overtime<'a> {
    draining: watch::Receiver<bool>,
    since: OnceLock<Instant>,
    time: Duration,
    attendance: &'a Attendance,
    relaying: Arc<HandOvers>,
}

impl Overtime<'_> {
    /// Whether the ranks have something to compute, or an answer goes on elsewhere.
    fn is_busy(&self, client: &Client) -> bool {
        self.has_work(client) || self.relaying.relays() > 0
    }

    /// Whether the ranks have something to compute.
    fn has_work(&self, client: &Client) -> bool {
        client.desk().waiting() + client.desk().running() > 0
    }

    /// Time for which the service has drained.
    fn drained(&self) -> Duration {
        self.since.get_or_init(Instant::now).elapsed()
    }

    /// Whether the time to drain is over.
    fn is_up(&self) -> bool {
        self.drained() >= self.time
    }

    /// Ends the process where ranks still compute.
    fn end_if_over(&self, client: &Client) {
        if self.drained() >= self.time + OVERTIME && self.has_work(client) {
            self.attendance.end_process();
        }
    }

    /// Waits for the ranks, whose clients have all gone.
    async fn wait(&self, client: &Client) {
        while self.has_work(client) {
            self.end_if_over(client);
            tokio::time::sleep(LOOK).await;
        }
    }
}
