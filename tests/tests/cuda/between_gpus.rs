//! Ranks on a GPU each, whose tensors NCCL carries, against the same ranks on one GPU, which hand
//! them over: the kernels and the numbers are the same, so the answers are. On a machine without
//! GPUs they are emulated (EMULATED_GPUS=4); a real one needs two.

use std::sync::{Arc, Barrier};
use std::time::Duration;

use candle_core::{DType, Device, Tensor};
use tributary_comm::local;
use tributary_comm::nccl::{self, UnequalGathers};
use tributary_engine::Carrier;
use tributary_kernels::{Kernels, Keys, Positions, Query, cuda};
use tributary_model::Model;
use tributary_protocol::{Exchange, Phase, Plan, PlannedMethod};
use tributary_tests::{
    dummy_model_on, infoflow, logits, method, plan, relative_error, reordered, run_all, run_all_over, with_ratio,
};

use super::beside_cpu::config;

/// Tolerance for the same kernels on the same numbers, since libraries choose among products.
const TOLERANCE: f64 = 1e-3;

/// As on one host, and as between hosts.
const GATHERS: [UnequalGathers; 2] = [UnequalGathers::Messages, UnequalGathers::Broadcasts];

fn settings(unequal_gathers: UnequalGathers) -> nccl::NcclSettings {
    let start_timeout = Duration::from_secs(60);
    nccl::NcclSettings { start_timeout, allow_shared_gpu: false, unequal_gathers, message_multiprocessors: 4 }
}

/// The same weights once a rank, each with its own device or at least its own stream.
fn models(world: usize) -> Vec<Arc<dyn Model>> {
    let config = config();
    let gpus = cuda::count().expect("a driver");
    assert!(gpus >= 2, "needs two GPUs");
    let model = |rank: usize| dummy_model_on(&config, 7, DType::BF16, &cuda::device(rank % gpus).expect("a GPU"));
    (0..world).map(model).collect()
}

/// The most ranks that can be connected here, three at the most.
fn most_ranks() -> usize {
    let gpus = cuda::count().expect("a driver");
    gpus.min(3)
}

fn plans(world: usize) -> Vec<Plan> {
    let of = |method: PlannedMethod, exchange| with_ratio(plan(3, &[37, 70, 2, 18], 5, world, method, exchange), 0.3);
    let mut plans = vec![
        of(method("full"), Exchange::PassQ),
        of(method("ring"), Exchange::PassQ),
        of(method("all-gather"), Exchange::PassQ),
    ];
    for exchange in [Exchange::Replicate, Exchange::PassQ, Exchange::Selected] {
        plans.push(of(infoflow(0, 2), exchange));
    }
    plans.push(reordered(of(infoflow(0, 2), Exchange::Replicate)));
    plans.iter_mut().for_each(|plan| plan.max_tokens = 3);
    plans
}

#[test]
fn ranks_on_a_gpu_each_answer_as_on_one() {
    let models = models(most_ranks());
    for (world, gathers) in (2..=most_ranks()).flat_map(|world| GATHERS.map(|gathers| (world, gathers))) {
        let plans = plans(world);
        let expected = run_all(&models[0], Kernels::Auto, world, &plans);
        let found = run_all_over(Carrier::Nccl(settings(gathers)), &models[..world], Kernels::Auto, world, &plans);
        for ((found, expected), plan) in found.iter().zip(&expected).zip(&plans) {
            let what = format!("{}, world {world}, {}, {gathers:?}", plan.method.name(), plan.exchange.name());
            assert_eq!(found.0.selected, expected.0.selected, "{what}");
            let error = relative_error(logits(&found.0), logits(&expected.0));
            println!("{what}: logits differ by {error:.1e}");
            assert!(error < TOLERANCE, "{what}: {error:e}");
            assert_eq!(found.0.tokens, expected.0.tokens, "{what}");
            for (found, expected) in found.1.iter().zip(&expected.1) {
                let (rank, bytes) = (found.rank, found.traffic.tensor_bytes_received());
                assert_eq!(bytes, expected.traffic.tensor_bytes_received(), "{what}: rank {rank}");
            }
        }
    }
}

/// To load a kernel's code the driver may wait for running work of the device, and a message runs
/// there until the other rank has come. So no rank may load code after a message, or keep another
/// one from it that does.
#[test]
fn kernels_behind_a_message_keep_no_rank_from_the_other() {
    let gpus = cuda::count().expect("a driver");
    let together = Barrier::new(2);
    let rank = |seat: local::Seat| {
        let (rank, device) = (seat.rank(), cuda::device(seat.rank() % gpus).expect("a GPU"));
        let mut comm = nccl::start(seat.take(), &device, settings(UnequalGathers::ByHosts)).expect("connected");
        comm.set_deadline(Phase::Recompute, Duration::from_secs(10));
        let rows =
            Tensor::ones((8, 2, 64), DType::BF16, &Device::Cpu).expect("made").to_device(&device).expect("moved");
        let at = Positions::run(0, 8);
        let attend = || {
            let keys = [Keys { k: rows.clone(), v: rows.clone(), at: at.clone() }];
            Kernels::Auto
                .attend(&Query { q: &rows, at: &at, keys: &keys, rope: None, scale: 0.1, dtype: DType::F32 })
                .expect("attended");
        };
        if rank == 0 {
            let gathering = comm.start_all_gather_v(&rows, &[8, 8]).expect("started");
            // Its message runs now.
            std::thread::sleep(Duration::from_millis(200));
            together.wait();
            attend();
            return comm.wait(gathering).and_then(|_| comm.barrier());
        }
        together.wait();
        std::thread::sleep(Duration::from_millis(200));
        attend();
        comm.all_gather_v(&rows, &[8, 8]).and_then(|_| comm.barrier())
    };
    let outcomes: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = local::seats(2).into_iter().map(|seat| scope.spawn(|| rank(seat))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no rank panics")).collect()
    });
    assert_eq!(outcomes, [Ok(()), Ok(())]);
}
