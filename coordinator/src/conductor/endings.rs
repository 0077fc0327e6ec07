//! Requests without a whole answer: refused, abandoned by their clients, or cancelled on the ranks.

use tributary_protocol::{RankReport, Refusal};

use super::desk::{NotTaken, RequestFailure, Submission, Update};
use super::observer::{Ended, Stage};
use super::state::{Conductor, Request};
use crate::Error;
use crate::dispatch::InFlight;

impl Conductor<'_> {
    /// Notifies the observer of a request without a whole answer; `stage` if its client is gone.
    pub(super) fn tell_end(&self, submission: &Submission, in_flight: Option<&InFlight>, stage: Option<Stage>) {
        let Submission { request, prepared, settings, clock, .. } = submission;
        self.inbox.counts.observed.tell(|observer| {
            observer.ended(&Ended {
                request: *request,
                method: settings.method.name,
                stage,
                ttft: in_flight.and_then(InFlight::ttft),
                total: clock.elapsed(),
                prompt_tokens: prepared.token_count(),
                generated_tokens: in_flight.map_or(0, InFlight::token_count),
            });
        });
    }

    /// Ends a request that cannot be answered.
    pub(super) fn refuse(&mut self, request: u64, error: &Error) {
        let refusal = Refusal { exit_code: error.exit_code(), cause: error.to_string() };
        let running = self.running.remove(&request).map(|running| (running.submission, Some(running.in_flight)));
        let refused = self.waiting.remove(&request).map(|waiting| (waiting.submission, None)).or(running);
        self.scheduler.over(request);
        self.count();
        if let Some((mut submission, in_flight)) = refused {
            self.tell_end(&submission, in_flight.as_ref(), None);
            submission.waits = None;
            let _ = submission.sink.take(Update::Failed(RequestFailure::Refused(refusal)));
        }
    }

    /// Drops a request whose client is gone; `why` if its sink did not take an update.
    pub(super) fn forget(&mut self, request: u64, why: Option<NotTaken>) {
        if let Some(waiting) = self.waiting.remove(&request) {
            self.tell_end(&waiting.submission, None, Some(Stage::Queue));
        }
        if let Some(Request { submission, in_flight, .. }) = self.running.remove(&request) {
            self.tell_end(&submission, Some(&in_flight), Some(stage(in_flight.token_count(), why)));
        }
        self.scheduler.over(request);
    }

    /// Ends a request that the ranks have cancelled in the middle of its prefill.
    pub(super) fn cancelled(&mut self, request: u64, why: Option<NotTaken>, reports: &[RankReport]) {
        // Its first token may have come: then its chunks are cached.
        self.planner.note(self.group, reports);
        self.inbox.counts.observed.tell(|observer| {
            reports.iter().for_each(|report| {
                observer.moved(report.rank, &report.traffic);
            });
        });
        self.forget(request, why);
        self.count();
    }
}

/// Stage of a request that has begun, when it is dropped.
pub(super) fn stage(generated_tokens: usize, why: Option<NotTaken>) -> Stage {
    match why {
        Some(NotTaken::Full) => Stage::Slow,
        _ if generated_tokens <= 1 => Stage::Prefill,
        _ => Stage::Decode,
    }
}
