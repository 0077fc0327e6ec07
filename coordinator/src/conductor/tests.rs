//! Clients, a conductor, and ranks that answer orders by rule: a request's tokens are its number times 10, and so on upwards.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};

use tributary_comm::{CoordinatorLink, WorkerLink, link};
use tributary_protocol::{Collective, Drawn, KeySpace, Outcome, StepReport, Traffic, exit};

use super::*;
use crate::dispatch::Clock;
use crate::intake::Prepared;
use crate::machine::{Machine, MemoryOf};
use crate::plan::Settings;
use crate::planner::{Started, Survey};
use crate::shape::tests::DEMO;
use crate::tokenize::Piece;

const WORLD: usize = 2;
const GROUP: GroupShape = GroupShape { world: WORLD, threads: 1 };
const PATIENCE: Duration = Duration::from_secs(10);
/// The token that ends an answer.
const END: u32 = 2;

fn planner(available_bytes: Option<u64>) -> Planner {
    let mut planner = Planner::new(DEMO, vec![END], Some(0), false);
    let machine = Machine {
        flops_per_s: 1e12,
        link_bytes_per_s: 1e9,
        memory: MemoryOf::Host,
        available_bytes,
        ranks_here: WORLD,
        weight_copies: 1,
        of_rank: None,
    };
    planner.survey(GROUP, Survey { machine, memories: 1 });
    let space = KeySpace::new([0; 32], "f32");
    planner.started(GROUP, Started { space, chunk_cache_bytes: 0, message_bytes: 0, narrowest: None });
    planner
}

/// What ranks were told, and how they answer.
#[derive(Default)]
struct Ranks {
    orders: Mutex<Vec<Order>>,
    /// Requests that are refused, and the step of decoding in which the group fails.
    refuses: Option<u64>,
    fails_at_step: Option<usize>,
    /// The first step of decoding is carried out when the other end of this has gone.
    held: Mutex<Option<Receiver<()>>>,
}

impl Ranks {
    /// Ranks that are held until what this gives beside them is dropped: what a test does before that comes before the first step
    /// of decoding has ended.
    fn held(self) -> (Self, SyncSender<()>) {
        let (hold, held) = sync_channel(0);
        (Self { held: Mutex::new(Some(held)), ..self }, hold)
    }

    fn serve(&self, worker: &WorkerLink) {
        let mut newest: BTreeMap<u64, u32> = BTreeMap::new();
        let mut steps = 0;
        while let Ok(order) = worker.next(Duration::from_millis(5)) {
            let Some(order) = order else { continue };
            self.orders.lock().unwrap().push(order.clone());
            let event = match order {
                Order::Prefill(plan) if self.refuses == Some(plan.request) => {
                    let refusal = Refusal { exit_code: 65, cause: "the logits hold NaN".into() };
                    Event::Refused { request: plan.request, refusal, traffic: vec![sent(1000), sent(2000)] }
                }
                Order::Prefill(plan) => {
                    let first = 10 * plan.request as u32;
                    newest.insert(plan.request, first);
                    worker.send(Event::FirstToken { request: plan.request, drawn: drawn(first) }).unwrap();
                    let reports = (0..WORLD).map(|rank| RankReport {
                        rank,
                        drew_first_token: rank == plan.owner,
                        traffic: sent(10),
                        decode_traffic: sent(5),
                        ..RankReport::default()
                    });
                    let outcome = Outcome { tokens: vec![first], margins: vec![0.5], ..Outcome::default() };
                    Event::Prefilled { request: plan.request, outcome, reports: reports.collect() }
                }
                Order::Decode(requests) => {
                    steps += 1;
                    if let Some(held) = self.held.lock().unwrap().take() {
                        assert_eq!(held.recv_timeout(PATIENCE), Err(RecvTimeoutError::Disconnected), "let go in time");
                    }
                    if self.fails_at_step == Some(steps) {
                        let _ = worker.send(Event::Failed { request: 0, rank: 1, exit_code: 69, cause: "gone".into() });
                        return;
                    }
                    let mut next = |request: u64| {
                        let token = newest.get_mut(&request).expect("it runs");
                        *token += 1;
                        (request, Ok(drawn(*token)))
                    };
                    let tokens = requests.into_iter().map(&mut next).collect();
                    let reports = (0..WORLD)
                        .map(|rank| StepReport { rank, traffic: sent(rank as u64), ..StepReport::default() })
                        .collect();
                    Event::Stepped { tokens, reports }
                }
                Order::Release(requests) => {
                    newest.retain(|request, _| !requests.contains(request));
                    Event::Released { running: vec![newest.len(); WORLD] }
                }
                other => panic!("{other:?}"),
            };
            worker.send(event).unwrap();
        }
    }

    fn orders(&self) -> Vec<String> {
        let name = |order: &Order| match order {
            Order::Prefill(plan) => format!("P{}", plan.request),
            Order::Decode(requests) => format!("D{requests:?}"),
            Order::Release(requests) => format!("R{requests:?}"),
            other => panic!("{other:?}"),
        };
        self.orders.lock().unwrap().iter().map(name).collect()
    }
}

fn sent(bytes: u64) -> Traffic {
    let mut traffic = Traffic::default();
    traffic.count(Collective::AllGather, bytes, 0);
    traffic
}

fn drawn(token: u32) -> Drawn {
    Drawn { token, margin: 0.5 }
}

/// Runs clients against a conductor; how it ended.
fn with_conductor(
    ranks: &Ranks,
    planner: &mut Planner,
    limits: Limits,
    clients: impl FnOnce(Desk) + Send,
) -> Result<()> {
    let (coordinator, worker): (CoordinatorLink, WorkerLink) = link(4);
    let (desk, inbox) = desk();
    std::thread::scope(|scope| {
        scope.spawn(|| ranks.serve(&{ worker }));
        scope.spawn(move || clients(desk));
        let ended = Conductor::new(&coordinator, planner, GROUP, limits, inbox).run();
        drop(coordinator);
        ended
    })
}

fn prepared(context: usize) -> Prepared {
    let piece = Piece { ids: vec![3; context], ..Piece::default() };
    Prepared { prefix: vec![1], chunks: vec![piece.clone(), piece], query: vec![4, 5], notes: Vec::new() }
}

fn settings(max_tokens: usize) -> Settings {
    Settings { world: WORLD, max_tokens, ..Settings::default() }
}

/// Hands a request in; its number and its updates.
fn submit(desk: &Desk, context: usize, max_tokens: usize, buffered: usize) -> (u64, Receiver<Update>) {
    let (sink, updates) = sync_channel(buffered);
    let request = desk.submit(prepared(context), settings(max_tokens), Clock::start(), Box::new(sink));
    (request.expect("it is taken"), updates)
}

/// All tokens of a request, as they came and as the answer has them; or why it failed.
fn tokens(updates: &Receiver<Update>) -> std::result::Result<(Vec<u32>, Vec<u32>), Failure> {
    let mut streamed = Vec::new();
    loop {
        match updates.recv_timeout(PATIENCE).expect("an update in time") {
            Update::FirstToken(drawn, ttft) => {
                assert!(streamed.is_empty() && ttft > Duration::ZERO);
                streamed.push(drawn.token);
            }
            Update::Token(drawn) => streamed.push(drawn.token),
            Update::Done(done) => return Ok((streamed, done.answer.outcome.tokens)),
            Update::Failed(failure) => return Err(failure),
        }
    }
}

#[test]
fn every_client_gets_its_own_tokens() {
    let ranks = Ranks::default();
    let ended = with_conductor(&ranks, &mut planner(None), Limits::default(), |desk| {
        let all: Vec<_> = (1..=5).map(|index| (index, submit(&desk, 8, index, 64))).collect();
        for (count, (request, updates)) in all {
            let expected: Vec<u32> = (0..count as u32).map(|index| 10 * request as u32 + index).collect();
            assert_eq!(tokens(&updates), Ok((expected.clone(), expected)));
        }
    });
    assert!(ended.is_ok(), "{ended:?}");
    let orders = ranks.orders();
    assert_eq!(orders.iter().filter(|order| order.starts_with('P')).count(), 5, "{orders:?}");
    let decoding = orders.iter().position(|order| order.starts_with('D')).expect("decoding");
    let later = orders[decoding..].windows(2).all(|pair| !(pair[0].starts_with('P') && pair[1].starts_with('P')));
    assert!(later, "a step of decoding between two prefills: {orders:?}");
}

#[test]
fn whoever_leaves_is_let_go_and_the_others_go_on() {
    let ranks = Ranks::default();
    let ended = with_conductor(&ranks, &mut planner(None), Limits::default(), |desk| {
        let (_, reader) = submit(&desk, 8, 200, 512);
        let (_, gone) = submit(&desk, 8, 200, 512);
        drop(gone);
        let (_, slow) = submit(&desk, 8, 200, 3);
        let (cancelled, updates) = submit(&desk, 8, 2000, 4096);
        assert!(matches!(updates.recv_timeout(PATIENCE), Ok(Update::FirstToken(..))));
        desk.cancel(cancelled);
        desk.cancel(cancelled + 100);
        assert_eq!(tokens(&reader).map(|(streamed, _)| streamed.len()), Ok(200));
        assert_eq!(slow.iter().count(), 3, "a reader that is too slow is cut");
        assert!(updates.iter().count() < 2000, "a cancelled request ends");
    });
    assert!(ended.is_ok(), "{ended:?}");
}

/// Looks how many wait and run when an update comes.
struct Looks(Desk, SyncSender<(usize, usize)>);

impl Sink for Looks {
    fn take(&mut self, _: Update) -> std::result::Result<(), NotTaken> {
        self.1.try_send((self.0.waiting(), self.0.running())).map_err(|_| NotTaken::Full)
    }
}

#[test]
fn who_has_an_answer_runs_no_more() {
    let ranks = Ranks::default();
    let ended = with_conductor(&ranks, &mut planner(None), Limits::default(), |desk| {
        let (tell, seen) = sync_channel(64);
        let looks = Box::new(Looks(desk.clone(), tell));
        desk.submit(prepared(8), settings(3), Clock::start(), looks).expect("it is taken");
        let seen: Vec<(usize, usize)> = seen.iter().collect();
        assert_eq!(seen, [(0, 1), (0, 1), (0, 1), (0, 0)], "while it is prefilled it runs, with its answer it is gone");
    });
    assert!(ended.is_ok(), "{ended:?}");
}

#[test]
fn what_cannot_be_answered_is_told_and_nothing_else_suffers() {
    let ranks = Ranks { refuses: Some(2), ..Ranks::default() };
    let needed = {
        let planner = planner(None);
        planner.check(&prepared(8), &settings(4), 1, None).expect("a plan").memory_bytes
    };
    let limits = Limits { max_waiting: 1, ..Limits::default() };
    let ended = with_conductor(&ranks, &mut planner(Some(needed + 1000)), limits, |desk| {
        let (_, large) = submit(&desk, 500, 4, 64);
        match tokens(&large) {
            Err(Failure::Refused(refusal)) => {
                assert_eq!(refusal.exit_code, exit::OUT_OF_MEMORY);
                assert!(refusal.cause.contains("the request needs about"), "{}", refusal.cause);
            }
            other => panic!("{other:?}"),
        }
        let (number, refused) = submit(&desk, 8, 4, 64);
        assert_eq!(number, 2);
        assert_eq!(tokens(&refused).expect_err("refused").to_string(), "the logits hold NaN");
        let (_, good) = submit(&desk, 8, 4, 64);
        assert_eq!(tokens(&good).map(|(streamed, _)| streamed), Ok(vec![30, 31, 32, 33]));
    });
    assert!(ended.is_ok(), "{ended:?}");
}

#[test]
fn what_does_not_fit_now_waits_until_it_does() {
    let ranks = Ranks::default();
    let alone = planner(None).check(&prepared(8), &settings(50), 1, None).expect("a plan").memory_bytes;
    let ended = with_conductor(&ranks, &mut planner(Some(alone)), Limits::default(), |desk| {
        let all: Vec<_> = (0..3).map(|_| submit(&desk, 8, 50, 64).1).collect();
        all.iter().for_each(|updates| assert_eq!(tokens(updates).map(|(streamed, _)| streamed.len()), Ok(50)));
    });
    assert!(ended.is_ok(), "{ended:?}");
    let decoded: Vec<String> = ranks.orders().into_iter().filter(|order| order.starts_with('D')).collect();
    assert!(decoded.iter().all(|order| !order.contains(',')), "one at a time: {decoded:?}");
}

#[test]
fn too_many_are_turned_away() {
    let ranks = Ranks::default();
    let limits = Limits { max_waiting: 2, max_running: 1, ..Limits::default() };
    let ended = with_conductor(&ranks, &mut planner(None), limits, |desk| {
        let (_, first) = submit(&desk, 8, 500, 1024);
        assert!(matches!(first.recv_timeout(PATIENCE), Ok(Update::FirstToken(..))));
        let others: Vec<_> = (0..6).map(|_| submit(&desk, 8, 2, 64).1).collect();
        let outcomes: Vec<_> = others.iter().map(tokens).collect();
        let turned_away =
            outcomes.iter().filter(|outcome| matches!(outcome, Err(Failure::Busy { waiting: 2 }))).count();
        assert_eq!((turned_away, outcomes.iter().filter(|outcome| outcome.is_ok()).count()), (4, 2), "{outcomes:?}");
    });
    assert!(ended.is_ok(), "{ended:?}");
}

#[test]
fn the_groups_failure_is_everybodys() {
    let ranks = Ranks { fails_at_step: Some(3), ..Ranks::default() };
    let told = Arc::new(Mutex::new(Vec::new()));
    let tell = Arc::clone(&told);
    let ended = with_conductor(&ranks, &mut planner(None), Limits::default(), move |desk| {
        let all: Vec<_> = (0..2).map(|_| submit(&desk, 8, 50, 64).1).collect();
        let failures: Vec<_> = all.iter().map(|updates| tokens(updates).expect_err("the group is gone")).collect();
        *tell.lock().unwrap() = failures;
        // Nobody takes requests any more.
        while desk.submit(prepared(8), settings(2), Clock::start(), Box::new(sync_channel(4).0)) != Err(Failure::Closed)
        {
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    let error = ended.expect_err("the group has failed");
    assert_eq!((error.exit_code(), error.to_string().as_str()), (69, "rank 1 failed: gone"));
    let told = told.lock().unwrap();
    assert_eq!(told.len(), 2);
    assert!(told.iter().all(|failure| matches!(failure, Failure::Group(refusal) if refusal.exit_code == 69)));
}

#[test]
fn the_groups_failure_is_that_of_requests_on_their_way_too() {
    let (ranks, hold) = Ranks { fails_at_step: Some(1), ..Ranks::default() }.held();
    let ended = with_conductor(&ranks, &mut planner(None), Limits::default(), move |desk| {
        let (_, runs) = submit(&desk, 8, 50, 64);
        assert!(matches!(runs.recv_timeout(PATIENCE), Ok(Update::FirstToken(..))));
        assert!(!desk.is_closed());
        // The conductor waits for the ranks: it takes this in no more.
        let (_, late) = submit(&desk, 8, 50, 64);
        drop(hold);
        for updates in [runs, late] {
            let failure = tokens(&updates).expect_err("the group is gone");
            assert!(matches!(&failure, Failure::Group(refusal) if refusal.exit_code == 69), "{failure:?}");
        }
        assert!(desk.is_closed(), "known before clients are told");
        assert_eq!((desk.waiting(), desk.running()), (0, 0));
        let (sink, _updates) = sync_channel(4);
        assert_eq!(desk.submit(prepared(8), settings(2), Clock::start(), Box::new(sink)), Err(Failure::Closed));
    });
    assert_eq!(ended.map_err(|error| error.exit_code()), Err(69));
}

#[test]
fn bytes_count_whatever_becomes_of_their_request() {
    let (ranks, hold) = Ranks { refuses: Some(2), ..Ranks::default() }.held();
    let ended = with_conductor(&ranks, &mut planner(None), Limits::default(), |desk| {
        let (cancelled, updates) = submit(&desk, 8, 50, 64);
        assert!(matches!(updates.recv_timeout(PATIENCE), Ok(Update::FirstToken(..))));
        let (_, refused) = submit(&desk, 8, 4, 64);
        let (_, answered) = submit(&desk, 8, 3, 64);
        desk.cancel(cancelled);
        drop(hold);
        assert_eq!(tokens(&answered).map(|(streamed, _)| streamed.len()), Ok(3));
        assert!(tokens(&refused).is_err());
        let sent: Vec<u64> =
            desk.traffic().iter().map(|traffic| traffic.entries[&Collective::AllGather].sent_bytes).collect();
        // Two prefills, the refused one, a step of the cancelled request and two of the answered one.
        assert_eq!(sent, [2 * 15 + 1000, 2 * 15 + 2000 + 3]);
    });
    assert!(ended.is_ok(), "{ended:?}");
}

#[test]
fn ranks_and_client_have_the_same_plan() {
    let ranks = Ranks::default();
    let ended = with_conductor(&ranks, &mut planner(None), Limits::default(), |desk| {
        let (_, updates) = submit(&desk, 8, 3, 64);
        let done = updates.iter().find_map(|update| match update {
            Update::Done(done) => Some(done),
            _ => None,
        });
        let own = done.expect("an answer").planned.plan;
        let orders = ranks.orders.lock().unwrap();
        let sent = |order: &Order| matches!(order, Order::Prefill(plan) if Arc::ptr_eq(plan, &own));
        assert!(orders.iter().any(sent), "no copy of it");
    });
    assert!(ended.is_ok(), "{ended:?}");
}
