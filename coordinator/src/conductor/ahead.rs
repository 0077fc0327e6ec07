//! Chunks that are prefilled ahead of use: an order of their own, which leaves no sequence.

use std::time::Duration;

use tributary_protocol::Event;

use super::desk::{Kept, Update};
use super::state::{Conductor, Request};
use crate::{Result, dispatch};

impl Conductor<'_> {
    /// Waits for chunks ahead of use, and notifies their client.
    pub(super) fn keep(&mut self, request: u64, queued: Duration) -> Result<()> {
        match self.next_of_prefill(request)? {
            Event::Kept { request: number, reports } if number == request => {
                self.note(request, &reports);
                let Some(Request { mut submission, planned, .. }) = self.running.remove(&request) else {
                    return Ok(());
                };
                self.count();
                // A departed client need not be notified.
                let kept = Kept { planned, reports, queued, total: submission.clock.elapsed() };
                let _ = submission.sink.take(Update::Kept(Box::new(kept)));
                Ok(())
            }
            Event::Cancelled { request: number, reports } if number == request => {
                self.cancelled(request, None, &reports);
                Ok(())
            }
            other => Err(dispatch::unexpected(&other, "the end of a prefill ahead of use")),
        }
    }
}
