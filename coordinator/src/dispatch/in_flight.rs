//! A request between its first order and its answer: the results so far.

use std::sync::Arc;
use std::time::Duration;

use tributary_protocol::{DrawnToken, Outcome, Phase, Plan, RankReport, Span, StepReport};

use super::answer::{Answer, Clock};
use crate::{Error, Result};

/// A request in progress on the ranks.
#[derive(Debug)]
pub struct InFlight {
    plan: Arc<Plan>,
    clock: Clock,
    /// Time of its preparation and planning, and time that it waited for its turn.
    tokenize: Duration,
    queued: Duration,
    ttft: Option<Duration>,
    first: Option<u32>,
    outcome: Outcome,
    reports: Vec<RankReport>,
    /// Seconds of decoding on each rank, and those of them that were spent waiting.
    decoding: Vec<(f64, f64)>,
}

impl InFlight {
    /// A request whose first order is about to be sent. The clock began at its acceptance; since
    /// then it has waited for its turn for `queued`.
    pub fn new(plan: &Arc<Plan>, clock: Clock, queued: Duration) -> Self {
        // Measured before the plan is sent: a rank may begin before this thread runs again, and no
        // time may count twice.
        let tokenize = clock.elapsed().saturating_sub(queued);
        let (ttft, first, reports, decoding) = (None, None, Vec::new(), Vec::new());
        Self {
            plan: Arc::clone(plan),
            clock,
            tokenize,
            queued,
            ttft,
            first,
            outcome: Outcome::default(),
            reports,
            decoding,
        }
    }

    /// The first token has arrived: stops the clock of the time to first token.
    ///
    /// # Errors
    /// Returns [`Error::Protocol`] if it came before.
    pub fn first_token(&mut self, drawn: &DrawnToken) -> Result<()> {
        let ttft = self.clock.elapsed();
        match self.first.replace(drawn.token) {
            None => self.ttft = Some(ttft),
            Some(_) => return Err(Error::Protocol("a first token came twice".into())),
        }
        Ok(())
    }

    /// The prefill has ended.
    ///
    /// # Errors
    /// Returns [`Error::Protocol`] if it contradicts earlier events.
    pub fn prefilled(&mut self, outcome: Box<Outcome>, reports: Vec<RankReport>) -> Result<()> {
        let Some(first) = self.first else {
            return Err(Error::Protocol("the end of a prefill came where the first token was due".into()));
        };
        if outcome.tokens != [first] {
            let found = &outcome.tokens;
            return Err(Error::Protocol(format!("first token {first}, the outcome has {found:?}")));
        }
        let drew = reports.iter().filter(|report| report.drew_first_token).count();
        if drew != 1 {
            return Err(Error::Protocol(format!("{drew} ranks say that they drew the first token")));
        }
        (self.outcome, self.decoding, self.reports) = (*outcome, vec![(0.0, 0.0); reports.len()], reports);
        Ok(())
    }

    /// Takes another token, and the cost of the step that drew it: its time, and this sequence's
    /// share of its bytes. The sequence is number `index` of `sequences`.
    pub fn next_token(&mut self, drawn: &DrawnToken, step: &[StepReport], (index, sequences): (usize, usize)) {
        assert_eq!(step.len(), self.reports.len(), "ranks of a step, and of the prefill");
        self.outcome.tokens.push(drawn.token);
        self.outcome.margins.push(drawn.margin);
        for (rank, step) in step.iter().enumerate() {
            assert_eq!(step.rank, rank, "the rank whose report of a step comes at this place");
            self.reports[rank].decode_traffic.add(&step.traffic.share(index, sequences));
            let (seconds, waited_s) = &mut self.decoding[rank];
            *seconds += step.seconds;
            *waited_s += step.waited_s;
        }
    }

    /// Whether another token is due.
    pub fn goes_on(&self) -> bool {
        self.plan.goes_on(&self.outcome.tokens)
    }

    /// Time from the request's acceptance to its first token, once that has arrived.
    pub fn ttft(&self) -> Option<Duration> {
        self.ttft
    }

    /// Tokens that have come so far.
    pub fn token_count(&self) -> usize {
        self.outcome.tokens.len().max(usize::from(self.first.is_some()))
    }

    /// Those that the ranks have reported.
    pub fn tokens(&self) -> &[u32] {
        &self.outcome.tokens
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The answer, after the last token. Decoding counts on every rank as one phase after all
    /// others.
    ///
    /// # Errors
    /// Returns [`Error::Protocol`] if there was no first token.
    pub fn answer(mut self) -> Result<Answer> {
        let total = self.clock.elapsed();
        let ttft = self.ttft.ok_or_else(|| Error::Protocol("the answer came where the first token was due".into()))?;
        for (report, (seconds, waited_s)) in self.reports.iter_mut().zip(self.decoding) {
            if seconds > 0.0 {
                let start_s = report.spans.iter().map(|span| span.start_s + span.seconds).fold(0.0, f64::max);
                report.spans.push(Span { phase: Phase::Decode, start_s, seconds, waited_s });
            }
        }
        let Self { tokenize, queued, outcome, reports, .. } = self;
        Ok(Answer { tokenize, queued, ttft, total, outcome, reports })
    }
}
