//! The service's own thread: its sockets, its signals, its end.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use axum::serve::ListenerExt;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tributary_engine::{Attendance, Client};
use tributary_protocol::exit;

use crate::metrics::Metrics;
use crate::routes::routes;
use crate::shared::Shared;

/// How often metrics are tidied up.
const UPKEEP: Duration = Duration::from_secs(5);

/// How long connections may stay when the service ends and nothing is computed any more: a client that does not read its answer, or
/// never ends its request, keeps nobody waiting.
const LINGER: Duration = Duration::from_secs(5);

/// How long connections may stay when the ranks have failed: the process waits for it.
const LAST_ANSWERS: Duration = Duration::from_millis(1500);

/// How often a service looks whether its ranks have failed, and an ending one whether anything is still computed.
const LOOK: Duration = Duration::from_millis(100);

/// Exit code of a process that was told twice to end: that of SIGTERM.
const TERMINATED: i32 = 143;

/// What a service is told.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where it listens.
    pub listen: SocketAddr,
    /// Whether requests must be for this machine by one of its own names, so that no web page reaches it by another.
    pub only_local: bool,
    /// The name that the model has for clients.
    pub model: String,
}

/// Why a service cannot be.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It cannot listen.
    #[error("--listen {address}: {cause}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why not.
        cause: std::io::Error,
    },
    /// The system has no thread, timer or signal to give.
    #[error("the service cannot start: {0}")]
    Start(#[from] std::io::Error),
    /// The metrics cannot be made.
    #[error("a bug: {0}")]
    Metrics(#[from] metrics_exporter_prometheus::BuildError),
}

impl Error {
    /// The exit code that stands for it.
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::Listen { .. } => exit::CONFIGURATION,
            Error::Start(_) => exit::OUT_OF_MEMORY,
            Error::Metrics(_) => exit::BUG,
        }
    }
}

/// A service that listens, and answers once it has an engine.
pub struct Service {
    listener: TcpListener,
    only_local: bool,
    model: String,
}

impl Service {
    /// Takes the address, so that one that is in use is known before anything is loaded.
    ///
    /// # Errors
    /// [`Error::Listen`].
    pub fn bind(options: &Options) -> Result<Self, Error> {
        let address = options.listen;
        let listener = TcpListener::bind(address).map_err(|cause| Error::Listen { address, cause })?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener, only_local: options.only_local, model: options.model.clone() })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// The system's.
    pub fn address(&self) -> Result<SocketAddr, Error> {
        Ok(self.listener.local_addr()?)
    }

    /// Answers on a thread of its own, until SIGTERM, SIGINT or SIGUSR1: then requests under way are answered, no more are
    /// taken, and the client is let go. SIGTERM or SIGINT behind another signal ends the process at once. It ends by itself when
    /// the engine takes no more requests, because its ranks have failed: whoever waits has been told so then. The `attendance`
    /// lasts as long.
    ///
    /// # Errors
    /// The system has no thread to give.
    pub fn start(
        self,
        client: Client,
        world: usize,
        attendance: Attendance,
    ) -> Result<JoinHandle<Result<(), Error>>, Error> {
        let metrics = Arc::new(Metrics::new(world)?);
        // Two threads suffice for sockets; what computes has its own.
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let (drain, draining) = watch::channel(false);
        let told_to_end = {
            // The service takes signals before anybody else leaves them to it.
            let _inside = runtime.enter();
            signals(drain.clone())?
        };
        let run = move || {
            let served = runtime.block_on(self.serve(client, metrics, (drain, draining), told_to_end));
            drop((runtime, attendance));
            served
        };
        Ok(std::thread::Builder::new().name("service".to_owned()).spawn(run)?)
    }

    async fn serve(
        self,
        client: Client,
        metrics: Arc<Metrics>,
        (drain, draining): (watch::Sender<bool>, watch::Receiver<bool>),
        told_to_end: impl Future<Output = ()> + Send + 'static,
    ) -> Result<(), Error> {
        // Events are small and each counts: none waits for the one behind it.
        let listener = tokio::net::TcpListener::from_std(self.listener)?.tap_io(|stream| {
            // A connection that has just been lost is noticed when it is read.
            let _ = stream.set_nodelay(true);
        });
        let upkeep = Arc::clone(&metrics);
        let tidy = tokio::spawn(async move {
            let mut timer = tokio::time::interval(UPKEEP);
            loop {
                timer.tick().await;
                upkeep.upkeep();
            }
        });
        let failed = tokio::spawn(fails(client.clone(), drain));
        let lingering = lingering(client.clone(), draining.clone());
        let shared = Shared { client, model: self.model.into(), metrics, draining };
        let app = routes(shared, self.only_local);
        let served = tokio::select! {
            served = axum::serve(listener, app).with_graceful_shutdown(told_to_end).into_future() => served,
            () = lingering => Ok(()),
        };
        tidy.abort();
        failed.abort();
        Ok(served?)
    }
}

/// Tells the service to end when the engine takes no more requests.
async fn fails(client: Client, drain: watch::Sender<bool>) {
    while !client.desk().is_closed() {
        tokio::time::sleep(LOOK).await;
    }
    // A service that has ended need not be told.
    let _ = drain.send(true);
}

/// Ends when the service was told to end and nothing has been computed for a while.
async fn lingering(client: Client, mut draining: watch::Receiver<bool>) {
    if draining.wait_for(|draining| *draining).await.is_err() {
        // The sender is gone: nobody will ever tell.
        return std::future::pending().await;
    }
    let mut idle = Duration::ZERO;
    while idle < if client.desk().is_closed() { LAST_ANSWERS } else { LINGER } {
        tokio::time::sleep(LOOK).await;
        idle = if client.desk().waiting() + client.desk().running() == 0 { idle + LOOK } else { Duration::ZERO };
    }
}

/// Ends when the process is told to; a second time ends the process. SIGUSR1 only asks: it is what launchers pass to every rank.
fn signals(drain: watch::Sender<bool>) -> Result<impl Future<Output = ()> + Send, Error> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let mut asked = signal(SignalKind::user_defined1())?;
    let mut begun = drain.subscribe();
    tokio::spawn(async move {
        let mut already = false;
        loop {
            let demands = tokio::select! {
                _ = terminate.recv() => true,
                _ = interrupt.recv() => true,
                _ = asked.recv() => false,
            };
            if already && demands {
                std::process::exit(TERMINATED);
            }
            already = true;
            // A service that has ended need not be told.
            let _ = drain.send(true);
        }
    });
    Ok(async move {
        let _ = begun.wait_for(|draining| *draining).await;
    })
}
