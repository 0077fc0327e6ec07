//! The threads of a rank's process that notice failures which its working threads cannot: a silent
//! rank, this rank when it computes without progress, a rank of this host that has died, a signal.
//! Each writes one line and ends the process.
//!
//! They compute nothing and know no request.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;
use tributary_comm::Error;
use tributary_comm::mpi::{Ender, Silent};
use tributary_comm::process::Peer;

use super::audience::Audience;
use super::reap;
use super::words::{end_quietly, say};
use crate::marker;

/// Interval of the watchdog's looks, and its growth with each rank of the host: each of them looks
/// at all.
const LOOK: Duration = Duration::from_millis(100);
const LOOK_A_PEER: Duration = Duration::from_millis(10);

/// A watchdog that has not run for this long was stopped itself, and its process with it; then it
/// waits so long until the other threads have seen the messages of the meantime.
const STOPPED: Duration = Duration::from_secs(2);
const GRACE: Duration = Duration::from_secs(1);

/// Longest delay of the news of a failure from the failed rank.
const NEWS: Duration = Duration::from_millis(300);

/// Time that a killed process may still look alive after its connections have closed.
const DYING: Duration = Duration::from_millis(100);

/// Time that a process may go on computing after it knows of the group's end.
const LAST_WORK: Duration = Duration::from_millis(500);

/// By how much a rank lets each of those before it speak first, and the most of that.
const TURN: Duration = Duration::from_millis(300);
const MOST_TURNS: u32 = 10;

/// State that the watching threads share with the process that they watch.
#[derive(Debug, Clone)]
pub struct Watchdog {
    /// The clients of this process that must get the error before a failure ends it.
    pub audience: Audience,
    ender: Ender,
    rank: usize,
    peers: Vec<Peer>,
    heartbeat_timeout: Duration,
    /// Whether ranks that end are missed.
    armed: Arc<AtomicBool>,
    /// Whether this process has left the group in order: nothing it does concerns the others any
    /// more.
    left: Arc<AtomicBool>,
    /// Whether this process has said why it ends.
    said: Arc<AtomicBool>,
    /// Whether the next signal is for another thread, which ends what it has begun.
    drains: Arc<AtomicBool>,
    step: Arc<Mutex<Option<Step>>>,
}

/// A step that is no call between ranks, and how long it may take.
#[derive(Debug, Clone, Copy)]
struct Step {
    what: &'static str,
    began: Instant,
    limit: Duration,
}

impl Watchdog {
    /// Starts watching.
    ///
    /// # Errors
    /// Returns an error if no thread can be started, or no signal handler installed.
    pub fn start(ender: Ender, rank: usize, peers: Vec<Peer>, heartbeat_timeout: Duration) -> std::io::Result<Self> {
        assert!(rank < peers.len(), "rank {rank} is one of {} ranks", peers.len());
        for (place, peer) in peers.iter().enumerate() {
            assert_eq!(peer.rank, place, "peers come in the order of their ranks");
        }
        let (armed, said) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicBool::new(false)));
        let (left, step) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(None)));
        let drains = Arc::new(AtomicBool::new(false));
        let audience = Audience::of(ender.clone());
        let watchdog = Self { audience, ender, rank, peers, heartbeat_timeout, armed, left, said, drains, step };
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGUSR1])?;
        let on_signal = watchdog.clone();
        let spawn = |name: &str, run: Box<dyn FnOnce() + Send>| {
            std::thread::Builder::new().name(name.to_owned()).spawn(run).map(drop)
        };
        spawn("signals", Box::new(move || signals.forever().for_each(|signal| on_signal.signalled(signal))))?;
        let dog = watchdog.clone();
        spawn("watchdog", Box::new(move || dog.look_for_ever()))?;
        Ok(watchdog)
    }

    /// Ends the group and this process, and says why, unless another thread has: then that one ends
    /// it.
    pub fn end(&self, line: &str, exit_code: u8) -> ! {
        if self.ender.ends_in_order() {
            end_quietly(0);
        }
        if self.said.swap(true, Ordering::Relaxed) {
            self.end_quietly(exit_code);
        }
        say(self.rank, line, exit_code);
        self.audience.tell(self.rank, exit_code, || line.to_owned());
        self.ender.end(line, exit_code);
        self.audience.let_out();
        std::process::exit(exit_code.into())
    }

    /// Ends this process because of a failure that is reported elsewhere.
    fn end_quietly(&self, exit_code: u8) -> ! {
        self.audience.let_out();
        end_quietly(exit_code)
    }

    /// Leaves the group in order: this process's end is no failure any more.
    pub fn leave<C>(&self, comm: C) {
        self.disarm();
        drop(comm);
        self.left.store(true, Ordering::Relaxed);
    }

    /// Leaves the next signal to another thread of this process, which completes its work and takes
    /// no new work. SIGTERM or SIGINT that comes because another rank has failed ends this process
    /// anyway, and so does a second one.
    pub fn drains(&self) {
        self.drains.store(true, Ordering::Relaxed);
    }

    /// Whether this signal is another thread's, as [`drains`](Self::drains) says.
    fn drain(&self) -> bool {
        let drains = self.drains.swap(false, Ordering::Relaxed);
        if drains {
            marker::draining();
        }
        drains
    }

    /// From now on other ranks may end.
    fn disarm(&self) {
        self.armed.store(false, Ordering::Relaxed);
    }

    /// The next step must be over within so much time.
    pub fn limit(&self, what: &'static str, limit: Duration) {
        let step = Step { what, began: Instant::now(), limit };
        *self.step.lock().unwrap_or_else(PoisonError::into_inner) = Some(step);
    }

    /// Time that this rank leaves to the ranks before it, where all may report the same failure.
    pub fn turn(&self) -> Duration {
        TURN * u32::try_from(self.rank).unwrap_or(MOST_TURNS).min(MOST_TURNS)
    }

    /// The limited step is over.
    pub fn over(&self) {
        *self.step.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn step(&self) -> Option<Step> {
        *self.step.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn look_for_ever(&self) {
        let visible = self.peers.iter().filter(|peer| peer.visible).count();
        let pause = LOOK + LOOK_A_PEER * u32::try_from(visible).unwrap_or(u32::MAX);
        let mut vigil = self.ender.vigil(self.heartbeat_timeout, pause);
        loop {
            let began = Instant::now();
            std::thread::sleep(pause);
            if began.elapsed() > pause + STOPPED {
                // This process was stopped: its other threads must first see the messages of the
                // meantime.
                std::thread::sleep(GRACE);
            }
            let silent = vigil.listen();
            self.look(&silent);
        }
    }

    fn look(&self, silent: &[Silent]) {
        if self.ender.ends_in_order() {
            // The thread of MPI ends this process, unless another one does not answer it.
            end_quietly(0);
        }
        if let Some(error) = self.ender.stalled(&self.peers[self.rank].words()) {
            self.end(&error.to_string(), error.exit_code());
        }
        if let Some(Step { what, began, limit }) = self.step()
            && !self.left.load(Ordering::Relaxed)
            && began.elapsed() > limit + self.turn()
        {
            self.end(&format!("{what} not finished after {limit:?}"), 75);
        }
        if !silent.is_empty() {
            self.miss(silent);
        }
        // No rank gives signs of life any more once all have said farewell.
        let leaving = self.ender.is_leaving() && !self.left.load(Ordering::Relaxed);
        if leaving && self.step().is_none() {
            self.limit("leaving MPI", self.heartbeat_timeout);
        }
        if let Some(error) = self.ender.ended_within(Duration::ZERO) {
            self.tell(&error);
            std::thread::sleep(LAST_WORK);
            match error {
                Error::Aborted { exit_code, .. } => self.end_quietly(exit_code),
                // The failure began here, and the thread that should report it is busy.
                error => self.end(&error.to_string(), error.exit_code()),
            }
        }
        if let Some(death) = self.death()
            && self.ender.ended_within(NEWS).is_none()
        {
            self.mourn(death);
        }
    }

    /// Ranks are silent: the first of the others reports it and ends the group. Every process ends
    /// those of its host.
    fn miss(&self, silent: &[Silent]) {
        let is_silent = |rank: usize| silent.iter().any(|silent| silent.rank == rank);
        for peer in self.peers.iter().filter(|peer| peer.visible && is_silent(peer.rank)) {
            reap::soon(peer);
        }
        let before = (0..self.rank).filter(|&rank| !is_silent(rank)).count();
        let turn = TURN * u32::try_from(before).unwrap_or(MOST_TURNS).min(MOST_TURNS);
        if self.ender.ended_within(turn).is_none() {
            self.end(&self.silence(silent), 75);
        }
    }

    /// The line that names silent ranks: their numbers and places, and the last message of each.
    fn silence(&self, silent: &[Silent]) -> String {
        let who = |silent: &Silent| format!("rank {} ({})", silent.rank, self.peers[silent.rank].words());
        let what = |silent: &Silent| match &silent.last {
            Some(last) => format!("rank {} said last that it {last}", silent.rank),
            None => format!("rank {} has never been heard", silent.rank),
        };
        let names = silent.iter().map(who).collect::<Vec<_>>().join(" and ");
        let verb = if silent.len() == 1 { "has" } else { "have" };
        let words = silent.iter().map(what).collect::<Vec<_>>().join("; ");
        format!("{names} {verb} been silent for {:?}; {words}", self.heartbeat_timeout)
    }

    /// A rank of this host that has died, and the rank that reports it: the first living one.
    /// Clients get the error.
    fn death(&self) -> Option<(Peer, usize)> {
        if !self.armed.load(Ordering::Relaxed) {
            return None;
        }
        let mut visible = self.peers.iter().filter(|peer| peer.visible);
        let dead = visible.clone().find(|peer| peer.rank != self.rank && !peer.lives())?;
        let speaker = visible.find(|peer| peer.rank == self.rank || peer.lives())?;
        // Clients get the error at once: a launcher that sees the death too may leave only half a
        // second.
        self.audience.tell(dead.rank, 69, || format!("its process ({} on {}) has died", dead.pid, dead.host));
        Some((dead.clone(), speaker.rank))
    }

    /// Ends this process because another has died without a word.
    fn mourn(&self, (dead, speaker): (Peer, usize)) {
        if !self.armed.load(Ordering::Relaxed) {
            return;
        }
        if speaker == self.rank {
            let Peer { rank, host, pid, .. } = dead;
            self.end(&format!("rank {rank} (process {pid} on {host}) has died"), 69);
        }
        self.end_quietly(69);
    }

    /// Sends clients the error of the group's end.
    fn tell(&self, error: &Error) {
        match error {
            Error::Aborted { rank, cause, exit_code } => self.audience.tell(*rank, *exit_code, || cause.clone()),
            error => self.audience.tell(self.rank, error.exit_code(), || error.to_string()),
        }
    }

    /// Handles a signal. A launcher sends SIGTERM when another rank has failed, too: then that is
    /// the cause. A rank that is dead soon after the signal has not died of it, so a process that
    /// gets one waits for news first. The launcher may know of a death by a closed connection, a
    /// moment before the kernel shows it.
    ///
    /// Launchers pass SIGUSR1 to every rank: the draining rank drains, and the others ignore it.
    fn signalled(&self, signal: i32) {
        if signal == SIGUSR1 {
            self.drain();
            return;
        }
        let death = self.death().or_else(|| {
            std::thread::sleep(DYING);
            self.death()
        });
        if let Some(error) = self.ender.ended_within(NEWS) {
            self.tell(&error);
            self.end_quietly(error.exit_code());
        }
        if let Some(death) = death {
            self.mourn(death);
        }
        if self.drain() {
            return;
        }
        let name = if signal == SIGINT { "SIGINT" } else { "SIGTERM" };
        let code = 128 + u8::try_from(signal).unwrap_or(0);
        self.ender.end(&format!("{name} received"), code);
        std::process::exit(code.into());
    }
}
