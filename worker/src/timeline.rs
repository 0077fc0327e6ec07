//! Which phase a rank was in, when, and how long of it it waited for others.

use std::time::Instant;

use tributary_comm::Communicator;
use tributary_comm::wire::{Phase, Span};

/// Phases one after the other, from the arrival of the plan on.
#[derive(Debug)]
pub struct Timeline {
    begin: Instant,
    open: Option<(Phase, Instant, f64)>,
    spans: Vec<Span>,
}

impl Timeline {
    /// Starts now.
    pub fn start() -> Self {
        Self { begin: Instant::now(), open: None, spans: Vec::new() }
    }

    /// Ends the open phase and opens the next one.
    pub fn enter(&mut self, phase: Phase, comm: &dyn Communicator) {
        self.close(comm);
        self.open = Some((phase, Instant::now(), comm.traffic().waited_s()));
    }

    /// Ends the open phase.
    pub fn close(&mut self, comm: &dyn Communicator) {
        let Some((phase, since, waited_before_s)) = self.open.take() else {
            return;
        };
        self.spans.push(Span {
            phase,
            start_s: (since - self.begin).as_secs_f64(),
            seconds: since.elapsed().as_secs_f64(),
            waited_s: comm.traffic().waited_s() - waited_before_s,
        });
    }

    /// The closed phases.
    pub fn into_spans(self) -> Vec<Span> {
        self.spans
    }
}
