//! The cache's rows receive from a look-ahead the same attention as in a prompt followed by its
//! rows.

use std::sync::Arc;

use candle_core::{Device, Tensor};
use tributary_kernels::{Kernels, Keys, Partial, Positions, Readings};
use tributary_model::{Adapter, Adapters, Attention, Linear, LowRank, LowRankPair, Model, Progress, Qkv, embed};
use tributary_protocol::{Exchange, LookAhead, Plan, PlannedMethod};

use super::ahead::{LookAheadScores, look_ahead};
use crate::chunk_cache::ChunkCache;
use crate::context::{Context, Math};
use crate::error::{Error, Result};
use crate::kit;
use crate::models::Models;
use crate::strategy;

const ROWS: usize = 5;
const ADAPTER: u64 = 2;

/// By layer, KV head and row of the prompt.
type Received = Vec<Vec<Vec<f32>>>;

/// One more row than the look-ahead takes, and matrices at two linear layers of every layer.
fn adapters(model: &dyn Model) -> Adapters {
    let random = |shape: (usize, usize)| Tensor::randn(0f32, 0.5, shape, &Device::Cpu).expect("numbers");
    let config = model.config();
    let query = |layer| {
        let pair = LowRankPair { a: random((2, config.hidden)), b: random((config.hidden, 2)), scale: 0.7 };
        ((layer, Linear::Query), pair)
    };
    let down = |layer| {
        let pair = LowRankPair { a: random((2, config.intermediate)), b: random((config.hidden, 2)), scale: 0.7 };
        ((layer, Linear::Down), pair)
    };
    let low_rank = LowRank::new((0..config.layers).flat_map(|layer| [query(layer), down(layer)])).expect("ranks fit");
    let embeddings = random((ROWS + 1, config.hidden));
    Adapters::new([(ADAPTER, Adapter { embeddings, low_rank: Some(Arc::new(low_rank)) })])
}

/// A causal prompt by the plain kernels, which records the attention of its last rows.
struct Prompt {
    math: Math,
    rows: usize,
    received: Received,
}

impl Attention for Prompt {
    type Error = Error;

    fn attend(&mut self, layer: usize, Qkv { q, k, v }: Qkv) -> Result<Partial> {
        let (at, of_layer) = (Positions::run(0, self.rows + ROWS), &self.math.layers[layer]);
        let keys = [Keys { k, v, at: at.clone() }];
        let partial = of_layer.attend(Kernels::Plain, &q, &at, &keys)?;
        let last = |x: &Tensor| x.narrow(0, self.rows, ROWS);
        let (q, at, lse) = (last(&q)?, Positions::run(self.rows as u32, ROWS), last(&partial.lse)?);
        let read = Kernels::Plain.readings(&of_layer.query(&q, &at, &keys), &lse, Readings::PerKvHead)?;
        self.received.push(read.narrow(1, 0, self.rows)?.to_vec2()?);
        Ok(partial)
    }

    fn progress(&self) -> &Progress {
        &self.math.progress
    }
}

/// The attention that a prompt's rows receive from the look-ahead's rows after it.
fn naive(model: &dyn Model, adapters: &Adapters, plan: &Plan) -> Received {
    let rows = plan.total_rows();
    let sources = [plan.sources(), plan.look_ahead_sources()].concat();
    let embedded = embed(model, &sources, adapters).expect("rows");
    let low_rank = adapters.get(ADAPTER).expect("it is there").low_rank.as_ref().expect("matrices");
    let mut prompt = Prompt { math: kit::math(model, 64), rows, received: Vec::new() };
    let embedded = embedded.adapted(rows..rows + ROWS, low_rank);
    model.layers(0..model.config().layers, embedded, &mut prompt).expect("layers");
    prompt.received
}

/// The same from the cache that a plan's method leaves, all ranks' rows together, and the number of
/// ranks that took part.
fn found(model: &dyn Model, adapters: &Adapters, plan: &Plan, world: usize) -> (Received, usize) {
    let of_ranks: Vec<Option<LookAheadScores>> = kit::on_ranks(world, |comm| {
        let (mut cache, progress) = (ChunkCache::none(), Progress::default());
        let models = Models::from(model).with_adapters(adapters.clone());
        let mut cx = Context::new(models, comm, Kernels::Auto, (plan, 64), &progress, &mut cache).expect("a context");
        let prefilled = strategy::build(&plan.method).expect("a strategy").prefill(&mut cx, plan).expect("prefilled");
        look_ahead(&mut cx, plan, &prefilled).expect("looked ahead")
    });
    let config = model.config();
    let mut sum = vec![vec![vec![0.0; plan.total_rows()]; config.kv_heads]; config.layers];
    let of_ranks: Vec<LookAheadScores> = of_ranks.into_iter().flatten().collect();
    for LookAheadScores { rows, received, .. } in &of_ranks {
        for (sum, received) in sum.iter_mut().zip(received) {
            assert_eq!(received.dims()[1], rows.len());
            for (sum, received) in sum.iter_mut().zip(received.to_vec2::<f32>().expect("f32")) {
                rows.iter().zip(received).for_each(|(&(row, _), reading)| sum[row as usize] += reading);
            }
        }
    }
    (sum, of_ranks.len())
}

fn plan(method: PlannedMethod, exchange: Exchange, world: usize) -> Plan {
    let look_ahead = Some(LookAhead { adapter: ADAPTER, rows: ROWS as u32 });
    let mut plan = Plan { method, exchange, look_ahead, max_tokens: 3, ..kit::plan(2, &[6, 5, 4], 3, world) };
    if plan.method.selection().is_some() {
        (plan.budget, plan.include_first_chunk) = (plan.context_tokens(), true); // then it is exact
    }
    plan
}

#[test]
fn the_cache_receives_what_it_would_in_a_prompt_with_those_rows_behind_it() {
    let model = kit::model(&kit::config());
    let adapters = adapters(&*model);
    let infoflow = || kit::method("infoflow:layers=1..2");
    let cases = [
        (kit::method("full"), Exchange::Replicate, 1, 1),
        (kit::method("full"), Exchange::Replicate, 2, 1),
        (kit::method("ring"), Exchange::Replicate, 3, 3),
        (kit::method("all-gather"), Exchange::Replicate, 2, 2),
        (infoflow(), Exchange::Replicate, 2, 1),
        (infoflow(), Exchange::PassQ, 1, 1),
        (infoflow(), Exchange::PassQ, 2, 2),
        (infoflow(), Exchange::PassQ, 4, 4),
    ];
    for (method, exchange, world, taking_part) in cases {
        for owner in [0, world - 1] {
            let plan = Plan { owner, ..plan(method, exchange, world) };
            let what = format!("{:?}, {exchange:?}, world {world}, owner {owner}", plan.method);
            let expected = naive(&*model, &adapters, &plan);
            let (found, ranks) = found(&*model, &adapters, &plan, world);
            assert_eq!(ranks, taking_part, "ranks that take part: {what}");
            for (layer, (found, expected)) in found.iter().zip(&expected).enumerate() {
                for (found, expected) in found.iter().flatten().zip(expected.iter().flatten()) {
                    let far = (found - expected).abs();
                    assert!(far < 1e-4, "{what}, layer {layer}: {found}, not {expected}");
                }
            }
        }
    }
}

#[test]
fn matrices_of_the_adapter_are_active_on_its_rows() {
    let model = kit::model(&kit::config());
    let adapters = adapters(&*model);
    let embeddings = adapters.get(ADAPTER).expect("it is there").embeddings.clone();
    let bare = Adapters::new([(ADAPTER, embeddings)]);
    let plan = plan(kit::method("full"), Exchange::Replicate, 1);
    let (with, without) = (found(&*model, &adapters, &plan, 1).0, found(&*model, &bare, &plan, 1).0);
    let distance = |layer: usize| -> f32 {
        let pairs = with[layer].iter().flatten().zip(without[layer].iter().flatten());
        pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
    };
    assert!(distance(0) > 1e-2 && distance(2) > 1e-2, "{} and {}", distance(0), distance(2));
}

#[test]
fn a_plan_without_a_look_ahead_has_none() {
    let model = kit::model(&kit::config());
    let plan = Plan { look_ahead: None, ..plan(kit::method("ring"), Exchange::Replicate, 2) };
    assert_eq!(found(&*model, &Adapters::default(), &plan, 2).1, 0);
}
