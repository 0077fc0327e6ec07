//! Kept rows and tokens generated from them, compared with a second implementation: dense attention
//! of the whole prompt, head by head in f64.
//! Every exact method, world and exchange must give the same.

use candle_core::Tensor;
use tributary_kernels::{Kernels, Keys, Partial, Positions};
use tributary_model::{Adapters, Attention, Model, Progress, Qkv, embed};
use tributary_protocol::{
    AuxiliaryCost, DraftModel, EVICTIONS, Evict, Eviction, EvictionEvidence, Exchange, LookAhead, Plan, PlannedMethod,
    Source, WINDOW_ROWS,
};

use super::*;
use crate::attention::{Decode, DecodeRun};
use crate::chunk_cache::ChunkCache;
use crate::kit;
use crate::models::Models;
use crate::sample::Sampler;
use crate::sequence::{Sequence, Start};
use crate::strategy;

const ADAPTER: u64 = 1;
const AHEAD: usize = 3;
const KEEP: usize = 10;
const DRAFT: &str = "draft";
/// The first token.
const FIRST: u32 = 7;

type Scores = Vec<Vec<Vec<f32>>>;

fn evict_by(method: Eviction) -> Evict {
    Evict { method, keep: KEEP, window: 4, pooled: 3, sinks: 4, beta: 20, pseudo: 6, seed: 5, gather: false }
}

/// A model of the same vocabulary, of another depth.
fn draft_model() -> std::sync::Arc<dyn Model> {
    let mut config = kit::config();
    config["num_hidden_layers"] = 2.into();
    kit::model(&config)
}

fn adapters(model: &dyn Model) -> Adapters {
    Adapters::new([(ADAPTER, model.embed(&[3, 50, 11]).expect("ids").hidden)])
}

fn plan(method: PlannedMethod, exchange: Exchange, world: usize, evict: &Evict) -> Plan {
    let look_ahead = (evict.descriptor().evidence == EvictionEvidence::LookAhead)
        .then_some(LookAhead { adapter: ADAPTER, rows: AHEAD as u32 });
    let evict = Some(evict.clone());
    let draft_model = Some(DraftModel { model: DRAFT.to_owned(), cost: AuxiliaryCost::default() });
    let plan =
        Plan { method, exchange, evict, draft_model, look_ahead, max_tokens: 4, ..kit::plan(2, &[9, 8, 5], 6, world) };
    let budget = if plan.method.selection().is_some() { plan.context_tokens() } else { 0 };
    Plan { budget, include_first_chunk: true, ..plan } // where rows are recomputed, all are: then it is exact
}

/// The rows that every rank keeps, with the cache that they were cut from.
fn ranks(model: &dyn Model, plan: &Plan, world: usize) -> Vec<(Prefilled, Option<Remains>)> {
    let (adapters, draft) = (adapters(model), draft_model());
    kit::on_ranks(world, |comm| {
        let (mut cache, progress) = (ChunkCache::none(), Progress::default());
        let models = Models::from(model).with_adapters(adapters.clone());
        // Rank 0 alone has its weights.
        let models =
            if comm.rank() == 0 { models.with(DRAFT, &*draft) } else { models.with_elsewhere(DRAFT, draft.config()) };
        comm.reset_traffic();
        let mut cx = Context::new(models, comm, Kernels::Auto, (plan, 64), &progress, &mut cache).expect("a context");
        let prefilled = strategy::build(&plan.method).expect("a strategy").prefill(&mut cx, plan).expect("prefilled");
        let remains = evict(&mut cx, plan, &prefilled, FIRST).expect("evicted");
        (prefilled, remains)
    })
}

/// Dense attention of a sequence, the scores that its rows' keys receive from `asking`, and keys
/// and values.
struct Dense {
    math: crate::context::Math,
    asking: std::ops::Range<usize>,
    rows: usize,
    scores: Scores,
    kv: Vec<(Tensor, Tensor)>,
}

fn numbers(tensor: &Tensor) -> Vec<Vec<Vec<f64>>> {
    tensor.to_dtype(candle_core::DType::F64).and_then(|wide| wide.to_vec3()).expect("numbers")
}

impl Attention for Dense {
    type Error = Error;

    fn attend(&mut self, layer: usize, Qkv { q, k, v }: Qkv) -> Result<Partial> {
        let at = Positions::run(0, q.dim(0)?);
        let turned = |x: &Tensor| numbers(&self.math.layers[layer].rope.apply(x, &at).expect("positions"));
        let (queries, keys, values) = (turned(&q), turned(&k), numbers(&v));
        let (heads, kv_heads, head_dim) = (q.dim(1)?, k.dim(1)?, q.dim(2)?);
        let group = heads / kv_heads;
        let mut scores = vec![vec![0.0; self.rows]; kv_heads];
        let mut out = Vec::new();
        for (row, query) in queries.iter().enumerate() {
            for (head, query) in query.iter().enumerate() {
                let kv = head / group;
                let dot = |key: &Vec<Vec<f64>>| -> f64 { query.iter().zip(&key[kv]).map(|(a, b)| a * b).sum() };
                let weights: Vec<f64> = keys[..=row]
                    .iter()
                    .map(|key| (dot(key) * f64::from(self.math.layers[layer].scale)).exp())
                    .collect();
                let total: f64 = weights.iter().sum();
                if self.asking.contains(&row) {
                    let pairs = scores[kv].iter_mut().zip(&weights);
                    pairs.for_each(|(score, weight)| *score += (weight / total / group as f64) as f32);
                }
                let sum = |dim: usize| -> f64 { weights.iter().zip(&values).map(|(w, v)| w * v[kv][dim]).sum() };
                out.extend((0..head_dim).map(|dim| (sum(dim) / total) as f32));
            }
        }
        self.scores.push(scores);
        self.kv.push((k, v));
        Ok(Partial::of_output(Tensor::from_vec(out, q.dims(), q.device())?)?)
    }

    fn progress(&self) -> &Progress {
        &self.math.progress
    }
}

/// Keys and values of the whole prompt, and the scores from a method's asking rows, by dense
/// attention.
fn dense(model: &dyn Model, plan: &Plan, evict: &Evict) -> Dense {
    let rows = plan.total_rows();
    let (from, to) = match evict.descriptor().evidence {
        EvictionEvidence::Window => (rows - 4, rows),
        EvictionEvidence::LastRow => (rows - 1, rows),
        EvictionEvidence::LookAhead => (rows, rows + AHEAD),
        EvictionEvidence::PseudoTokens | EvictionEvidence::OwnTokens | EvictionEvidence::DraftTokens => {
            (rows, rows + 6)
        }
        EvictionEvidence::AllRows | EvictionEvidence::Places | EvictionEvidence::Draw => (0, rows),
    };
    let pseudo = match evict.descriptor().evidence {
        EvictionEvidence::PseudoTokens => pseudo(model, plan),
        EvictionEvidence::DraftTokens => written(plan, &*draft_model()),
        EvictionEvidence::OwnTokens => written(plan, model),
        _ => Vec::new(),
    };
    let pseudo = pseudo.into_iter().map(Source::Token).collect();
    let sources = [plan.sources(), plan.look_ahead_sources(), pseudo].concat();
    let embedded = embed(model, &sources, &adapters(model)).expect("rows");
    let mut attention =
        Dense { math: kit::math(model, 64), asking: from..to, rows, scores: Vec::new(), kv: Vec::new() };
    model.layers(0..model.config().layers, embedded, &mut attention).expect("layers");
    attention
}

/// The tokens that follow from SnapKV's kept rows, the first one included.
fn pseudo(model: &dyn Model, plan: &Plan) -> Vec<u32> {
    let evict = evict_by(Eviction::SnapKv);
    let dense = dense(model, plan, &evict);
    let kept = KeptRows(expected(&evict, &dense.scores));
    let mut masked = Masked { dense: &dense, kept: &kept, contiguous: false, generated: vec![Vec::new(); 3], row: 0 };
    let mut tokens = vec![FIRST];
    while tokens.len() < 6 {
        let logits = logits(model, tokens[tokens.len() - 1], &mut masked);
        masked.row += 1;
        let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).expect("a vocabulary");
        tokens.push(best as u32);
    }
    tokens
}

/// Tokens that a model writes after the prompt and the first token, which is included. The whole
/// text is read again for each token.
fn written(plan: &Plan, model: &dyn Model) -> Vec<u32> {
    let layers = model.config().layers;
    let mut tokens = vec![FIRST];
    while tokens.len() < 6 {
        let ids: Vec<u32> = plan.sources().iter().filter_map(Source::token).chain(tokens.iter().copied()).collect();
        let (math, rows) = (kit::math(model, 64), ids.len());
        let mut dense = Dense { math, asking: 0..0, rows, scores: Vec::new(), kv: Vec::new() };
        let read = model.layers(0..layers, model.embed(&ids).expect("ids"), &mut dense).expect("layers");
        let logits = crate::first_token::logits(model, &read).expect("logits").pop().expect("the last row's");
        let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).expect("a vocabulary");
        tokens.push(best as u32);
    }
    tokens
}

/// The rows to keep by the formulas, implemented a second way: sorted pairs instead of marked
/// places.
fn expected(evict: &Evict, scores: &Scores) -> Vec<Vec<Vec<u32>>> {
    let (name, layers, rows) = (evict.descriptor().name, scores.len(), scores[0][0].len());
    let best = |scores: &[f32], count: usize, (from, to): (usize, usize), pooled: usize| -> Vec<u32> {
        let reach = pooled / 2;
        let score = |row: usize| {
            let around = from.max(row.saturating_sub(reach))..(row + reach + 1).min(to);
            around.map(|row| scores[row]).fold(0f32, f32::max)
        };
        let mut ranked: Vec<(f32, usize)> = (from..to).map(|row| (-score(row), row)).collect();
        ranked.sort_by(|a, b| a.partial_cmp(b).expect("numbers"));
        let mut all: Vec<u32> = ranked[..count].iter().map(|(_, row)| *row as u32).collect();
        all.extend((0..from as u32).chain(to as u32..rows as u32));
        all.sort_unstable();
        all
    };
    let of_layer = |(layer, heads): (usize, &Vec<Vec<f32>>)| -> Vec<Vec<u32>> {
        let mean: Vec<f32> = (0..rows).map(|row| heads.iter().map(|head| head[row]).sum::<f32>() / 2.0).collect();
        let of_head = |head: &Vec<f32>| match name {
            "snapkv" => best(head, KEEP - 4, (0, rows - 4), 3),
            // w 4, C − w 6: from 12 − 0.3 to 0.3, and 6 between; the remainder of rounding goes to
            // the first.
            "pyramidkv" => best(head, [12, 6, 0][layer], (0, rows - 4), 3),
            "tova" => best(&mean, KEEP - 1, (0, rows - 1), 1),
            "h2o" => best(head, KEEP / 2, (0, rows - KEEP / 2), 1),
            "lookahead" | "ideal" => best(head, KEEP, (0, rows), 1),
            "laq" | "speckv" => best(head, KEEP, (0, rows), 3),
            "streamingllm" => best(head, 0, (4, rows - 6), 1),
            other => panic!("{other} has no formula here"),
        };
        heads.iter().map(of_head).collect()
    };
    assert_eq!(layers, 3);
    scores.iter().enumerate().map(of_layer).collect()
}

/// Every method that fills a cache exactly, with its exchange and world.
fn exact_ways() -> Vec<(PlannedMethod, Exchange, usize)> {
    let infoflow = || kit::method("infoflow:layers=1..2");
    let mut ways = vec![(kit::method("full"), Exchange::Replicate, 1), (kit::method("full"), Exchange::Replicate, 3)];
    ways.extend((1..=4).map(|world| (kit::method("ring"), Exchange::Replicate, world)));
    ways.extend((1..=4).map(|world| (infoflow(), Exchange::PassQ, world)));
    ways.push((kit::method("all-gather"), Exchange::Replicate, 2));
    ways.push((kit::method("pass-q"), Exchange::Replicate, 3));
    ways.push((infoflow(), Exchange::Replicate, 2));
    ways
}

#[test]
fn every_method_keeps_what_its_formula_says_in_every_world() {
    let model = kit::model(&kit::config());
    for entry in EVICTIONS {
        let evict = evict_by(entry.method);
        let reference = plan(kit::method("full"), Exchange::Replicate, 1, &evict);
        let expected = match entry.evidence {
            EvictionEvidence::Draw => ranks(&*model, &reference, 1).swap_remove(0).1.expect("evicted").kept.0,
            _ => expected(&evict, &dense(&*model, &reference, &evict).scores),
        };
        for (method, exchange, world) in exact_ways() {
            for gather in [false, true] {
                let evict = Evict { gather, ..evict.clone() };
                let plan = plan(method, exchange, world, &evict);
                let what = format!("{} after {} in a world of {world}, {exchange:?}", entry.name, plan.method.name());
                for (rank, (prefilled, remains)) in ranks(&*model, &plan, world).into_iter().enumerate() {
                    let remains = remains.expect("evicted");
                    assert_eq!(remains.alone, prefilled.alone || gather, "{what}");
                    if prefilled.alone && rank != plan.owner {
                        assert_eq!((remains.report.rows_kept, remains.own.layers().count()), (0, 0), "{what}");
                        continue;
                    }
                    assert_eq!(remains.kept.0, expected, "{what}, rank {rank}");
                    if gather || prefilled.alone {
                        let all = if rank == plan.owner { (KEEP * 3 * 2) as u64 } else { 0 };
                        assert_eq!(remains.report.rows_kept, all, "{what}, rank {rank}");
                    }
                }
            }
        }
    }
}

/// Generated rows over the rows that are kept, from the prompt's dense keys and values.
struct Masked<'a> {
    dense: &'a Dense,
    kept: &'a KeptRows,
    contiguous: bool,
    /// Keys and values of the generated rows of each layer.
    generated: Vec<Vec<(Tensor, Tensor)>>,
    row: u32,
}

impl Attention for Masked<'_> {
    type Error = Error;

    fn attend(&mut self, layer: usize, Qkv { q, k, v }: Qkv) -> Result<Partial> {
        self.generated[layer].push((k, v));
        let first = if self.contiguous { KEEP } else { self.dense.rows } as u32;
        let (kv, count) = (&self.dense.kv[layer], self.generated[layer].len());
        let of_head = |head: usize| -> Result<Partial> {
            let rows = &self.kept.0[layer][head];
            let rope: Vec<u32> = if self.contiguous { (0..rows.len() as u32).collect() } else { rows.clone() };
            let rope = [rope, (first..first + count as u32).collect()].concat();
            let index = Tensor::new(rows.as_slice(), q.device())?;
            let joined = |of: &Tensor, pick: fn(&(Tensor, Tensor)) -> &Tensor| -> Result<Tensor> {
                let mut parts = vec![of.index_select(&index, 0)?];
                parts.extend(self.generated[layer].iter().map(|pair| pick(pair).clone()));
                Ok(Tensor::cat(&parts, 0)?.narrow(1, head, 1)?)
            };
            let at = Positions::in_sequence(rope.clone(), vec![0; rope.len()]);
            let keys = [Keys { k: joined(&kv.0, |pair| &pair.0)?, v: joined(&kv.1, |pair| &pair.1)?, at }];
            let at = Positions::run(first + self.row, 1);
            let (q, math) = (q.narrow(1, head * 2, 2)?, &self.dense.math);
            Ok(math.layers[layer].attend(Kernels::Plain, &q, &at, &keys)?)
        };
        Ok(Partial::beside_each_other(&[of_head(0)?, of_head(1)?])?)
    }

    fn progress(&self) -> &Progress {
        &self.dense.math.progress
    }
}

fn logits(model: &dyn Model, token: u32, attention: &mut dyn Attention<Error = Error>) -> Vec<f32> {
    let rows = model.embed(&[token]).expect("an id");
    let rows = model.layers(0..model.config().layers, rows, attention).expect("layers");
    model.logits(&rows).and_then(|logits| Ok(logits.flatten_all()?.to_vec1()?)).expect("logits")
}

#[test]
fn what_remains_is_decoded_as_the_whole_cache_of_which_the_other_rows_are_not_seen() {
    const TOKENS: [u32; 3] = [7, 0, 33];
    let model = kit::model(&kit::config());
    for entry in EVICTIONS {
        let evict = evict_by(entry.method);
        let plan = plan(kit::method("full"), Exchange::Replicate, 1, &evict);
        let dense = dense(&*model, &plan, &evict);
        let (prefilled, remains) = ranks(&*model, &plan, 1).swap_remove(0);
        let remains = remains.expect("evicted");
        let kept = remains.kept.clone();
        let (placement, first, sampler) = (prefilled.placement, TOKENS[0], Sampler::greedy());
        let mut sequence = Sequence::of_remains(&plan, Start { placement, tokens: 4, first, sampler }, remains, 0);
        let mut masked =
            Masked { dense: &dense, kept: &kept, contiguous: entry.contiguous, generated: vec![Vec::new(); 3], row: 0 };
        for token in TOKENS {
            let expected = logits(&*model, token, &mut masked);
            masked.row += 1;
            let turned = sequence.turned().expect("it was turned");
            let at = turned.begin_row(true);
            let runs = vec![DecodeRun { cache: 0, at: at.clone(), alone: true }];
            let math = kit::math(&*model, 64);
            let found = logits(&*model, token, &mut Decode { math, caches: vec![turned], runs, at, shared: None });
            let far = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(far < 1e-4, "{}: {far:e}", entry.name);
        }
    }
}

#[test]
fn where_everything_is_kept_nothing_is_cut() {
    let model = kit::model(&kit::config());
    let evict = Evict { keep: 30, window: WINDOW_ROWS, ..evict_by(EVICTIONS[0].method) };
    let whole = plan(kit::method("ring"), Exchange::Replicate, 2, &evict);
    assert_eq!(whole.total_rows(), 30);
    assert!(ranks(&*model, &whole, 2).iter().all(|(_, remains)| remains.is_none()));
    let once = Plan { max_tokens: 1, evict: Some(evict_by(EVICTIONS[0].method)), ..whole };
    assert!(ranks(&*model, &once, 2).iter().all(|(_, remains)| remains.is_none()), "no token is to follow");
}
