//! Metrics of a job, which has no service: a small listener for scrapes, a file for jobs that end
//! before they are scraped.

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::http::header;
use axum::middleware::from_fn_with_state;
use axum::response::IntoResponse;
use axum::routing::get;
use tokio::sync::watch;
use tributary_engine::{Answered, Engine};
use tributary_planner::forecast::Profile;
use tributary_system::file::write_whole;

use crate::connections;
use crate::guard::{self, Access};
use crate::limits::ClientLimits;
use crate::metrics::{Basis, Metrics, TEXT};
use crate::server::Error;

/// The least time between two files.
const PAUSE: Duration = Duration::from_secs(1);

/// Exports of a job.
#[derive(Debug, Clone, Default)]
pub struct Export {
    /// Address on which scrapes are answered.
    pub listen: Option<SocketAddr>,
    /// The file that is written.
    pub file: Option<PathBuf>,
    /// The command that runs.
    pub command: &'static str,
    /// The name of its study, if it has one.
    pub study: String,
    /// Ranks, at most.
    pub world: usize,
    /// The machine that requests' predictions are for; none are made without.
    pub profile: Option<Profile>,
}

/// The metrics of a job. Clones are of the same job. One that exports nothing costs nothing.
#[derive(Clone)]
pub struct Exporter(Option<Arc<Job>>);

struct Job {
    metrics: Arc<Metrics>,
    file: Option<PathBuf>,
    written: Mutex<Written>,
    /// Until the model is known.
    profile: Mutex<Option<Profile>>,
}

/// State of the file.
struct Written {
    at: Instant,
    /// The first failure.
    failure: Option<std::io::Error>,
}

impl Exporter {
    /// Begins: takes the address, writes the file for the first time.
    ///
    /// # Errors
    /// Returns [`Error::ListenForScrapes`], [`Error::File`], or an error if no thread can be
    /// started.
    pub fn start(export: Export) -> Result<Self, Error> {
        let Export { listen, file, command, study, world, profile } = export;
        if listen.is_none() && file.is_none() {
            return Ok(Self(None));
        }
        let metrics = Arc::new(Metrics::of_job(world, command, &study)?);
        if let Some(address) = listen {
            answer(address, Arc::clone(&metrics))?;
        }
        let profile = Mutex::new(profile);
        let written = Mutex::new(Written { at: Instant::now(), failure: None });
        let this = Self(Some(Arc::new(Job { metrics, file, written, profile })));
        this.write()?;
        Ok(this)
    }

    /// Watches an engine: the work of its ranks, the answers that it gives itself, and its signs of
    /// life. It comes before the engine's clients.
    pub fn watch(&self, engine: &mut Engine<'_>) {
        let Self(Some(job)) = self else { return };
        job.metrics.listen_to(engine.pulses());
        if let Some(profile) = job.profile.lock().unwrap_or_else(PoisonError::into_inner).take() {
            job.metrics.predict_on(Basis::Given(profile), engine.folder().shape());
        }
        let this = self.clone();
        engine.observe(Arc::<Metrics>::clone(&job.metrics), move |answered| this.answered(answered));
    }

    /// A request was answered.
    pub fn answered(&self, answered: &Answered) {
        let Self(Some(job)) = self else { return };
        job.metrics.answered(answered);
        job.write_now_and_then();
    }

    /// A training begins.
    pub fn trains(&self) {
        if let Self(Some(job)) = self {
            job.metrics.trains();
        }
    }

    /// A training has taken a step: its loss, the norm of its gradient, and how much of the job is
    /// done.
    pub fn trained(&self, loss: f64, gradient_norm: f64, share: f64) {
        let Self(Some(job)) = self else { return };
        job.metrics.trained(loss, gradient_norm);
        job.metrics.progress(share);
        job.write_now_and_then();
    }

    /// Sets the finished share of the job, from 0 to 1.
    pub fn progress(&self, share: f64) {
        if let Self(Some(job)) = self {
            job.metrics.progress(share);
        }
    }

    /// The job has ended, and all of it is done if it ends `well`: the file is written for the last
    /// time.
    ///
    /// # Errors
    /// Returns [`Error::File`], also if an earlier file could not be written.
    pub fn end(&self, well: bool) -> Result<(), Error> {
        let Self(Some(job)) = self else { return Ok(()) };
        if well {
            job.metrics.drains();
            job.metrics.progress(1.0);
        }
        self.write()?;
        let failure = job.written.lock().unwrap_or_else(PoisonError::into_inner).failure.take();
        match (failure, &job.file) {
            (Some(cause), Some(path)) => Err(Error::File { path: path.clone(), cause }),
            _ => Ok(()),
        }
    }

    fn write(&self) -> Result<(), Error> {
        let Self(Some(job)) = self else { return Ok(()) };
        let path = job.file.clone().unwrap_or_default();
        job.write().map_err(|cause| Error::File { path, cause })
    }
}

impl Job {
    /// Writes the file, but not more often than it is worth.
    fn write_now_and_then(&self) {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        if written.at.elapsed() >= PAUSE {
            // A full disk loses the file, not the job.
            let outcome = self.write();
            written.failure = written.failure.take().or(outcome.err());
            written.at = Instant::now();
        }
    }

    /// Writes the file, if there is one. Observations are put into their buckets in any case.
    fn write(&self) -> std::io::Result<()> {
        match &self.file {
            Some(path) => write_whole(path, self.metrics.render().as_bytes()),
            None => {
                self.metrics.upkeep();
                Ok(())
            }
        }
    }
}

/// Connections of those who scrape a job.
const SCRAPERS: usize = 64;

/// Answers scrapes on a separate thread, as long as the process lives.
fn answer(address: SocketAddr, metrics: Arc<Metrics>) -> Result<(), Error> {
    let listener = TcpListener::bind(address).map_err(|cause| Error::ListenForScrapes { address, cause })?;
    listener.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let scrape = move || {
        let text = metrics.render();
        async move { ([(header::CONTENT_TYPE, TEXT)], text).into_response() }
    };
    let routes = Router::new().route("/metrics", get(scrape));
    let access = if address.ip().is_loopback() { Access::Local { hosts: Arc::default() } } else { Access::Everybody };
    let routes = routes.layer(from_fn_with_state(access, guard::guard));
    let limits = ClientLimits { connections: SCRAPERS, ..ClientLimits::default() };
    let run = move || {
        runtime.block_on(async {
            // It ends with the process only.
            let (_stays, draining) = watch::channel(false);
            let listener = tokio::net::TcpListener::from_std(listener)?;
            connections::serve(listener, routes, limits, draining).await;
            Ok::<(), std::io::Error>(())
        })
    };
    std::thread::Builder::new().name("metrics".to_owned()).spawn(run)?;
    Ok(())
}
