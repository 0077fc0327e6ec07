//! How ranks come to the same list of rows or chunks, and rank 0 to what each of them knows.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::context::Context;
use crate::error::Result;

/// Rank 0's list, or whatever it has decided, on every rank.
///
/// # Errors
/// The communicator's.
pub(super) fn agree<T: Serialize + DeserializeOwned>(cx: &mut Context<'_>, list: Option<T>) -> Result<T> {
    let bytes = list.map(|list| tributary_protocol::encode(&list)).transpose()?;
    Ok(tributary_protocol::decode(&cx.comm.broadcast_bytes(0, bytes)?)?)
}

/// What every rank has, in rank order, on rank 0; nothing elsewhere.
///
/// # Errors
/// The communicator's.
pub(super) fn collect<T: Serialize + DeserializeOwned>(cx: &mut Context<'_>, own: &T) -> Result<Vec<T>> {
    let parts = cx.comm.gather_bytes(0, tributary_protocol::encode(own)?)?;
    parts.iter().map(|part| Ok(tributary_protocol::decode(part)?)).collect()
}
