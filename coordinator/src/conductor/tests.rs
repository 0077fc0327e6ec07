//! Updates of a conductor's clients, and orders of its ranks.

use std::collections::BTreeMap;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex};

use tributary_planner::MemoryOf;
use tributary_protocol::exit;

use super::conversations::Later;
use super::kit::{
    Notes, PATIENCE, ScriptedRanks, planner, prepared, settings, submit, submit_chunks, tokens, with_conductor,
};
use super::*;
use crate::dispatch::Clock;
use crate::scheduler::{Limits, Policy};

#[test]
fn every_client_gets_its_own_tokens() {
    let ranks = ScriptedRanks::default();
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
fn whoever_leaves_or_is_slow_is_let_go_and_the_others_go_on() {
    let (ranks, hold) = ScriptedRanks::default().held();
    let ended = with_conductor(&ranks, &mut planner(None), Limits::default(), |desk| {
        let (_, reader) = submit(&desk, 8, 200, 512);
        let (_, gone) = submit(&desk, 8, 200, 512);
        drop(gone);
        let (_, slow) = submit(&desk, 8, 200, 3);
        drop(hold);
        assert_eq!(tokens(&reader).map(|(streamed, _)| streamed.len()), Ok(200));
        // It began long before the other one ended.
        assert_eq!(slow.iter().count(), 3, "a reader that is too slow is cut");
    });
    assert!(ended.is_ok(), "{ended:?}");
}

#[test]
fn a_cancelled_request_ends_and_the_others_go_on() {
    let (ranks, hold) = ScriptedRanks::default().held();
    let ended = with_conductor(&ranks, &mut planner(None), Limits::default(), |desk| {
        let (cancelled, updates) = submit(&desk, 8, 2000, 4096);
        assert!(matches!(updates.recv_timeout(PATIENCE), Ok(Update::FirstToken(..))));
        hold.begun();
        let (waits, never) = submit(&desk, 8, 2000, 4096);
        let (_, other) = submit(&desk, 8, 20, 64);
        desk.cancel(cancelled);
        desk.cancel(waits);
        desk.cancel(cancelled + 100);
        drop(hold);
        assert_eq!(updates.iter().count(), 1, "the step that was under way");
        assert_eq!(never.iter().count(), 0, "its turn never came");
        assert_eq!(tokens(&other).map(|(streamed, _)| streamed.len()), Ok(20));
    });
    assert!(ended.is_ok(), "{ended:?}");
}

#[test]
fn whoever_leaves_during_prefill_is_let_go_of_by_the_next_order_and_frees_its_memory() {
    let (ranks, hold) = ScriptedRanks { holds_first: true, ..ScriptedRanks::default() }.held();
    let alone = planner(None).check(prepared(8).tokens(), &settings(50), 1, None).expect("a plan").memory_bytes;
    let ended = with_conductor(&ranks, &mut planner(Some(alone)), Limits::default(), |desk| {
        let (leaves, updates) = submit(&desk, 8, 50, 64);
        hold.begun();
        // There is no room for this one beside the other.
        let (_, waits) = submit(&desk, 8, 50, 64);
        drop(updates);
        desk.cancel(leaves);
        drop(hold);
        assert_eq!(tokens(&waits).map(|(streamed, _)| streamed.len()), Ok(50));
        assert_eq!((desk.waiting(), desk.running()), (0, 0));
    });
    assert!(ended.is_ok(), "{ended:?}");
    assert_eq!(ranks.orders()[..4], ["P1", "R[1]", "P2", "D[2]"]);
}

#[test]
fn whoever_leaves_in_the_middle_of_a_prefill_ends_it_there() {
    for chunks in [false, true] {
        let (ranks, hold) = ScriptedRanks { holds_first: true, lets_go: true, ..ScriptedRanks::default() }.held();
        let notes = Arc::new(Notes::default());
        let ended = with_conductor(&ranks, &mut planner(None), Limits::default(), |desk| {
            desk.observed_by(Arc::<Notes>::clone(&notes));
            let (leaves, updates) = if chunks { submit_chunks(&desk, 8) } else { submit(&desk, 8, 50, 64) };
            hold.begun();
            let (_, waits) = submit(&desk, 8, 3, 64);
            // A waiting request is not cancelled by another one's number.
            desk.cancel(leaves);
            desk.cancel(leaves + 100);
            drop(hold);
            assert_eq!(updates.iter().count(), 0, "nothing came of it");
            assert_eq!(tokens(&waits).map(|(streamed, _)| streamed), Ok(vec![20, 21, 22]));
            assert_eq!((desk.waiting(), desk.running()), (0, 0));
        });
        assert!(ended.is_ok(), "{ended:?}");
        let first = if chunks { "C1" } else { "P1" };
        assert_eq!(ranks.orders(), [first, "P2", "D[2]", "D[2]", "R[2]"], "there is nothing to release");
        let ended = notes.ended.lock().unwrap();
        assert_eq!(
            ended.iter().map(|ended| (ended.request, ended.stage)).collect::<Vec<_>>(),
            [(1, Some(Stage::Prefill))]
        );
        assert_eq!(notes.sent.lock().unwrap()[0], 7 + 15, "what it moved is counted");
    }
}

#[test]
fn all_time_of_a_group_is_told_by_its_occupation() {
    let (idle, prefill) = (Duration::from_millis(20), Duration::from_millis(30));
    let (ranks, hold) = ScriptedRanks { holds_first: true, ..ScriptedRanks::default() }.held();
    let (notes, began) = (Arc::new(Notes::default()), Instant::now());
    let ended = with_conductor(&ranks, &mut planner(None), Limits::default(), |desk| {
        desk.observed_by(Arc::<Notes>::clone(&notes));
        std::thread::sleep(idle);
        let (_, updates) = submit(&desk, 8, 50, 64);
        hold.begun();
        std::thread::sleep(prefill);
        drop(hold);
        assert_eq!(tokens(&updates).map(|(streamed, _)| streamed.len()), Ok(50));
    });
    assert!(ended.is_ok(), "{ended:?}");
    let spent = notes.spent.lock().unwrap();
    let of = |occupation| spent.get(&occupation).copied().unwrap_or_default();
    assert!(of(Occupation::Idle) >= idle && of(Occupation::Prefill) >= prefill, "{spent:?}");
    assert!(of(Occupation::Decode) > Duration::ZERO, "{spent:?}");
    assert!(spent.values().sum::<Duration>() <= began.elapsed(), "{spent:?}");
}

#[test]
fn sequences_take_steps_while_a_prompt_is_prefilled() {
    let limits = Limits { max_gap: Duration::ZERO, ..Limits::default() };
    let (ranks, hold) = ScriptedRanks { halts: Some((3, 2)), ..ScriptedRanks::default() }.held();
    let ended = with_conductor(&ranks, &mut planner(None), limits, |desk| {
        let (_, streams) = submit(&desk, 8, 400, 512);
        hold.begun();
        let (short, ends) = submit(&desk, 8, 3, 64);
        let (_, long) = submit(&desk, 64, 1, 64);
        drop(hold);
        assert_eq!(tokens(&ends).map(|(streamed, _)| streamed), Ok(vec![20, 21, 22]), "request {short}");
        assert_eq!(tokens(&long).map(|(streamed, _)| streamed), Ok(vec![30]));
        assert_eq!(tokens(&streams).map(|(streamed, _)| streamed.len()), Ok(400));
    });
    assert!(ended.is_ok(), "{ended:?}");
    let orders = ranks.orders();
    let of = |name: &str| orders.iter().position(|order| order == name).expect("it was ordered");
    let beside = &orders[of("P3") + 1..orders.iter().rposition(|order| order == "resume").expect("it went on")];
    assert!(beside.iter().any(|order| order.starts_with('D')), "steps within the prefill: {orders:?}");
    assert_eq!(orders.iter().filter(|order| *order == "resume").count(), 2, "{orders:?}");
    assert!(!beside.iter().any(|order| order.starts_with('P')), "no prefill within another: {orders:?}");
}

#[test]
fn a_short_request_overtakes_a_waiting_one_until_that_is_too_old() {
    let shortest = |max_age| Policy::Shortest { max_age };
    for (policy, expected) in [
        (Policy::Fifo, ["P1", "P2", "P3"]),
        (shortest(PATIENCE), ["P1", "P3", "P2"]),
        (shortest(Duration::ZERO), ["P1", "P2", "P3"]),
    ] {
        let limits = Limits { policy, ..Limits::default() };
        let (ranks, hold) = ScriptedRanks { holds_first: true, ..ScriptedRanks::default() }.held();
        let ended = with_conductor(&ranks, &mut planner(None), limits, |desk| {
            let first = submit(&desk, 8, 1, 64);
            hold.begun();
            let others = [submit(&desk, 64, 1, 64), submit(&desk, 8, 1, 64)];
            drop(hold);
            others.iter().chain([&first]).for_each(|(_, updates)| assert!(tokens(updates).is_ok()));
        });
        assert!(ended.is_ok(), "{ended:?}");
        assert_eq!(ranks.orders(), expected, "{policy:?}");
    }
}

#[test]
fn a_request_that_is_cancelled_while_its_prefill_halts_ends_with_it() {
    let limits = Limits { max_gap: Duration::ZERO, ..Limits::default() };
    let (ranks, hold) = ScriptedRanks { halts: Some((2, 3)), ..ScriptedRanks::default() }.held();
    let ended = with_conductor(&ranks, &mut planner(None), limits, |desk| {
        let (stream, streams) = submit(&desk, 8, 4000, 4096);
        hold.begun();
        let (leaves, updates) = submit(&desk, 64, 50, 64);
        // Both are known at the halts: the stream ends there, the prefill after its own end.
        desk.cancel(leaves);
        drop(hold);
        assert!(updates.iter().count() <= 2, "its updates end");
        desk.end(stream);
        assert!(tokens(&streams).is_ok());
    });
    assert!(ended.is_ok(), "{ended:?}");
}

#[test]
fn a_prefill_halts_by_share_and_gap() {
    for (decode_share, max_gap) in [(0.0, 0), (0.5, 10_000), (0.5, 0)] {
        let limits = Limits { max_gap: Duration::from_millis(max_gap), decode_share, ..Limits::default() };
        let counts_halts = Some(Duration::from_millis(150));
        let ranks = ScriptedRanks { counts_halts, ..ScriptedRanks::default() };
        let ended = with_conductor(&ranks, &mut planner(None), limits, |desk| {
            let all: Vec<_> = (0..4).map(|_| submit(&desk, 8, 20, 64)).collect();
            all.iter().for_each(|(_, updates)| assert!(tokens(updates).is_ok()));
        });
        assert!(ended.is_ok(), "{ended:?}");
        // The first of them has no stream beside it.
        let wanted = if decode_share > 0.0 && max_gap == 0 { 3 } else { 0 };
        assert_eq!(*ranks.wanted_halts.lock().unwrap(), wanted, "share {decode_share}, gap {max_gap} ms");
    }
}

#[test]
fn an_answer_that_is_long_enough_ends_with_what_there_is() {
    let (ranks, hold) = ScriptedRanks::default().held();
    let ended = with_conductor(&ranks, &mut planner(None), Limits::default(), |desk| {
        let (request, updates) = submit(&desk, 8, 2000, 4096);
        hold.begun();
        desk.end(request);
        desk.end(request + 100);
        drop(hold);
        let (streamed, whole) = tokens(&updates).expect("an answer");
        assert_eq!((streamed.as_slice(), whole), (&[10, 11][..], vec![10, 11]), "the step that was under way is in it");
    });
    assert!(ended.is_ok(), "{ended:?}");
    assert_eq!(ranks.orders(), ["P1", "D[1]", "R[1]"]);
}

#[test]
fn chunks_ahead_of_use_wait_for_their_turn_and_leave_nothing_behind() {
    let (ranks, hold) = ScriptedRanks { holds_first: true, ..ScriptedRanks::default() }.held();
    let limits = Limits { max_waiting: 2, ..Limits::default() };
    let ended = with_conductor(&ranks, &mut planner(None), limits, |desk| {
        let (_, answers) = submit(&desk, 8, 3, 64);
        hold.begun();
        let (_, chunks) = submit_chunks(&desk, 8);
        let (leaves, gone) = submit_chunks(&desk, 8);
        let too_many =
            desk.submit(Work::Chunks, (prepared(8), settings(1)), (Clock::start(), None), Box::new(sync_channel(4).0));
        assert_eq!(too_many, Err(RequestFailure::Busy { waiting: 2 }));
        desk.cancel(leaves);
        drop(hold);
        match chunks.recv_timeout(PATIENCE) {
            Ok(Update::Kept(kept)) => {
                assert_eq!((kept.reports.len(), kept.planned.plan.context_tokens()), (2, 16));
                assert!(kept.total >= kept.queued);
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(gone.iter().count(), 0, "its turn never came");
        assert_eq!(tokens(&answers).map(|(streamed, _)| streamed), Ok(vec![10, 11, 12]));
    });
    assert!(ended.is_ok(), "{ended:?}");
    let orders = ranks.orders();
    let of = |kind| orders.iter().filter(|order| order.starts_with(kind)).count();
    assert_eq!((of('P'), of('C'), of('D'), of('R')), (1, 1, 2, 1), "{orders:?}");
}

/// Records the numbers of waiting and running requests at each update.
struct Looks(Desk, SyncSender<(usize, usize)>);

impl Sink for Looks {
    fn take(&mut self, _: Update) -> std::result::Result<(), NotTaken> {
        self.1.try_send((self.0.waiting(), self.0.running())).map_err(|_| NotTaken::Full)
    }
}

#[test]
fn who_has_an_answer_runs_no_more() {
    let ranks = ScriptedRanks::default();
    let ended = with_conductor(&ranks, &mut planner(None), Limits::default(), |desk| {
        let (tell, seen) = sync_channel(64);
        let looks = Box::new(Looks(desk.clone(), tell));
        desk.submit(Work::Answer, (prepared(8), settings(3)), (Clock::start(), None), looks).expect("it is taken");
        let seen: Vec<(usize, usize)> = seen.iter().collect();
        assert_eq!(seen, [(0, 1), (0, 1), (0, 1), (0, 0)], "while it is prefilled it runs, with its answer it is gone");
    });
    assert!(ended.is_ok(), "{ended:?}");
}

#[test]
fn what_cannot_be_answered_is_told_and_nothing_else_suffers() {
    let ranks = ScriptedRanks { refuses: Some(2), ..ScriptedRanks::default() };
    let needed = {
        let planner = planner(None);
        planner.check(prepared(8).tokens(), &settings(4), 1, None).expect("a plan").memory_bytes
    };
    let limits = Limits { max_waiting: 1, ..Limits::default() };
    let ended = with_conductor(&ranks, &mut planner(Some(needed + 1000)), limits, |desk| {
        let (_, large) = submit(&desk, 500, 4, 64);
        match tokens(&large) {
            Err(RequestFailure::Refused(refusal)) => {
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
    let ranks = ScriptedRanks::default();
    let alone = planner(None).check(prepared(8).tokens(), &settings(50), 1, None).expect("a plan").memory_bytes;
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
    let (ranks, hold) = ScriptedRanks::default().held();
    let limits = Limits { max_waiting: 2, max_running: 1, ..Limits::default() };
    let ended = with_conductor(&ranks, &mut planner(None), limits, |desk| {
        let (_, first) = submit(&desk, 8, 500, 1024);
        assert!(matches!(first.recv_timeout(PATIENCE), Ok(Update::FirstToken(..))));
        hold.begun();
        let others: Vec<_> = (0..2).map(|_| submit(&desk, 8, 2, 64).1).collect();
        assert_eq!(desk.waiting(), 2, "they are counted while the conductor waits for the ranks");
        // Requests that arrive then are refused at once.
        for _ in 0..4 {
            let late = desk.submit(
                Work::Answer,
                (prepared(8), settings(2)),
                (Clock::start(), None),
                Box::new(sync_channel(4).0),
            );
            assert_eq!(late, Err(RequestFailure::Busy { waiting: 2 }));
        }
        drop(hold);
        let outcomes: Vec<_> = others.iter().map(tokens).collect();
        assert!(outcomes.iter().all(|outcome| outcome.is_ok()), "{outcomes:?}");
    });
    assert!(ended.is_ok(), "{ended:?}");
}

#[test]
fn whoever_has_left_keeps_no_conductor_at_work() {
    let (ranks, kept) = (ScriptedRanks::default(), Mutex::new(None));
    let ended = with_conductor(&ranks, &mut planner(None), Limits::default(), |desk| {
        *kept.lock().unwrap() = Some(desk.clone());
        let (_, answers) = submit(&desk, 8, 3, 64);
        assert!(matches!(answers.recv_timeout(PATIENCE), Ok(Update::FirstToken(..))));
        desk.leave();
        let late =
            desk.submit(Work::Answer, (prepared(8), settings(2)), (Clock::start(), None), Box::new(sync_channel(4).0));
        assert_eq!(late, Err(RequestFailure::Closed));
        assert_eq!(answers.iter().count(), 3, "what had been handed in is answered");
    });
    assert!(ended.is_ok() && kept.lock().unwrap().is_some(), "{ended:?}");
}

#[test]
fn the_groups_failure_is_everybodys() {
    let (ranks, hold) = ScriptedRanks { fails_at_step: Some(3), ..ScriptedRanks::default() }.held();
    let (told, notes) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Notes::default()));
    let watches = Arc::<Notes>::clone(&notes);
    let tell = Arc::clone(&told);
    let ended = with_conductor(&ranks, &mut planner(None), Limits::default(), move |desk| {
        desk.observed_by(watches);
        let all: Vec<_> = (0..2).map(|_| submit(&desk, 8, 50, 64).1).collect();
        drop(hold);
        let failures: Vec<_> = all.iter().map(|updates| tokens(updates).expect_err("the group is gone")).collect();
        *tell.lock().unwrap() = failures;
        // Requests are not taken any more.
        let late =
            desk.submit(Work::Answer, (prepared(8), settings(2)), (Clock::start(), None), Box::new(sync_channel(4).0));
        assert_eq!(late, Err(RequestFailure::Closed));
    });
    let error = ended.expect_err("the group has failed");
    assert_eq!((error.exit_code(), error.to_string().as_str()), (69, "rank 1 failed: gone"));
    let told = told.lock().unwrap();
    assert_eq!(told.len(), 2);
    assert!(told.iter().all(|failure| matches!(failure, RequestFailure::Group(refusal) if refusal.exit_code == 69)));
    assert_eq!((notes.failures.lock().unwrap().as_slice(), notes.ended.lock().unwrap().len()), ([69].as_slice(), 2));
}

#[test]
fn the_groups_failure_is_that_of_requests_on_their_way_too() {
    let (ranks, hold) = ScriptedRanks { fails_at_step: Some(1), ..ScriptedRanks::default() }.held();
    let ended = with_conductor(&ranks, &mut planner(None), Limits::default(), move |desk| {
        let (_, runs) = submit(&desk, 8, 50, 64);
        assert!(matches!(runs.recv_timeout(PATIENCE), Ok(Update::FirstToken(..))));
        hold.begun();
        assert!(!desk.is_closed());
        // The conductor waits for the ranks and does not take this one.
        let (_, late) = submit(&desk, 8, 50, 64);
        drop(hold);
        for updates in [runs, late] {
            let failure = tokens(&updates).expect_err("the group is gone");
            assert!(matches!(&failure, RequestFailure::Group(refusal) if refusal.exit_code == 69), "{failure:?}");
        }
        assert!(desk.is_closed(), "known before clients are told");
        assert_eq!((desk.waiting(), desk.running()), (0, 0));
        let (sink, _updates) = sync_channel(4);
        assert_eq!(
            desk.submit(Work::Answer, (prepared(8), settings(2)), (Clock::start(), None), Box::new(sink)),
            Err(RequestFailure::Closed)
        );
    });
    assert_eq!(ended.map_err(|error| error.exit_code()), Err(69));
}

#[test]
fn the_observer_is_told_whatever_becomes_of_a_request() {
    let (ranks, hold) = ScriptedRanks { refuses: Some(2), ..ScriptedRanks::default() }.held();
    let notes = Arc::new(Notes::default());
    let ended = with_conductor(&ranks, &mut planner(None), Limits::default(), |desk| {
        desk.observed_by(Arc::<Notes>::clone(&notes));
        let (cancelled, updates) = submit(&desk, 8, 50, 64);
        assert!(matches!(updates.recv_timeout(PATIENCE), Ok(Update::FirstToken(..))));
        hold.begun();
        assert_eq!(desk.tally().sequences(), [1, 1], "a cache that is spread over the ranks");
        let (_, refused) = submit(&desk, 8, 4, 64);
        let (_, answered) = submit(&desk, 8, 3, 64);
        let (never, _) = submit(&desk, 8, 3, 64);
        [cancelled, never].into_iter().for_each(|request| desk.cancel(request));
        drop(hold);
        assert_eq!(tokens(&answered).map(|(streamed, _)| streamed.len()), Ok(3));
        assert!(tokens(&refused).is_err());
        // Two prefills, the refused one, a step of the cancelled request and two of the answered
        // one.
        assert_eq!(*notes.sent.lock().unwrap(), [2 * 15 + 1000, 2 * 15 + 2000 + 3]);
        let slow = submit(&desk, 8, 50, 2).1;
        // Unread updates fill its buffer: it is cut, and receives no more.
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(slow.iter().count(), 2);
    });
    assert!(ended.is_ok(), "{ended:?}");
    assert_eq!((*notes.prefills.lock().unwrap(), notes.gaps.lock().unwrap().len()), (3, 1 + 2 + 2));
    let ended = notes.ended.lock().unwrap();
    let seen = ended.iter().map(|ended| (ended.request, ended.stage, ended.generated_tokens));
    let mut seen: Vec<_> = seen.collect();
    seen.sort_by_key(|(request, ..)| *request);
    let (decode, queue, slow) = (Some(Stage::Decode), Some(Stage::Queue), Some(Stage::Slow));
    assert_eq!(seen, [(1, decode, 2), (2, None, 0), (4, queue, 0), (5, slow, 3)]);
    assert!(
        ended.iter().all(|ended| ended.prompt_tokens == 19 && ended.ttft.is_some() == (ended.generated_tokens > 0))
    );
}

#[test]
fn ranks_and_client_have_the_same_plan() {
    let ranks = ScriptedRanks::default();
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

/// Submits a request with this query; returns its updates.
fn asks(desk: &Desk, query: &[u32], settings: RequestSettings) -> std::sync::mpsc::Receiver<Update> {
    let (sink, updates) = sync_channel(64);
    let prepared = Prepared { query: query.to_vec(), closing: 2, ..prepared(8) };
    desk.submit(Work::Answer, (prepared, settings), (Clock::start(), None), Box::new(sink)).expect("it is taken");
    updates
}

/// Rows that a request took from an earlier one's sequence, and its query.
fn answered(updates: &std::sync::mpsc::Receiver<Update>) -> (Option<(u64, usize)>, usize) {
    loop {
        match updates.recv_timeout(PATIENCE).expect("an update in time") {
            Update::Done(done) => {
                let plan = &done.planned.plan;
                let continues = plan.continues.map(|continues| (continues.request, continues.rows));
                return (continues, plan.query.len());
            }
            Update::Failed(failure) => panic!("{failure:?}"),
            _ => {}
        }
    }
}

#[test]
fn a_later_turn_goes_on_from_the_sequence_of_the_earlier_one() {
    let ranks = ScriptedRanks::default();
    let reuse = RequestSettings { conversation: Conversation::Reuse, ..settings(4) };
    // Its method is exact, or not.
    let recompute = RequestSettings { conversation: Conversation::Recompute, ..settings(4) };
    let ended = with_conductor(&ranks, &mut planner(None), Limits::default(), |desk| {
        // A prefix of one token, two chunks of eight, and a query that ends as the template does.
        let first = [4, 5, 90, 91];
        assert_eq!(answered(&asks(&desk, &first, reuse.clone())), (None, 4));
        // The answer is 10, 11, 12, 13: the last has no row. The template writes one token more.
        let second = [&first[..], &[10, 11, 12, 13, 90, 7, 90, 91]].concat();
        assert_eq!(answered(&asks(&desk, &second, reuse.clone())), (Some((1, 17 + 4 + 3)), 12));
        // The next turn has another end of the prompt than the one before: 90 alone is the same.
        let third = [&second[..11], &[92, 30, 8, 90, 91]].concat();
        assert_eq!(answered(&asks(&desk, &third, reuse.clone())), (Some((2, 17 + 11)), 16));
        // Another question, a longer one, the same again: none goes on with the conversation.
        for query in [&[4, 6, 90, 91, 1, 2][..], &[4, 5, 6, 90, 91], &third] {
            assert_eq!(answered(&asks(&desk, query, reuse.clone())).0, None, "{query:?}");
        }
        let other = RequestSettings { cache_scope: Some(5), ..reuse.clone() };
        let fourth = [&third[..], &[40, 90, 90, 91]].concat();
        assert_eq!(answered(&asks(&desk, &fourth, other)).0, None, "another client's");
        let ratio = RequestSettings { ratio: Some(0.9), ..reuse.clone() };
        assert_eq!(answered(&asks(&desk, &fourth, ratio)).0, None, "another ratio");
        assert_eq!(answered(&asks(&desk, &fourth, recompute)).0, None, "it selects anew");
        assert_eq!(answered(&asks(&desk, &fourth, settings(4))).0, None, "off");
    });
    assert!(ended.is_ok(), "{ended:?}");
    let released: Vec<String> = ranks.orders().into_iter().filter(|order| order.starts_with('R')).collect();
    assert!(released.contains(&"R[1]".to_owned()), "the second turn replaces the first: {released:?}");
}

#[test]
fn a_later_turn_takes_the_place_of_the_earlier_one_where_there_is_no_memory_for_both() {
    let draft = planner(None).draft(prepared(8).tokens(), &settings(4), 1).expect("a draft");
    let kept = BTreeMap::from([(7, Reservation::new(vec![100, 50], 0, 0, 0))]);
    // Its own 120 bytes on rank 0, of which 100 are the earlier turn's.
    for (available, placed) in [(240, Some(false)), (239, Some(true)), (139, None)] {
        let mut later = Later { draft: draft.clone(), from: 7, replaces: false };
        let place = |_: &mut Draft, taken: &[u64]| match taken[0] + 120 <= available {
            true => Ok(()),
            false => Err(tributary_planner::Error::Memory {
                of: MemoryOf::Host,
                rank: None,
                needed_bytes: taken[0] + 120,
                available_bytes: available,
            }),
        };
        let found = later.place(place, &[120, 60], &kept).is_ok().then_some(later.replaces);
        assert_eq!(found, placed, "{available} bytes");
    }
    let beside = Reservation::new(vec![120, 40], 1, 2, 3).beside(&kept[&7]);
    assert_eq!([beside.bytes(0), beside.bytes(1)], [20, 6]);
}
