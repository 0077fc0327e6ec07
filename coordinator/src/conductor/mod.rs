//! Many requests on one group of ranks: takes them in, asks the scheduler for the next step, sends
//! the ranks one order at a time, and distributes the results.
//!
//! It waits for ranks only: a client that does not read is cut. It runs on the thread that calls
//! it.

mod ahead;
mod beside;
mod conversations;
mod desk;
mod endings;
#[cfg(test)]
mod kit;
mod observer;
mod reading;
#[cfg(test)]
mod reading_tests;
mod reads;
mod state;
mod tally;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

use tributary_planner::{Conversation, Draft, GroupShape, Planned, RequestSettings, Reservation};
use tributary_protocol::{DrawnToken, Event, Order, Refusal, Slices, StepReport};

use self::conversations::Later;
use self::desk::{Errand, Submission, Wish};
use self::endings::stage;
use self::state::{Request, Waiting};
use crate::dispatch::{self, InFlight};
use crate::intake::Prepared;
use crate::scheduler::{Arrival, Next};
use crate::{Error, Result};

pub use self::desk::{Desk, Done, Inbox, Kept, NotTaken, Reader, RequestFailure, Sink, Update, Work, desk};
pub use self::observer::{Breakage, Ended, Observed, Observer, Occupation, Prefilled, Stage};
pub use self::state::Conductor;
pub use self::tally::{Tally, Waits};

/// Interval at which an idle conductor checks that the ranks are alive.
const LOOK: Duration = Duration::from_millis(100);

impl Conductor<'_> {
    /// Answers requests until the queue is closed and the last one has been answered.
    ///
    /// # Errors
    /// Returns an error if the ranks fail; every client has been notified before.
    pub fn run(mut self) -> Result<()> {
        let ended = self.conduct();
        if let Err(error) = &ended {
            let refusal = Refusal { exit_code: error.exit_code(), cause: error.to_string() };
            let late = self.inbox.close();
            self.inbox.counts.observed.tell(|observer| observer.failed(refusal.exit_code));
            self.running
                .values()
                .for_each(|request| self.tell_end(&request.submission, Some(&request.in_flight), None));
            let not_begun = self.waiting.values().map(|waiting| &waiting.submission).chain(&late);
            not_begun.for_each(|submission| self.tell_end(submission, None, None));
            let running = std::mem::take(&mut self.running).into_values().map(|request| request.submission);
            let waiting = std::mem::take(&mut self.waiting).into_values().map(|waiting| waiting.submission);
            self.reads.fail(&RequestFailure::Group(refusal.clone()));
            self.count();
            for mut submission in running.chain(waiting).chain(late) {
                // Departed clients do not matter any more.
                let _ = submission.sink.take(Update::Failed(RequestFailure::Group(refusal.clone())));
            }
        }
        ended
    }

    fn conduct(&mut self) -> Result<()> {
        loop {
            self.take_in(None)?;
            self.serve_reads(None)?;
            self.count();
            let (next, placed) = self.next();
            let occupation = match &next {
                Next::Prefill(_) => Occupation::Prefill,
                Next::Decode(_) => Occupation::Decode,
                Next::Release(_) | Next::Nothing => Occupation::Other,
            };
            match next {
                Next::Release(requests) => self.release(requests)?,
                Next::Prefill(request) => match placed {
                    Some((queued, Ok(()))) => self.begin(request, queued)?,
                    Some((_, Err(error))) => self.refuse(request, &error),
                    None => return Err(Error::Protocol(format!("request {request} waits and was not handed in"))),
                },
                Next::Decode(requests) => self.step(requests)?,
                Next::Nothing if self.can_serve_reads() => {}
                Next::Nothing if !self.open => return Ok(()),
                Next::Nothing => self.wait()?,
            }
            self.spent(occupation);
        }
    }

    /// The next order. For a prefill also its request's waiting time and the result of its
    /// placement. Placement is done now: the places of its chunks and the free memory change with
    /// every order.
    fn next(&mut self) -> (Next, Option<(Duration, Result<()>)>) {
        let now = self.began.elapsed();
        let Self { scheduler, planner, waiting, conversations, group, .. } = self;
        let (taken, owner, busy) = (scheduler.taken(), scheduler.owner(), scheduler.running() > 0);
        let (alone, kept) = (scheduler.is_alone(), scheduler.kept_reservations());
        let nothing = || Some(Reservation::nothing(group.world));
        let mut made = None;
        let next = scheduler.next(now, &planner.room(*group), |request| {
            let Some(Waiting { submission, draft, later }) = waiting.get_mut(&request) else { return nothing() };
            let queued = submission.clock.elapsed().saturating_sub(submission.prepared_after);
            let group = GroupShape { world: submission.settings.world, ..*group };
            let mut placed = planner.place_beside(request, draft, Some(owner), group, &taken);
            *later = conversations.going_on(draft, &submission.prepared);
            let (draft, its) = match later {
                Some(later) => {
                    placed = later.place(
                        |draft, taken| planner.place_beside(request, draft, None, group, taken),
                        &taken,
                        &kept,
                    );
                    (&mut later.draft, later.replaces.then(|| &kept[&later.from]))
                }
                None => (draft, None),
            };
            if !busy {
                // No sequence can come into decoding before its prefill has ended.
                draft.slice(Slices::default());
            }
            let takes = match &placed {
                Ok(()) => {
                    let all = planner.reservation(draft.plan(), group.world);
                    Some(its.map_or(all.clone(), |replaced| all.beside(replaced)))
                }
                // Memory comes free after a running request ends, or a kept sequence makes way.
                Err(tributary_planner::Error::Memory { .. }) if !alone => return None,
                Err(_) => nothing(),
            };
            made = Some((queued, placed.map_err(Error::from)));
            takes
        });
        (next, made)
    }

    /// Takes new requests, and carries out clients' cancellations and ends; those of a request
    /// whose prefill is in progress wait for its end.
    fn take_in(&mut self, prefilling: Option<u64>) -> Result<()> {
        // Instructions first: their requests have been submitted before, and are taken in below.
        let wishes = self.inbox.counts.take_wishes(prefilling);
        while self.open {
            match self.inbox.errands.try_recv() {
                Ok(Errand::Request(submission)) => self.submit(*submission),
                Ok(Errand::Read(read)) => self.reads.add(read),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => self.open = false,
            }
        }
        // A queue handle whose owner has left keeps the conductor no longer.
        self.open &= !self.inbox.counts.tally.is_left();
        for wish in wishes {
            match wish {
                Wish::Cancel(request) => self.forget(request, None),
                Wish::End(request) => self.close(request)?,
            }
        }
        Ok(())
    }

    /// Waits for a client, and checks that the ranks are alive.
    fn wait(&mut self) -> Result<()> {
        let errand = self.inbox.errands.recv_timeout(LOOK);
        self.spent(Occupation::Idle);
        match errand {
            Ok(Errand::Request(submission)) => self.submit(*submission),
            Ok(Errand::Read(read)) => self.reads.add(read),
            Err(RecvTimeoutError::Disconnected) => self.open = false,
            Err(RecvTimeoutError::Timeout) => {}
        }
        match dispatch::next_within(self.link, Duration::ZERO)? {
            None => Ok(()),
            Some(event) => Err(dispatch::unexpected(&event, "nothing")),
        }
    }

    fn submit(&mut self, mut submission: Submission) {
        self.inbox.counts.tally.taken();
        // A request that cannot run even alone is refused at once.
        let Submission { prepared, settings, .. } = &submission;
        let draft = self.draft(submission.work, prepared, settings);
        let failure = match draft.map(|draft| (self.arrival(&submission, &draft), draft)) {
            Err(error) => RequestFailure::Refused(Refusal { exit_code: error.exit_code(), cause: error.to_string() }),
            Ok((arrival, _)) if !self.scheduler.submit(arrival) => {
                RequestFailure::Busy { waiting: self.scheduler.waiting() }
            }
            Ok((_, draft)) => {
                self.waiting.insert(submission.request, Waiting { submission, draft, later: None });
                return;
            }
        };
        self.tell_end(&submission, None, None);
        submission.waits = None;
        // A departed client need not be notified.
        let _ = submission.sink.take(Update::Failed(failure));
    }

    /// A request as the scheduler takes it. Its work follows from what is cached now, and its
    /// conversation makes way after others.
    fn arrival(&mut self, submission: &Submission, draft: &Draft) -> Arrival {
        let Submission { request, clock, prepared_after, prepared, settings, waits, .. } = submission;
        let (submitted, tokens) = (clock.accepted() + *prepared_after, prepared.token_count());
        let group = GroupShape { world: settings.world, ..self.group };
        let reads_work = self.scheduler.policy().reads_work();
        let later = self.conversations.going_on(draft, prepared);
        later.iter().for_each(|later| self.scheduler.uses(later.from));
        let work = match later.as_ref().and_then(|later| later.draft.plan().rows_after_kept()) {
            Some(rows) => rows.len(),
            None if reads_work => self.planner.rows_to_compute(draft, group),
            None => tokens,
        };
        Arrival {
            request: *request,
            asker: waits.as_ref().map_or(0, Waits::asker),
            tokens: tokens as u64,
            work: work as u64,
            at: submitted.saturating_duration_since(self.began),
            is_held: submission.work == Work::HandOver,
        }
    }

    fn draft(&self, work: Work, prepared: &Prepared, settings: &RequestSettings) -> Result<Draft> {
        let threads = self.group.threads;
        Ok(match work {
            Work::Answer => self.planner.draft(self.readers.tokens(prepared, settings)?, settings, threads)?,
            Work::Test => {
                let settings = RequestSettings { conversation: Conversation::Off, ..settings.clone() };
                self.planner.draft(self.readers.tokens(prepared, &settings)?, &settings, threads)?
            }
            Work::HandOver => {
                let settings = settings.for_hand_over();
                self.planner.draft(self.readers.tokens(prepared, &settings)?, &settings, threads)?
            }
            Work::Chunks => {
                self.planner.draft_chunks(self.readers.chunk_tokens(prepared, settings)?, settings, threads)?
            }
        })
    }

    /// Sends the first order of a request whose turn has come, and processes its events to the end
    /// of the prefill.
    fn begin(&mut self, request: u64, queued: Duration) -> Result<()> {
        let Some(Waiting { mut submission, draft, later }) = self.waiting.remove(&request) else {
            return Err(Error::Protocol(format!("request {request} was prefilled before")));
        };
        submission.waits = None;
        match &later {
            Some(Later { from, replaces: true, .. }) => self.scheduler.drop_kept(&[*from]),
            Some(Later { from, .. }) => self.scheduler.uses(*from),
            None => {}
        }
        let planned = later.map_or(draft, |later| later.draft).planned();
        if let Some(note) = self.planner.foretold(&planned) {
            self.inbox.counts.observed.warn(&format!("request {request}: {note}"));
            submission.prepared.notes.push(note);
        }
        let (plan, work) = (Arc::clone(&planned.plan), submission.work);
        if work == Work::HandOver {
            // A client that is gone does not take the first token either.
            let _ = submission.sink.take(Update::Begun(Box::new(planned.clone())));
        }
        let in_flight = InFlight::new(&plan, submission.clock, queued);
        self.running.insert(request, Request { submission, planned, in_flight, token_at: Instant::now() });
        self.scheduler.prefills(self.planner.peak(&plan, self.group));
        // Before the order: a request counts as waiting until the ranks begin it.
        self.count();
        self.link.send(match work {
            Work::Answer | Work::Test | Work::HandOver => Order::Prefill(plan),
            Work::Chunks => Order::Chunks(plan),
        })?;
        // A cancellation just before the order was sent could not reach the request there.
        if self.inbox.counts.is_cancelled(request) {
            self.link.signals().cancel(request);
        }
        let began = Instant::now();
        self.pace.begins();
        let done = match work {
            Work::Answer | Work::Test | Work::HandOver => self.prefill(request),
            Work::Chunks => self.keep(request, queued),
        };
        self.inbox.counts.tally.took(began.elapsed().as_secs_f64());
        done
    }

    fn prefill(&mut self, request: u64) -> Result<()> {
        let mut not_taken = None;
        loop {
            match self.next_of_prefill(request)? {
                Event::FirstToken { request: number, drawn } if number == request => {
                    let running = self.running.get_mut(&request).expect("it was put there");
                    running.in_flight.first_token(&drawn)?;
                    let ttft = running.in_flight.ttft().expect("the first token has just come");
                    running.token_at = Instant::now();
                    if let Err(why) = running.submission.sink.take(Update::FirstToken(drawn, ttft)) {
                        // Steps after the first token need not be completed.
                        not_taken = Some(why);
                        self.link.signals().cancel(request);
                    }
                }
                Event::Prefilled { request: number, outcome, reports } if number == request => {
                    self.note(request, &reports);
                    let running = self.running.get_mut(&request).expect("it was put there");
                    running.in_flight.prefilled(outcome, reports)?;
                    if running.in_flight.goes_on() || running.planned.plan.keep_sequence {
                        self.scheduler
                            .runs(request, self.planner.reservation(&running.planned.plan, running.planned.world));
                    }
                    return self.close_if_over(request);
                }
                Event::Cancelled { request: number, reports } if number == request => {
                    self.cancelled(request, not_taken, &reports);
                    return Ok(());
                }
                Event::Refused { request: number, refusal, traffic } if number == request => {
                    let moved = traffic.iter().enumerate();
                    self.inbox.counts.observed.tell(|observer| {
                        moved.for_each(|(rank, traffic)| observer.moved(rank, traffic));
                    });
                    self.refuse(request, &Error::Refused(refusal));
                    return Ok(());
                }
                other => return Err(dispatch::unexpected(&other, "the end of a prefill")),
            }
        }
    }

    fn step(&mut self, requests: Vec<u64>) -> Result<()> {
        let began = Instant::now();
        self.link.send(Order::Decode(requests.clone()))?;
        let (tokens, reports) = match dispatch::next(self.link)? {
            Event::Stepped { tokens, reports } => (tokens, reports),
            other => return Err(dispatch::unexpected(&other, "a step of decoding")),
        };
        if !tokens.iter().map(|(request, _)| request).eq(&requests) {
            return Err(Error::Protocol("a step names other sequences than its order".into()));
        }
        self.pace.stepped(began.elapsed());
        self.tell_step(&tokens, &reports);
        let sequences = tokens.len();
        for (index, (request, drawn)) in tokens.into_iter().enumerate() {
            match (drawn, self.running.get_mut(&request)) {
                (Ok(drawn), Some(running)) => {
                    running.in_flight.next_token(&drawn, &reports, (index, sequences));
                    match running.submission.sink.take(Update::Token(drawn)) {
                        Ok(()) => self.close_if_over(request)?,
                        Err(why) => self.forget(request, Some(why)),
                    }
                }
                (Err(refusal), Some(_)) => self.refuse(request, &Error::Refused(refusal)),
                (_, None) => self.scheduler.over(request),
            }
        }
        Ok(())
    }

    /// Notifies the observer of a step, before a client receives its token.
    fn tell_step(&mut self, tokens: &[(u64, std::result::Result<DrawnToken, Refusal>)], reports: &[StepReport]) {
        let (now, mut gaps) = (Instant::now(), Vec::with_capacity(tokens.len()));
        let mut is_anybodys = false;
        for (request, drawn) in tokens {
            if let (Ok(_), Some(running)) = (drawn, self.running.get_mut(request)) {
                let gap = now.saturating_duration_since(std::mem::replace(&mut running.token_at, now));
                let is_asked = running.submission.work != Work::Test;
                gaps.extend(is_asked.then_some(gap));
                is_anybodys |= is_asked;
            }
        }
        self.inbox.counts.observed.tell(|observer| {
            reports.iter().for_each(|report| observer.moved(report.rank, &report.traffic));
            if is_anybodys {
                observer.stepped(reports, &gaps);
            }
        });
    }

    /// Delivers the answer if the last token has arrived.
    fn close_if_over(&mut self, request: u64) -> Result<()> {
        if self.running.get(&request).is_none_or(|running| running.in_flight.goes_on()) {
            return Ok(());
        }
        self.close(request)
    }

    /// Delivers the present part of an answer; a request that is not in decoding is skipped.
    fn close(&mut self, request: u64) -> Result<()> {
        let Some(Request { mut submission, planned, in_flight, .. }) = self.running.remove(&request) else {
            return Ok(());
        };
        match submission.work {
            Work::HandOver => self.scheduler.hold(request),
            _ => self.keep_sequence(&planned, &submission.prepared, in_flight.tokens()),
        }
        self.count();
        let (prompt_tokens, generated_tokens) = (submission.prepared.token_count(), in_flight.token_count());
        let (prepared, answer) = (std::mem::take(&mut submission.prepared), in_flight.answer()?);
        let (method, ttft, total) = (submission.settings.method.name, Some(answer.ttft), answer.total);
        let work = submission.work;
        if let Err(why) = submission.sink.take(Update::Done(Box::new(Done { prepared, planned, answer }))) {
            if work == Work::HandOver {
                self.scheduler.over(request);
            }
            let stage = Some(stage(generated_tokens, Some(why)));
            let ended = Ended { request, method, stage, ttft, total, prompt_tokens, generated_tokens };
            self.inbox.counts.observed.tell(|observer| observer.ended(&ended));
        }
        Ok(())
    }

    /// Keeps the sequence of an answered request for later ones, if it is to stay, in place of
    /// those of earlier turns.
    fn keep_sequence(&mut self, planned: &Planned, prepared: &Prepared, answer: &[u32]) {
        let request = planned.plan.request;
        if !planned.plan.keep_sequence {
            return self.scheduler.over(request);
        }
        if self.scheduler.keep(request) {
            let earlier = self.conversations.add(planned.clone(), prepared, answer);
            self.scheduler.drop_kept(&earlier);
        }
    }

    fn release(&mut self, requests: Vec<u64>) -> Result<()> {
        self.conversations.forget(&requests);
        dispatch::release(self.link, requests)?;
        self.scheduler.released();
        Ok(())
    }
}
