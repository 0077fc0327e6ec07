//! The loop of one rank: rank 0 takes orders from the coordinator and broadcasts them, all ranks
//! carry them out, rank 0 answers.
//!
//! One order at a time, and every rank takes part in every one. Between orders a rank keeps its
//! chunk cache and the sequences in decoding.

mod check;
mod prefill;
mod step;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tributary_comm::{Communicator, WorkerLink};
use tributary_kernels::Kernels;
use tributary_model::Progress;
use tributary_protocol::{Event, Order, Phase};

use crate::chunk_cache::ChunkCache;
use crate::context::checkpoint;
use crate::error::{Error, Result};
use crate::models::Models;
use crate::sequence::Sequence;

/// Interval of rank 0's ticks while idle.
const TICK: Duration = Duration::from_secs(1);

/// Serves orders until the coordinator is gone, with one model or several. `link` is rank 0's
/// connection to the coordinator; the other ranks have none.
/// `timeout` is the timeout of collectives between requests and in decoding. `chunk_cache` keeps
/// chunks between requests.
///
/// # Errors
/// Returns the first failure of the group, after aborting the group and notifying the coordinator.
/// A failure of one request that all ranks know alike is no error: the coordinator gets
/// [`Event::Refused`], and the loop goes on.
pub fn serve<'a>(
    models: impl Into<Models<'a>>,
    kernels: Kernels,
    comm: &mut dyn Communicator,
    link: Option<&WorkerLink>,
    timeout: Duration,
    chunk_cache: &mut ChunkCache,
) -> Result<()> {
    let models = models.into();
    let progress = Progress::on(models.main.device(), comm.liveness());
    let progress = progress.map_err(|error| fail(comm, link, 0, error.into()))?;
    let progress = progress.passing(comm.points());
    let _telling = progress.telling();
    if let Some(link) = link {
        comm.points().listen(link.cancels());
    }
    checkpoint(comm.rank(), Phase::Idle).map_err(|error| fail(comm, link, 0, error))?;
    let mut rank = Rank {
        models,
        kernels,
        comm,
        link,
        timeout,
        chunk_cache,
        progress,
        request: 0,
        sequences: BTreeMap::new(),
        decodes: false,
    };
    loop {
        rank.request = 0;
        match rank.next_order().and_then(|order| rank.carry_out(order)) {
            Ok(true) => {}
            Ok(false) => return Ok(()),
            Err(error) => return Err(fail(rank.comm, link, rank.request, error)),
        }
    }
}

/// A rank between two orders.
struct Rank<'a> {
    models: Models<'a>,
    kernels: Kernels,
    comm: &'a mut dyn Communicator,
    link: Option<&'a WorkerLink>,
    timeout: Duration,
    chunk_cache: &'a mut ChunkCache,
    progress: Progress,
    /// The request in progress, the first of several; 0 for none.
    request: u64,
    /// Every sequence of the group, including those without data on this rank.
    sequences: BTreeMap<u64, Sequence>,
    /// Whether the previous order was a step of decoding: only the first of several is logged.
    decodes: bool,
}

impl Rank<'_> {
    /// The next order, on every rank.
    fn next_order(&mut self) -> Result<Order> {
        self.comm.set_deadline(Phase::Idle, self.timeout.max(2 * TICK));
        let order = self.link.map(|link| match link.next(TICK) {
            Ok(Some(order)) => order,
            Ok(None) => Order::Tick,
            Err(_) => Order::Stop,
        });
        self.comm.reset_traffic();
        let bytes = order.map(|order| tributary_protocol::encode(&order)).transpose()?;
        Ok(tributary_protocol::decode(&self.comm.broadcast_bytes(0, bytes)?)?)
    }

    /// Carries out an order; returns whether another may follow.
    fn carry_out(&mut self, order: Order) -> Result<bool> {
        let decodes = matches!(order, Order::Decode(_));
        self.request = match &order {
            Order::Prefill(plan) | Order::Chunks(plan) => plan.request,
            Order::Decode(requests) => requests.first().copied().unwrap_or(0),
            Order::Tick | Order::Release(_) | Order::Stop => 0,
        };
        match order {
            Order::Tick => return Ok(true),
            Order::Stop => return Ok(false),
            Order::Prefill(plan) => self.prefill(&plan)?,
            Order::Chunks(plan) => self.chunks(&plan)?,
            Order::Decode(requests) => self.step(&requests)?,
            Order::Release(requests) => self.release(&requests)?,
        }
        self.decodes = decodes;
        Ok(true)
    }

    /// Releases sequences.
    fn release(&mut self, requests: &[u64]) -> Result<()> {
        for request in requests {
            self.sequences.remove(request);
        }
        let running = self.gather(&self.sequences.len())?;
        self.tell(|| Event::Released { running })
    }

    /// Every rank's message on rank 0, in rank order; empty elsewhere.
    fn gather<T: Serialize + DeserializeOwned>(&mut self, own: &T) -> Result<Vec<T>> {
        let gathered = self.comm.gather_bytes(0, tributary_protocol::encode(own)?)?;
        gathered.iter().map(|bytes| Ok(tributary_protocol::decode(bytes)?)).collect()
    }

    /// Sends an event to the coordinator, on rank 0.
    fn tell(&self, event: impl FnOnce() -> Event) -> Result<()> {
        match self.link {
            Some(link) => Ok(link.send(event())?),
            None => Ok(()),
        }
    }
}

/// Ends the group and notifies the coordinator.
fn fail(comm: &mut dyn Communicator, link: Option<&WorkerLink>, request: u64, error: Error) -> Error {
    comm.abort(&error.to_string(), error.exit_code());
    if let Some(link) = link {
        let rank = match &error {
            Error::Comm(tributary_comm::Error::Aborted { rank, .. }) => *rank,
            _ => comm.rank(),
        };
        let event = Event::Failed { request, rank, exit_code: error.exit_code(), cause: error.to_string() };
        // The coordinator may be the lost peer, which then cannot be notified.
        let _ = link.send(event);
    }
    error
}

/// The failure that caused a group's end: the first that is not a consequence of another rank's.
pub fn root_cause(results: Vec<Result<()>>) -> Result<()> {
    let mut errors: Vec<Error> = results.into_iter().filter_map(Result::err).collect();
    let Some(first) = errors.iter().position(|error| !error.is_consequence()) else {
        return errors.into_iter().next().map_or(Ok(()), Err);
    };
    Err(errors.swap_remove(first))
}
