//! Reads of held sequences: rows of a layer for another program, one order each.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use tributary_protocol::{HandOver, Refusal, exit};

use super::desk::{Read, RequestFailure, Work};
use super::state::{Conductor, Request};
use crate::{Result, dispatch};

/// Interval at which reads are looked for while a prefill is in progress.
pub(super) const LOOK: Duration = Duration::from_millis(5);

/// Time for which a prefill computes until it halts for reads. For a read of its own layers also
/// a share of the time so far: a prefill of any length halts some dozens of times.
const BETWEEN_READS: Duration = Duration::from_millis(20);
const SHARE_BETWEEN_LAYERS: u32 = 16;

/// Time for which reads are served in one go: steps of decoding and a halted prefill wait for it.
const AT_ONCE: Duration = Duration::from_millis(20);

impl Conductor<'_> {
    /// Whether programs may read while this prefill is in progress.
    pub(super) fn may_be_read(&self, prefilling: u64) -> bool {
        let is_read = |request: &Request| request.submission.work == Work::HandOver;
        let is_asked = self.scheduler.held() > 0 || !self.reads.0.is_empty();
        is_asked || self.running.get(&prefilling).is_some_and(is_read)
    }

    /// Whether a prefill that has computed for this long halts for reads.
    pub(super) fn halts_for_reads(&mut self, prefilling: u64, computed: Duration) -> Result<bool> {
        if !self.may_be_read(prefilling) {
            return Ok(false);
        }
        self.take_in(Some(prefilling))?;
        self.end_vain_reads();
        let so_far = self.running.get(&prefilling).map_or(Duration::ZERO, |request| request.token_at.elapsed());
        let is_due = |read: &Read| match read.wanted.request {
            request if request == prefilling => computed >= BETWEEN_READS.max(so_far / SHARE_BETWEEN_LAYERS),
            request => computed >= BETWEEN_READS && self.scheduler.holds(request),
        };
        Ok(self.reads.0.iter().any(is_due))
    }

    /// Whether a read waits whose rows are there.
    pub(super) fn can_serve_reads(&self) -> bool {
        self.reads.0.iter().any(|read| self.scheduler.holds(read.wanted.request))
    }

    /// Ends reads of requests that are over.
    fn end_vain_reads(&mut self) {
        let Self { reads, scheduler, waiting, running, .. } = self;
        let is_known =
            |request: &u64| scheduler.holds(*request) || waiting.contains_key(request) || running.contains_key(request);
        for read in std::mem::take(&mut reads.0) {
            let request = read.wanted.request;
            match (read.waits(), is_known(&request)) {
                (false, _) => {}
                (true, true) => reads.0.push_back(read),
                (true, false) => {
                    let cause = format!("request {request} holds no sequence");
                    read.fails(RequestFailure::Refused(Refusal { exit_code: exit::USAGE, cause }));
                }
            }
        }
    }

    /// Carries out reads that wait, as many as fit into a short time, but for those of layers that
    /// have not been computed. A prefill may have halted for it.
    pub(super) fn serve_reads(&mut self, halted: Option<u64>) -> Result<()> {
        self.end_vain_reads();
        let (began, mut missing, mut later) = (Instant::now(), None, VecDeque::new());
        while let Some(read) = self.reads.0.pop_front() {
            let HandOver { request, layer, .. } = read.wanted;
            let is_there = self.scheduler.holds(request);
            let is_behind = missing.is_some_and(|missing| layer >= missing);
            if (!is_there && (halted != Some(request) || is_behind)) || began.elapsed() > AT_ONCE {
                later.push_back(read);
                continue;
            }
            match dispatch::hand_over(self.link, read.wanted.clone()) {
                Ok(Ok(Some(rows))) => read.ends(Ok(rows)),
                Ok(Ok(None)) => {
                    missing = Some(layer);
                    later.push_back(read);
                }
                Ok(Err(refusal)) => read.fails(RequestFailure::Refused(refusal)),
                Err(error) => {
                    // All of them are told why with the other clients.
                    later.push_back(read);
                    self.reads.0.append(&mut later);
                    return Err(error);
                }
            }
        }
        self.reads.0 = later;
        Ok(())
    }
}
