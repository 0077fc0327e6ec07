//! Models beside the main one: rank 0 runs them, and their readings map to the main model's context
//! rows.

use tributary_kernels::{Kernels, Keys, Partial, Positions, Readings};
use tributary_methods::{Candidates, Need, Selector};
use tributary_model::{Attention, Config, Model, Progress, Qkv};
use tributary_protocol::{AuxiliaryPrompt, Chunk, Exchange, Plan};

use super::auxiliary::beside;
use super::candidates::candidates;
use crate::chunk_cache::ChunkCache;
use crate::context::{Context, Math};
use crate::error::{Error, Result};
use crate::kit;
use crate::models::Models;
use crate::strategy::Strategy;
use crate::strategy::selective::Selective;

/// A model of another shape: other layers, width, heads and vocabulary.
fn small() -> serde_json::Value {
    let mut config = kit::config();
    for (key, value) in [("num_hidden_layers", 2), ("hidden_size", 24), ("num_attention_heads", 3), ("vocab_size", 31)]
    {
        config[key] = value.into();
    }
    config["num_key_value_heads"] = 1.into();
    config
}

/// Two rows before the context, then one for every two rows of the main model's, the last of which
/// stands for one; three of the query.
fn plan(world: usize, exchange: Exchange) -> Plan {
    let method = kit::method("infoflow:layers=1..2");
    let mut plan = Plan { method, budget: 4, exchange, ..kit::plan(2, &[6, 5, 4], 3, world) };
    let (first, rows) = (plan.prefix_tokens() as u32, plan.context_rows() as u32);
    let pairs = (0..rows.div_ceil(2)).map(|pair| first + 2 * pair..first + (2 * pair + 2).min(rows));
    let stands_for: Vec<_> = [0..0, 0..0].into_iter().chain(pairs).collect();
    let ids = (0..stands_for.len() as u32 + 3).map(|i| (i * 11 + 5) % 31).collect();
    plan.auxiliary = vec![kit::auxiliary(ids, stands_for)];
    plan
}

/// Runs `work` on every rank. Rank 0 alone has the weights of the model beside the main one.
fn on_ranks<T: Send>(world: usize, plan: &Plan, work: impl Fn(&mut Context<'_>) -> Result<T> + Sync) -> Vec<Result<T>> {
    let (main, beside) = (kit::model(&kit::config()), kit::model(&small()));
    kit::on_ranks(world, |comm| {
        let (mut cache, progress) = (ChunkCache::none(), Progress::default());
        let models = match comm.rank() {
            0 => Models::from(&*main).with("small", &*beside),
            _ => Models::from(&*main).with_elsewhere("small", beside.config()),
        };
        let mut cx = Context::new(models, comm, Kernels::Auto, (plan, 64), &progress, &mut cache).expect("a context");
        work(&mut cx)
    })
}

/// A causal pass by the plain kernels, which keeps the attention of query rows in the last layer.
struct Direct {
    math: Math,
    query: usize,
    last: usize,
    read: Vec<Vec<f32>>,
}

impl Attention for Direct {
    type Error = Error;

    fn attend(&mut self, layer: usize, Qkv { q, k, v }: Qkv) -> Result<Partial> {
        let at = Positions::run(0, q.dim(0)?);
        let keys = [Keys { k, v, at: at.clone() }];
        let of_layer = &self.math.layers[layer];
        let partial = of_layer.attend(Kernels::Plain, &q, &at, &keys)?;
        if layer == self.last {
            let read = Kernels::Plain.readings(&of_layer.query(&q, &at, &keys), &partial.lse, Readings::PerRow)?;
            self.read = read.narrow(0, q.dim(0)? - self.query, self.query)?.to_vec2()?;
        }
        Ok(partial)
    }

    fn progress(&self) -> &Progress {
        &self.math.progress
    }
}

/// The model's readings, computed directly: one number a row before the query.
fn direct(model: &dyn Model, prompt: &AuxiliaryPrompt) -> Vec<f32> {
    let (query, last) = (prompt.query, model.config().layers - 1);
    let mut attention = Direct { math: kit::math(model, 64), query, last, read: Vec::new() };
    model.layers(0..last + 1, model.embed(&prompt.ids).expect("ids"), &mut attention).expect("layers");
    let mean = |row: usize| attention.read.iter().map(|read| read[row]).sum::<f32>() / query as f32;
    (0..prompt.stands_for.len()).map(mean).collect()
}

/// The readings of the models beside the main one, without concurrent work.
fn read(cx: &mut Context<'_>, plan: &Plan) -> Result<Vec<Vec<f32>>> {
    beside(cx, plan, |_| Ok(()))?.1
}

#[test]
fn rank_0_runs_the_model_and_every_rank_has_its_readings_of_context_rows() {
    let beside = kit::model(&small());
    for world in [1, 3] {
        let plan = plan(world, Exchange::PassQ);
        let expected = direct(&*beside, &plan.auxiliary[0].prompts[0]);
        for found in on_ranks(world, &plan, |cx| read(cx, &plan)) {
            let found = found.expect("readings").swap_remove(0);
            assert_eq!(found.len(), 15, "one number a context row");
            for (row, found) in found.iter().enumerate() {
                // Two rows before the context; a reading is divided among its rows.
                let shared = if row == 14 { 1.0 } else { 2.0 };
                let expected = expected[2 + row / 2] / shared;
                assert!((found - expected).abs() < 1e-6, "row {row}, world {world}: {found}, not {expected}");
            }
        }
    }
}

/// A causal pass by the plain kernels, which keeps the largest attention of the last row to every
/// row, over heads and layers.
struct Last {
    math: Math,
    largest: Vec<f32>,
}

impl Attention for Last {
    type Error = Error;

    fn attend(&mut self, layer: usize, Qkv { q, k, v }: Qkv) -> Result<Partial> {
        let (rows, at) = (q.dim(0)?, Positions::run(0, q.dim(0)?));
        let keys = [Keys { k, v, at: at.clone() }];
        let of_layer = &self.math.layers[layer];
        let partial = of_layer.attend(Kernels::Plain, &q, &at, &keys)?;
        let read = Kernels::Plain.readings(&of_layer.query(&q, &at, &keys), &partial.lse, Readings::Largest)?;
        let read = read.narrow(0, rows - 1, 1)?.flatten_all()?.to_vec1::<f32>()?;
        self.largest.resize(rows, 0.0);
        self.largest.iter_mut().zip(read).for_each(|(largest, read)| *largest = largest.max(read));
        Ok(partial)
    }

    fn progress(&self) -> &Progress {
        &self.math.progress
    }
}

/// The readings of a model that writes `tokens` tokens, each computed with all rows before it anew:
/// one number a row before the query.
fn writing(model: &dyn Model, prompt: &AuxiliaryPrompt, tokens: usize) -> Vec<f32> {
    let (mut ids, mut sums) = (prompt.ids.clone(), vec![0.0; prompt.stands_for.len()]);
    for _ in 0..tokens {
        let mut attention = Last { math: kit::math(model, 64), largest: Vec::new() };
        let rows = model.layers(0..model.config().layers, model.embed(&ids).expect("ids"), &mut attention);
        sums.iter_mut().zip(attention.largest).for_each(|(sum, read)| *sum += read / tokens as f32);
        let logits = model.logits(&rows.expect("layers").last(1).expect("a row")).expect("logits");
        let logits = logits.to_vec2::<f32>().expect("f32").swap_remove(0);
        let best = (0..logits.len()).reduce(|best, other| if logits[other] > logits[best] { other } else { best });
        ids.push(best.expect("logits") as u32);
    }
    sums
}

#[test]
fn rows_that_write_tokens_are_read_in_all_layers() {
    let beside = kit::model(&small());
    for (world, tokens) in [(1, 1), (1, 4), (3, 4)] {
        let mut plan = plan(world, Exchange::PassQ);
        plan.auxiliary[0].written = tokens as u32;
        let auxiliary = &plan.auxiliary[0];
        let expected = auxiliary.mapped(&[writing(&*beside, &auxiliary.prompts[0], tokens)], 2, 15);
        for found in on_ranks(world, &plan, |cx| read(cx, &plan)) {
            let found = found.expect("readings").swap_remove(0);
            let far = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(far < 1e-6, "{tokens} tokens, world {world}: {found:?}, not {expected:?}");
        }
    }
}

/// Selects the rows with the highest readings of the auxiliary model.
struct ByAuxiliary;

impl Selector for ByAuxiliary {
    fn next(&mut self, candidates: &Candidates, _: &[f32]) -> Need {
        Need::Scores(candidates.auxiliary[0].clone())
    }
}

#[test]
fn selectors_are_given_the_readings_and_those_that_do_not_ask_select_as_without() {
    let beside = kit::model(&small());
    for (world, exchange) in [(1, Exchange::Replicate), (2, Exchange::Replicate), (2, Exchange::PassQ)] {
        let listed = plan(world, exchange);
        let read = listed.auxiliary[0].mapped(&[direct(&*beside, &listed.auxiliary[0].prompts[0])], 2, 15);
        let candidates = candidates(&listed, &listed.request_order(), Vec::new());
        for found in on_ranks(world, &listed, |cx| Selective { selector: Box::new(ByAuxiliary) }.prefill(cx, &listed)) {
            assert_eq!(found.expect("prefilled").selection.rows, candidates.top(&read, 4), "{exchange:?}, {world}");
        }
        let bare = Plan { auxiliary: Vec::new(), ..listed.clone() };
        let run = |plan: &Plan| {
            on_ranks(world, plan, |cx| {
                let selector = plan.method.selector().expect("a selector");
                let found = Selective { selector }.prefill(cx, plan)?;
                Ok((found.selection, found.output.last.map(|last| last.hidden.to_vec2::<f32>().expect("f32"))))
            })
        };
        for (found, expected) in run(&listed).into_iter().zip(run(&bare)) {
            assert_eq!(found.expect("prefilled"), expected.expect("prefilled"), "bit for bit");
        }
    }
}

#[test]
fn readings_that_are_no_numbers_are_that_requests_failure_on_every_rank() {
    let main = kit::model(&kit::config());
    let spoilt = kit::spoilt(kit::model(&small()), 9);
    let mut plan = plan(2, Exchange::Replicate);
    plan.auxiliary[0].prompts[0].ids[4] = 9;
    let config: &Config = spoilt.config();
    let causes = kit::on_ranks(2, |comm| {
        let (mut cache, progress) = (ChunkCache::none(), Progress::default());
        let models = match comm.rank() {
            0 => Models::from(&*main).with("small", &spoilt),
            _ => Models::from(&*main).with_elsewhere("small", config),
        };
        let mut cx = Context::new(models, comm, Kernels::Auto, (&plan, 64), &progress, &mut cache).expect("a context");
        let prefilled = Selective { selector: Box::new(ByAuxiliary) }.prefill(&mut cx, &plan);
        let error = prefilled.err().expect("no numbers");
        assert!(error.is_the_requests() && matches!(error, Error::Refused(_)), "{error}");
        error.to_string()
    });
    assert!(causes.iter().all(|cause| cause.contains("an auxiliary model's readings hold NaN")), "{causes:?}");
}

#[test]
fn chunks_with_rows_of_an_adapter_have_numbers_too() {
    let mut plan = plan(1, Exchange::Replicate);
    let around = tributary_protocol::Around { adapter: 3, head: 1, tail: 0 };
    plan.chunks[0] = Chunk { around: Some(around), ids: plan.chunks[0].ids[1..].to_vec(), ..plan.chunks[0].clone() };
    assert_eq!((plan.context_rows(), plan.context_tokens()), (15, 14));
    let found = on_ranks(1, &plan, |cx| read(cx, &plan)).swap_remove(0).expect("readings");
    assert_eq!(found[0].len(), 15, "one number a row");
}
