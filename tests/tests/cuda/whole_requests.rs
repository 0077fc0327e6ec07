//! The whole stack on a GPU against the same on the CPU: the same weights in bf16, every method and
//! exchange, ranks as threads that share a device. On a machine without a GPU the device is an
//! emulated one (`make cuda-test`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::beside_cpu::{EXCHANGES, Pair, SHAPE, TOLERANCE, compared, pair, pair_of, planned};
use candle_core::{DType, Device};
use tributary_comm::Liveness;
use tributary_kernels::{Kernels, cuda};
use tributary_model::{Model, Progress};
use tributary_protocol::{EVICTIONS, Evict, EvictionEvidence, Exchange, METHODS, Outcome, Plan, PlannedMethod};
use tributary_tests::samples::Case;
use tributary_tests::side_by_side::run_side_by_side;
use tributary_tests::{
    gemma, glm_with_experts, gpt_oss, group, infoflow, logits, method, open_store, packed, plan, run_all, run_one,
    stored_group, with_ratio, written_by_itself,
};

/// In bf16, with kernels of our own.
fn models() -> Pair {
    pair(DType::BF16, Kernels::Auto, TOLERANCE)
}

#[test]
fn dummy_weights_are_the_same_on_every_device() {
    let models = models();
    let ids: Vec<u32> = (0..96).collect();
    let rows = |model: &Arc<dyn Model>| {
        let hidden = cuda::download(&model.embed(&ids).expect("embedded").hidden).expect("on the host");
        hidden.to_dtype(DType::F32).and_then(|x| x.flatten_all()).and_then(|x| x.to_vec1::<f32>()).expect("numbers")
    };
    assert!(rows(&models.gpu) == rows(&models.cpu));
}

/// Plans of a request by every method's bare name and by further specs, in chunks or of whole
/// prompts.
fn by_name(world: usize, exchange: Exchange, specs: &[&'static str], in_chunks: bool, models: &Pair) -> Vec<Plan> {
    let (prefix, chunks, query) = SHAPE;
    let case = Case { prefix, lead: &[], chunks, query, world, exchange, ratio: 0.3 };
    let specs = METHODS.into_iter().map(|method| method.name).chain(specs.iter().copied());
    let plans = specs.map(|spec| case.planned(spec, &*models.cpu).unwrap_or_else(|why| panic!("{spec}: {why}")));
    plans.filter(|plan| plan.method.in_chunks() == in_chunks).collect()
}

#[test]
fn methods_of_whole_prompts_answer_as_on_the_cpu() {
    let models = models();
    let specs = ["star:block=24", "apb:block=24:anchor=5:passing=24", "all-gather:heads=1"];
    for world in [1, 2, 3] {
        compared(&models, world, &by_name(world, Exchange::PassQ, &specs, false, &models));
    }
}

/// All experts are active, so that no choice hangs on a rounding.
#[test]
fn experts_answer_as_on_the_cpu() {
    let mut config = glm_with_experts();
    for (key, value) in [("head_dim", 64), ("num_experts_per_tok", 12), ("n_group", 1), ("topk_group", 1)] {
        config[key] = value.into();
    }
    let models = pair_of(&config, DType::BF16, Kernels::Auto, TOLERANCE);
    for world in [1, 2] {
        let plans =
            ["full", "ring", "infoflow", "relay"].map(|spec| planned(world, method(spec), Exchange::PassQ, 0.3));
        compared(&models, world, &plans);
    }
}

/// Weights that stay packed, those of experts too, all of which are active: on a GPU they are
/// unpacked product by product, and few rows are multiplied with the blocks.
#[test]
fn packed_weights_answer_as_on_the_cpu() {
    let mut experts = glm_with_experts();
    for (key, value) in [("num_experts_per_tok", 12), ("n_group", 1), ("topk_group", 1), ("moe_intermediate_size", 32)]
    {
        experts[key] = value.into();
    }
    experts["hidden_size"] = 64.into();
    experts["intermediate_size"] = 96.into();
    for (mut config, packing) in [(packed(), "Q4_0"), (packed(), "Q8_0"), (experts, "MXFP4")] {
        config["head_dim"] = 64.into();
        config["quantization_config"] = serde_json::json!({"quant_method": "gguf", "type": packing});
        let models = pair_of(&config, DType::BF16, Kernels::Auto, TOLERANCE);
        for world in [1, 2] {
            let plans = ["full", "ring", "none", "infoflow", "prophetkv"]
                .map(|spec| Plan { max_tokens: 3, ..planned(world, method(spec), Exchange::PassQ, 0.3) });
            compared(&models, world, &plans);
        }
    }
}

/// Windows and sinks, on ranks and in chunks at other places; all experts are active, so that no
/// choice hangs on a rounding. Gemma's selections would, in bf16: f16 rounds less.
#[test]
fn windows_and_sinks_answer_as_on_the_cpu() {
    let mut oss = gpt_oss();
    (oss["head_dim"], oss["num_experts_per_tok"]) = (64.into(), 10.into());
    let mut gemma = gemma();
    gemma["head_dim"] = 256.into(); // as of its smaller models
    for (config, dtype) in [(oss, DType::BF16), (gemma, DType::F16)] {
        let models = pair_of(&config, dtype, Kernels::Auto, TOLERANCE);
        for world in [1, 2] {
            let plans = ["full", "ring", "none", "infoflow", "prophetkv:layout=tl-tp", "ape"]
                .map(|spec| planned(world, method(spec), Exchange::PassQ, 0.3));
            compared(&models, world, &plans);
        }
    }
}

#[test]
fn methods_with_chunks_answer_as_on_the_cpu() {
    let models = models();
    let specs = [
        "prophetkv:layout=tl-tp",
        "cacheblend:drift-layers=2",
        "samkv:variant=small",
        "infoflow:layers=0..2:reorder",
        "infoflow:layers=0..2:reorder:order-for=selection",
        "infoflow:layers=0..2:reorder:packets",
    ];
    for world in [1, 3] {
        for exchange in EXCHANGES {
            compared(&models, world, &by_name(world, exchange, &specs, true, &models));
        }
    }
}

/// Places and draws are the same everywhere; selections by attention may differ at the cut, where
/// scores are close to each other.
#[test]
fn a_gpu_keeps_what_the_cpu_keeps_and_goes_on_from_it() {
    let models = models();
    for world in [1, 2] {
        for entry in EVICTIONS.iter().filter(|entry| entry.evidence != EvictionEvidence::LookAhead) {
            for gather in [false, true] {
                let evict = Evict {
                    method: entry.method,
                    keep: 24,
                    window: 8,
                    pooled: 7,
                    sinks: 4,
                    beta: 20,
                    pseudo: 4,
                    seed: 2,
                    gather,
                };
                let plan = planned(world, method("ring"), Exchange::PassQ, 0.0);
                let plan = Plan { evict: Some(evict), draft_model: Some(written_by_itself()), max_tokens: 6, ..plan };
                let expected = run_all(&models.cpu, models.kernels, world, std::slice::from_ref(&plan)).remove(0).0;
                let found = compared(&models, world, std::slice::from_ref(&plan)).remove(0).0;
                let what = format!("{}, world {world}, gathered {gather}", entry.name);
                assert_eq!(found.tokens.len(), 6, "{what}");
                let lists = |outcome: &Outcome| -> Vec<Vec<u32>> {
                    outcome.kept.iter().flat_map(|kept| kept.0.iter().flatten().cloned()).collect()
                };
                let (found, expected) = (lists(&found), lists(&expected));
                assert_eq!((found.len(), expected.len()), (6, 6), "{what}: layers times KV heads");
                let by_attention = !matches!(entry.evidence, EvictionEvidence::Places | EvictionEvidence::Draw);
                for (found, expected) in found.iter().zip(&expected) {
                    let shared = found.iter().filter(|row| expected.contains(row)).count();
                    let least = if by_attention { expected.len() * 3 / 4 } else { expected.len() };
                    assert!(shared >= least && found.len() == expected.len(), "{what}: {found:?}, {expected:?}");
                }
            }
        }
    }
}

/// A rank that keeps no chunk is asked about no key at all, and its answers merge with those of the
/// others.
#[test]
fn ranks_without_a_chunk_answer_as_on_the_cpu() {
    let models = models();
    for exchange in EXCHANGES {
        let plan = with_ratio(plan(3, &[37, 30], 5, 3, infoflow(0, 2), exchange), 0.3);
        compared(&models, 3, &[plan]);
    }
}

#[test]
fn warm_chunks_answer_as_cold_ones_do() {
    let models = models();
    let (_, chunks, query) = SHAPE;
    // Without a prefix as well: then there is an entry of no rows beside those of the chunks.
    let cases =
        [(1, 3, Exchange::PassQ), (2, 3, Exchange::PassQ), (2, 0, Exchange::PassQ), (2, 0, Exchange::Replicate)];
    for (world, prefix, exchange) in cases {
        let plan = plan(prefix, chunks, query, world, infoflow(0, 2), exchange);
        let cold = Plan { keep_chunks: true, ..with_ratio(plan, 0.3) };
        let mut warm = cold.clone();
        warm.chunks.iter_mut().for_each(|chunk| chunk.warm = true);
        let found = compared(&models, world, &[cold, warm.clone()]);
        let hits: usize = found[1].1.iter().map(|report| report.chunk_cache.hits).sum();
        assert_eq!(hits, warm.chunks.len());
        let what = format!("world {world}, {prefix} rows of prefix, {}", exchange.name());
        assert_eq!(found[0].0.selected, found[1].0.selected, "{what}");
        assert_eq!(logits(&found[0].0), logits(&found[1].0), "{what}");
    }
}

#[test]
fn chunks_from_a_store_answer_as_cold_ones_do() {
    let models = models();
    for (world, exchange) in [(1, Exchange::PassQ), (2, Exchange::PassQ), (2, Exchange::Replicate)] {
        let folder = tempfile::tempdir().expect("a folder");
        let cold = Plan { keep_chunks: true, ..planned(world, infoflow(0, 2), exchange, 0.3) };
        let mut warm = cold.clone();
        warm.chunks.iter_mut().for_each(|chunk| chunk.warm = true);
        let run = |plan: &Plan| {
            let store = open_store(folder.path());
            let group = stored_group(&models.gpu, world, &store);
            let found = run_one(&group, plan);
            group.end().expect("the group ends well");
            assert!(store.flush(Duration::from_secs(60)), "everything is written");
            found
        };
        let (expected, (found, reports)) = (run(&cold), run(&warm));
        let loaded: usize = reports.iter().map(|report| report.chunk_cache.from_store.loaded).sum();
        assert_eq!(loaded, warm.chunks.len(), "world {world}");
        assert_eq!(logits(&expected.0), logits(&found), "world {world}, {}", exchange.name());
    }
}

#[test]
fn requests_side_by_side_answer_as_each_does_alone() {
    let models = models();
    let methods = [method("full"), method("ring"), infoflow(1, 3), method("relay")];
    for exchange in [Exchange::Replicate, Exchange::PassQ] {
        let number = |(index, &method): (usize, &PlannedMethod)| Plan {
            request: index as u64 + 1,
            max_tokens: 4 + index,
            ..planned(2, method, exchange, 0.3)
        };
        let plans: Vec<Plan> = methods.iter().enumerate().map(number).collect();
        let alone = run_all(&models.gpu, models.kernels, 2, &plans);
        let group = group(&models.gpu, 2);
        let together = run_side_by_side(group.link(), &[&plans[..1], &plans[1..]]);
        group.end().expect("the group ends well");
        for (((alone, _), together), plan) in alone.iter().zip(&together).zip(&plans) {
            let differs = (0..alone.tokens.len()).find(|&at| alone.tokens[at] != together.tokens[at]);
            // Products of several rows round otherwise than those of one: only a near tie may fall
            // the other way.
            let margin = differs.map_or(0.0, |at| f64::from(alone.margins[at]));
            let method = plan.method.name();
            assert!(margin < TOLERANCE, "{method}: token {differs:?} of {:?} differs, margin {margin:e}", alone.tokens);
            assert_eq!(alone.tokens.len(), together.tokens.len(), "{method}");
        }
    }
}

#[test]
fn phases_on_a_device_follow_one_another() {
    let model = models().gpu;
    let found = run_all(&model, Kernels::Auto, 2, &[planned(2, infoflow(0, 2), Exchange::PassQ, 0.3)]);
    for report in &found[0].1 {
        assert!(report.spans.len() > 4, "{:?}", report.spans);
        for pair in report.spans.windows(2) {
            let end_s = pair[0].start_s + pair[0].seconds;
            assert!(pair[0].seconds >= 0.0 && pair[1].start_s >= end_s - 1e-3, "{pair:?}");
        }
    }
}

#[test]
fn a_step_counts_when_the_device_has_passed_it() {
    let device = cuda::device(0).expect("a GPU, or an emulated one");
    let liveness = Liveness::default();
    let progress = Progress::on(&device, liveness.clone()).expect("a thread");
    for layer in 0..3 {
        progress.step(layer).expect("an event");
        progress.attention();
        progress.attended();
    }
    let began = Instant::now();
    while liveness.activity().layer != Some(2) {
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", liveness.activity());
        std::thread::sleep(Duration::from_millis(1));
    }
    // On a CPU it counts at once.
    let liveness = Liveness::default();
    Progress::on(&Device::Cpu, liveness.clone()).expect("no thread").step(1).expect("told");
    assert_eq!(liveness.activity().layer, Some(1));
}
