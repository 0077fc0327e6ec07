//! Reads the bodies of requests, on routes that take one: each as a whole before anything looks at
//! it, within bounds of length and rate, and within one budget of memory for all of them together.
//! A body takes memory as its bytes come, not as they are announced. When the budget is spent, the
//! slowest body makes place.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http_body_util::BodyExt;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use crate::body::is_json;
use crate::error::ApiError;
use crate::limits::ClientLimits;

/// Memory of all bodies that are being received or wait to be read, in bytes; at least two of the
/// longest kind.
const BUDGET: usize = 128 << 20;

/// Memory that is taken at a time, in bytes.
const STEP: usize = 16 << 10;

/// The slowest that a body may come, in bytes a second, beyond the first seconds.
const SLOWEST: usize = 256 << 10;

/// Time for which a body waits for memory that a slower one frees.
const PATIENCE: Duration = Duration::from_secs(2);

/// Reads bodies.
#[derive(Clone)]
pub struct Bodies {
    limits: ClientLimits,
    /// Free memory, in steps.
    budget: Arc<Semaphore>,
    coming: Arc<Coming>,
}

/// The bodies that are on their way.
#[derive(Default)]
struct Coming {
    next: AtomicU64,
    all: Mutex<BTreeMap<u64, Arc<Rate>>>,
}

/// Rate at which a body comes.
struct Rate {
    began: Instant,
    bytes: AtomicUsize,
    dismissed: Notify,
}

/// A body on its way, until this is dropped.
struct Place<'a> {
    coming: &'a Coming,
    number: u64,
    rate: Arc<Rate>,
}

/// The memory of a body that is here: held until its request has been read. It goes with the
/// request, as an extension.
#[derive(Clone)]
pub struct Held(#[allow(dead_code, reason = "it is held")] Option<Arc<OwnedSemaphorePermit>>);

impl Coming {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Rate>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self) -> Place<'_> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let rate = Rate { began: Instant::now(), bytes: AtomicUsize::new(0), dismissed: Notify::new() };
        let rate = Arc::new(rate);
        self.lock().insert(number, Arc::clone(&rate));
        Place { coming: self, number, rate }
    }

    /// Asks the body that comes most slowly to make place, but for this one.
    fn dismiss_slowest(&self, but: u64) {
        let all = self.lock();
        let others = all.iter().filter(|(number, _)| **number != but);
        if let Some((_, rate)) = others.min_by(|(_, a), (_, b)| a.bytes_per_s().total_cmp(&b.bytes_per_s())) {
            rate.dismissed.notify_one();
        }
    }
}

impl Rate {
    fn bytes_per_s(&self) -> f64 {
        self.bytes.load(Ordering::Relaxed) as f64 / self.began.elapsed().as_secs_f64().max(1e-3)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.coming.lock().remove(&self.number);
    }
}

impl Bodies {
    /// A reader within these limits.
    pub fn new(limits: ClientLimits) -> Self {
        let steps = BUDGET.max(2 * limits.body_bytes).div_ceil(STEP).min(Semaphore::MAX_PERMITS);
        Self { limits, budget: Arc::new(Semaphore::new(steps)), coming: Arc::default() }
    }

    async fn read(&self, mut body: Body) -> Result<(Bytes, Held), ApiError> {
        let ClientLimits { body_bytes, header_time, .. } = self.limits;
        let announced = body.size_hint().upper().and_then(|bytes| usize::try_from(bytes).ok());
        if announced.is_some_and(|bytes| bytes > body_bytes) {
            return Err(ApiError::too_long(body_bytes));
        }
        let place = self.coming.begin();
        let (mut bytes, mut held) = (Vec::new(), None::<OwnedSemaphorePermit>);
        loop {
            // The time grows with the received bytes, not with the announced ones. No pause may be
            // longer than the time for a head.
            let until = place.rate.began + header_time + Duration::from_secs_f64(bytes.len() as f64 / SLOWEST as f64);
            let until = until.min(Instant::now() + header_time);
            let frame = tokio::select! {
                frame = tokio::time::timeout_at(until, body.frame()) => frame,
                () = place.rate.dismissed.notified() => {
                    return Err(ApiError::busy("too many bodies come at once, and this one comes slowest"));
                }
            };
            let waited = || place.rate.began.elapsed().as_secs().max(1);
            let Some(frame) = frame.map_err(|_| ApiError::too_slow(waited()))? else { break };
            let frame = frame.map_err(|error| ApiError::invalid(format!("the body cannot be read: {error}")))?;
            let Ok(data) = frame.into_data() else { continue };
            let length = bytes.len() + data.len();
            if length > body_bytes {
                return Err(ApiError::too_long(body_bytes));
            }
            let has = held.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
            if length.div_ceil(STEP) > has {
                let more = self.memory(length.div_ceil(STEP) - has, place.number).await?;
                match &mut held {
                    Some(held) => held.merge(more),
                    None => held = Some(more),
                }
            }
            bytes.extend_from_slice(&data);
            place.rate.bytes.store(bytes.len(), Ordering::Relaxed);
        }
        Ok((bytes.into(), Held(held.map(Arc::new))))
    }

    /// Memory for more of a body. Where there is none a slower body makes place, or this one is
    /// refused.
    async fn memory(&self, steps: usize, number: u64) -> Result<OwnedSemaphorePermit, ApiError> {
        let steps = u32::try_from(steps).unwrap_or(u32::MAX);
        if let Ok(permit) = Arc::clone(&self.budget).try_acquire_many_owned(steps) {
            return Ok(permit);
        }
        self.coming.dismiss_slowest(number);
        match tokio::time::timeout(PATIENCE, Arc::clone(&self.budget).acquire_many_owned(steps)).await {
            Ok(permit) => Ok(permit.expect("it is never closed")),
            Err(_) => Err(ApiError::busy("too many bodies come or wait at once")),
        }
    }
}

/// Reason why a body is refused, by its head.
fn refused(headers: &HeaderMap) -> Option<ApiError> {
    let unsupported =
        |message: String| Some(ApiError::invalid(message).with_status(StatusCode::UNSUPPORTED_MEDIA_TYPE));
    let encoding = headers.get(header::CONTENT_ENCODING).map(|encoding| encoding.to_str().unwrap_or_default());
    if let Some(encoding) = encoding.filter(|encoding| !encoding.eq_ignore_ascii_case("identity")) {
        let encoding = crate::body::short(encoding);
        return unsupported(format!("bodies are read as they are; `Content-Encoding: {encoding}` is not supported"));
    }
    if !is_json(headers) {
        return unsupported("the body must be JSON, with `Content-Type: application/json`".to_owned());
    }
    None
}

/// Hands requests on when their bodies are here.
pub async fn whole(State(bodies): State<Bodies>, request: Request, next: Next) -> Response {
    let (mut head, body) = request.into_parts();
    if let Some(error) = refused(&head.headers) {
        return error.into_response();
    }
    match bodies.read(body).await {
        Ok((bytes, held)) => {
            head.extensions.insert(held);
            next.run(Request::from_parts(head, Body::from(bytes))).await
        }
        Err(error) => error.into_response(),
    }
}

#[cfg(test)]
mod tests {
    use futures_util::stream;

    use super::*;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
    }

    fn limits() -> ClientLimits {
        ClientLimits { body_bytes: 1 << 20, header_time: Duration::from_millis(300), ..ClientLimits::default() }
    }

    /// A body whose parts come one after the other, each after a pause.
    fn body(parts: Vec<(u64, usize)>) -> Body {
        Body::from_stream(stream::unfold(parts.into_iter(), |mut parts| async move {
            let (pause_ms, bytes) = parts.next()?;
            tokio::time::sleep(Duration::from_millis(pause_ms)).await;
            Some((Ok::<_, std::io::Error>(Bytes::from(vec![b' '; bytes])), parts))
        }))
    }

    #[test]
    fn bodies_have_a_length_and_a_pace() {
        runtime().block_on(async {
            let bodies = Bodies::new(limits());
            let status = async |parts| {
                bodies.read(body(parts)).await.map(|(bytes, _)| bytes.len()).map_err(|e| e.status.as_u16())
            };
            assert_eq!(status(vec![(0, 1000), (100, 1000)]).await, Ok(2000));
            assert_eq!(status(vec![(0, 1 << 20), (0, 1)]).await, Err(413));
            assert_eq!(status(vec![(0, 1 << 19), (2000, 1)]).await, Err(408), "a pause");
            // Single bytes now and then are no pace.
            assert_eq!(status(vec![(100, 1); 20]).await, Err(408));
            assert_eq!(bodies.budget.available_permits(), BUDGET / STEP, "all memory is free again");
        });
    }

    #[test]
    fn slow_bodies_make_place_for_others() {
        runtime().block_on(async {
            let limits = ClientLimits { header_time: Duration::from_secs(60), ..limits() };
            let bodies = Bodies { budget: Arc::new(Semaphore::new(100)), ..Bodies::new(limits) };
            let slow = bodies.clone();
            let slow =
                tokio::spawn(async move { slow.read(body(vec![(0, 80 * STEP / 2), (60_000, 1)])).await.map(drop) });
            tokio::time::sleep(Duration::from_millis(200)).await;
            let fast = bodies.read(body(vec![(0, 1 << 19), (0, 1 << 19)])).await.map(|(bytes, _)| bytes.len());
            assert_eq!(fast, Ok(1 << 20));
            let error = slow.await.expect("it ends").expect_err("it made place");
            assert_eq!(error.status.as_u16(), 429);
        });
    }
}
