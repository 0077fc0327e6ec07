//! A window of load: requests are sent at one pace for some time, and all of them are waited for.
//!
//! An open loop sends each request at its planned time on its own thread: a stalled server does not
//! delay later requests, and waiting counts from the planned time.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, Scope};
use std::time::{Duration, Instant};

use crate::client::Client;
use crate::draws::Arrivals;
use crate::error::{Error, Result};
use crate::options::Pace;
use crate::requests::Requests;
use crate::sample::Sample;

/// A request's thread reads lines and parses small objects.
const STACK_BYTES: usize = 256 << 10;

/// Pause of a closed loop's client that got no answer: it does not retry a refusing server as fast
/// as it can.
const PAUSE: Duration = Duration::from_secs(1);

/// Plan of sending requests.
pub struct Plan {
    /// When.
    pub pace: Pace,
    /// Duration; absent: until the number of requests is reached.
    pub duration: Option<Duration>,
    /// Maximum number of requests.
    pub requests: Option<usize>,
    /// Maximum in-flight requests of an open loop.
    pub max_in_flight: usize,
    /// Seed of the arrivals.
    pub seed: u64,
    /// The number of the first request: windows have requests of their own.
    pub first_number: u64,
}

/// Result of a window.
#[derive(Debug, Clone)]
pub struct Window {
    /// Every request that was planned, by its number.
    pub samples: Vec<Sample>,
    /// Its length in seconds: the time in which requests were sent, or until the last was over
    /// where their number ended it.
    pub seconds: f64,
    /// Seconds until the last request was planned, where their number ended it; else as `seconds`.
    pub sent_seconds: f64,
}

/// A window on its way.
struct Running<'a> {
    client: &'a Client,
    requests: &'a Requests,
    plan: &'a Plan,
    began: Instant,
    in_flight: AtomicUsize,
    /// No client begins another request.
    is_stopped: AtomicBool,
    samples: Mutex<Vec<Sample>>,
}

/// Sends requests as planned, and waits for all that were sent.
///
/// # Errors
/// Returns [`Error::Threads`] if a client of a closed loop cannot be started.
pub fn run(client: &Client, requests: &Requests, plan: &Plan) -> Result<Window> {
    let running = Running {
        client,
        requests,
        plan,
        began: Instant::now(),
        in_flight: AtomicUsize::new(0),
        is_stopped: AtomicBool::new(false),
        samples: Mutex::new(Vec::new()),
    };
    match plan.pace {
        Pace::Open(rate) => running.open(Arrivals::new(plan.seed, rate)),
        Pace::Replay(speed) => {
            let trace = requests.trace().map_or(&[][..], |trace| &trace.requests);
            running.open(
                trace.iter().map(|request| Duration::try_from_secs_f64(request.at_s / speed).unwrap_or(Duration::MAX)),
            );
        }
        Pace::Closed(clients) => running.closed(clients)?,
    }
    let mut samples = running.samples.into_inner().unwrap_or_else(PoisonError::into_inner);
    samples.sort_unstable_by_key(|sample| sample.number);
    Ok(Window::of(samples, plan.duration, plan.requests))
}

impl Window {
    /// A window with this duration, or number of requests, and these samples.
    pub fn of(samples: Vec<Sample>, duration: Option<Duration>, requests: Option<usize>) -> Self {
        let duration = duration.map_or(f64::INFINITY, |duration| duration.as_secs_f64());
        if requests.is_none_or(|requests| samples.len() < requests) {
            return Self { samples, seconds: duration, sent_seconds: duration };
        }
        let last = |time: fn(&Sample) -> f64| samples.iter().map(time).fold(0.0, f64::max);
        let (last_planned, last_end) = (last(|sample| sample.planned), last(|sample| sample.ended));
        Self { seconds: last_end.min(duration), sent_seconds: last_planned, samples }
    }
}

/// Starts a thread that sends requests.
fn spawn<'scope>(scope: &'scope Scope<'scope, '_>, send: Box<dyn FnOnce() + Send + 'scope>) -> io::Result<()> {
    let thread = thread::Builder::new().name("request".to_owned()).stack_size(STACK_BYTES);
    thread.spawn_scoped(scope, send).map(|_| ())
}

impl Running<'_> {
    fn open(&self, arrivals: impl Iterator<Item = Duration>) {
        let until = self.plan.duration.unwrap_or(Duration::MAX);
        let arrivals = arrivals.take_while(|planned| *planned < until);
        thread::scope(|scope| {
            for (number, planned) in arrivals.take(self.plan.requests.unwrap_or(usize::MAX)).enumerate() {
                let sample = Sample::new(number, planned.as_secs_f64());
                let body = self.body(number);
                thread::sleep(planned.saturating_sub(self.began.elapsed()));
                if self.in_flight.load(Ordering::Acquire) >= self.plan.max_in_flight {
                    self.keep(sample);
                    continue;
                }
                self.in_flight.fetch_add(1, Ordering::AcqRel);
                let unsent = sample.clone();
                let send = move || {
                    self.send(&body, sample);
                    self.in_flight.fetch_sub(1, Ordering::AcqRel);
                };
                if spawn(scope, Box::new(send)).is_err() {
                    self.in_flight.fetch_sub(1, Ordering::AcqRel);
                    self.keep(unsent);
                }
            }
        });
    }

    fn closed(&self, clients: usize) -> Result<()> {
        let next = AtomicUsize::new(0);
        let until = self.plan.duration.unwrap_or(Duration::MAX);
        let most = self.plan.requests.unwrap_or(usize::MAX);
        let client = || {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= most || self.is_stopped.load(Ordering::Relaxed) {
                    return;
                }
                let body = self.body(number);
                let planned = self.began.elapsed();
                if planned >= until {
                    return;
                }
                if !self.send(&body, Sample::new(number, planned.as_secs_f64())) {
                    thread::sleep(PAUSE.min(until.saturating_sub(self.began.elapsed())));
                }
            }
        };
        thread::scope(|scope| {
            for _ in 0..clients {
                if let Err(cause) = spawn(scope, Box::new(client)) {
                    self.is_stopped.store(true, Ordering::Relaxed);
                    return Err(Error::Threads { clients, cause });
                }
            }
            Ok(())
        })
    }

    fn body(&self, number: usize) -> String {
        self.requests.body(self.plan.first_number + number as u64)
    }

    /// Sends a request and keeps its sample; gives whether it was answered.
    fn send(&self, body: &str, mut sample: Sample) -> bool {
        self.client.ask(body, self.began, &mut sample);
        let is_answered = sample.is_answered();
        self.keep(sample);
        is_answered
    }

    fn keep(&self, sample: Sample) {
        self.samples.lock().unwrap_or_else(PoisonError::into_inner).push(sample);
    }
}
