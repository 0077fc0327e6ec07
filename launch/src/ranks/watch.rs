//! The threads of a rank's process that notice what its working threads cannot: a call that has outlived its deadline, a
//! rank of this host that has died, a signal. Each writes one line and ends the process.
//!
//! They compute nothing and know no request.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tributary_comm::mpi::Ender;
use tributary_comm::process::Peer;

use super::{end, end_quietly};

/// How often the watchdog looks.
const LOOK: Duration = Duration::from_millis(100);

/// How much longer than its deadline a call may take before the watchdog ends it: the call itself should have.
const GRACE: Duration = Duration::from_secs(3);

/// How long news of a failure may take from the rank that failed.
const NEWS: Duration = Duration::from_millis(300);

/// How long a process that knows of the group's end may go on computing.
const LAST_WORK: Duration = Duration::from_secs(2);

/// What the watching threads share with the process that they watch.
#[derive(Debug, Clone)]
pub struct Watch {
    ender: Ender,
    rank: usize,
    peers: Vec<Peer>,
    /// Whether ranks that end are missed.
    armed: Arc<AtomicBool>,
    step: Arc<Mutex<Option<Step>>>,
}

/// A step that is no call between ranks, and how long it may take.
#[derive(Debug, Clone, Copy)]
struct Step {
    what: &'static str,
    began: Instant,
    limit: Duration,
}

impl Watch {
    /// Starts watching.
    ///
    /// # Errors
    /// The system has no thread to give, or no signal handler.
    pub fn start(ender: Ender, rank: usize, peers: Vec<Peer>) -> std::io::Result<Self> {
        let (armed, step) = (Arc::new(AtomicBool::new(true)), Arc::new(Mutex::new(None)));
        let watch = Self { ender, rank, peers, armed, step };
        let mut signals = Signals::new([SIGINT, SIGTERM])?;
        let on_signal = watch.clone();
        let spawn = |name: &str, run: Box<dyn FnOnce() + Send>| {
            std::thread::Builder::new().name(name.to_owned()).spawn(run).map(drop)
        };
        spawn("signals", Box::new(move || signals.forever().for_each(|signal| on_signal.signalled(signal))))?;
        let dog = watch.clone();
        spawn(
            "watchdog",
            Box::new(move || {
                loop {
                    std::thread::sleep(LOOK);
                    dog.look();
                }
            }),
        )?;
        Ok(watch)
    }

    /// From now on other ranks may end.
    pub fn disarm(&self) {
        self.armed.store(false, Ordering::Relaxed);
    }

    /// The next step must be over within so much time.
    pub fn limit(&self, what: &'static str, limit: Duration) {
        let step = Step { what, began: Instant::now(), limit };
        *self.step.lock().unwrap_or_else(PoisonError::into_inner) = Some(step);
    }

    fn look(&self) {
        if let Some(error) = self.ender.overdue(GRACE) {
            end(&self.ender, self.rank, &error.to_string(), error.exit_code());
        }
        let step = *self.step.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(Step { what, began, limit }) = step
            && began.elapsed() > limit
        {
            end(&self.ender, self.rank, &format!("{what} not finished after {limit:?}"), 75);
        }
        if let Some(error) = self.ender.ended_within(Duration::ZERO) {
            std::thread::sleep(LAST_WORK);
            std::process::exit(error.exit_code().into());
        }
        if self.armed.load(Ordering::Relaxed) && self.died().is_some() {
            self.mourn();
        }
    }

    /// The first rank of this host that is no more.
    fn died(&self) -> Option<&Peer> {
        self.peers.iter().find(|peer| peer.rank != self.rank && peer.visible && !peer.lives())
    }

    /// Ends this process because another has died without a word; the lowest living rank says so.
    fn mourn(&self) {
        if self.ender.ended_within(NEWS).is_some() || !self.armed.load(Ordering::Relaxed) {
            return;
        }
        let Some(Peer { rank, host, pid, .. }) = self.died() else { return };
        let first = self.peers.iter().find(|peer| peer.visible && peer.lives()).map(|peer| peer.rank);
        if first == Some(self.rank) {
            end(&self.ender, self.rank, &format!("rank {rank} (process {pid} on {host}) has died"), 69);
        }
        end_quietly(69);
    }

    /// A launcher sends SIGTERM when another rank has failed, too: then that is the cause.
    fn signalled(&self, signal: i32) {
        if self.ender.ended_within(NEWS).is_none() && self.died().is_some() {
            self.mourn();
        }
        if let Some(error) = self.ender.ended_within(Duration::ZERO) {
            end_quietly(error.exit_code());
        }
        let name = if signal == SIGINT { "SIGINT" } else { "SIGTERM" };
        let code = 128 + u8::try_from(signal).unwrap_or(0);
        self.ender.end(&format!("{name} received"), code);
        std::process::exit(code.into());
    }
}
