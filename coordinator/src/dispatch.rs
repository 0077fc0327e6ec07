//! Sends a plan to the workers and waits for what comes back. The clock of the time to first token runs here.

use std::time::{Duration, Instant};

use tributary_comm::CoordinatorLink;
use tributary_protocol::{Event, Outcome, Plan, RankReport};

use crate::{Error, Result};

/// How often the coordinator looks up while it waits. It sets no deadline of its own: the ranks' group ends when a rank is
/// silent or stuck, and says so at the other end of the link, or takes this process with it.
const LOOK: Duration = Duration::from_secs(1);

/// Starts when a request is accepted, before anything is done for it.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    accepted: Instant,
}

/// What came back, and when.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// From the request's acceptance to the plan ready to be sent: tokenisation, chunks, plan.
    pub tokenize: Duration,
    /// From the request's acceptance to the first token in the coordinator's hands.
    pub ttft: Duration,
    /// From the request's acceptance to the last report.
    pub total: Duration,
    /// What came out.
    pub outcome: Outcome,
    /// One report a rank, in rank order.
    pub reports: Vec<RankReport>,
}

impl Clock {
    /// Starts: call it when the request is accepted.
    pub fn start() -> Self {
        Self { accepted: Instant::now() }
    }

    /// Time since the request was accepted.
    pub fn elapsed(&self) -> Duration {
        self.accepted.elapsed()
    }
}

/// Runs a plan on the workers at the other end of the link. Calls `on_first_token` as soon as the first token is here.
///
/// # Errors
/// [`Error::Failed`] with the first cause if a rank failed, [`Error::Link`] if the workers are gone, [`Error::Protocol`] if
/// their events make no sense. After an error the link must not be used again.
pub fn run(link: &CoordinatorLink, plan: &Plan, clock: &Clock, on_first_token: &mut dyn FnMut(u32)) -> Result<Answer> {
    // Before the plan is gone: a rank may begin with it before this thread runs again, and no time may count twice.
    let tokenize = clock.elapsed();
    link.send(plan)?;
    let first_token = match next(link, plan)? {
        Event::FirstToken { token, .. } => token,
        other => return Err(unexpected(&other, "the first token")),
    };
    let ttft = clock.elapsed();
    on_first_token(first_token);
    let (outcome, reports) = match next(link, plan)? {
        Event::Done { outcome, reports, .. } => (outcome, reports),
        other => return Err(unexpected(&other, "the answer")),
    };
    let total = clock.elapsed();
    if outcome.tokens.first() != Some(&first_token) {
        let found = outcome.tokens.first();
        return Err(Error::Protocol(format!("first token {first_token}, the answer begins with {found:?}")));
    }
    let drew = reports.iter().filter(|report| report.drew_first_token).count();
    if drew != 1 {
        return Err(Error::Protocol(format!("{drew} ranks say that they drew the first token")));
    }
    Ok(Answer { tokenize, ttft, total, outcome, reports })
}

/// The next event of this request. Events of earlier ones are passed over.
fn next(link: &CoordinatorLink, plan: &Plan) -> Result<Event> {
    loop {
        match link.next(LOOK)? {
            None => {}
            Some(Event::Failed { rank, exit_code, cause, .. }) => {
                return Err(Error::Failed { rank, exit_code, cause });
            }
            Some(event) if request_of(&event) == plan.request => return Ok(event),
            Some(event) if request_of(&event) > plan.request => {
                return Err(Error::Protocol(format!("an event of request {}", request_of(&event))));
            }
            Some(_) => {}
        }
    }
}

fn request_of(event: &Event) -> u64 {
    match event {
        Event::FirstToken { request, .. } | Event::Done { request, .. } | Event::Failed { request, .. } => *request,
    }
}

fn unexpected(event: &Event, wanted: &str) -> Error {
    let found = match event {
        Event::FirstToken { .. } => "a first token",
        Event::Done { .. } => "an answer",
        Event::Failed { .. } => "a failure",
    };
    Error::Protocol(format!("{found} came where {wanted} was due"))
}

#[cfg(test)]
mod tests {
    use tributary_comm::{WorkerLink, link};

    use super::*;
    use crate::{Cached, Machine, MemoryOf, PlanInput, Settings, plan, shape::tests::DEMO};

    fn a_plan() -> Plan {
        let settings = Settings::default();
        let input = PlanInput {
            request: 5,
            prefix: &[1],
            chunks: &[vec![3; 4]],
            cached: Cached::default(),
            query: &[4],
            eos: &[2],
        };
        let machine = Machine {
            flops_per_s: 1e12,
            link_bytes_per_s: 1e9,
            memory: MemoryOf::Host,
            available_bytes: None,
            ranks_here: usize::MAX,
            weight_copies: 1,
            of_rank: None,
        };
        plan(&input, &settings, &DEMO, &machine).unwrap().plan
    }

    /// Runs a plan with a worker that sends these events, each after a pause.
    fn with_events(events: &[(u64, Event)]) -> (Result<Answer>, Vec<u32>) {
        let (coordinator, worker) = link(4);
        std::thread::scope(|scope| {
            scope.spawn(move || serve(&worker, events));
            let mut first_tokens = Vec::new();
            let clock = Clock::start();
            let mut on_first_token = |token| first_tokens.push(token);
            let answer = run(&coordinator, &a_plan(), &clock, &mut on_first_token);
            drop(coordinator);
            (answer, first_tokens)
        })
    }

    fn serve(worker: &WorkerLink, events: &[(u64, Event)]) {
        let received = worker.next(Duration::from_secs(5)).unwrap();
        assert_eq!(received, Some(a_plan()));
        for (pause_ms, event) in events {
            std::thread::sleep(Duration::from_millis(*pause_ms));
            worker.send(event).unwrap();
        }
        // Stays until the coordinator is gone, as a worker does.
        while worker.next(Duration::from_millis(10)).is_ok() {}
    }

    fn first(request: u64, token: u32) -> Event {
        Event::FirstToken { request, token }
    }

    fn done(tokens: &[u32], drew: usize) -> Event {
        let outcome = Outcome { tokens: tokens.to_vec(), ..Outcome::default() };
        let reports =
            (0..2).map(|rank| RankReport { rank, drew_first_token: rank < drew, ..RankReport::default() }).collect();
        Event::Done { request: 5, outcome, reports }
    }

    #[test]
    fn the_first_token_stops_the_clock() {
        let events = [(20, first(5, 9)), (200, done(&[9, 2], 1))];
        let (answer, first_tokens) = with_events(&events);
        let answer = answer.unwrap();
        assert_eq!(first_tokens, [9]);
        assert_eq!(answer.outcome.tokens, [9, 2]);
        let ms = Duration::from_millis;
        assert!(answer.tokenize < answer.ttft);
        assert!(answer.ttft >= ms(20), "{answer:?}");
        assert!(answer.total >= answer.ttft + ms(100), "{answer:?}");
    }

    #[test]
    fn events_of_earlier_requests_are_passed_over() {
        let events = [(0, first(4, 8)), (0, first(5, 9)), (0, done(&[9], 1))];
        assert_eq!(with_events(&events).1, [9]);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let cases = [
            vec![(0, first(6, 8))],
            vec![(0, done(&[9], 1))],
            vec![(0, first(5, 9)), (0, first(5, 9))],
            vec![(0, first(5, 9)), (0, done(&[8], 1))],
            vec![(0, first(5, 9)), (0, done(&[], 1))],
            vec![(0, first(5, 9)), (0, done(&[9], 0))],
            vec![(0, first(5, 9)), (0, done(&[9], 2))],
        ];
        for events in cases {
            let error = with_events(&events).0.unwrap_err();
            assert!(matches!(error, Error::Protocol(_)), "{events:?}: {error}");
        }
    }

    #[test]
    fn a_failure_carries_its_cause_and_exit_code() {
        let failed = Event::Failed { request: 5, rank: 3, exit_code: 71, cause: "no memory".into() };
        for events in [vec![(0, failed.clone())], vec![(0, first(5, 9)), (0, failed)]] {
            let error = with_events(&events).0.unwrap_err();
            assert_eq!(error.to_string(), "rank 3 failed: no memory");
            assert_eq!(error.exit_code(), 71);
        }
    }

    #[test]
    fn slow_is_not_dead() {
        let slow = LOOK.as_millis() as u64 + 200;
        let (answer, first_tokens) = with_events(&[(slow, first(5, 9)), (0, done(&[9], 1))]);
        assert!(answer.unwrap().ttft > LOOK, "the coordinator has looked up in between");
        assert_eq!(first_tokens, [9]);
    }

    #[test]
    fn workers_that_are_gone_are_an_error() {
        let (coordinator, worker) = link(1);
        drop(worker);
        let error = run(&coordinator, &a_plan(), &Clock::start(), &mut |_| {}).unwrap_err();
        assert_eq!(error.exit_code(), 69);
    }
}
