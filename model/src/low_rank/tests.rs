//! Rows of the run equal those of a decoder with the matrices merged into its weights. Rows outside
//! it equal those of the plain decoder. Gradients flow into the matrices.

use std::collections::HashMap;

use candle_core::{DType, Device, Var};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use tributary_kernels::{Kernels, Keys, Partial, Positions};

use super::super::tests::prompt;
use super::super::weights::Weights;
use super::super::{Config, LoadFormat, Model, Rows, load};
use super::*;
use crate::{Attention, Error, Progress, Qkv, kit};

const IDS: [u32; 7] = [3, 1, 4, 1, 5, 9, 2];
const SCALE: f64 = 1.5;
const RANK: usize = 3;
const SEED: u64 = 5;

/// Every linear layer, its tensor's name and shape, and the first of its rows in that tensor.
fn linears(config: &Config) -> Vec<(Linear, String, (usize, usize), usize)> {
    let Config { hidden, intermediate, heads, kv_heads, head_dim, .. } = *config;
    let (q, kv) = (heads * head_dim, kv_heads * head_dim);
    let (gate, up, after) = match config.fused_gate_up {
        true => ("gate_up_proj", "gate_up_proj", intermediate),
        false => ("gate_proj", "up_proj", 0),
    };
    let attention = |linear, name: &str, shape| (linear, format!("self_attn.{name}"), shape, 0);
    vec![
        attention(Linear::Query, "q_proj", (q, hidden)),
        attention(Linear::Key, "k_proj", (kv, hidden)),
        attention(Linear::Value, "v_proj", (kv, hidden)),
        attention(Linear::Output, "o_proj", (hidden, q)),
        (Linear::Gate, format!("mlp.{gate}"), (intermediate, hidden), 0),
        (Linear::Up, format!("mlp.{up}"), (intermediate, hidden), after),
        (Linear::Down, "mlp.down_proj".to_owned(), (hidden, intermediate), 0),
    ]
}

/// Matrices of all layers, the same at every call.
fn matrices(config: &Config) -> Vec<((usize, Linear), LowRankPair)> {
    let mut numbers = ChaCha8Rng::seed_from_u64(SEED);
    let mut uniform = || 0.5 * (numbers.next_u32() as f32 / u32::MAX as f32 * 2.0 - 1.0);
    let mut random = |shape: (usize, usize)| {
        let numbers: Vec<f32> = (0..shape.0 * shape.1).map(|_| uniform()).collect();
        Tensor::from_vec(numbers, shape, &Device::Cpu).expect("numbers")
    };
    let mut pairs = Vec::new();
    for layer in 0..config.layers {
        for (linear, _, (out, input), _) in linears(config) {
            pairs.push((
                (layer, linear),
                LowRankPair { a: random((RANK, input)), b: random((out, RANK)), scale: SCALE },
            ));
        }
    }
    pairs
}

/// The seeded model with W + scale · B·A in place of every W.
fn merged(text: &serde_json::Value, config: &Config, pairs: &LowRank) -> Arc<dyn Model> {
    let weights = Weights::dummy(SEED, DType::F32, &Device::Cpu);
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("config.json"), text.to_string()).expect("written");
    let mut tensors: HashMap<String, Tensor> = HashMap::new();
    let mut keep = |name: String, shape: &[usize]| {
        let tensor = weights.get(&name, shape).expect("a seeded tensor");
        tensors.entry(name).or_insert(tensor).clone()
    };
    let Config { vocab, hidden, intermediate, .. } = *config;
    keep("model.embed_tokens.weight".to_owned(), &[vocab, hidden]);
    keep("lm_head.weight".to_owned(), &[vocab, hidden]);
    keep("model.norm.weight".to_owned(), &[hidden]);
    let mut changed = Vec::new();
    for layer in 0..config.layers {
        let norms = ["input_layernorm", "post_attention_layernorm", "post_self_attn_layernorm", "post_mlp_layernorm"];
        for norm in norms {
            keep(format!("model.layers.{layer}.{norm}.weight"), &[hidden]);
        }
        for (linear, name, (out, input), first) in linears(config) {
            let rows = if name.ends_with("gate_up_proj") { 2 * intermediate } else { out };
            let name = format!("model.layers.{layer}.{name}.weight");
            keep(name.clone(), &[rows, input]);
            let LowRankPair { a, b, scale } = &pairs.0[&(layer, linear)];
            let more = (b.matmul(a).expect("a product") * *scale).expect("a product");
            changed.push((name, first, more));
        }
    }
    for (name, first, more) in changed {
        let (old, count) = (tensors[&name].clone(), more.dims()[0]);
        let after = old.dims()[0] - first - count;
        let cut = |from, count| old.narrow(0, from, count).expect("rows");
        let sum = (cut(first, count) + more).expect("a sum");
        let new = Tensor::cat(&[cut(0, first), sum, cut(first + count, after)], 0).expect("joined");
        tensors.insert(name, new);
    }
    candle_core::safetensors::save(&tensors, folder.path().join("model.safetensors")).expect("saved");
    load(folder.path(), LoadFormat::Safetensors, DType::F32, &Device::Cpu).expect("the merged model")
}

/// Every row sees itself and those before it.
struct Dense<'a>(&'a dyn Model, Progress);

impl Attention for Dense<'_> {
    type Error = Error;

    fn attend(&mut self, layer: usize, Qkv { q, k, v }: Qkv) -> Result<Partial> {
        let at = Positions::run(0, IDS.len());
        let keys = [Keys { k, v, at: at.clone() }];
        self.0.layer_attention(IDS.len())?[layer].attend(Kernels::Auto, &q, &at, &keys)
    }

    fn progress(&self) -> &Progress {
        &self.1
    }
}

fn values(rows: &Rows) -> Vec<Vec<f32>> {
    rows.hidden.to_vec2().expect("f32")
}

fn distance(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// The families without and with norms after projections; the second has gate and up in one tensor.
fn configs() -> [serde_json::Value; 2] {
    let mut glm = kit::config();
    glm["architectures"] = serde_json::json!(["Glm4ForCausalLM"]);
    glm["head_dim"] = 8.into();
    glm["attention_bias"] = false.into();
    [kit::config(), glm]
}

#[test]
fn rows_of_the_run_are_those_of_merged_weights_and_others_of_the_base() {
    for text in configs() {
        let base = kit::model(&text);
        let low_rank = Arc::new(LowRank::new(matrices(base.config())).expect("ranks fit"));
        let merged = merged(&text, base.config(), &low_rank);
        // Every row sees only itself, so that a row's result depends only on the weights that it
        // went through.
        let of = |model: &Arc<dyn Model>, rows: Rows, asked| prompt(model, rows, asked).0;
        let embedded = |model: &Arc<dyn Model>| model.embed(&IDS).expect("ids");
        let (of_base, of_merged) = (of(&base, embedded(&base), None), of(&merged, embedded(&merged), None));
        let (of_base, of_merged) = (values(&of_base), values(&of_merged));
        assert!(distance(&of_base[2], &of_merged[2]) > 0.1, "the matrices change something");
        for (range, asked) in [(2..6, 7), (2..6, 3), (2..6, 1), (0..7, 7), (0..3, 3), (5..7, 4)] {
            let rows = embedded(&base).adapted(range.clone(), &low_rank);
            let found = values(&of(&base, rows, Some(asked)));
            assert_eq!(found.len(), asked);
            for (row, found) in (IDS.len() - asked..).zip(&found) {
                let (expected, what) =
                    if range.contains(&row) { (&of_merged[row], "in") } else { (&of_base[row], "out") };
                let far = distance(found, expected);
                assert!(far < 1e-4, "row {row} {what} {range:?}, the last {asked} asked: {far:e}");
            }
        }
    }
}

#[test]
fn a_run_over_the_edge_of_a_tile_is_cut_there() {
    let base = kit::model(&kit::config());
    let low_rank = Arc::new(LowRank::new(matrices(base.config())).expect("ranks fit"));
    let ids: Vec<u32> = (0..2060).map(|row| row % 61).collect();
    let finish = |ids: &[u32], range: Range<usize>| {
        let rows = base.embed(ids).expect("ids").adapted(range, &low_rank);
        let attended = Tensor::zeros((ids.len(), 4, 8), DType::F32, &Device::Cpu).expect("zeros");
        let attended = Partial::of_output(attended).expect("zeros");
        values(&base.finish(1, rows, attended).expect("finished"))
    };
    let (found, run) = (finish(&ids, 2040..2055), finish(&ids[2030..], 10..25));
    for (row, expected) in (2030..).zip(&run) {
        assert!(distance(&found[row], expected) < 1e-5, "row {row}: {:e}", distance(&found[row], expected));
    }
}

#[test]
fn gradients_flow_into_the_matrices() {
    let model = kit::model(&kit::config());
    let pairs = matrices(model.config());
    let vars: Vec<((usize, Linear), Var, Var)> = pairs
        .into_iter()
        .map(|(place, LowRankPair { a, b, .. })| {
            (place, Var::from_tensor(&a).expect("a variable"), Var::from_tensor(&b).expect("a variable"))
        })
        .collect();
    let loss = || {
        let pair = |(place, a, b): &(_, Var, Var)| {
            (*place, LowRankPair { a: a.as_tensor().clone(), b: b.as_tensor().clone(), scale: SCALE })
        };
        let low_rank = Arc::new(LowRank::new(vars.iter().map(pair)).expect("ranks fit"));
        let rows = model.embed(&IDS).expect("ids").adapted(2..6, &low_rank);
        let rows = model.layers(0..model.config().layers, rows, &mut Dense(&*model, Progress::default()));
        let rows = rows.expect("layers");
        rows.hidden.sqr().and_then(|squares| squares.sum_all()).expect("a sum")
    };
    let gradients = loss().backward().expect("gradients");
    for (place, a, b) in &vars {
        for var in [a, b] {
            let gradient = gradients.get(var).unwrap_or_else(|| panic!("no gradient of {place:?}"));
            let largest = gradient.abs().and_then(|x| x.max_all()?.to_scalar::<f32>()).expect("a number");
            assert!(largest > 1e-3, "{place:?}: {largest:e}");
        }
    }
    for (place, a, b) in [&vars[0], &vars[7 + 3], &vars[2 * 7 + 6]] {
        for (what, var) in [("A", a), ("B", b)] {
            let start: Vec<f32> = var.flatten_all().and_then(|flat| flat.to_vec1()).expect("f32");
            let gradient = gradients.get(var).expect("checked above");
            let found = gradient.flatten_all().and_then(|flat| flat.to_vec1::<f32>()).expect("f32")[5];
            let (step, mut losses) = (5e-3, Vec::new());
            for by in [step, -step] {
                let mut moved = start.clone();
                moved[5] += by;
                var.set(&Tensor::from_vec(moved, var.dims(), &Device::Cpu).expect("numbers")).expect("set");
                losses.push(loss().to_scalar::<f32>().expect("a number"));
            }
            var.set(&Tensor::from_vec(start, var.dims(), &Device::Cpu).expect("numbers")).expect("set");
            let slope = (losses[0] - losses[1]) / (2.0 * step);
            assert!((found - slope).abs() < 0.02 * slope.abs().max(1.0), "{what} of {place:?}: {found} and {slope}");
        }
    }
}

#[test]
fn matrices_of_different_ranks_are_refused() {
    let zeros = |shape: (usize, usize)| Tensor::zeros(shape, DType::F32, &Device::Cpu).expect("zeros");
    let pair = LowRankPair { a: zeros((2, 8)), b: zeros((8, 3)), scale: 1.0 };
    let refusal = LowRank::new([((1, Linear::Up), pair)]).expect_err("ranks that differ").to_string();
    assert_eq!(refusal, "an adapter's matrices at Up of layer 1 have ranks 2 and 3");
}
