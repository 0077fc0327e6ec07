//! Threads as ranks: the promises of every backend, and failures of a rank.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::{Duration, Instant};

use candle_core::{DType, Device, Tensor};
use tributary_comm::local::{Local, seats};
use tributary_comm::{Communicator, Error, Result, StepKind, conformance};
use tributary_protocol::Phase;

const SHORT: Duration = Duration::from_millis(200);

/// Runs one closure a rank, each on its own thread; gives the results in rank order.
fn run<T: Send>(world: usize, rank: impl Fn(Local) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let threads: Vec<_> = seats(world).into_iter().map(|seat| scope.spawn(|| rank(seat.take()))).collect();
        threads.into_iter().map(|thread| thread.join().expect("the rank does not panic")).collect()
    })
}

fn ones(rows: usize) -> Tensor {
    Tensor::ones((rows, 2), DType::F32, &Device::Cpu).expect("ones of any shape")
}

#[test]
fn conforms() {
    for world in 1..=5 {
        let outcomes = run(world, |mut comm| {
            let outcome = conformance::check(&mut comm);
            comm.barrier().unwrap();
            (outcome, comm.open_calls())
        });
        for (rank, (outcome, open_calls)) in outcomes.into_iter().enumerate() {
            assert_eq!(outcome, Ok(()), "rank {rank} of {world}");
            assert!(open_calls <= 1, "rank {rank} of {world}: {open_calls} calls are still held");
        }
    }
}

#[test]
fn a_rank_that_computes_without_progress_is_named() {
    let outcomes = run(3, |mut comm| {
        comm.set_deadline(Phase::Recompute, SHORT);
        let started = Instant::now();
        if comm.rank() == 1 {
            comm.liveness().step(StepKind::Attention, Some(7));
            thread::sleep(5 * SHORT);
            let late = comm.barrier().unwrap_err();
            return (late, Duration::ZERO);
        }
        let error = comm.barrier().unwrap_err();
        (error, started.elapsed())
    });
    let stalls =
        outcomes.iter().filter(|(error, _)| matches!(error, Error::Stalled { rank: 1, limit, .. } if *limit == SHORT));
    assert!(stalls.count() >= 1, "{outcomes:?}");
    for (rank, (error, waited)) in outcomes.iter().enumerate() {
        assert!(
            error.to_string().contains("rank 1 is stuck: it computes layer 7 in recompute"),
            "rank {rank}: {error}"
        );
        assert_eq!(error.exit_code(), 75, "rank {rank}: {error}");
        assert!(*waited < 4 * SHORT, "rank {rank} waited {waited:?}");
    }
}

#[test]
fn a_rank_that_computes_and_gets_on_is_waited_for() {
    let waited = run(2, |mut comm| {
        comm.set_deadline(Phase::Recompute, SHORT);
        let started = Instant::now();
        if comm.rank() == 1 {
            for layer in 0..12 {
                comm.liveness().step(StepKind::Linear, Some(layer));
                thread::sleep(SHORT / 4);
            }
        }
        comm.barrier().unwrap();
        started.elapsed()
    });
    assert!(waited[0] > 2 * SHORT, "longer than the timeout: {waited:?}");
}

#[test]
fn a_stuck_rank_is_noticed_by_the_root_of_a_broadcast() {
    let errors = run(2, |mut comm| {
        comm.set_deadline(Phase::Idle, SHORT);
        if comm.rank() == 1 {
            thread::sleep(3 * SHORT);
            return comm.barrier().unwrap_err();
        }
        comm.broadcast_bytes(0, Some(vec![1])).unwrap_err()
    });
    assert!(matches!(&errors[0], Error::Stalled { rank: 1, .. }), "{errors:?}");
    assert!(matches!(&errors[1], Error::Aborted { rank: 0, exit_code: 75, .. }), "{errors:?}");
}

#[test]
fn whoever_looks_out_ends_a_group_of_which_no_rank_waits() {
    let mut seats = seats(1);
    let group = seats[0].group();
    let seat = seats.pop().unwrap();
    let error = thread::scope(|scope| {
        let rank = scope.spawn(|| {
            let mut comm = seat.take();
            comm.set_deadline(Phase::Probe, SHORT);
            thread::sleep(4 * SHORT);
            comm.barrier().unwrap_err()
        });
        let stalled = loop {
            assert!(!group.is_over(), "the rank is at work");
            match group.end_if_stalled() {
                Some(error) => break error,
                None => thread::sleep(SHORT / 20),
            }
        };
        assert!(group.is_over());
        assert_eq!(rank.join().unwrap(), stalled, "the rank learns of it when it gets on");
        stalled
    });
    assert!(matches!(error, Error::Stalled { rank: 0, .. }), "{error}");
}

#[test]
fn abort_wakes_waiters_and_the_first_cause_counts() {
    let outcomes = run(4, |mut comm| {
        let started = Instant::now();
        if comm.rank() == 2 {
            thread::sleep(SHORT / 4);
            comm.abort("disk full", 74);
            comm.abort("another cause", 70);
        }
        let error = comm.all_gather_v(&ones(1), &[1; 4]).unwrap_err();
        let again = comm.barrier().unwrap_err();
        (error, again, started.elapsed())
    });
    let first = Error::Aborted { rank: 2, cause: "disk full".into(), exit_code: 74 };
    for (rank, (error, again, waited)) in outcomes.into_iter().enumerate() {
        assert_eq!(error, first, "rank {rank}");
        assert_eq!(again, first, "rank {rank}, later call");
        assert!(waited < Duration::from_secs(5), "rank {rank} waited {waited:?}");
    }
}

type Calls = fn(&mut Local) -> Result<()>;

#[test]
fn calls_that_differ_are_errors_on_both_sides() {
    let cases: [(&str, Calls, Calls); 8] = [
        ("kind", |comm| comm.barrier(), |comm| comm.broadcast_bytes(0, None).map(drop)),
        (
            "root",
            |comm| comm.gather_bytes(0, vec![]).map(drop),
            |comm| {
                comm.gather_bytes(1, vec![])?;
                comm.barrier()
            },
        ),
        (
            "rows",
            |comm| comm.all_gather_v(&ones(1), &[1, 2]).map(drop),
            |comm| comm.all_gather_v(&ones(3), &[1, 3]).map(drop),
        ),
        (
            "dtype",
            |comm| comm.all_gather_v(&ones(1), &[1, 1]).map(drop),
            |comm| comm.all_gather_v(&ones(1).to_dtype(DType::BF16)?, &[1, 1]).map(drop),
        ),
        (
            "dims",
            |comm| comm.all_gather_v(&ones(1), &[1, 1]).map(drop),
            |comm| comm.all_gather_v(&ones(1).unsqueeze(1)?, &[1, 1]).map(drop),
        ),
        ("exchange rows", |comm| exchange(comm, 2, 1, 1, 5), |comm| exchange(comm, 4, 0, 0, 2)),
        ("exchange partner", |comm| exchange(comm, 2, 1, 1, 2), |comm| exchange(comm, 2, 1, 1, 2)),
        (
            "all-to-all rows",
            |comm| comm.all_to_all_v(&[ones(1), ones(2)], &[1, 3]).map(drop),
            |comm| comm.all_to_all_v(&[ones(3), ones(0)], &[1, 0]).map(drop),
        ),
    ];
    for (name, first, second) in cases {
        let errors = run(2, |mut comm| {
            let outcome = if comm.rank() == 0 { first(&mut comm) } else { second(&mut comm) };
            let later = comm.barrier().unwrap_err();
            (outcome.err(), later)
        });
        for (rank, (error, later)) in errors.iter().enumerate() {
            let error = error.as_ref().unwrap_or(later);
            assert!(
                matches!(error, Error::Mismatch { sequence: 0, rank: who, other, .. }
                    if *who == rank && *other == 1 - rank),
                "{name}, rank {rank}: {error:?}"
            );
            assert_eq!(later, error, "{name}, rank {rank}: a later call has another cause");
        }
    }
}

fn exchange(comm: &mut Local, send_rows: usize, to: usize, from: usize, rows: usize) -> Result<()> {
    let pending = comm.start_exchange(&ones(send_rows), to, from, rows)?;
    comm.wait(pending).map(drop)
}

#[test]
fn wrong_arguments_are_errors() {
    let cases: [(&str, Calls); 8] = [
        ("own rows", |comm| comm.all_gather_v(&ones(2), &[1]).map(drop)),
        ("table", |comm| comm.all_gather_v(&ones(2), &[2, 2]).map(drop)),
        ("tensors", |comm| comm.all_to_all_v(&[], &[]).map(drop)),
        ("rank", |comm| exchange(comm, 1, 1, 0, 1)),
        ("rows to oneself", |comm| exchange(comm, 1, 0, 0, 2)),
        ("root", |comm| comm.broadcast_bytes(1, None).map(drop)),
        ("no bytes", |comm| comm.broadcast_bytes(0, None).map(drop)),
        ("scalar", |comm| {
            let scalar = Tensor::new(1f32, &Device::Cpu)?;
            comm.all_gather_v(&scalar, &[1]).map(drop)
        }),
    ];
    for (name, call) in cases {
        let mut comm = seats(1).pop().unwrap().take();
        let error = call(&mut comm).unwrap_err();
        assert!(matches!(error, Error::Mismatch { rank: 0, other: 0, .. }), "{name}: {error:?}");
        assert_eq!(comm.barrier(), Err(error), "{name}: the group lives on");
    }
}

#[test]
fn a_panicking_rank_ends_the_group() {
    let errors = run(3, |mut comm| {
        if comm.rank() == 0 {
            let panicked = catch_unwind(AssertUnwindSafe(move || {
                comm.barrier().unwrap();
                let comm = comm;
                panic!("of rank {}, on purpose", comm.rank());
            }));
            assert!(panicked.is_err());
            return None;
        }
        comm.barrier().unwrap();
        comm.barrier().err()
    });
    let wanted = Some(Error::Aborted { rank: 0, cause: "rank 0 panicked".into(), exit_code: 70 });
    assert_eq!(errors, [None, wanted.clone(), wanted]);
}

#[test]
fn a_rank_that_leaves_is_named_only_if_it_is_missed() {
    let outcomes = run(3, |mut comm| {
        let pending = comm.start_all_gather_v(&ones(1), &[1; 3]).unwrap();
        if comm.rank() == 2 {
            return (3, None);
        }
        thread::sleep(SHORT / 4);
        let gathered = comm.wait(pending).unwrap().len();
        thread::sleep(SHORT);
        (gathered, comm.barrier().err())
    });
    let wanted = Some(Error::Left { rank: 2 });
    assert_eq!(outcomes, [(3, wanted.clone()), (3, wanted), (3, None)]);
}

#[test]
fn a_rank_that_leaves_wakes_those_who_wait_for_it() {
    let started = Instant::now();
    let outcomes = run(2, |mut comm| {
        comm.set_deadline(Phase::Probe, 20 * SHORT);
        if comm.rank() == 1 {
            thread::sleep(SHORT);
            return None;
        }
        comm.barrier().err()
    });
    assert_eq!(outcomes[0], Some(Error::Left { rank: 1 }));
    assert!(started.elapsed() < 15 * SHORT, "{:?}", started.elapsed());
}

#[test]
fn an_empty_seat_is_noticed() {
    let mut seats = seats(2);
    drop(seats.pop());
    let error = seats.pop().unwrap().take().barrier().unwrap_err();
    assert_eq!(error, Error::Left { rank: 1 });
}

#[test]
fn waiting_time_is_counted() {
    let waited_s = run(2, |mut comm| {
        if comm.rank() == 1 {
            thread::sleep(SHORT);
        }
        comm.barrier().unwrap();
        comm.traffic().waited_s()
    });
    assert!(waited_s[0] > 0.5 * SHORT.as_secs_f64(), "{waited_s:?}");
    assert!(waited_s[1] < 0.5 * SHORT.as_secs_f64(), "{waited_s:?}");
}

#[test]
fn a_long_run_holds_nothing() {
    let open_calls = run(3, |mut comm| {
        let mut most = 0;
        for _ in 0..1000 {
            comm.all_gather_v(&ones(2), &[2; 3]).unwrap();
            comm.gather_bytes(0, vec![0; 10]).unwrap();
            comm.barrier().unwrap();
            most = most.max(comm.open_calls());
        }
        most
    });
    // A slower rank may still be in the barrier, a faster one two calls ahead.
    assert!(open_calls.iter().all(|&calls| calls <= 4), "{open_calls:?}");
}

#[test]
fn nothing_is_copied() {
    let same = run(2, |mut comm| {
        let send = ones(4);
        let received = comm.all_gather_v(&send, &[4, 4]).unwrap();
        received[comm.rank()].id() == send.id()
    });
    assert_eq!(same, [true, true]);
}
