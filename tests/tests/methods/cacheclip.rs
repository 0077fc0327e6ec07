//! CacheClip against its formula, computed row by row in f64 from the model's own layers: readings,
//! windows, and recomputed rows, in every world and exchange.

use candle_core::Tensor;
use tributary_kernels::{Kernels, Keys, Partial, Positions};
use tributary_model::{Attention, Model, Progress, Qkv, Result};
use tributary_protocol::{AuxiliaryPrompt, Exchange, Phase, Plan};
use tributary_tests::{dummy_model, method, plan, run, tiny_config, with_ratio};

const EXCHANGES: [Exchange; 3] = [Exchange::Replicate, Exchange::PassQ, Exchange::Selected];

/// Prefix, chunk lengths, query length.
const SHAPES: [(usize, &[usize], usize); 3] = [(1, &[16, 16, 16, 16], 5), (3, &[7, 31, 2, 18, 1], 4), (0, &[12, 9], 1)];

/// A causal pass that keeps the attention of the last layer's query rows to every row.
struct Written<'a> {
    model: &'a dyn Model,
    query: usize,
    paid: Vec<f64>,
    progress: Progress,
}

impl Attention for Written<'_> {
    type Error = tributary_model::Error;

    fn progress(&self) -> &Progress {
        &self.progress
    }

    fn attend(&mut self, layer: usize, qkv: Qkv) -> Result<Partial> {
        let (rows, heads, _) = qkv.q.dims3()?;
        let (at, of_layer) = (Positions::run(0, rows), &self.model.layer_attention(512)?[layer]);
        let rope = &of_layer.rope;
        if layer + 1 == self.model.config().layers {
            let numbers = |x: &Tensor| x.to_vec3::<f32>().expect("f32");
            let (q, k) = (numbers(&rope.apply(&qkv.q, &at)?), numbers(&rope.apply(&qkv.k, &at)?));
            self.paid = vec![0.0; rows];
            for (row, head) in (rows - self.query..rows).flat_map(|row| (0..heads).map(move |head| (row, head))) {
                let kv = head / (heads / k[0].len());
                let score = |key: usize| {
                    let dot: f64 =
                        q[row][head].iter().zip(&k[key][kv]).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum();
                    (dot * f64::from(of_layer.scale)).exp()
                };
                let scores: Vec<f64> = (0..=row).map(score).collect();
                let all: f64 = scores.iter().sum();
                let mean = (self.query * heads) as f64;
                self.paid.iter_mut().zip(scores).for_each(|(paid, score)| *paid += score / all / mean);
            }
        }
        let keys = [Keys { k: qkv.k, v: qkv.v, at: at.clone() }];
        of_layer.attend(Kernels::Plain, &qkv.q, &at, &keys)
    }
}

/// Attention of a prompt's query to each row before it.
fn written(model: &dyn Model, prompt: &AuxiliaryPrompt) -> Vec<f64> {
    let mut attention = Written { model, query: prompt.query, paid: Vec::new(), progress: Progress::default() };
    let rows = model.embed(&prompt.ids).expect("ids");
    model.layers(0..model.config().layers, rows, &mut attention).expect("layers");
    attention.paid.truncate(prompt.stands_for.len());
    attention.paid
}

/// The selection by its definition, row by row, and the scores.
fn selected(model: &dyn Model, plan: &Plan) -> (Vec<u32>, Vec<f64>) {
    let first = plan.prefix_tokens() as u32;
    let mut scores = vec![0.0; plan.context_rows()];
    for prompt in &plan.auxiliary[0].prompts {
        for (paid, rows) in written(model, prompt).into_iter().zip(&prompt.stands_for) {
            scores[(rows.start - first) as usize] += paid;
        }
    }
    let score = |row: &u32| scores[(row - first) as usize];
    let mut candidates: Vec<u32> = plan.chunk_rows()[1..].iter().cloned().flatten().collect();
    candidates.sort_by(|a, b| score(b).total_cmp(&score(a)).then(a.cmp(b)));
    candidates.truncate(plan.budget);
    let in_top = |row: &u32| candidates.contains(row);
    let mut kept = Vec::new();
    for chunk in &plan.chunk_rows()[1..] {
        let rows: Vec<u32> = chunk.clone().collect();
        for window in rows.chunks(8) {
            let inside: Vec<u32> = window.iter().copied().filter(in_top).collect();
            if inside.len() as f64 / window.len() as f64 > 5.0 / 8.0 {
                kept.extend(inside);
            }
        }
    }
    (kept, scores)
}

#[test]
fn every_world_selects_as_the_formula_says() {
    let model = dummy_model(&tiny_config(&[]), 1);
    let (mut dropped, mut kept) = (0, 0);
    for (shape, ratio) in SHAPES.into_iter().zip([0.6, 0.7, 0.3]) {
        let one = with_ratio(plan(shape.0, shape.1, shape.2, 1, method("cacheclip"), Exchange::PassQ), ratio);
        let (expected, scores) = selected(&*model, &one);
        (dropped, kept) = (dropped + one.budget - expected.len(), kept + expected.len());
        for world in 1..=4 {
            for exchange in EXCHANGES {
                let plan = with_ratio(plan(shape.0, shape.1, shape.2, world, method("cacheclip"), exchange), ratio);
                let (outcome, reports) = run(&model, world, &plan);
                let what = format!("{shape:?}, world {world}, {exchange:?}");
                assert_eq!(outcome.selected, expected, "{what}");
                let found = outcome.scores.expect("scores");
                for (row, (found, expected)) in found.iter().zip(&scores).enumerate() {
                    assert!((f64::from(*found) - expected).abs() < 1e-6, "row {row}: {found}, not {expected}; {what}");
                }
                for report in &reports {
                    let phases = report.spans.iter().filter(|span| span.phase == Phase::Auxiliary);
                    assert_eq!(phases.count(), 1, "rank {}: {what}", report.rank);
                    assert_eq!(report.auxiliary_s > 0.0, report.rank == 0, "rank 0 alone runs it; {what}");
                }
            }
        }
    }
    assert!(dropped > 0 && kept > 0, "windows are dropped, {dropped} rows, and kept, {kept} rows");
}

#[test]
fn the_first_chunk_is_selected_only_where_it_may_be_and_without_a_budget_nothing_is_read() {
    let model = dummy_model(&tiny_config(&[]), 1);
    let bare = plan(1, &[16, 16], 3, 2, method("cacheclip"), Exchange::PassQ);
    let all = Plan { include_first_chunk: true, ..with_ratio(bare.clone(), 1.0) };
    assert_eq!(run(&model, 2, &all).0.selected, (1..33).collect::<Vec<u32>>());
    assert_eq!(run(&model, 2, &with_ratio(bare.clone(), 1.0)).0.selected, (17..33).collect::<Vec<u32>>());
    let (outcome, reports) = run(&model, 2, &bare);
    assert!(outcome.selected.is_empty() && reports[0].auxiliary_s == 0.0, "{:?}", outcome.selected);
}
