//! Reads of held sequences, and the orders that they become.

use std::sync::mpsc::sync_channel;

use super::desk::ON_THE_WAY;
use super::kit::{PATIENCE, ScriptedRanks, held, planner, prepared, read, settings, submit, tokens, with_conductor};
use super::*;
use crate::dispatch::Clock;
use crate::scheduler::Limits;

#[test]
fn held_sequences_are_read_until_they_are_released() {
    let ranks = ScriptedRanks { halts: Some((3, 1)), ..ScriptedRanks::default() };
    let ended = with_conductor(&ranks, &mut planner(None), Limits::default(), |desk| {
        let ((first, _updates), (second, _others)) = (held(&desk, 8), held(&desk, 8));
        assert_eq!((desk.tally().held(), desk.running()), (2, 0));
        assert_eq!(read(&desk, first, 3, 2..6).recv_timeout(PATIENCE), Ok(Ok(vec![3; 4])));
        // A prefill in progress halts for a read, and goes on to its end after it.
        let (third, answer) = submit(&desk, 8, 2, 64);
        while !ranks.orders().contains(&"P3".to_owned()) {
            std::thread::yield_now();
        }
        assert_eq!(read(&desk, second, 1, 0..1).recv_timeout(PATIENCE), Ok(Ok(vec![1])));
        assert_eq!(tokens(&answer).map(|(streamed, _)| streamed.len()), Ok(2));
        desk.cancel(first);
        while desk.tally().held() > 1 {
            std::thread::yield_now();
        }
        for gone in [first, third, 77] {
            let refused = read(&desk, gone, 0, 0..1).recv_timeout(PATIENCE).expect("a reply");
            assert!(matches!(&refused, Err(RequestFailure::Refused(why)) if why.exit_code == 64), "{refused:?}");
        }
    });
    assert!(ended.is_ok(), "{ended:?}");
    let orders = ranks.orders();
    assert_eq!(orders[..6], ["P1", "P2", "H1 2..6", "P3", "H2 0..1", "resume"], "{orders:?}");
    let is_released = |order: &String| order.starts_with('R') && order.contains('1');
    assert!(orders.iter().any(is_released) && !orders.contains(&"D[1]".to_owned()), "{orders:?}");
}

#[test]
fn a_read_that_the_ranks_do_not_live_to_answer_is_told() {
    let ranks = ScriptedRanks { fails_at_read: true, ..ScriptedRanks::default() };
    let ended = with_conductor(&ranks, &mut planner(None), Limits::default(), |desk| {
        let (request, _updates) = held(&desk, 8);
        let reads = [read(&desk, request, 0, 0..1), read(&desk, request, 1, 0..1)];
        let replies = reads.map(|rows| rows.recv_timeout(PATIENCE).expect("a reply"));
        let is_told = |reply: &std::result::Result<Vec<u8>, RequestFailure>| {
            matches!(reply, Err(RequestFailure::Closed))
                || matches!(reply, Err(RequestFailure::Group(why)) if why.exit_code == 69)
        };
        assert!(matches!(replies[0], Err(RequestFailure::Group(_))) && is_told(&replies[1]), "{replies:?}");
        let late = read(&desk, request, 0, 0..1).recv_timeout(PATIENCE).expect("a reply");
        assert!(is_told(&late), "{late:?}");
    });
    assert!(ended.is_err());
}

#[test]
fn reads_that_the_conductor_never_takes_are_told() {
    let (desk, inbox) = desk(Observed::default());
    let on_the_way: Vec<_> = (0..ON_THE_WAY).map(|_| read(&desk, 1, 0, 0..1)).collect();
    let closed = Ok(Err(RequestFailure::Closed));
    assert_eq!(read(&desk, 1, 0, 0..1).try_recv(), closed, "one more than find room");
    assert!(on_the_way.iter().all(|rows| rows.try_recv().is_err()));
    // The receiver alone goes, as it does when a read arrives after the inbox was closed.
    let errands = inbox.errands.try_iter().collect::<Vec<_>>();
    drop(errands);
    assert!(on_the_way.iter().all(|rows| rows.try_recv() == closed));
    drop(inbox);
    assert_eq!(read(&desk, 1, 0, 0..1).try_recv(), closed, "too late");
}

#[test]
fn a_layer_that_is_not_there_is_read_when_it_is() {
    let ranks = ScriptedRanks { halts: Some((1, 1)), ..ScriptedRanks::default() };
    let ended = with_conductor(&ranks, &mut planner(None), Limits::default(), |desk| {
        let (sink, updates) = sync_channel(4);
        let asked = (prepared(8), settings(9));
        let request = desk.submit(Work::HandOver, asked, (Clock::start(), None), Box::new(sink)).expect("it is taken");
        assert!(matches!(updates.recv_timeout(PATIENCE), Ok(Update::Begun(_))));
        let layers: Vec<_> = (0..2).map(|layer| read(&desk, request, layer, 0..1)).collect();
        for (layer, rows) in layers.iter().enumerate() {
            assert_eq!(rows.recv_timeout(PATIENCE), Ok(Ok(vec![layer as u8])));
        }
    });
    assert!(ended.is_ok(), "{ended:?}");
    let orders = ranks.orders();
    assert_eq!(orders, ["P1", "H1 0..1", "resume", "H1 0..1", "H1 0..1"], "once at the halt, and both after it");
}
