//! Decoding beside a prefill: the prefill halts at a control point, and the ranks take the steps
//! that decoding is owed there.

use std::time::Instant;

use tributary_protocol::{Event, Order};

use super::observer::Occupation;
use super::reading;
use super::state::Conductor;
use crate::Result;
use crate::dispatch::{self, LOOK};
use crate::scheduler::Next;

impl Conductor<'_> {
    /// The next event of the prefill in progress. Meanwhile the prefill halts whenever decoding is
    /// owed steps.
    pub(super) fn next_of_prefill(&mut self, request: u64) -> Result<Event> {
        let (mut since, mut is_asked) = (Instant::now(), false);
        loop {
            let until_due = self.pace.until_due().filter(|_| !is_asked && self.scheduler.running() > 0);
            let left = until_due.map(|time| time.saturating_sub(since.elapsed()));
            let look = if self.may_be_read(request) { reading::LOOK } else { LOOK };
            match dispatch::next_within(self.link, left.unwrap_or(look).min(look))? {
                None if !is_asked
                    && (left.is_some_and(|left| left <= look) || self.halts_for_reads(request, since.elapsed())?) =>
                {
                    self.link.signals().halt(request);
                    is_asked = true;
                }
                None => self.spent(Occupation::Prefill),
                Some(Event::Halted { request: number }) if number == request => {
                    self.pace.prefilled(since.elapsed());
                    self.spent(Occupation::Prefill);
                    self.take_steps(request)?;
                    self.spent(Occupation::Decode);
                    (since, is_asked) = (Instant::now(), false);
                }
                Some(event) => {
                    self.pace.prefilled(since.elapsed());
                    return Ok(event);
                }
            }
        }
    }

    /// Serves the reads that wait, takes the steps that decoding is owed, then lets the prefill go
    /// on. A cancelled one is not kept waiting.
    fn take_steps(&mut self, request: u64) -> Result<()> {
        loop {
            self.take_in(Some(request))?;
            self.serve_reads(Some(request))?;
            self.count();
            if self.scheduler.running() == 0 {
                self.pace.begins();
            }
            let is_due = self.pace.is_due() && !self.inbox.counts.is_cancelled(request);
            if !self.scheduler.releases() && !is_due {
                break;
            }
            match self.scheduler.beside_prefill(&self.planner.room(self.group)) {
                Next::Release(requests) => self.release(requests)?,
                Next::Decode(requests) => self.step(requests)?,
                Next::Prefill(_) | Next::Nothing => break,
            }
        }
        Ok(self.link.send(Order::Resume)?)
    }
}
