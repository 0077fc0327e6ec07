//! The loop of one rank: rank 0 takes orders from the coordinator and broadcasts them, all ranks
//! carry them out, rank 0 answers.
//!
//! One order at a time, and every rank takes part in every one. Between orders a rank keeps its
//! chunk cache and the sequences in decoding. A prefill halts at control points, and the sequences
//! take steps there.

mod check;
mod decoding;
mod hand_over;
mod messages;
mod prefill;
mod step;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tributary_comm::{Communicator, Shared, WorkerLink};
use tributary_kernels::Kernels;
use tributary_model::{Interlude, Progress};
use tributary_protocol::{Event, Order, Phase};

use self::decoding::Decoding;
use self::messages::{gather, tell};
use crate::chunk_cache::ChunkCache;
use crate::context::checkpoint;
use crate::error::{Error, Result};
use crate::models::Models;

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
    let (models, comm) = (models.into(), RefCell::new(comm));
    let mut comm = Shared::new(&comm);
    let progress = Progress::on(models.main.device(), comm.liveness());
    let progress = progress.map_err(|error| fail(&mut comm, link, 0, error.into()))?;
    let progress = progress.passing(comm.points());
    let _telling = progress.telling();
    if let Some(link) = link {
        comm.points().listen(link.signals());
    }
    checkpoint(comm.rank(), Phase::Idle).map_err(|error| fail(&mut comm, link, 0, error))?;
    let decoding = Decoding::new((models.clone(), kernels), comm, link, progress.alone(), timeout);
    let decoding = RefCell::new(decoding);
    let mut rank = Rank { models, kernels, comm, link, chunk_cache, progress, request: 0, decoding: &decoding };
    loop {
        rank.request = 0;
        // A borrow of its own: an order may halt and borrow it again.
        let order = rank.decoding.borrow_mut().next_order();
        match order.and_then(|order| rank.carry_out(order)) {
            Ok(true) => {}
            Ok(false) => return Ok(()),
            Err(error) => return Err(fail(&mut comm, link, rank.request, error)),
        }
    }
}

/// A rank between two orders.
struct Rank<'a, 'c> {
    models: Models<'a>,
    kernels: Kernels,
    comm: Shared<'a, 'c>,
    link: Option<&'a WorkerLink>,
    chunk_cache: &'a mut ChunkCache,
    progress: Progress,
    /// The request in progress, the first of several; 0 for none.
    request: u64,
    /// The sequences in decoding, which take steps during a prefill too.
    decoding: &'a RefCell<Decoding<'a, 'c>>,
}

impl Rank<'_, '_> {
    /// Carries out an order; returns whether another may follow.
    fn carry_out(&mut self, order: Order) -> Result<bool> {
        self.request = match &order {
            Order::Prefill(plan) | Order::Chunks(plan) => plan.request,
            Order::Decode(requests) => requests.first().copied().unwrap_or(0),
            Order::HandOver(wanted) => wanted.request,
            Order::Tick | Order::Release(_) | Order::Resume | Order::Stop => 0,
        };
        match order {
            Order::Prefill(plan) => self.halting(plan.request, |rank| rank.prefill(&plan))?,
            Order::Chunks(plan) => self.halting(plan.request, |rank| rank.chunks(&plan))?,
            Order::Stop => return Ok(false),
            order => self.decoding.borrow_mut().carry_out(&order)?,
        }
        Ok(true)
    }

    /// Fills caches with passes that halt at control points for steps of decoding.
    fn halting(&mut self, request: u64, fill: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        let decoding = self.decoding;
        decoding.borrow_mut().begin_prefill();
        tributary_model::interleaved(&Halting { decoding, request }, || fill(self))
    }

    /// Every rank's message on rank 0, in rank order; empty elsewhere.
    fn gather<T: Serialize + DeserializeOwned>(&mut self, own: &T) -> Result<Vec<T>> {
        gather(&mut self.comm, own)
    }

    /// Sends an event to the coordinator, on rank 0.
    fn tell(&self, event: impl FnOnce() -> Event) -> Result<()> {
        tell(self.link, event)
    }
}

/// What a rank does where a prefill halts.
struct Halting<'a, 'b, 'c> {
    decoding: &'a RefCell<Decoding<'b, 'c>>,
    request: u64,
}

impl Interlude for Halting<'_, '_, '_> {
    fn run(&self) -> tributary_model::Result<()> {
        self.decoding.borrow_mut().halt(self.request).map_err(|error| match error {
            Error::Comm(error) => error.into(),
            error => tributary_model::Error::Interlude { exit_code: error.exit_code(), cause: error.to_string() },
        })
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
