//! Messages at the end of an order: of every rank to rank 0, and of rank 0 to the coordinator.

use serde::Serialize;
use serde::de::DeserializeOwned;
use tributary_comm::{Communicator, WorkerLink};
use tributary_protocol::Event;

use crate::error::Result;

/// Every rank's message on rank 0, in rank order; empty elsewhere.
pub(super) fn gather<T: Serialize + DeserializeOwned>(comm: &mut dyn Communicator, own: &T) -> Result<Vec<T>> {
    let gathered = comm.gather_bytes(0, tributary_protocol::encode(own)?)?;
    gathered.iter().map(|bytes| Ok(tributary_protocol::decode(bytes)?)).collect()
}

/// Sends an event to the coordinator, on rank 0.
pub(super) fn tell(link: Option<&WorkerLink>, event: impl FnOnce() -> Event) -> Result<()> {
    match link {
        Some(link) => Ok(link.send(event())?),
        None => Ok(()),
    }
}
