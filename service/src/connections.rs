//! Connections: taking them, bounding how many there are and how long they do nothing, and letting
//! go of them at the end.

use std::collections::HashMap;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::http::Uri;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::service::Service;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use crate::activity::{Activity, Busy, Noted, State};
use crate::guard::Peer;
use crate::limits::ClientLimits;

/// The most that is buffered of a request's head, and of a body at a time.
const BUFFER_BYTES: usize = 64 << 10;

/// Pause of accepting connections when the system lacks resources, such as file descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// The connections that are open.
#[derive(Debug, Default)]
struct Open(Mutex<HashMap<u64, Arc<Activity>>>);

/// One of them, until this is dropped.
struct Place {
    open: Arc<Open>,
    number: u64,
    _permit: OwnedSemaphorePermit,
}

impl Open {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Arc<Activity>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the connection that has been idle for longest to make place; none, where all are busy.
    fn dismiss_one(&self) {
        let open = self.lock();
        let idle = open.values().filter_map(|activity| match activity.state() {
            State::Idle(since) | State::Head(since) => Some((since, activity)),
            State::Busy(_) => None,
        });
        if let Some((_, activity)) = idle.min_by_key(|(since, _)| *since) {
            activity.dismiss();
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.open.lock().remove(&self.number);
    }
}

/// The body of an answer. Its connection is busy until the last part has been taken.
struct Held {
    body: Body,
    _busy: Busy,
}

impl HttpBody for Held {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.get_mut().body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Accepts connections and answers their requests, until the service is ended and the last of them
/// is gone.
pub async fn serve(listener: TcpListener, app: Router, limits: ClientLimits, draining: watch::Receiver<bool>) {
    let (open, places) = (Arc::new(Open::default()), Arc::new(Semaphore::new(limits.connections)));
    let mut told = draining.clone();
    let mut number = 0;
    loop {
        let (stream, peer) = tokio::select! {
            _ = told.wait_for(|draining| *draining) => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, address)) => (stream, address.ip()),
                Err(_) => {
                    // The connection was lost before it was taken, or there is no descriptor for it
                    // now.
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            },
        };
        let permit = tokio::select! {
            _ = told.wait_for(|draining| *draining) => break,
            permit = place(&open, &places) => permit,
        };
        number += 1;
        let activity = Arc::new(Activity::new());
        open.lock().insert(number, Arc::clone(&activity));
        let place = Place { open: Arc::clone(&open), number, _permit: permit };
        tokio::spawn(attend((stream, Peer(peer)), app.clone(), limits, activity, place, draining.clone()));
    }
    // From here on the system refuses connections.
    drop(listener);
    let all = u32::try_from(limits.connections).unwrap_or(u32::MAX);
    let _all = places.acquire_many(all).await;
}

/// A place for one more connection. Where there is none, idle connections are asked to go, again
/// and again: one may become idle.
async fn place(open: &Open, places: &Arc<Semaphore>) -> OwnedSemaphorePermit {
    loop {
        if places.available_permits() == 0 {
            open.dismiss_one();
        }
        if let Ok(permit) = tokio::time::timeout(PAUSE, Arc::clone(places).acquire_owned()).await {
            return permit.expect("it is never closed");
        }
    }
}

/// Takes the slash from the end of a path: clients that join a base and a route with one too many
/// mean the same route.
fn without_trailing_slash(uri: &mut Uri) {
    let path = uri.path();
    let shorter = path.trim_end_matches('/');
    if shorter.len() == path.len() || shorter.is_empty() {
        return;
    }
    let whole = uri.query().map_or_else(|| shorter.to_owned(), |query| format!("{shorter}?{query}"));
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = whole.parse().ok();
    if let Ok(changed) = Uri::from_parts(parts) {
        *uri = changed;
    }
}

/// Answers requests on one connection.
async fn attend(
    (stream, peer): (TcpStream, Peer),
    app: Router,
    limits: ClientLimits,
    activity: Arc<Activity>,
    place: Place,
    mut draining: watch::Receiver<bool>,
) {
    // Events are small and each counts: none waits for the next one. A connection that has just
    // been lost is noticed when it is read.
    let _ = stream.set_nodelay(true);
    let (app, busy) = (TowerToHyperService::new(app), Arc::clone(&activity));
    let service = hyper::service::service_fn(move |request: hyper::Request<Incoming>| {
        let held = busy.begin();
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(peer);
        without_trailing_slash(request.uri_mut());
        let answer = app.call(request);
        async move {
            let answer = answer.await?;
            Ok::<_, std::convert::Infallible>(answer.map(|body| Held { body, _busy: held }))
        }
    });
    let io = TokioIo::new(Noted { stream, activity: Arc::clone(&activity) });
    let mut builder = hyper::server::conn::http1::Builder::new();
    let mut connection =
        pin!(builder.header_read_timeout(None).max_buf_size(BUFFER_BYTES).serve_connection(io, service));
    let mut ends = false;
    loop {
        tokio::select! {
            // The way in which it ended concerns its client only.
            _ = connection.as_mut() => break,
            _ = draining.wait_for(|draining| *draining), if !ends => {
                ends = true;
                connection.as_mut().graceful_shutdown();
            }
            () = activity.overdue(&limits) => break,
            () = activity.dismissed() => if !matches!(activity.state(), State::Busy(_)) {
                break;
            },
        }
    }
    drop(place);
}
