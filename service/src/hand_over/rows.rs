//! A layer's keys and values as the body of a response: `[rows, 2, heads, head_dim]`, all KV heads
//! or some, and the BLAKE3 hash of all bytes before it.

use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, StreamExt, TryStreamExt, stream};
use serde::Deserialize;
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

/// Part of a layer.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Part {
    /// The first row.
    #[serde(default)]
    first: usize,
    /// Number of rows; all others where absent.
    rows: Option<usize>,
    /// The first KV head.
    #[serde(default)]
    first_head: usize,
    /// Number of KV heads; all others where absent.
    heads: Option<usize>,
}

/// Streams a part of a layer.
///
/// # Errors
/// Returns the failure of a prefill that is not there, and both numbers of a row, a head or a layer
/// that it does not have.
pub async fn stream(shared: &Shared, entry: Arc<Entry>, layer: usize, part: Part) -> Result<Response, ApiError> {
    let (layers, tokens) = (entry.facts.layers, entry.facts.tokens);
    let shape = shared.client.shape();
    let row_bytes = shape.read_layer_kv_bytes() as usize;
    if layer >= layers {
        return Err(ApiError::invalid(format!("layer {layer}: the model has {layers}, from 0 on")));
    }
    let Range { start: first, end } = range(part.first, part.rows, ("rows", "the prompt", tokens))?;
    let heads = range(part.first_head, part.heads, ("heads", "a layer", shape.kv_heads))?;
    let cut = Cut { all: shape.kv_heads, bytes: row_bytes / (2 * shape.kv_heads), heads };
    let mut pieces = pieces(first..end, row_bytes);
    // The first piece waits for the layer: a failure until then has its own status.
    let begin = piece((shared.clone(), cut.clone()), Arc::clone(&entry), layer as u32, pieces.remove(0)).await;
    let begin = match begin {
        Ok(begin) => begin,
        Err(error) => return Err(entry.failure().await.unwrap_or_else(|| ApiError::internal(error.to_string()))),
    };
    let length = ((end - first) * cut.row_bytes() + blake3::OUT_LEN).to_string();
    let (reader, hash) = ((shared.clone(), cut), Arc::new(Mutex::new(blake3::Hasher::new())));
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
    let headers = [
        (header::CONTENT_TYPE.as_str(), "application/octet-stream".to_owned()),
        (header::CONTENT_LENGTH.as_str(), length),
        (ROWS, format!("{first}-{}/{tokens}", end - 1)),
    ];
    Ok((headers, Body::from_stream(until_error(rows.chain(seal)))).into_response())
}

/// `count` places from `first` on, or all others.
///
/// # Errors
/// Returns both numbers of a place that is not there: those are of `name`, of which `whose` has
/// `all`.
fn range(
    first: usize,
    count: Option<usize>,
    (name, whose, all): (&str, &str, usize),
) -> Result<Range<usize>, ApiError> {
    let end = count.map_or(all, |count| first.saturating_add(count));
    match first < end && end <= all {
        true => Ok(first..end),
        false => Err(ApiError::invalid(format!("{name} {first} to {end}: {whose} has {all}, from 0 on"))),
    }
}

/// The KV heads that a reader wants.
#[derive(Debug, Clone)]
struct Cut {
    /// Number of all KV heads.
    all: usize,
    /// Bytes of one head of a row's keys, or of its values.
    bytes: usize,
    /// Those wanted.
    heads: Range<usize>,
}

impl Cut {
    /// Bytes of a row's keys and values.
    fn row_bytes(&self) -> usize {
        2 * self.heads.len() * self.bytes
    }

    /// Rows of all heads without those that are not wanted.
    fn of(&self, rows: Vec<u8>) -> Bytes {
        if self.heads.len() == self.all {
            return rows.into();
        }
        let kept = self.heads.start * self.bytes..self.heads.end * self.bytes;
        rows.chunks_exact(self.all * self.bytes).flat_map(|numbers| &numbers[kept.clone()]).copied().collect()
    }
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
async fn piece((shared, cut): (Shared, Cut), entry: Arc<Entry>, layer: u32, rows: Range<u32>) -> io::Result<Bytes> {
    let (sender, receiver) = oneshot::channel();
    shared.client.desk().read(entry.request, layer, rows, Box::new(Waits(sender)));
    let read = receiver.await.map_err(io::Error::other)?;
    let bytes = read.map_err(|failure| io::Error::other(failure.to_string()))?;
    entry.is_used();
    let bytes = cut.of(bytes);
    shared.metrics.handed_over(bytes.len());
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_fit_into_messages_and_cover_all_rows() {
        assert_eq!(pieces(3..10, 1 << 20), [3..5, 5..7, 7..9, 9..10]);
        assert_eq!(pieces(0..10, 1024).as_slice(), std::slice::from_ref(&(0..10)));
        assert_eq!(pieces(1..3, 64 << 20), [1..2, 2..3], "a row at least");
    }

    #[test]
    fn heads_that_are_not_wanted_are_cut_out_of_keys_and_values() {
        let cut = |heads| Cut { all: 3, bytes: 2, heads };
        let rows: Vec<u8> = (0..24).collect(); // two rows, keys and values, three heads of two bytes
        assert_eq!(cut(0..3).of(rows.clone()), rows);
        assert_eq!(cut(1..2).of(rows.clone()).as_ref(), [2, 3, 8, 9, 14, 15, 20, 21]);
        assert_eq!(cut(1..3).of(rows).as_ref(), [2, 3, 4, 5, 8, 9, 10, 11, 14, 15, 16, 17, 20, 21, 22, 23]);
        assert_eq!(cut(1..3).row_bytes(), 8);
    }

    #[tokio::test]
    async fn nothing_follows_an_error() {
        let parts = [Ok(Bytes::from("a")), Err(io::Error::other("gone")), Ok(Bytes::from("hash"))];
        let found: Vec<bool> = until_error(stream::iter(parts)).map(|part| part.is_ok()).collect().await;
        assert_eq!(found, [true, false]);
    }
}
