//! The kit of the cross-crate tests: tiny models from a seed, plans, and groups of ranks that run
//! them.

pub mod counting;
pub mod equal;
pub mod real;
pub mod samples;
pub mod side_by_side;

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use candle_core::{DType, Device, Tensor};
use tributary_coordinator::Clock;
use tributary_coordinator::dispatch;
use tributary_engine::{AuxiliaryModel, Beside, Carrier, Group, GroupSettings, shape_of};
use tributary_kernels::Kernels;
use tributary_methods::{MethodSpec, ModelFacts};
use tributary_model::{Adapter, Adapters, LoadFormat, Model, load};
use tributary_planner::ModelShape;
use tributary_protocol::deal::usual_owner;
use tributary_protocol::{
    Around, Auxiliary, AuxiliaryCost, AuxiliaryPrompt, AuxiliaryReading, Chunk, DraftModel, Evidence, Exchange,
    Importance, KeySpace, Layers, OrderFor, Outcome, Passing, Plan, PlannedMethod, Prefill, RankReport, Requirement,
    Returns, SamKv, SamKvVariant, Sampling, Selection, Slices, TextHints, Trace, TraceHeads,
};
use tributary_store::{Settings, Store};

/// Name of the auxiliary model for methods that need one: it is the main model itself.
pub const AUXILIARY: &str = "small";

/// The number of the adapter that ranks have.
pub const ADAPTER: u64 = 77;

/// Its rows around a chunk.
pub const AROUND: Around = Around { adapter: ADAPTER, head: 2, tail: 1 };

/// Longest wait of a test for an event.
const PATIENCE: Duration = Duration::from_secs(120);

/// The repository's root.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate stands in the repository").to_owned()
}

/// A config.json of a tiny Llama with the given fields replaced or added.
pub fn tiny_config(changes: &[(&str, serde_json::Value)]) -> serde_json::Value {
    let mut config = serde_json::json!({
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 97,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": 2048,
        "hidden_act": "silu",
        "tie_word_embeddings": false,
        "eos_token_id": 96,
    });
    for (key, value) in changes {
        config[key] = value.clone();
    }
    config
}

/// A model with random weights in f32 from a config.json's text.
pub fn dummy_model(config: &serde_json::Value, seed: u64) -> Arc<dyn Model> {
    dummy_model_of(config, seed, DType::F32)
}

/// A model with random weights from a config.json's text; keys and values in `dtype` too.
pub fn dummy_model_of(config: &serde_json::Value, seed: u64, dtype: DType) -> Arc<dyn Model> {
    dummy_model_on(config, seed, dtype, &Device::Cpu)
}

/// The same on a device.
pub fn dummy_model_on(config: &serde_json::Value, seed: u64, dtype: DType, device: &Device) -> Arc<dyn Model> {
    let folder = tempfile::tempdir().expect("a folder for the config");
    std::fs::write(folder.path().join("config.json"), config.to_string()).expect("the config is written");
    load(folder.path(), LoadFormat::Dummy { seed }, dtype, device).expect("a dummy model loads")
}

fn chunk(ids: Vec<u32>, rank: usize) -> Chunk {
    Chunk { ids, pictures: Vec::new(), rank, warm: false, around: None, compress: None }
}

/// A plan with chunks of the given lengths, ids from a seed, chunk i on rank i mod `world`.
pub fn plan(
    prefix: usize,
    chunks: &[usize],
    query: usize,
    world: usize,
    method: PlannedMethod,
    exchange: Exchange,
) -> Plan {
    let mut next = 12345u32;
    let mut ids = |count: usize| -> Vec<u32> {
        let draw = |_| {
            next = next.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (next >> 16) % 96
        };
        (0..count).map(draw).collect()
    };
    let plan = Plan {
        request: 1,
        prefix: ids(prefix),
        lead: Vec::new(),
        chunks: chunks.iter().enumerate().map(|(i, &length)| chunk(ids(length), i % world)).collect(),
        query: ids(query),
        owner: usual_owner(method.prefill, world),
        method,
        exchange,
        budget: 0,
        order: Vec::new(),
        reused_rows: 0,
        continues: None,
        keep_sequence: false,
        windows_from: 0,
        hands_over: false,
        scope: None,
        keep_chunks: false,
        from_store: false,
        include_first_chunk: false,
        reorder: None,
        order_for: OrderFor::All,
        max_tokens: 4,
        eos: Vec::new(),
        sampling: Sampling::default(),
        timeout_ms: 60_000,
        slices: Slices::default(),
        returns: Returns { logits: true, scores: true, logprobs: None, prompt_logprobs: None },
        auxiliary: Vec::new(),
        text: TextHints::default(),
        draft_model: None,
        look_ahead: None,
        evict: None,
    };
    let reading = plan.method.auxiliary_reading();
    let auxiliary: Vec<_> = reading.map(|reading| read_by_itself(&plan, reading)).into_iter().collect();
    let plan = Plan { auxiliary, ..plan };
    if plan.method.method.needs(Requirement::Adapter) { between(plan) } else { plan }
}

/// The plan with an adapter's rows around every chunk.
pub fn between(mut plan: Plan) -> Plan {
    plan.chunks.iter_mut().for_each(|chunk| chunk.around = Some(AROUND));
    plan
}

/// The plan that keeps the chunks which it computes.
pub fn kept(plan: Plan) -> Plan {
    Plan { keep_chunks: true, ..plan }
}

/// The plan of a request whose chunks are kept already.
pub fn warm(mut plan: Plan) -> Plan {
    plan.chunks.iter_mut().for_each(|chunk| chunk.warm = true);
    plan
}

/// The adapter that ranks have, on a model's device: three rows.
pub fn adapters(model: &dyn Model) -> Adapters {
    let number = |i: usize| 0.5 * ((i * 37 % 101) as f32 / 50.0 - 1.0);
    let numbers: Vec<f32> = (0..3 * model.config().hidden).map(number).collect();
    let embeddings = Tensor::from_vec(numbers, (3, model.config().hidden), &Device::Cpu).expect("numbers");
    let adapter = Adapter::from(embeddings).on(model.device(), DType::F32).expect("on the device");
    Adapters::new([(ADAPTER, adapter)])
}

/// The entry of the auxiliary model, for methods that need one: every chunk with the query after
/// it, or the whole prompt.
fn read_by_itself(plan: &Plan, reading: AuxiliaryReading) -> Auxiliary {
    let written = reading.written();
    if written > 0 {
        let context = plan.context_row_numbers().into_iter().map(|row| row..row + 1);
        let stands_for = std::iter::repeat_n(0..0, plan.prefix.len()).chain(context).collect();
        let prompts = vec![AuxiliaryPrompt { ids: plan.all_ids(), query: plan.query.len(), stands_for }];
        return Auxiliary { model: AUXILIARY.to_owned(), prompts, written, cost: AuxiliaryCost::default() };
    }
    let prompt = |(chunk, rows): (&Chunk, Range<u32>)| AuxiliaryPrompt {
        ids: chunk.ids.iter().chain(&plan.query).copied().collect(),
        query: plan.query.len(),
        stands_for: rows.map(|row| row..row + 1).collect(),
    };
    let prompts = plan.chunks.iter().zip(plan.chunk_rows()).map(prompt).collect();
    Auxiliary { model: AUXILIARY.to_owned(), prompts, written, cost: AuxiliaryCost::default() }
}

/// The entry of the model that writes ahead, for evictions that listen to one.
pub fn written_by_itself() -> DraftModel {
    DraftModel { model: AUXILIARY.to_owned(), cost: AuxiliaryCost::default() }
}

/// A method by its spec, for the tiny models.
pub fn method(spec: &str) -> PlannedMethod {
    method_of(spec, ModelFacts::new(4, 2))
}

/// A method by its spec, for a model.
pub fn method_of(spec: &str, model: ModelFacts) -> PlannedMethod {
    let spec: MethodSpec = spec.parse().unwrap_or_else(|why| panic!("{why}"));
    spec.planned(model).unwrap_or_else(|wrong| panic!("{wrong:?}"))
}

/// A method that asks the query, with evidence that no option of it gives.
pub fn asking(spec: &str, change: impl FnOnce(&mut Evidence)) -> PlannedMethod {
    let method = method(spec);
    let mut evidence = method.evidence().expect("a method that asks the query");
    change(&mut evidence);
    PlannedMethod { prefill: Prefill::Chunks(Selection::Evidence(evidence)), ..method }
}

/// A method that works in blocks of these sizes.
pub fn anchored(name: &str, block_rows: Option<usize>, passing: Option<Passing>) -> PlannedMethod {
    PlannedMethod { prefill: Prefill::Anchored { block_rows, passing }, ..method(name) }
}

/// InfoFlow by norm over the given layers in the GLOBAL layout.
pub fn infoflow(from: usize, to: usize) -> PlannedMethod {
    method(&format!("infoflow:layers={from}..{to}"))
}

/// A Llama, and a Qwen3 with a separate head width.
pub fn tiny_models() -> [Arc<dyn Model>; 2] {
    let qwen3 = [
        ("architectures", serde_json::json!(["Qwen3ForCausalLM"])),
        ("head_dim", 24.into()),
        ("num_attention_heads", 6.into()),
    ];
    [dummy_model(&tiny_config(&[]), 1), dummy_model(&tiny_config(&qwen3), 2)]
}

/// A Qwen3 with experts in all layers but the second, and a separate head width.
pub fn model_with_experts() -> Arc<dyn Model> {
    let changes = [
        ("architectures", serde_json::json!(["Qwen3MoeForCausalLM"])),
        ("head_dim", 24.into()),
        ("num_attention_heads", 6.into()),
        ("num_experts", 12.into()),
        ("num_experts_per_tok", 3.into()),
        ("moe_intermediate_size", 20.into()),
        ("norm_topk_prob", true.into()),
        ("mlp_only_layers", serde_json::json!([1])),
    ];
    dummy_model(&tiny_config(&changes), 4)
}

/// A config of GLM-4.5's kind: a router of groups, a dense first layer, an expert for all rows,
/// half of a head that rotates.
pub fn glm_with_experts() -> serde_json::Value {
    tiny_config(&[
        ("architectures", serde_json::json!(["Glm4MoeForCausalLM"])),
        ("attention_bias", true.into()),
        ("use_qk_norm", true.into()),
        ("n_routed_experts", 12.into()),
        ("num_experts_per_tok", 3.into()),
        ("moe_intermediate_size", 16.into()),
        ("n_group", 3.into()),
        ("topk_group", 2.into()),
        ("routed_scaling_factor", 1.5.into()),
    ])
}

/// A Ministral 3 whose prompts are far beyond its original length: YaRN, and queries that grow.
pub fn model_with_growing_queries() -> Arc<dyn Model> {
    let changes = [
        ("architectures", serde_json::json!(["Ministral3ForCausalLM"])),
        (
            "rope_parameters",
            serde_json::json!({
                "rope_type": "yarn", "factor": 64.0, "original_max_position_embeddings": 32, "mscale": 1.0,
                "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.3, "rope_theta": 10000.0,
            }),
        ),
    ];
    dummy_model(&tiny_config(&changes), 5)
}

/// A Gemma 3 whose prompts are far longer than its window: four norms a layer, two rotary bases, of
/// which that of windows is the smaller.
pub fn gemma() -> serde_json::Value {
    tiny_config(&[
        ("architectures", serde_json::json!(["Gemma3ForCausalLM"])),
        ("head_dim", 16.into()),
        ("query_pre_attn_scalar", 12.into()),
        ("sliding_window", 11.into()),
        ("sliding_window_pattern", 3.into()),
        ("rope_theta", 1e5.into()),
        ("rope_local_base_freq", 1e3.into()),
        ("rope_scaling", serde_json::json!({"rope_type": "linear", "factor": 4.0})),
    ])
}

/// A small Llama whose matrices are packed in four bits.
pub fn packed() -> serde_json::Value {
    tiny_config(&[
        ("hidden_size", 64.into()),
        ("intermediate_size", 96.into()),
        ("quantization_config", serde_json::json!({"quant_method": "gguf", "type": "Q4_0"})),
    ])
}

/// A gpt-oss: windows in every other layer, a sink in each head, experts with biases.
pub fn gpt_oss() -> serde_json::Value {
    tiny_config(&[
        ("architectures", serde_json::json!(["GptOssForCausalLM"])),
        ("head_dim", 16.into()),
        ("intermediate_size", 24.into()),
        ("num_local_experts", 10.into()),
        ("num_experts_per_tok", 3.into()),
        ("sliding_window", 13.into()),
        (
            "rope_scaling",
            serde_json::json!({
                "rope_type": "yarn", "factor": 64.0, "original_max_position_embeddings": 32, "truncate": false,
            }),
        ),
    ])
}

/// Trace with these parameters.
pub fn traced(trace: Trace) -> PlannedMethod {
    asking("trace", |evidence| evidence.trace = Some(trace))
}

/// Trace with so small an α that readings of random weights are sharp, and chunks move.
pub fn eager_trace() -> PlannedMethod {
    traced(Trace { alpha: 0.002, share: 0.2, ..Trace::default() })
}

/// The same, where the sharpest quarter of the heads counts.
pub fn sharp_trace() -> PlannedMethod {
    let heads = TraceHeads::Sharpest(0.25);
    traced(Trace { alpha: 0.004, share: 0.2, heads, ..Trace::default() })
}

/// SAM-KV with two blocks a document, which scores in the third layer.
pub fn samkv(variant: SamKvVariant, theta: f32) -> PlannedMethod {
    asking("samkv", |evidence| {
        evidence.layers = Layers::Some(2, 3);
        evidence.sparse = Some(SamKv { variant, blocks: 2, theta });
    })
}

/// The plan with a budget of `ratio` of its context.
pub fn with_ratio(mut plan: Plan, ratio: f64) -> Plan {
    plan.budget = (ratio * plan.context_tokens() as f64 + 1e-9) as usize;
    if plan.parts().is_some() {
        plan.budget =
            plan.chunks.iter().map(|chunk| chunk.rank).max().map_or(0, |last| plan.kept_at_most(last + 1).iter().sum());
    }
    plan
}

/// The plan with chunks reordered by importance.
pub fn reordered(mut plan: Plan) -> Plan {
    plan.reorder = Some(Importance::Mass);
    plan
}

/// Runs plans one after the other on `world` thread ranks of one thread each.
pub fn run_all(
    model: &Arc<dyn Model>,
    kernels: Kernels,
    world: usize,
    plans: &[Plan],
) -> Vec<(Outcome, Vec<RankReport>)> {
    run_all_over(Carrier::Own, std::slice::from_ref(model), kernels, world, plans)
}

/// As [`run_all`], with an auxiliary model on the host that reads contexts, and writes ahead, for
/// methods that need one.
pub fn run_all_beside(
    (model, small): (&Arc<dyn Model>, &Arc<dyn Model>),
    kernels: Kernels,
    world: usize,
    plans: &[Plan],
) -> Vec<(Outcome, Vec<RankReport>)> {
    let group = group_with(Carrier::Own, std::slice::from_ref(model), kernels, world, (Some(small), None));
    answered(group, plans)
}

/// As [`run_all`], with a carrier of tensors, and one model for each rank or one for all.
pub fn run_all_over(
    carrier: Carrier,
    models: &[Arc<dyn Model>],
    kernels: Kernels,
    world: usize,
    plans: &[Plan],
) -> Vec<(Outcome, Vec<RankReport>)> {
    answered(group_over(carrier, models, kernels, world), plans)
}

fn answered(group: Group, plans: &[Plan]) -> Vec<(Outcome, Vec<RankReport>)> {
    let results = plans.iter().map(|plan| run_one(&group, plan)).collect();
    group.end().expect("the group ends well");
    results
}

/// A group of `world` thread ranks of one thread each.
pub fn group_over(carrier: Carrier, models: &[Arc<dyn Model>], kernels: Kernels, world: usize) -> Group {
    // A model on the host serves as its own auxiliary model.
    let small = models.first().filter(|model| model.device().is_cpu());
    group_with(carrier, models, kernels, world, (small, None))
}

/// The key space of all groups.
pub fn key_space() -> KeySpace {
    KeySpace::new([0; 32], "f32")
}

/// A store in this folder, as a process opens it.
pub fn open_store(folder: &std::path::Path) -> Arc<Store> {
    let folder = folder.to_owned();
    let settings =
        Settings { folder, is_shared: false, most_bytes: None, reserve_bytes: 0, secret: None, remote: None };
    Arc::new(Store::open(settings).expect("the store opens"))
}

/// A group that computes with one model, and keeps chunks in a store.
pub fn stored_group(model: &Arc<dyn Model>, world: usize, store: &Arc<Store>) -> Group {
    let store = Some(Arc::clone(store));
    group_with(Carrier::Own, std::slice::from_ref(model), Kernels::Auto, world, (Some(model), store))
}

fn group_with(
    carrier: Carrier,
    models: &[Arc<dyn Model>],
    kernels: Kernels,
    world: usize,
    (small, store): (Option<&Arc<dyn Model>>, Option<Arc<Store>>),
) -> Group {
    let chunk_cache_bytes = 1 << 30;
    let settings = GroupSettings { world, threads: 1, kernels, timeout: PATIENCE, chunk_cache_bytes, carrier };
    let space = key_space();
    let beside = small.map(|small| AuxiliaryModel::new(AUXILIARY, Arc::clone(small))).into_iter().collect();
    let beside = Beside::of_parts(beside, models.iter().map(|model| adapters(&**model)));
    Group::start((models, beside), &space, settings, store).expect("the group starts")
}

/// A group of one rank that computes with a model on the host and other adapters.
pub fn group_beside(model: &Arc<dyn Model>, adapters: Adapters) -> Group {
    let (chunk_cache_bytes, kernels, carrier) = (1 << 30, Kernels::Auto, Carrier::Own);
    let settings = GroupSettings { world: 1, threads: 1, kernels, timeout: PATIENCE, chunk_cache_bytes, carrier };
    let beside = Beside::of_parts(Vec::new(), [adapters]);
    let models = std::slice::from_ref(model);
    Group::start((models, beside), &key_space(), settings, None).expect("the group starts")
}

/// A group that computes with one model on the host.
pub fn group(model: &Arc<dyn Model>, world: usize) -> Group {
    group_over(Carrier::Own, std::slice::from_ref(model), Kernels::Auto, world)
}

/// Runs one plan.
pub fn run(model: &Arc<dyn Model>, world: usize, plan: &Plan) -> (Outcome, Vec<RankReport>) {
    run_all(model, Kernels::Auto, world, std::slice::from_ref(plan)).swap_remove(0)
}

/// Runs one plan in a group.
pub fn run_one(group: &Group, plan: &Plan) -> (Outcome, Vec<RankReport>) {
    let answer =
        dispatch::run(group.link(), &Arc::new(plan.clone()), &Clock::start(), &mut |_| {}).expect("the plan runs");
    (answer.outcome, answer.reports)
}

/// The first token's logits.
pub fn logits(outcome: &Outcome) -> &[f32] {
    outcome.logits.as_deref().expect("the plan asks for logits")
}

/// Largest absolute difference over the largest absolute value of `expected`.
pub fn relative_error(found: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let difference = found.iter().zip(expected).map(|(a, b)| f64::from((a - b).abs())).fold(0.0, f64::max);
    let largest = expected.iter().map(|value| f64::from(value.abs())).fold(0.0, f64::max);
    assert!(found.iter().all(|value| value.is_finite()), "not finite");
    difference / largest.max(f64::MIN_POSITIVE)
}

/// The planner's facts of a model whose weights are of `dtype`.
pub fn shape(model: &dyn Model, dtype: DType) -> ModelShape {
    let kv_in_eight_bits = model.kv_dtype() == DType::U8;
    ModelShape { kv_in_eight_bits, ..shape_of(model.config(), dtype.size_in_bytes()) }
}
