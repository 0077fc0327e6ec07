//! Plans that run with the same weights on a GPU, or an emulated one, and on the CPU, ranks as
//! threads that share the device.

use std::sync::{Arc, OnceLock};

use candle_core::{DType, Device};
use tributary_kernels::{Kernels, cuda};
use tributary_model::Model;
use tributary_protocol::{Exchange, Outcome, Plan, PlannedMethod, RankReport};
use tributary_tests::{dummy_model_on, logits, plan, relative_error, run_all, run_all_beside, tiny_config, with_ratio};

/// Error of a logit in 16 bits after these few layers, relative to the largest logit. An H200 had
/// 2.2e-2 at most, an emulated GPU less.
pub const TOLERANCE: f64 = 3e-2;

/// Relative distance from the cut within which a score's row may be selected on one side only.
const NEAR_TIE: f64 = 3e-2;

pub const EXCHANGES: [Exchange; 3] = [Exchange::Replicate, Exchange::PassQ, Exchange::Selected];

/// Prefix, chunk lengths, query length: uneven; shorter than a tile and longer.
pub const SHAPE: (usize, &[usize], usize) = (3, &[37, 70, 2, 18], 5);

/// Models of one seed, on the CPU and on the first GPU, and the tolerance of their logits.
pub struct Pair {
    pub cpu: Arc<dyn Model>,
    pub gpu: Arc<dyn Model>,
    pub kernels: Kernels,
    tolerance: f64,
}

/// A small model whose heads the kernels for GPUs take.
pub fn config() -> serde_json::Value {
    let changes = [
        ("architectures", serde_json::json!(["Qwen3ForCausalLM"])),
        ("hidden_size", 128.into()),
        ("intermediate_size", 192.into()),
        ("num_hidden_layers", 3.into()),
        ("head_dim", 64.into()),
    ];
    tiny_config(&changes)
}

/// The GPU is opened once a process: candle compiles its kernels anew for every device that is
/// opened.
pub fn pair(dtype: DType, kernels: Kernels, tolerance: f64) -> Pair {
    pair_of(&config(), dtype, kernels, tolerance)
}

/// The same of another config.
pub fn pair_of(config: &serde_json::Value, dtype: DType, kernels: Kernels, tolerance: f64) -> Pair {
    static GPU: OnceLock<Device> = OnceLock::new();
    let device = GPU.get_or_init(|| cuda::device(0).expect("a GPU, or an emulated one")).clone();
    let on = |device: &Device| dummy_model_on(config, 7, dtype, device);
    Pair { cpu: on(&Device::Cpu), gpu: on(&device), kernels, tolerance }
}

pub fn planned(world: usize, method: PlannedMethod, exchange: Exchange, ratio: f64) -> Plan {
    let (prefix, chunks, query) = SHAPE;
    with_ratio(plan(prefix, chunks, query, world, method, exchange), ratio)
}

/// Runs plans on both and compares; gives the device's results.
pub fn compared(models: &Pair, world: usize, plans: &[Plan]) -> Vec<(Outcome, Vec<RankReport>)> {
    let expected = run_all(&models.cpu, models.kernels, world, plans);
    let found = run_all_beside((&models.gpu, &models.cpu), models.kernels, world, plans);
    for ((found, expected), plan) in found.iter().zip(&expected).zip(plans) {
        let what = format!("{}, world {world}, {}", plan.method.name(), plan.exchange.name());
        let same = same_selection(&found.0, &expected.0, plan.prefix_tokens() as u32, &what);
        assert_eq!(found.0.order, expected.0.order, "{what}");
        let error = relative_error(logits(&found.0), logits(&expected.0));
        println!("{what}: logits differ by {error:.1e}, same selection: {same}");
        assert!(!same || error < models.tolerance, "{what}: {error:e}");
    }
    found
}

/// Whether the selections are the same; they may differ where scores are near the cut.
fn same_selection(found: &Outcome, expected: &Outcome, prefix: u32, what: &str) -> bool {
    if found.selected == expected.selected {
        return true;
    }
    let scores = expected.scores.as_ref().expect("a method without scores selects the same rows");
    let score = |row: &u32| f64::from(scores[(row - prefix) as usize]);
    let cut = expected.selected.iter().map(score).fold(f64::INFINITY, f64::min);
    assert_eq!(found.selected.len(), expected.selected.len(), "{what}");
    let differ = |a: &Outcome, b: &Outcome| -> Vec<u32> {
        a.selected.iter().copied().filter(|row| b.selected.binary_search(row).is_err()).collect()
    };
    for row in differ(found, expected).into_iter().chain(differ(expected, found)) {
        let distance = ((score(&row) - cut) / cut).abs();
        assert!(distance < NEAR_TIE, "{what}: row {row} differs, its score is {distance:e} from the cut");
    }
    false
}
