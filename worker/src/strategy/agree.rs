//! How ranks come to the same list of rows or chunks.

use crate::context::Context;
use crate::error::Result;

/// Rank 0's list on every rank.
///
/// # Errors
/// The communicator's.
pub(super) fn agree(cx: &mut Context<'_>, list: Option<Vec<u32>>) -> Result<Vec<u32>> {
    let bytes = list.map(|list| tributary_protocol::encode(&list)).transpose()?;
    Ok(tributary_protocol::decode(&cx.comm.broadcast_bytes(0, bytes)?)?)
}
