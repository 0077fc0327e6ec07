//! The whole stack on a GPU with plain kernels, which are candle's operations, against the same on
//! the CPU. An emulated GPU has none of them. The driver compiles candle's code first, which
//! takes seconds for each part of it.

use super::beside_cpu::{EXCHANGES, TOLERANCE, compared, pair, planned};
use candle_core::DType;
use tributary_kernels::Kernels;
use tributary_protocol::Exchange;
use tributary_tests::{infoflow, method, reordered, sharp_trace};

/// Error of f32 in other orders of summation.
const TOLERANCE_F32: f64 = 1e-4;

#[test]
#[ignore = "needs a GPU that is not emulated: make gpu"]
fn in_16_bits_with_plain_kernels_a_gpu_answers_as_the_cpu() {
    for dtype in [DType::BF16, DType::F16] {
        let models = pair(dtype, Kernels::Plain, TOLERANCE);
        for world in [1, 2] {
            let mut plans = vec![planned(world, method("full"), Exchange::PassQ, 0.0)];
            plans.extend(EXCHANGES.map(|exchange| planned(world, infoflow(0, 2), exchange, 0.3)));
            compared(&models, world, &plans);
        }
    }
}

#[test]
#[ignore = "needs a GPU that is not emulated: make gpu"]
fn in_f32_with_plain_kernels_a_gpu_answers_as_the_cpu() {
    let models = pair(DType::F32, Kernels::Plain, TOLERANCE_F32);
    for world in [1, 2] {
        let mut plans = vec![
            planned(world, method("full"), Exchange::PassQ, 0.0),
            planned(world, method("ring"), Exchange::PassQ, 0.0),
            planned(world, method("all-gather"), Exchange::PassQ, 0.0),
        ];
        plans.extend(EXCHANGES.map(|exchange| planned(world, infoflow(0, 2), exchange, 0.3)));
        plans.push(reordered(planned(world, infoflow(0, 2), Exchange::PassQ, 0.3)));
        // Which heads read sharpest is found by candle's operations.
        plans.push(planned(world, sharp_trace(), Exchange::PassQ, 0.3));
        compared(&models, world, &plans);
    }
}
