//! Chunks in an object store, beyond a host. One thread does all the waiting, with a private tokio
//! runtime. Callers get an answer at once, or wait for a time that they set. A store that is down
//! is a miss and a counter: requests neither fail nor wait for it. This module does not interpret
//! bytes: the reader of a chunk verifies it.

mod counters;
mod health;
mod http;
mod limits;
mod place;
mod reason;
mod url;
mod waiting;
mod work;

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use tokio::runtime::{self, Handle};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tributary_protocol::ChunkKey;

pub use counters::{Operation, OperationCounters, RemoteCounters};
pub use limits::RemoteLimits;
pub use reason::Reason;
pub use url::RemoteError;

use crate::folder::Entry;
use place::Place;
use waiting::Waiting;
use work::{Late, Work};

/// Threads for a folder's files beyond those of requests in flight: a thread that its disk holds
/// for ever then blocks no other.
const SPARE_THREADS: usize = 4;

/// Chunks in an object store. Dropping it abandons queued requests; `flush` first.
pub struct Remote {
    work: Arc<Work>,
    waiting: Arc<Waiting>,
    runtime: Handle,
    /// The thread ends when this goes.
    _running: oneshot::Sender<()>,
}

/// It holds credentials: its debug output is empty.
impl std::fmt::Debug for Remote {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Remote")
    }
}

impl Remote {
    /// Opens `s3://BUCKET/PREFIX` or `file:///FOLDER`, with the settings `AWS_..` of the
    /// environment. The store is not asked yet.
    ///
    /// # Errors
    /// Returns an error if the URL or a setting cannot be used. No message repeats a secret.
    pub fn open(url: &str, limits: RemoteLimits) -> Result<Self, RemoteError> {
        // A variable that is no text is no setting that is known.
        let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        let settings = std::env::vars_os().filter_map(text).filter(|(name, _)| name.starts_with("AWS_"));
        Self::open_with(url, limits, settings)
    }

    /// Opens a store with these settings and none of the environment.
    ///
    /// # Errors
    /// Fails as [`Remote::open`] does.
    pub fn open_with(
        url: &str,
        limits: RemoteLimits,
        settings: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, RemoteError> {
        let settings: Vec<(String, String)> = settings.into_iter().collect();
        let place = Place::open(url, &limits, &settings)?;
        let runtime = runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(limits.at_once.saturating_add(SPARE_THREADS))
            .thread_name("store-remote")
            .build()
            .map_err(RemoteError::Thread)?;
        let (handle, (running, ended)) = (runtime.handle().clone(), oneshot::channel::<()>());
        let thread = thread::Builder::new().name("store-remote".to_owned()).spawn(move || {
            // It ends with an error when the other side goes, which is the expected end.
            let _ = runtime.block_on(ended);
            // A disk that never answers does not delay the shutdown.
            runtime.shutdown_background();
        });
        thread.map_err(RemoteError::Thread)?;
        let (work, waiting) = (Arc::new(Work::new(place, limits)), Waiting::new(&limits));
        Ok(Self { work, waiting, runtime: handle, _running: running })
    }

    /// Asks for a chunk: at once, and returns at once. One of more than `most_bytes` is `too-large`
    /// and is not read.
    pub fn get(&self, key: &ChunkKey, most_bytes: u64) -> Fetch {
        let work = Arc::clone(&self.work);
        let asked = if work.is_down() { Err(Reason::Down) } else { self.waiting.ask() };
        let asked = match asked {
            Ok(asked) => asked,
            Err(reason) => return Fetch { pending: Err(work.failed(Operation::Get, reason)), work },
        };
        let (of_task, key) = (Arc::clone(&work), *key);
        let late = Late::default();
        let of_caller = late.clone();
        let task = async move {
            let _asked = asked;
            of_task.get(&key, most_bytes, &late).await
        };
        Fetch { pending: Ok(Pending::start(&self.runtime, of_caller, task)), work }
    }

    /// Leaves a chunk to be sent, and returns at once. It is lost if the store does not take it:
    /// that is counted.
    ///
    /// # Errors
    /// Returns `full`, `down` or `too-large`: the chunk is not sent.
    pub fn put(&self, key: &ChunkKey, bytes: Bytes) -> Result<(), Reason> {
        let of_queue = if self.work.is_down() { Err(Reason::Down) } else { self.waiting.enqueue(bytes.len() as u64) };
        let enqueued = of_queue.map_err(|reason| self.work.failed(Operation::Put, reason))?;
        let (work, key) = (Arc::clone(&self.work), *key);
        self.runtime.spawn(async move {
            if work.put(&key, bytes).await.is_ok() {
                enqueued.sent();
            }
        });
        Ok(())
    }

    /// Lists at most `most` chunks, in no order.
    ///
    /// # Errors
    /// Returns the reason why the store does not answer.
    pub fn list(&self, most: usize, within: Duration) -> Result<Vec<Entry>, Reason> {
        let work = Arc::clone(&self.work);
        if work.is_down() {
            return Err(work.failed(Operation::List, Reason::Down));
        }
        let late = Late::default();
        let pending = Pending::start(&self.runtime, late.clone(), async move { work.list(most, &late).await });
        pending.wait(within, || self.work.failed(Operation::List, Reason::Timeout))
    }

    /// Waits until every chunk that waited is sent, at most so long. False if some are not: they
    /// still wait, or were lost since this was asked last.
    pub fn flush(&self, within: Duration) -> bool {
        self.waiting.flush(within)
    }

    /// Counters of the store's requests since it was opened.
    pub fn counters(&self) -> RemoteCounters {
        self.work.counters()
    }

    /// Whether the store is down: for now it gets no requests.
    pub fn is_down(&self) -> bool {
        self.work.is_down()
    }

    /// Bytes of chunks that are being sent or wait to be.
    pub fn waiting_bytes(&self) -> u64 {
        self.waiting.bytes()
    }
}

/// A chunk that has been asked for. Dropping it abandons the request.
pub struct Fetch {
    pending: Result<Pending<Bytes>, Reason>,
    work: Arc<Work>,
}

impl std::fmt::Debug for Fetch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Fetch")
    }
}

impl Fetch {
    /// Waits for the chunk, at most so long.
    ///
    /// # Errors
    /// Returns the reason why the chunk does not come; `timeout` if it has not come yet. A request
    /// that is abandoned in its turn counts as a failure of the store.
    pub fn wait(self, within: Duration) -> Result<Bytes, Reason> {
        self.pending?.wait(within, || self.work.failed(Operation::Get, Reason::Timeout))
    }
}

/// An answer that the remote's thread works for. Dropping it ends that work.
struct Pending<T> {
    answer: Receiver<Result<T, Reason>>,
    late: Late,
    task: AbortHandle,
}

impl<T: Send + 'static> Pending<T> {
    fn start(runtime: &Handle, late: Late, work: impl Future<Output = Result<T, Reason>> + Send + 'static) -> Self {
        let (tell, answer) = sync_channel(1);
        let task = runtime.spawn(async move {
            // The caller may have stopped waiting.
            let _ = tell.send(work.await);
        });
        Self { answer, late, task: task.abort_handle() }
    }

    /// Waits at most so long; `timed_out` counts the vain wait.
    fn wait(self, within: Duration, timed_out: impl FnOnce() -> Reason) -> Result<T, Reason> {
        match self.answer.recv_timeout(within) {
            Ok(answer) => answer,
            Err(RecvTimeoutError::Timeout) => {
                self.late.set();
                Err(timed_out())
            }
            // The remote has been closed.
            Err(RecvTimeoutError::Disconnected) => Err(Reason::Down),
        }
    }
}

impl<T> Drop for Pending<T> {
    fn drop(&mut self) {
        self.task.abort();
    }
}
