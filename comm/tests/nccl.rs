//! Threads as ranks, their tensors on GPUs and carried by NCCL: the promises of every backend, and
//! failures of a rank. Runs on an emulated machine (`.ci/cuda emulated`, EMULATED_GPUS=4) and
//! unchanged on a real one with two GPUs: NCCL does not support two threads on one.

use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use candle_core::cuda_backend::cudarc::driver::CudaContext;
use candle_core::{DType, Device, Tensor};
use tributary_comm::local::seats;
use tributary_comm::nccl::UnequalGathers;
use tributary_comm::{Collective, Communicator, Error, Result, conformance, nccl};
use tributary_protocol::Phase;

const SHORT: Duration = Duration::from_millis(300);

/// Time after which a test counts as hung.
const LONG: Duration = Duration::from_secs(20);

const SETTINGS: nccl::NcclSettings = nccl::NcclSettings {
    start_timeout: LONG,
    allow_shared_gpu: false,
    unequal_gathers: UnequalGathers::ByHosts,
    message_multiprocessors: 4,
};

type Comm = Box<dyn Communicator>;

fn gpus() -> usize {
    CudaContext::device_count().expect("a driver") as usize
}

/// The most ranks that can be connected here.
fn most_ranks() -> usize {
    assert!(gpus() >= 2, "needs two GPUs");
    gpus()
}

/// Runs one closure a rank, each on its own thread with its own device; gives the results in rank
/// order.
fn run_on<T: Send>(
    world: usize,
    gpu_of: impl Fn(usize) -> usize,
    allow_shared_gpu: bool,
    rank: impl Fn(Result<Comm>, Device) -> T + Sync,
) -> Vec<T> {
    run_with(world, gpu_of, nccl::NcclSettings { allow_shared_gpu, ..SETTINGS }, rank)
}

fn run_with<T: Send>(
    world: usize,
    gpu_of: impl Fn(usize) -> usize,
    settings: nccl::NcclSettings,
    rank: impl Fn(Result<Comm>, Device) -> T + Sync,
) -> Vec<T> {
    thread::scope(|scope| {
        let start = |seat: tributary_comm::local::Seat| {
            let (gpu, rank) = (gpu_of(seat.rank()), &rank);
            scope.spawn(move || {
                let device = Device::new_cuda_with_stream(gpu).expect("a GPU");
                rank(nccl::start(seat.take(), &device, settings), device)
            })
        };
        let threads: Vec<_> = seats(world).into_iter().map(start).collect();
        threads.into_iter().map(|thread| thread.join().expect("the rank does not panic")).collect()
    })
}

fn run<T: Send>(world: usize, rank: impl Fn(Comm, Device) -> T + Sync) -> Vec<T> {
    let (gpus, connected) = (gpus(), Barrier::new(world));
    let begin = |comm: Result<Comm>, device| {
        let comm = comm.expect("connected");
        // A rank that fails at once must find the others connected.
        connected.wait();
        rank(comm, device)
    };
    run_on(world, |rank| rank % gpus, false, begin)
}

fn rows(count: usize, value: f32, device: &Device) -> Tensor {
    Tensor::from_vec(vec![value; count * 2], (count, 2), &Device::Cpu)
        .expect("of this shape")
        .to_device(device)
        .expect("moved")
}

fn conforms(world: usize, unequal_gathers: UnequalGathers) {
    let settings = nccl::NcclSettings { unequal_gathers, ..SETTINGS };
    let gpus = gpus();
    let outcomes = run_with(
        world,
        |rank| rank % gpus,
        settings,
        |comm, device| {
            let mut comm = comm.expect("connected");
            let outcome = conformance::check_on(&mut *comm, &device);
            comm.barrier().expect("all are there");
            outcome
        },
    );
    for (rank, outcome) in outcomes.into_iter().enumerate() {
        assert_eq!(outcome, Ok(()), "rank {rank} of {world}, {unequal_gathers:?}");
    }
}

#[test]
fn one_rank_conforms() {
    conforms(1, UnequalGathers::ByHosts);
    conforms(1, UnequalGathers::Broadcasts);
}

#[test]
fn several_ranks_conform() {
    for world in 2..=most_ranks().min(4) {
        for gathers in [UnequalGathers::Messages, UnequalGathers::Broadcasts] {
            conforms(world, gathers);
        }
    }
}

#[test]
fn tensors_stay_on_the_device_and_order_is_that_of_the_device() {
    let outcomes = run(2, |mut comm, device| {
        let me = comm.rank();
        let mut mine = rows(300, me as f32, &device);
        // Each step sends the tensors of the step before, and the host waits for none.
        for _ in 0..5 {
            let pending = comm.start_exchange(&mine, 1 - me, 1 - me, 300).expect("started");
            mine = comm.wait(pending).expect("received").remove(0);
        }
        assert!(mine.device().same_device(&device));
        let here = mine.to_device(&Device::Cpu).expect("copied");
        // The copy is a piece of the device's work like any other.
        device.synchronize().expect("it gets there");
        here.to_vec2::<f32>().expect("read")
    });
    for (rank, values) in outcomes.iter().enumerate() {
        assert!(values.iter().flatten().all(|&value| value == (1 - rank) as f32), "rank {rank}");
    }
}

#[test]
fn a_rank_that_never_calls_is_named_while_the_others_stand_in_the_driver() {
    let meet = Arc::new(Barrier::new(2));
    let outcomes = run(2, |mut comm, device| {
        comm.all_gather_v(&rows(1, 1.0, &device), &[1, 1]).expect("all are there");
        comm.set_deadline(Phase::Recompute, SHORT);
        if comm.rank() == 1 {
            meet.wait();
            return (comm.barrier().expect_err("the group is dead"), Duration::ZERO);
        }
        let began = Instant::now();
        let gathered = comm.all_gather_v(&rows(1, 1.0, &device), &[1, 1]).expect("started");
        // Blocks in the driver until the watching thread ends the call. The data that it reads is
        // of no use.
        let _here = gathered[1].to_device(&Device::Cpu);
        let _ = device.synchronize();
        let waited = began.elapsed();
        meet.wait();
        (comm.broadcast_bytes(0, Some(vec![1])).expect_err("nothing leaves a dead group"), waited)
    });
    let (error, waited) = &outcomes[0];
    assert!(matches!(error, Error::Stalled { rank: 1, limit, .. } if *limit == SHORT), "{error:?}");
    assert!(error.to_string().starts_with("rank 1 is stuck: it computes in recompute, "), "{error}");
    assert!(*waited >= SHORT, "{waited:?}");
    assert!(*waited < LONG, "{waited:?}");
    assert!(matches!(&outcomes[1].0, Error::Aborted { rank: 0, exit_code: 75, .. }), "{:?}", outcomes[1].0);
}

/// A stream takes some 1,000 launches. A thread that adds one more waits in the driver with its
/// lock held, so that every other call to the driver waits too: the watching thread must do
/// without.
#[test]
fn launches_behind_a_stuck_collective_do_not_stop_the_watching_thread() {
    const LAUNCHES: usize = 2000;
    let meet = Barrier::new(2);
    let outcomes = run(2, |mut comm, device| {
        comm.all_gather_v(&rows(1, 1.0, &device), &[1, 1]).expect("all are there");
        comm.set_deadline(Phase::Recompute, SHORT);
        if comm.rank() == 1 {
            meet.wait();
            return (comm.barrier().expect_err("the group is dead"), 0);
        }
        let _gathered = comm.all_gather_v(&rows(1, 1.0, &device), &[1, 1]).expect("started");
        // The host is ahead of the device until there is no room any more.
        let launched: Vec<Tensor> = (0..LAUNCHES).map_while(|_| Tensor::zeros(4, DType::F32, &device).ok()).collect();
        meet.wait();
        (comm.barrier().expect_err("the group is dead"), launched.len())
    });
    let (error, launched) = &outcomes[0];
    assert!(matches!(error, Error::Stalled { rank: 1, .. }), "{error:?}");
    assert_eq!(*launched, LAUNCHES, "what was launched goes on once the collective has ended");
}

#[test]
fn bytes_do_not_leave_before_the_device_has_passed_the_calls() {
    let outcomes = run(2, |mut comm, device| {
        comm.set_deadline(Phase::Probe, SHORT);
        if comm.rank() == 1 {
            thread::sleep(3 * SHORT);
            return comm.barrier().expect_err("the group is dead");
        }
        comm.all_gather_v(&rows(1, 1.0, &device), &[1, 1]).expect("started");
        comm.broadcast_bytes(0, Some(vec![1])).expect_err("the gather has not ended")
    });
    let named = matches!(&outcomes[0], Error::Stalled { rank: 1, .. });
    assert!(named, "{outcomes:?}");
}

#[test]
fn an_abort_wakes_those_who_stand_in_the_driver() {
    let outcomes = run(2, |mut comm, device| {
        comm.set_deadline(Phase::Probe, LONG);
        let began = Instant::now();
        if comm.rank() == 1 {
            thread::sleep(SHORT);
            comm.abort("disk full", 74);
        } else {
            let gathered = comm.all_gather_v(&rows(1, 1.0, &device), &[1, 1]).expect("started");
            let _here = gathered[1].to_device(&Device::Cpu);
            let _ = device.synchronize();
        }
        let error = comm.all_gather_v(&rows(1, 1.0, &device), &[1, 1]).expect_err("the group is dead");
        (error, comm.barrier().expect_err("the group is dead"), began.elapsed())
    });
    for (rank, (error, again, waited)) in outcomes.iter().enumerate() {
        let wanted = Error::Aborted { rank: 1, cause: "disk full".to_owned(), exit_code: 74 };
        assert_eq!((error, again), (&wanted, &wanted), "rank {rank}");
        assert!(*waited < LONG, "rank {rank}: {waited:?}");
    }
}

#[test]
fn sizes_that_differ_end_by_the_deadline() {
    let outcomes = run(2, |mut comm, device| {
        comm.set_deadline(Phase::Probe, SHORT);
        let (own, other) = if comm.rank() == 0 { (300, 200) } else { (100, 300) };
        let counts = if comm.rank() == 0 { [own, other] } else { [other, own] };
        comm.all_gather_v(&rows(own, 1.0, &device), &counts).expect("started");
        comm.barrier().expect_err("the sizes differ")
    });
    let told: Vec<String> = outcomes.iter().map(ToString::to_string).collect();
    // Rank 0 waits for rows that do not come. Rank 1 has its tensors, and finds that rank 0 does
    // not continue.
    let told = told.iter().any(|error| {
        error.contains("all have made it: their sizes differ")
            || error.contains("rank 0 waits on its device") && error.contains("in all-gather (call ")
    });
    assert!(told, "{outcomes:?}");
    assert!(outcomes.iter().all(|error| error.exit_code() == 75), "{outcomes:?}");
}

#[test]
fn arguments_that_do_not_fit_themselves_are_refused_at_once() {
    let outcomes = run(1, |mut comm, device| {
        let error = comm.start_exchange(&rows(1, 0.0, &device), 0, 0, 2).expect_err("one row and two");
        (error, comm.barrier().expect_err("the group is dead"))
    });
    assert!(matches!(&outcomes[0].0, Error::Mismatch { rank: 0, other: 0, .. }), "{outcomes:?}");
    assert_eq!(outcomes[0].0, outcomes[0].1);
}

#[test]
fn tensors_of_the_cpu_are_refused() {
    let outcomes = run(2, |mut comm, _| {
        let error = comm.all_gather_v(&rows(1, 0.0, &Device::Cpu), &[1, 1]).expect_err("not on a GPU");
        error.to_string()
    });
    assert!(outcomes.iter().any(|error| error.starts_with("tensor: NCCL carries tensors on a GPU")), "{outcomes:?}");
}

#[test]
fn calls_that_nobody_waits_for_hold_nobody_up() {
    let outcomes = run(2, |mut comm, device| {
        let pending = comm.start_all_gather_v(&rows(2, 1.0, &device), &[2, 2]).expect("started");
        drop(pending);
        comm.rank()
    });
    assert_eq!(outcomes, [0, 1]);
}

#[test]
fn a_panicking_rank_ends_the_group() {
    let outcomes = run(2, |mut comm, device| {
        comm.set_deadline(Phase::Probe, LONG);
        if comm.rank() == 1 {
            let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
                let comm = comm;
                panic!("of rank {}, on purpose", comm.rank());
            }));
            assert!(panicked.is_err());
            return None;
        }
        let gathered = comm.all_gather_v(&rows(1, 1.0, &device), &[1, 1]).and_then(|_| comm.barrier());
        gathered.err()
    });
    assert_eq!(outcomes[0], Some(Error::Aborted { rank: 1, cause: "rank 1 panicked".into(), exit_code: 70 }));
}

#[test]
fn waiting_is_counted_on_the_device() {
    let waited_s = run(2, |mut comm, device| {
        comm.all_gather_v(&rows(1, 1.0, &device), &[1, 1]).expect("connected");
        comm.barrier().expect("all are there");
        comm.reset_traffic();
        if comm.rank() == 1 {
            thread::sleep(SHORT);
        }
        comm.all_gather_v(&rows(1, 1.0, &device), &[1, 1]).expect("started");
        comm.barrier().expect("all are there");
        [Collective::AllGather, Collective::Barrier].map(|kind| comm.traffic().entries[&kind].waited_s)
    });
    let [[gather_s, barrier_s], [late_gather_s, _]] = waited_s[..] else { panic!("two ranks") };
    assert!(gather_s > 0.5 * SHORT.as_secs_f64(), "{waited_s:?}");
    assert!(late_gather_s < 0.5 * SHORT.as_secs_f64(), "{waited_s:?}");
    // The same time is not counted twice: the barrier begins after the gather.
    assert!(barrier_s < 0.5 * SHORT.as_secs_f64(), "{waited_s:?}");
}

#[test]
fn a_wait_counts_in_the_lap_in_which_it_was_waited_for() {
    let waited_s = run(2, |mut comm, device| {
        comm.all_gather_v(&rows(1, 1.0, &device), &[1, 1]).expect("connected");
        comm.barrier().expect("all are there");
        let mine = rows(1, 1.0, &device);
        comm.reset_traffic();
        let late = comm.start_lap();
        if comm.rank() == 1 {
            thread::sleep(SHORT);
        }
        let gathered = comm.all_gather_v(&mine, &[1, 1]).expect("started");
        // The host comes here long before the device has passed the gather, as long as nothing is
        // freed that it uses.
        let next = comm.start_lap();
        comm.set_deadline(Phase::Select, LONG);
        comm.barrier().expect("all are there");
        drop((mine, gathered));
        [late, next].map(|lap| comm.laps()[lap].waited_s())
    });
    let [[late_s, next_s], [sleeper_s, _]] = waited_s[..] else { panic!("two ranks") };
    assert!(late_s > 0.5 * SHORT.as_secs_f64(), "{waited_s:?}");
    assert!(next_s < 0.5 * SHORT.as_secs_f64(), "{waited_s:?}");
    assert!(sleeper_s < 0.5 * SHORT.as_secs_f64(), "{waited_s:?}");
}

#[test]
fn a_wait_that_outlives_its_request_is_not_the_next_ones() {
    let meet = Barrier::new(2);
    let waited_s = run(2, |mut comm, device| {
        comm.all_gather_v(&rows(1, 1.0, &device), &[1, 1]).expect("connected");
        comm.barrier().expect("all are there");
        comm.reset_traffic();
        let mine = rows(1, 1.0, &device);
        if comm.rank() == 1 {
            meet.wait();
            thread::sleep(SHORT);
        }
        // Kept until the end: to free them would wait for the gather.
        let _gathered = comm.all_gather_v(&mine, &[1, 1]).expect("started");
        let before_s = comm.traffic().waited_s();
        comm.reset_traffic();
        if comm.rank() == 0 {
            meet.wait();
        }
        comm.barrier().expect("all are there");
        [before_s, comm.traffic().waited_s()]
    });
    let [before_s, behind_s] = waited_s[0];
    assert_eq!(before_s, 0.0, "the device waits still");
    assert!(behind_s < 0.5 * SHORT.as_secs_f64(), "{waited_s:?}");
}

#[test]
fn ranks_with_one_gpu_are_refused() {
    let outcomes = run_on(2, |_| 0, false, |comm, _| comm.err().expect("refused"));
    let Error::SharedGpu { ranks, gpu, .. } = &outcomes[0] else { panic!("{outcomes:?}") };
    assert_eq!(ranks, &[0, 1]);
    assert!(gpu.starts_with("GPU-"), "{gpu}");
    assert!(matches!(&outcomes[1], Error::Aborted { rank: 0, exit_code: 78, .. }), "{outcomes:?}");
}

#[test]
fn threads_with_one_gpu_are_refused_even_where_ranks_may_share_it() {
    let outcomes = run_on(2, |_| 0, true, |comm, _| comm.err().expect("refused"));
    let told = outcomes[0].to_string();
    assert!(told.starts_with("start: ranks 0 and 1 are threads of one process and share GPU-"), "{told}");
    assert_eq!(outcomes[0].exit_code(), 78);
}
