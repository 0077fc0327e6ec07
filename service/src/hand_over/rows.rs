//! A layer's keys and values as the body of a response: `[rows, 2, kv_heads, head_dim]`, and the
//! BLAKE3 hash of all bytes before it.

use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, StreamExt, TryStreamExt, stream};
use tokio::sync::oneshot;
use tributary_engine::{Reader, RequestFailure};
use tributary_protocol::HandOver;

use super::held::Entry;
use crate::error::ApiError;
use crate::shared::Shared;

/// Name of the header that says which rows a body has, of how many.
const ROWS: &str = "x-tributary-rows";

/// Pieces of a layer that are read ahead of the client.
const AHEAD: usize = 2;

/// Streams rows of a layer: `count` from `first` on, or all others.
///
/// # Errors
/// Returns the failure of a prefill that is not there, and both numbers of a row or a layer that it
/// does not have.
pub async fn stream(
    shared: &Shared,
    entry: Arc<Entry>,
    layer: usize,
    (first, count): (usize, Option<usize>),
) -> Result<Response, ApiError> {
    let (layers, tokens) = (entry.facts.layers, entry.facts.tokens);
    let row_bytes = shared.client.shape().read_layer_kv_bytes() as usize;
    if layer >= layers {
        return Err(ApiError::invalid(format!("layer {layer}: the model has {layers}, from 0 on")));
    }
    let end = count.map_or(tokens, |count| first.saturating_add(count));
    if first >= end || end > tokens {
        return Err(ApiError::invalid(format!("rows {first} to {end}: the prompt has {tokens}, from 0 on")));
    }
    let mut pieces = pieces(first..end, row_bytes);
    // The first piece waits for the layer: a failure until then has its own status.
    let begin = piece(shared.clone(), Arc::clone(&entry), layer as u32, pieces.remove(0)).await;
    let begin = match begin {
        Ok(begin) => begin,
        Err(error) => return Err(entry.failure().await.unwrap_or_else(|| ApiError::internal(error.to_string()))),
    };
    let (reader, hash) = (shared.clone(), Arc::new(Mutex::new(blake3::Hasher::new())));
    let sealed = Arc::clone(&hash);
    let read = move |rows: Range<u32>| piece(reader.clone(), Arc::clone(&entry), layer as u32, rows);
    let rest = stream::iter(pieces).map(read).buffered(AHEAD);
    let rows = stream::once(async { Ok(begin) }).chain(rest).inspect_ok(move |bytes| {
        hash.lock().unwrap_or_else(PoisonError::into_inner).update(bytes);
    });
    let seal = stream::once(async move {
        let hash = sealed.lock().unwrap_or_else(PoisonError::into_inner).finalize();
        Ok(Bytes::copy_from_slice(hash.as_bytes()))
    });
    let length = ((end - first) * row_bytes + blake3::OUT_LEN).to_string();
    let headers = [
        (header::CONTENT_TYPE.as_str(), "application/octet-stream".to_owned()),
        (header::CONTENT_LENGTH.as_str(), length),
        (ROWS, format!("{first}-{}/{tokens}", end - 1)),
    ];
    Ok((headers, Body::from_stream(until_error(rows.chain(seal)))).into_response())
}

/// Rows as many at a time as fit into a message between ranks.
fn pieces(rows: Range<usize>, row_bytes: usize) -> Vec<Range<u32>> {
    let at_once = HandOver::rows_at_once(row_bytes);
    rows.clone().step_by(at_once).map(|first| first as u32..rows.end.min(first + at_once) as u32).collect()
}

/// The same, without what follows an error: a body that breaks off has no hash.
fn until_error(parts: impl Stream<Item = io::Result<Bytes>>) -> impl Stream<Item = io::Result<Bytes>> {
    parts.scan(false, |broke, part| {
        let next = (!*broke).then_some(part);
        *broke |= next.as_ref().is_some_and(Result::is_err);
        std::future::ready(next)
    })
}

/// A task that waits for a piece.
struct Waits(oneshot::Sender<Result<Vec<u8>, RequestFailure>>);

impl Reader for Waits {
    fn waits(&self) -> bool {
        !self.0.is_closed()
    }

    fn take(self: Box<Self>, rows: Result<Vec<u8>, RequestFailure>) {
        // A client that has gone meanwhile takes none.
        let _ = self.0.send(rows);
    }
}

/// Reads one piece.
async fn piece(shared: Shared, entry: Arc<Entry>, layer: u32, rows: Range<u32>) -> io::Result<Bytes> {
    let (sender, receiver) = oneshot::channel();
    shared.client.desk().read(entry.request, layer, rows, Box::new(Waits(sender)));
    let read = receiver.await.map_err(io::Error::other)?;
    let bytes = read.map_err(|failure| io::Error::other(failure.to_string()))?;
    entry.is_used();
    shared.metrics.handed_over(bytes.len());
    Ok(bytes.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_fit_into_messages_and_cover_all_rows() {
        assert_eq!(pieces(3..10, 4 << 20), [3..5, 5..7, 7..9, 9..10]);
        assert_eq!(pieces(0..10, 1024).as_slice(), std::slice::from_ref(&(0..10)));
        assert_eq!(pieces(1..3, 64 << 20), [1..2, 2..3], "a row at least");
    }

    #[tokio::test]
    async fn nothing_follows_an_error() {
        let parts = [Ok(Bytes::from("a")), Err(io::Error::other("gone")), Ok(Bytes::from("hash"))];
        let found: Vec<bool> = until_error(stream::iter(parts)).map(|part| part.is_ok()).collect().await;
        assert_eq!(found, [true, false]);
    }
}
