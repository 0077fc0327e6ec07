//! Decoding from a cache cut to different rows in each layer and KV head equals masked decoding.
//! There the whole cache is kept, and every head of every layer sees the kept rows alone. The
//! reference uses the plain kernels, head by head.

use candle_core::Tensor;
use tributary_kernels::{Kernels, Keys, PAD, Partial};
use tributary_model::{Attention, Model, Progress, Qkv};
use tributary_protocol::Exchange;

use super::*;
use crate::attention::{Decode, DecodeRun};
use crate::chunk_cache::ChunkCache;
use crate::context::{Context, Math};
use crate::error::Error;
use crate::kit;
use crate::kv::{Block, KvCache, LayerRows};
use crate::strategy;

const KV_HEADS: usize = 2;
const TOKENS: [u32; 4] = [7, 0, 33, 12];

/// The rows that a head of a layer keeps of `rows`: fewer in later layers, the same number in every
/// head, and out of order.
fn kept(rows: &[u32], layer: usize, head: usize) -> Vec<u32> {
    let mut ranked = rows.to_vec();
    let salt = if layer == 0 { 0 } else { head as u32 }; // the first layer keeps the same in all heads
    ranked.sort_by_key(|&row| (row * 37 + salt * 19 + layer as u32 * 5) % 41);
    ranked.truncate(rows.len() * (4 - layer) / 5);
    ranked
}

fn cut(block: &Block) -> Block {
    let of_layer = |layer: usize| -> LayerRows {
        let of_head = |head: usize| kept(block.rows(), layer, head).into();
        match layer {
            0 => LayerRows::AllHeads(of_head(0)),
            _ => LayerRows::PerHead((0..KV_HEADS).map(of_head).collect()),
        }
    };
    block.cut((0..block.layers.len()).map(of_layer).collect::<Vec<_>>()).expect("cut")
}

/// Logits after each of [`TOKENS`], decoded as a request is.
fn decoded(model: &dyn Model, plan: &Plan, prefilled: Prefilled) -> Vec<f32> {
    let mut sequence = Sequence::new(plan, prefilled, TOKENS[0], Sampler::greedy(), 0).expect("a sequence");
    let math = kit::math(model, 64);
    sequence.turn(&math.layers).expect("turned");
    let step = |&token: &u32| {
        let turned = sequence.turned().expect("it was turned");
        let at = turned.begin_row(true);
        let runs = vec![DecodeRun { cache: 0, at: at.clone(), alone: true }];
        let mut attention = Decode { math: math.clone(), caches: vec![turned], runs, at, shared: None };
        logits(model, token, &mut attention)
    };
    TOKENS.iter().flat_map(step).collect()
}

fn logits(model: &dyn Model, token: u32, attention: &mut dyn Attention<Error = Error>) -> Vec<f32> {
    let rows = model.embed(&[token]).expect("an id");
    let rows = model.layers(0..model.config().layers, rows, attention).expect("layers");
    model.logits(&rows).and_then(|logits| Ok(logits.flatten_all()?.to_vec1()?)).expect("logits")
}

/// The whole cache, of which every head of every layer sees the kept rows alone.
struct Masked<'a> {
    math: Math,
    /// Blocks, and whether their rows are kept in part.
    blocks: Vec<(&'a Block, bool)>,
    placement: &'a Placement,
    /// Rows that count in their fresh form alone, and the blocks that hold those.
    recomputed: &'a [u32],
    fresh_from: usize,
    /// Keys and values of the generated rows of each layer.
    generated: Vec<Vec<(Tensor, Tensor)>>,
    row: u32,
}

impl Masked<'_> {
    fn keys(&self, layer: usize, head: usize) -> Result<Vec<Keys>> {
        let of_head = |x: &Tensor| x.narrow(1, head, 1);
        let mut all = Vec::new();
        for (index, &(block, in_part)) in self.blocks.iter().enumerate() {
            let seen = if in_part { kept(block.rows(), layer, head) } else { block.rows().to_vec() };
            let stale = |row: &u32| index < self.fresh_from && self.recomputed.contains(row);
            let order = |row: &u32| if seen.contains(row) && !stale(row) { self.placement.order_of(*row) } else { PAD };
            let at = self.placement.at(block.rows());
            let at = Positions::in_sequence(at.rope().to_vec(), block.rows().iter().map(order).collect::<Vec<_>>());
            let (k, v) = &block.layers[layer];
            all.push(Keys { k: of_head(k)?, v: of_head(v)?, at });
        }
        for (index, (k, v)) in self.generated[layer].iter().enumerate() {
            let at = self.placement.at(&[self.placement.rows() as u32 + index as u32]);
            all.push(Keys { k: of_head(k)?, v: of_head(v)?, at });
        }
        Ok(all)
    }
}

impl Attention for Masked<'_> {
    type Error = Error;

    fn attend(&mut self, layer: usize, qkv: Qkv) -> Result<Partial> {
        let Qkv { q, k, v } = qkv;
        self.generated[layer].push((k, v));
        let (at, group) = (self.placement.at(&[self.row]), q.dim(1)? / KV_HEADS);
        let of_head = |head: usize| -> Result<Partial> {
            let (q, keys) = (q.narrow(1, head * group, group)?, self.keys(layer, head)?);
            Ok(self.math.layers[layer].attend(Kernels::Plain, &q, &at, &keys)?)
        };
        let heads = (0..KV_HEADS).map(of_head).collect::<Result<Vec<_>>>()?;
        Ok(Partial::beside_each_other(&heads)?)
    }

    fn progress(&self) -> &Progress {
        &self.math.progress
    }
}

/// The same logits from the whole cache.
fn masked(model: &dyn Model, prefilled: &Prefilled, is_cut: fn(&KvCache, &Block) -> bool) -> Vec<f32> {
    let Prefilled { cache, placement, selection, .. } = prefilled;
    let stale: Vec<&Block> = std::iter::once(&cache.prefix).chain(&cache.own).collect();
    let fresh_from = stale.len();
    let blocks = stale.into_iter().chain(&cache.fresh).chain([&cache.tail]).filter(|block| !block.layers.is_empty());
    let mut attention = Masked {
        math: kit::math(model, 64),
        blocks: blocks.map(|block| (block, is_cut(cache, block))).collect(),
        placement,
        recomputed: &selection.rows,
        fresh_from,
        generated: vec![Vec::new(); model.config().layers],
        row: placement.rows() as u32,
    };
    if cache.prefix.layers.is_empty() {
        attention.fresh_from -= 1;
    }
    let step = |token: &u32| {
        let logits = logits(model, *token, &mut attention);
        attention.row += 1;
        logits
    };
    TOKENS.iter().flat_map(step).collect()
}

fn prefilled(model: &dyn Model, plan: &Plan) -> Prefilled {
    let mut found = kit::on_ranks(1, |comm| {
        let (mut chunks, progress) = (ChunkCache::none(), Progress::default());
        let mut cx = Context::new(model, comm, Kernels::Auto, (plan, 64), &progress, &mut chunks).expect("a context");
        strategy::build(&plan.method).expect("a strategy").prefill(&mut cx, plan).expect("prefilled")
    });
    found.swap_remove(0)
}

#[test]
fn a_cache_that_was_cut_decodes_as_one_of_which_the_other_rows_are_hidden() {
    let model = kit::model(&kit::config());
    let infoflow = kit::method("infoflow:layers=1..2");
    let of_context = |cache: &KvCache, block: &Block| cache.own.iter().any(|own| own.rows() == block.rows());
    for (method, budget) in [(kit::method("full"), 0), (infoflow, 6)] {
        let request =
            Plan { method, budget, max_tokens: 5, exchange: Exchange::PassQ, ..kit::plan(2, &[9, 8, 5], 4, 1) };
        let whole = prefilled(&*model, &request);
        assert_eq!(whole.selection.rows.len(), budget);
        let expected = masked(&*model, &whole, of_context);
        let untouched = masked(&*model, &whole, |_, _| false);
        let mut evicted = prefilled(&*model, &request);
        evicted.cache.own.iter_mut().for_each(|block| *block = cut(block));
        let found = decoded(&*model, &request, evicted);
        let distance = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert_eq!(found.len(), TOKENS.len() * 61);
        assert!(distance(&found, &expected) < 1e-4, "{:?}: {:e}", request.method, distance(&found, &expected));
        assert!(distance(&found, &untouched) > 1e-2, "{:?}: nothing was cut", request.method);
        let whole = decoded(&*model, &request, whole);
        assert!(distance(&whole, &untouched) < 1e-4, "{:?}: {:e}", request.method, distance(&whole, &untouched));
    }
}
