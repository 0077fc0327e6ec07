//! Agreement of ranks on a list of rows or chunks, and collection of their facts on rank 0.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::context::Context;
use crate::error::Result;

/// Rank 0's list, or any other decision of it, on every rank.
///
/// # Errors
/// Returns an error if the communicator fails.
pub(super) fn agree<T: Serialize + DeserializeOwned>(cx: &mut Context<'_>, list: Option<T>) -> Result<T> {
    let bytes = list.map(|list| tributary_protocol::encode(&list)).transpose()?;
    Ok(tributary_protocol::decode(&cx.comm.broadcast_bytes(0, bytes)?)?)
}

/// Every rank's value, in rank order, on rank 0; empty elsewhere.
///
/// # Errors
/// Returns an error if the communicator fails.
pub(super) fn collect<T: Serialize + DeserializeOwned>(cx: &mut Context<'_>, own: &T) -> Result<Vec<T>> {
    let parts = cx.comm.gather_bytes(0, tributary_protocol::encode(own)?)?;
    parts.iter().map(|part| Ok(tributary_protocol::decode(part)?)).collect()
}
