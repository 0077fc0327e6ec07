//! APB: exact where blocks pass all their keys, star with a short anchor where they pass none, and
//! else equal to one pass over all blocks together, in every world.

use std::ops::Range;
use std::sync::Arc;

use candle_core::Tensor;
use tributary_kernels::{Kernels, Keys, Partial, Positions, Reduce};
use tributary_model::{Attention, Model, Progress, Qkv, Result};
use tributary_protocol::{Exchange, Outcome, Passing, Plan};
use tributary_tests::equal::{Concatenation, Largest};
use tributary_tests::samples::leads;
use tributary_tests::{anchored, logits, method, plan, relative_error, run, run_all, tiny_models};

/// Prefix, chunk lengths, query length.
const SHAPES: [(usize, &[usize], usize); 5] = [
    (1, &[16, 16, 16, 16], 5),
    (3, &[7, 31, 2, 18, 1], 4),
    (0, &[12, 9], 1),
    (2, &[1], 3),
    (4, &[70, 1, 150, 33, 64, 5, 90], 9),
];

fn apb(shape: (usize, &[usize], usize), world: usize, block: Option<usize>, anchor: usize, passing: usize) -> Plan {
    let passing = Passing { anchor_tokens: Some(anchor), passing_tokens: Some(passing) };
    plan(shape.0, shape.1, shape.2, world, anchored("apb", block, Some(passing)), Exchange::PassQ)
}

/// All shapes, without a lead and with one.
fn led_shapes() -> impl Iterator<Item = ((usize, &'static [usize], usize), &'static [u32])> {
    SHAPES.into_iter().flat_map(|shape| leads(shape.0).into_iter().map(move |lead| (shape, lead)))
}

fn full(model: &Arc<dyn Model>, shape: (usize, &[usize], usize)) -> Outcome {
    run(model, 1, &plan(shape.0, shape.1, shape.2, 1, method("full"), Exchange::PassQ)).0
}

#[test]
fn blocks_that_pass_everything_equal_full_prefill() {
    let mut largest = Largest::new("2: apb that passes all keys = full");
    for (index, model) in tiny_models().iter().enumerate() {
        for (shape, lead) in led_shapes() {
            let full = full(model, shape);
            for world in 1..=4 {
                let cases = [(None, 0), (None, 3), (Some(5), 2), (Some(16), 9), (Some(64), 1000)];
                let plans =
                    cases.map(|(block, anchor)| Plan { lead: lead.to_vec(), ..apb(shape, world, block, anchor, 1000) });
                for (found, plan) in run_all(model, Kernels::Auto, world, &plans).into_iter().zip(plans) {
                    let what = format!("{:?} model {index}, world {world}, {shape:?}", plan.method);
                    largest.check(relative_error(logits(&found.0), logits(&full)), &what);
                    assert_eq!(found.0.tokens, full.tokens, "{what}");
                }
            }
        }
    }
}

#[test]
fn a_whole_block_as_anchor_and_nothing_passed_is_star() {
    let mut largest = Largest::new("2: apb with star's anchor = star");
    for model in &tiny_models() {
        for shape in SHAPES {
            let star = |world, block_tokens| {
                plan(shape.0, shape.1, shape.2, world, anchored("star", block_tokens, None), Exchange::PassQ)
            };
            for (world, block) in [(1, Some(7)), (3, Some(13)), (4, None), (2, Some(5))] {
                let expected = run(model, world, &star(world, block)).0;
                let found = run(model, world, &apb(shape, world, block, usize::MAX, 0)).0;
                largest.check(relative_error(logits(&found), logits(&expected)), &format!("world {world}, {shape:?}"));
            }
        }
    }
}

#[test]
fn what_is_passed_is_what_one_pass_over_all_blocks_says_in_every_world() {
    let mut largest = Largest::new("2: apb = all blocks in one pass");
    let (mut approximate, mut close) = (0, 0);
    for (index, model) in tiny_models().iter().enumerate() {
        for (shape, lead) in led_shapes() {
            let full = full(model, shape);
            let apb = |world, block, anchor, passing| Plan {
                lead: lead.to_vec(),
                ..apb(shape, world, block, anchor, passing)
            };
            for (block, anchor, passing) in [(5, 2, 1), (13, 13, 4), (16, 0, 3), (40, 8, 9)] {
                let one = apb(1, Some(block), anchor, passing);
                let (expected, cut) = Together::logits(&**model, &one, block, anchor, passing);
                // If two rows are equally good at the cut, rounding decides.
                if cut < 1e-5 {
                    close += 1;
                    continue;
                }
                approximate += usize::from(relative_error(&expected, logits(&full)) > 1e-3);
                for world in 1..=4 {
                    let mut given = apb(world, Some(block), anchor, passing);
                    for owner in 0..world {
                        given.owner = owner;
                        let found = run(model, world, &given).0;
                        let what = format!(
                            "{:?}: model {index}, world {world}, owner {owner}, {shape:?}, {lead:?}",
                            one.method
                        );
                        largest.check(relative_error(logits(&found), &expected), &what);
                    }
                }
            }
        }
    }
    assert!(approximate > 15, "{approximate} cases are not exact");
    assert!(close < 10, "{close} cases have two rows alike at the cut");
}

/// All blocks in one pass, each with its own copies of the anchor's rows and the query's.
struct Together<'a> {
    model: &'a dyn Model,
    blocks: Vec<Copies>,
    /// The row in the sequence of each row of the pass.
    rows: Vec<u32>,
    passing: usize,
    /// Keys and values of every layer.
    layers: Vec<(Tensor, Tensor)>,
    /// The smallest difference, relative, between the last row that was passed on and the first
    /// that was not.
    cut: f32,
    progress: Progress,
}

/// Places in the pass.
struct Copies {
    anchor: Range<usize>,
    block: Range<usize>,
    query: Range<usize>,
    /// Rows of the block that the anchor has.
    shared: usize,
}

impl<'a> Together<'a> {
    fn logits(model: &'a dyn Model, plan: &Plan, length: usize, anchor: usize, passing: usize) -> (Vec<f32>, f32) {
        let chunks = plan.chunks.iter().flat_map(|chunk| &chunk.ids);
        let ids: Vec<u32> = plan.prefix.iter().chain(chunks).chain(&plan.query).copied().collect();
        let context = ids.len() - plan.query.len();
        let (mut rows, mut blocks) = (Vec::new(), Vec::new());
        let mut add = |from: usize, to: usize| {
            let start = rows.len();
            rows.extend(from as u32..to as u32);
            start..rows.len()
        };
        let lead = plan.lead_tokens();
        let (first, anchor) = (length + lead, (anchor + lead).min(length + lead).min(context));
        for from in std::iter::once(0).chain((first..context).step_by(length)) {
            let copied = add(0, if from > 0 { anchor } else { 0 });
            let block = add(from, context.min(from + if from > 0 { length } else { first }));
            let shared = if from == 0 { anchor } else { 0 };
            blocks.push(Copies { anchor: copied, block, query: add(context, ids.len()), shared });
        }
        let taken: Vec<u32> = rows.iter().map(|&row| ids[row as usize]).collect();
        let progress = Progress::default();
        let mut this = Self { model, blocks, rows, passing, layers: Vec::new(), cut: f32::INFINITY, progress };
        model.layers(0..model.config().layers, model.embed(&taken).expect("ids"), &mut this).expect("layers");
        let cut = |(k, v): &(Tensor, Tensor), at: &Range<usize>| {
            let narrow = |x: &Tensor| x.narrow(0, at.start, at.len()).expect("rows are there");
            (narrow(k), narrow(v))
        };
        let of_block = |copies: &Copies| {
            let layers = this.layers.iter().map(|layer| cut(layer, &copies.block)).collect();
            (this.rows[copies.block.start] as usize, layers)
        };
        let blocks: Vec<_> = this.blocks.iter().map(of_block).collect();
        (Concatenation::read(model, plan, &blocks), this.cut)
    }

    fn keys(&self, (k, v): (&Tensor, &Tensor), places: &[usize]) -> Keys {
        let list: Vec<u32> = places.iter().map(|&at| at as u32).collect();
        let list = Tensor::from_vec(list, places.len(), k.device()).expect("places");
        let pick = |x: &Tensor| x.index_select(&list, 0).expect("rows");
        Keys { k: pick(k), v: pick(v), at: self.at(places) }
    }

    fn at(&self, places: &[usize]) -> Positions {
        let rows: Vec<u32> = places.iter().map(|&at| self.rows[at]).collect();
        Positions::in_sequence(rows.clone(), rows)
    }

    /// The rows that a block passes on.
    fn passed(&mut self, layer: usize, index: usize, qkv: &Qkv) -> Result<Vec<usize>> {
        let Copies { anchor, block, query, shared } = &self.blocks[index];
        let candidates: Vec<usize> = (block.start + shared..block.end).collect();
        if self.blocks.len() == 1 || candidates.len() <= self.passing {
            return Ok(if self.blocks.len() == 1 { Vec::new() } else { candidates });
        }
        let seen: Vec<usize> = [anchor, block, query].into_iter().flat_map(Clone::clone).collect();
        let asking: Vec<usize> = query.clone().collect();
        let q = qkv.q.narrow(0, query.start, query.len())?;
        let of_layer = &self.model.layer_attention(4096)?[layer];
        let keys = |places: &[usize]| [self.keys((&qkv.k, &qkv.v), places)];
        let found = of_layer.attend(Kernels::Plain, &q, &self.at(&asking), &keys(&seen))?;
        let (at, keys) = (self.at(&asking), keys(&candidates));
        let scores = Kernels::Plain.column_scores(&of_layer.query(&q, &at, &keys), &found.lse, Reduce::Mass)?;
        let scores = scores.to_vec1::<f32>()?;
        let mut best: Vec<usize> = (0..candidates.len()).collect();
        best.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
        if self.passing > 0 {
            let (last, next) = (scores[best[self.passing - 1]], scores[best[self.passing]]);
            self.cut = self.cut.min((last - next) / last);
        }
        best.truncate(self.passing);
        Ok(best.into_iter().map(|place| candidates[place]).collect())
    }
}

impl Attention for Together<'_> {
    type Error = tributary_model::Error;

    fn progress(&self) -> &Progress {
        &self.progress
    }

    fn attend(&mut self, layer: usize, qkv: Qkv) -> Result<Partial> {
        let passed = (0..self.blocks.len()).map(|index| self.passed(layer, index, &qkv)).collect::<Result<Vec<_>>>()?;
        let (layers, mut parts) = (self.model.layer_attention(4096)?, Vec::new());
        for (index, Copies { anchor, block, query, .. }) in self.blocks.iter().enumerate() {
            let own: Vec<usize> = [anchor, block, query].into_iter().flat_map(Clone::clone).collect();
            let from_others = passed.iter().enumerate().filter(|(other, _)| *other != index).flat_map(|(_, rows)| rows);
            for (asking, from_others) in
                [(anchor.clone(), Vec::new()), (block.start..query.end, from_others.copied().collect())]
            {
                if asking.is_empty() {
                    continue;
                }
                let asking: Vec<usize> = asking.collect();
                let q = qkv.q.narrow(0, asking[0], asking.len())?;
                let keys = self.keys((&qkv.k, &qkv.v), &[&own[..], &from_others].concat());
                parts.push(layers[layer].attend(Kernels::Plain, &q, &self.at(&asking), &[keys])?);
            }
        }
        self.layers.push((qkv.k, qkv.v));
        Ok(Partial::below_each_other(&parts)?)
    }
}
