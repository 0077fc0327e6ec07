//! Reads of held sequences: rows of a layer for another program, one order each.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use tributary_protocol::{HandOver, Refusal, exit};

use super::desk::{RequestFailure, Work};
use super::state::{Conductor, Request};
use crate::{Result, dispatch};

/// Interval at which reads are looked for while a prefill is in progress.
pub(super) const LOOK: Duration = Duration::from_millis(5);

/// Time for which a prefill computes until it halts for a read of its own layers, and its share of
/// the time so far: a prefill of any length halts some dozens of times.
const BETWEEN_LAYERS: Duration = Duration::from_millis(20);
const SHARE_BETWEEN_LAYERS: u32 = 16;

/// Rows of a held sequence that a program waits for.
pub(super) struct Read {
    pub(super) wanted: HandOver,
    pub(super) reply: Reply,
}

/// Takes the rows, or the reason why there are none.
pub type Reply = Box<dyn FnOnce(std::result::Result<Vec<u8>, RequestFailure>) + Send>;

/// Reads that wait for their order, the oldest first.
pub(super) type Reads = VecDeque<Read>;

impl Read {
    pub(super) fn new(request: u64, layer: u32, rows: Range<u32>, reply: Reply) -> Self {
        Self { wanted: HandOver { request, layer, rows }, reply }
    }
}

impl Conductor<'_> {
    /// Whether programs may read while this prefill is in progress.
    pub(super) fn may_be_read(&self, prefilling: u64) -> bool {
        let is_read = |request: &Request| request.submission.work == Work::HandOver;
        self.scheduler.held() > 0 || self.running.get(&prefilling).is_some_and(is_read)
    }

    /// Whether a prefill that has computed for this long halts for reads: for those of held
    /// sequences at once, for those of its own layers after a while.
    pub(super) fn halts_for_reads(&mut self, prefilling: u64, computed: Duration) -> Result<bool> {
        if !self.may_be_read(prefilling) {
            return Ok(false);
        }
        self.take_in(Some(prefilling))?;
        let so_far = self.running.get(&prefilling).map_or(Duration::ZERO, |request| request.token_at.elapsed());
        let between = BETWEEN_LAYERS.max(so_far / SHARE_BETWEEN_LAYERS);
        let is_due = |read: &Read| match read.wanted.request {
            request if request == prefilling => computed >= between,
            request => self.scheduler.holds(request),
        };
        Ok(self.reads.iter().any(is_due))
    }

    /// Carries out the reads that wait, but for those of layers that have not been computed. A
    /// prefill may have halted for it.
    pub(super) fn serve_reads(&mut self, halted: Option<u64>) -> Result<()> {
        let mut missing = None;
        for read in std::mem::take(&mut self.reads) {
            let HandOver { request, layer, .. } = read.wanted;
            let is_there = self.scheduler.holds(request);
            if !is_there && !self.waiting.contains_key(&request) && !self.running.contains_key(&request) {
                let cause = format!("request {request} holds no sequence");
                (read.reply)(Err(RequestFailure::Refused(Refusal { exit_code: exit::USAGE, cause })));
                continue;
            }
            let is_behind = missing.is_some_and(|missing| layer >= missing);
            if !is_there && (halted != Some(request) || is_behind) {
                self.reads.push_back(read);
                continue;
            }
            match dispatch::hand_over(self.link, read.wanted.clone())? {
                Ok(None) => {
                    missing = Some(layer);
                    self.reads.push_back(read);
                }
                Ok(Some(rows)) => (read.reply)(Ok(rows)),
                Err(refusal) => (read.reply)(Err(RequestFailure::Refused(refusal))),
            }
        }
        Ok(())
    }
}
