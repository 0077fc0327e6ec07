//! Memory of a prefill beyond weights and kept keys and values, as the allocator counts it. The
//! tests are in a separate process, one after the other: all tests of a process share the
//! allocator.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use candle_core::DType;
use tributary_engine::Group;
use tributary_model::Model;
use tributary_planner::MemoryOf;
use tributary_planner::cost::memory::{alive_bytes, rotary_bytes};
use tributary_protocol::{Event, Exchange, Method, Order, Plan, Returns};
use tributary_tests::counting::Counting;
use tributary_tests::samples::{Case, specs};
use tributary_tests::side_by_side::release;
use tributary_tests::{dummy_model, group, shape, tiny_config};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Held by the test that counts.
static COUNTS: Mutex<()> = Mutex::new(());

/// Longest wait for a prefill.
const PATIENCE: Duration = Duration::from_secs(900);

/// Methods of the curve, each with its number of ranks.
const CURVE: [(&str, usize); 9] = [
    ("full", 1),
    ("infoflow", 1),
    ("infoflow", 2),
    ("ring", 2),
    ("all-gather", 2),
    ("pass-q", 2),
    ("star", 2),
    ("apb", 2),
    ("trace", 2),
];

/// The 25 M shape with a quarter of its width and two layers, so that a quarter of a million tokens
/// end in minutes: as there, queries are as wide as the residual stream.
fn curve_model() -> Arc<dyn Model> {
    let changes = [
        ("hidden_size", 128.into()),
        ("intermediate_size", 352.into()),
        ("num_hidden_layers", 2.into()),
        ("num_attention_heads", 2.into()),
        ("num_key_value_heads", 1.into()),
        ("head_dim", 64.into()),
        ("max_position_embeddings", (1 << 20).into()),
    ];
    dummy_model(&tiny_config(&changes), 7)
}

/// Bytes held now, after the group has done all that it was told.
fn settled(group: &Group) -> i64 {
    (0..2).for_each(|_| drop(release(group.link(), Vec::new())));
    Counting::held()
}

/// Bytes of a prefill: the most that were held, and those that stay with the sequence.
fn counted(group: &Group, plan: &Plan) -> [i64; 2] {
    let before = settled(group);
    Counting::watch_from(before);
    group.link().send(Order::Prefill(Arc::new(plan.clone()))).expect("the group takes orders");
    let event = || group.link().next(PATIENCE).expect("the group lives").expect("the prefill ends in time");
    assert!(matches!(event(), Event::FirstToken { .. }), "a first token");
    assert!(matches!(event(), Event::Prefilled { .. }), "a filled cache");
    let (with, high) = (settled(group), Counting::most());
    release(group.link(), vec![plan.request]);
    [high - before, with - before]
}

/// A plan with as many tokens in chunks of 2048.
fn planned(spec: &str, tokens: usize, world: usize, model: &dyn Model) -> Plan {
    let (chunks, exchange) = (vec![2048; tokens / 2048], Exchange::PassQ);
    let case = Case { prefix: 16, lead: &[], chunks: &chunks, query: 32, world, exchange, ratio: 0.02 };
    let plan = case.planned(spec, model).expect("the method is not refused");
    Plan { returns: Returns::default(), max_tokens: 2, timeout_ms: 600_000, ..plan }
}

/// A model whose rows are wide, so that tables with an entry for each row are small beside them,
/// and whose layers are few.
fn wide_model() -> Arc<dyn Model> {
    let changes = [
        ("hidden_size", 256.into()),
        ("intermediate_size", 320.into()),
        ("num_hidden_layers", 3.into()),
        ("num_key_value_heads", 2.into()),
        ("head_dim", 64.into()),
        ("max_position_embeddings", (1 << 20).into()),
    ];
    dummy_model(&tiny_config(&changes), 7)
}

/// Methods that are counted on one rank too.
const ALONE: [&str; 6] = ["full", "ring", "all-gather", "star", "infoflow", "trace"];

/// Every sample of the registry on two ranks, exchanges in turn, with some slices a rank; alone
/// methods of either class of activations that a bare name has.
#[test]
fn prefills_hold_at_most_what_the_planner_counts() {
    let _alone = COUNTS.lock().expect("no test has failed");
    let model = wide_model();
    let shape = shape(&*model, DType::F32);
    for world in [1, 2] {
        let group = group(&model, world);
        let is_asked = |&(_, (_, spec)): &(usize, (&Method, &str))| world > 1 || ALONE.contains(&spec);
        for (number, (_, spec)) in specs().enumerate().filter(is_asked) {
            let exchange = [Exchange::Replicate, Exchange::PassQ, Exchange::Selected][number % 3];
            let case = Case { prefix: 16, lead: &[], chunks: &[1150; 4], query: 32, world, exchange, ratio: 0.5 };
            let plan = case.planned(spec, &*model).expect("no sample is refused");
            let plan = Plan { max_tokens: 1, returns: Returns::default(), ..plan };
            let [high, _] = counted(&group, &plan);
            let predicted: u64 = alive_bytes(&plan, world, &shape).iter().sum();
            let share = high as f64 / predicted as f64;
            let (class, exchange) = (plan.method.prefill.activations(), plan.exchange);
            let words =
                format!("world {world}, {spec}, {exchange:?}, {class:?}: {high} of {predicted} bytes, {share:.3}");
            println!("{words}");
            assert!(share <= 1.0, "{words}");
            // Free probes are counted with as many readings as there may be. Ranks that are threads
            // hand keys over, and are rarely both at their worst.
            let least = if plan.traces().is_some() { 0.2 } else { 0.35 };
            assert!(share > least, "{words}");
        }
        group.end().expect("the group ends well");
    }
}

/// Layers of experts, in the worst case too that all rows of a slice pass one of them, and queries
/// that grow with their position.
#[test]
fn families_hold_at_most_what_the_planner_counts() {
    let _alone = COUNTS.lock().expect("no test has failed");
    let wide = [
        ("hidden_size", 256.into()),
        ("num_hidden_layers", 3.into()),
        ("head_dim", 64.into()),
        ("max_position_embeddings", (1 << 20).into()),
        ("moe_intermediate_size", 96.into()),
    ];
    for (architecture, experts) in [
        ("Qwen3MoeForCausalLM", [16, 4]),
        ("Glm4MoeForCausalLM", [16, 4]),
        ("Qwen3MoeForCausalLM", [1, 1]),
        ("Ministral3ForCausalLM", [1, 1]),
        ("Gemma3ForCausalLM", [1, 1]),
        ("GptOssForCausalLM", [16, 4]),
    ] {
        let mut config = tiny_config(&wide);
        config["rope_parameters"] = serde_json::json!({
            "rope_type": "yarn", "factor": 64.0, "original_max_position_embeddings": 64, "llama_4_scaling_beta": 0.3,
        });
        config["architectures"] = serde_json::json!([architecture]);
        let count = match architecture {
            "Glm4MoeForCausalLM" => "n_routed_experts",
            "GptOssForCausalLM" => "num_local_experts",
            _ => "num_experts",
        };
        (config[count], config["num_experts_per_tok"]) = (experts[0].into(), experts[1].into());
        let model = dummy_model(&config, 7);
        let group = group(&model, 1);
        let plan = planned("full", 4096, 1, &*model);
        let plan = Plan { max_tokens: 1, ..plan };
        let [high, _] = counted(&group, &plan);
        let predicted: u64 = alive_bytes(&plan, 1, &shape(&*model, DType::F32)).iter().sum();
        let (share, what) = (high as f64 / predicted as f64, format!("{architecture} {experts:?}"));
        println!("{what}: {high} of {predicted} bytes, {share:.3}");
        assert!((0.35..=1.0).contains(&share), "{what}: {high} of {predicted} bytes, {share:.3}");
        group.end().expect("the group ends well");
    }
}

/// The first long prompt makes them, and they stay with the model: of one base, and of two where
/// layers with windows have one of their own.
#[test]
fn rotary_tables_take_what_the_planner_counts() {
    let _alone = COUNTS.lock().expect("no test has failed");
    let mut windows = tiny_config(&[("head_dim", 64.into()), ("max_position_embeddings", (1 << 20).into())]);
    windows["architectures"] = serde_json::json!(["Gemma3ForCausalLM"]);
    for model in [curve_model(), dummy_model(&windows, 7)] {
        let (plan, shape) = (planned("full", 65_536, 1, &*model), shape(&*model, DType::F32));
        drop(model.layer_attention(1).expect("tables of the first positions"));
        let before = Counting::held();
        drop(model.layer_attention(plan.positions(shape.max_positions)).expect("tables"));
        let (more, predicted) = (Counting::held() - before, rotary_bytes(&plan, &shape, MemoryOf::Host));
        let share = more as f64 / predicted as f64;
        assert!((0.9..=1.0).contains(&share), "{more} of {predicted} bytes, {share:.3}");
    }
}

#[test]
#[ignore = "a table of some minutes: make activations"]
fn activations_by_length() {
    let model = curve_model();
    let lengths = std::env::var("TOKENS").unwrap_or_else(|_| "8192,32768,131072,262144".to_owned());
    println!("| method | ranks | tokens | counted, MB | kept, MB | beyond, MB | beyond, B a token | planned, MB | s |");
    println!("|{}", " --- |".repeat(9));
    for tokens in lengths.split(',').map(|tokens| tokens.parse::<usize>().expect("a number of tokens")) {
        for (spec, world) in CURVE {
            let group = group(&model, world);
            let plan = planned(spec, tokens, world, &*model);
            let begins = Instant::now();
            let [high, kept] = counted(&group, &plan);
            let seconds = begins.elapsed().as_secs_f64();
            group.end().expect("the group ends well");
            // Without decoding, which may take more than a prefill.
            let plan = Plan { max_tokens: 1, ..plan };
            let planned: u64 = alive_bytes(&plan, world, &shape(&*model, DType::F32)).iter().sum();
            let [high_mb, kept_mb, beyond] = [high, kept, high - kept].map(|bytes| bytes as f64 / 1e6);
            let a_row = (high - kept) / tokens as i64;
            println!(
                "| `{spec}` | {world} | {tokens} | {high_mb:.1} | {kept_mb:.1} | {beyond:.1} | {a_row} | {:.1} | {seconds:.1} |",
                planned as f64 / 1e6
            );
        }
    }
}
