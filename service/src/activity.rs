//! Activity on one connection, as its two sides see it: incoming bytes and answered requests.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::Notify;

use crate::limits::ClientLimits;

/// State of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Nothing is asked, since then.
    Idle(Instant),
    /// A request's head has begun to come in, then.
    Head(Instant),
    /// A request is read further or answered, since then.
    Busy(Instant),
}

/// State of a connection, and whether it should make place for another.
#[derive(Debug)]
pub struct Activity {
    state: Mutex<State>,
    unwanted: Notify,
}

/// While this is held a request is being answered.
#[derive(Debug)]
pub struct Busy(Arc<Activity>);

impl Activity {
    /// A connection that has just been opened.
    pub fn new() -> Self {
        Self { state: Mutex::new(State::Idle(Instant::now())), unwanted: Notify::new() }
    }

    /// State of the connection.
    pub fn state(&self) -> State {
        *self.lock()
    }

    /// The head of a request is here.
    pub fn begin(self: &Arc<Self>) -> Busy {
        *self.lock() = State::Busy(Instant::now());
        Busy(Arc::clone(self))
    }

    /// Asks the connection to make place.
    pub fn dismiss(&self) {
        self.unwanted.notify_one();
    }

    /// Ends when the connection was asked to make place.
    pub async fn dismissed(&self) {
        self.unwanted.notified().await;
    }

    /// Ends when the connection has been idle, or its client at a head, for longer than may be; or
    /// when a request's time is over, and the connection has not taken the end of its answer since:
    /// its client does not read.
    pub async fn overdue(&self, limits: &ClientLimits) {
        loop {
            let rest = |since: Instant, limit: Duration| limit.saturating_sub(since.elapsed());
            let rest = match self.state() {
                State::Idle(since) => rest(since, limits.idle_time),
                State::Head(since) => rest(since, limits.header_time),
                State::Busy(since) => rest(since, limits.request_time + limits.header_time),
            };
            if rest.is_zero() {
                return;
            }
            // One look later than the limit, not one before it; a head may begin meanwhile, and has
            // less time.
            tokio::time::sleep(rest.min(limits.header_time).min(limits.idle_time) + Duration::from_millis(1)).await;
        }
    }

    fn heard(&self) {
        let mut state = self.lock();
        if let State::Idle(_) = *state {
            *state = State::Head(Instant::now());
        }
    }

    /// Notes that a part of a finished answer has gone out: its client still reads.
    fn sent(&self) {
        let mut state = self.lock();
        if let State::Idle(_) = *state {
            *state = State::Idle(Instant::now());
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        *self.0.lock() = State::Idle(Instant::now());
    }
}

/// A connection whose incoming bytes are noted.
#[derive(Debug)]
pub struct Noted {
    /// The connection.
    pub stream: TcpStream,
    /// Activity that notes them.
    pub activity: Arc<Activity>,
}

impl Noted {
    fn note(&self, written: &Poll<std::io::Result<usize>>) {
        if let Poll::Ready(Ok(1..)) = written {
            self.activity.sent();
        }
    }
}

impl AsyncRead for Noted {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        let polled = Pin::new(&mut this.stream).poll_read(cx, buffer);
        if buffer.filled().len() > before {
            this.activity.heard();
        }
        polled
    }
}

impl AsyncWrite for Noted {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.stream).poll_write(cx, bytes);
        this.note(&polled);
        polled
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.stream).poll_write_vectored(cx, slices);
        this.note(&polled);
        polled
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}
