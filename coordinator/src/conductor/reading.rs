//! Reads of held sequences: rows of a layer for another program, one order each.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use tributary_protocol::{HandOver, Refusal, exit};

use super::desk::RequestFailure;
use super::state::Conductor;
use crate::{Result, dispatch};

/// Interval at which a prefill in progress is asked to halt for reads.
pub(super) const LOOK: Duration = Duration::from_millis(5);

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
    /// Carries out the reads that wait.
    pub(super) fn serve_reads(&mut self) -> Result<()> {
        while let Some(Read { wanted, reply }) = self.reads.pop_front() {
            let request = wanted.request;
            if !self.scheduler.holds(request) {
                let cause = format!("request {request} holds no sequence");
                reply(Err(RequestFailure::Refused(Refusal { exit_code: exit::USAGE, cause })));
                continue;
            }
            reply(dispatch::hand_over(self.link, wanted)?.map_err(RequestFailure::Refused));
        }
        Ok(())
    }
}
