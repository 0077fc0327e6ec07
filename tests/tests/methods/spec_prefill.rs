//! SpecPrefill-like against its formula, computed row by row in f64 from the model's own layers:
//! the reading of the rows that write tokens, spans, and rows kept, in every world and exchange.

use std::sync::Arc;

use candle_core::Tensor;
use tributary_kernels::{Kernels, Keys, Partial, Positions};
use tributary_model::{Attention, Model, Progress, Qkv, Result};
use tributary_protocol::{AuxiliaryPrompt, Exchange, Phase, Plan};
use tributary_tests::{dummy_model, logits, method, plan, relative_error, run, tiny_config, with_ratio};

const EXCHANGES: [Exchange; 3] = [Exchange::Replicate, Exchange::PassQ, Exchange::Selected];

/// Prefix, chunk lengths, query length; the ratio, and the method with tokens, pool and span.
type Case = ((usize, &'static [usize], usize), f64, &'static str, (usize, usize, usize));
const CASES: [Case; 4] = [
    ((1, &[16, 16, 16, 16], 5), 0.3, "spec-prefill-like:span=8", (8, 13, 8)),
    ((3, &[7, 31, 2, 18, 1], 4), 0.5, "spec-prefill-like:tokens=3:pool=3:span=4", (3, 3, 4)),
    ((0, &[12, 9], 1), 0.4, "spec-prefill-like:tokens=1:pool=1:span=5", (1, 1, 5)),
    ((2, &[90], 3), 0.6, "spec-prefill-like", (8, 13, 32)),
];

/// A causal pass that keeps the largest attention of the last row to every row, over heads and
/// layers.
struct Written<'a> {
    model: &'a dyn Model,
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
        let numbers = |x: &Tensor| of_layer.rope.apply(x, &at).and_then(|x| Ok(x.to_vec3::<f32>()?)).expect("f32");
        let (q, k) = (numbers(&qkv.q), numbers(&qkv.k));
        self.paid.resize(rows, 0.0);
        for head in 0..heads {
            let (last, kv) = (&q[rows - 1][head], head / (heads / k[0].len()));
            let score = |key: &Vec<Vec<f32>>| {
                let dot: f64 = last.iter().zip(&key[kv]).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum();
                (dot * f64::from(of_layer.scale)).exp()
            };
            let scores: Vec<f64> = k.iter().map(score).collect();
            let all: f64 = scores.iter().sum();
            self.paid.iter_mut().zip(scores).for_each(|(paid, score)| *paid = paid.max(score / all));
        }
        let keys = [Keys { k: qkv.k, v: qkv.v, at: at.clone() }];
        of_layer.attend(Kernels::Plain, &qkv.q, &at, &keys)
    }
}

/// Attention to each row before a prompt's query from the rows that write `tokens` tokens, up to
/// the end of the answer; and those tokens. Every token is computed with all rows before it anew.
fn written(model: &dyn Model, prompt: &AuxiliaryPrompt, tokens: usize) -> (Vec<f64>, Vec<u32>) {
    let (mut ids, mut sums, mut found) = (prompt.ids.clone(), vec![0.0; prompt.stands_for.len()], Vec::new());
    while found.len() < tokens && !found.last().is_some_and(|token| model.config().eos.contains(token)) {
        let mut attention = Written { model, paid: Vec::new(), progress: Progress::default() };
        let rows = model.embed(&ids).expect("ids");
        let rows = model.layers(0..model.config().layers, rows, &mut attention).expect("layers");
        sums.iter_mut().zip(&attention.paid).for_each(|(sum, paid)| *sum += paid);
        let logits = model.logits(&rows.last(1).expect("a row")).expect("logits");
        let logits: Vec<f32> = logits.flatten_all().and_then(|logits| logits.to_vec1()).expect("f32");
        let best = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        found.push(logits.iter().position(|&logit| logit == best).expect("logits") as u32);
        ids.extend(found.last());
    }
    (sums.iter().map(|sum| sum / found.len() as f64).collect(), found)
}

/// The selection by its definition, row by row, and the scores.
fn selected(model: &dyn Model, plan: &Plan, (tokens, pool, span): (usize, usize, usize)) -> (Vec<u32>, Vec<f64>) {
    let prompt = &plan.auxiliary[0].prompts[0];
    assert_eq!(prompt.ids, plan.all_ids(), "it reads the whole prompt");
    let (first, count) = (plan.prefix_tokens(), plan.context_rows());
    let scores = written(model, prompt, tokens).0.split_off(first);
    assert_eq!(scores.len(), count);
    let near = |row: usize| {
        let rows = row.saturating_sub(pool / 2)..count.min(row + pool / 2 + 1);
        scores[rows.clone()].iter().sum::<f64>() / rows.len() as f64
    };
    let rows: Vec<usize> = (0..count).collect();
    let mean = |rows: &&[usize]| rows.iter().map(|&row| near(row)).sum::<f64>() / rows.len() as f64;
    let mut spans: Vec<&[usize]> = rows.chunks(span).collect();
    spans.sort_by(|a, b| mean(b).total_cmp(&mean(a)));
    let mut kept: Vec<u32> = spans.concat().into_iter().take(plan.budget).map(|row| (first + row) as u32).collect();
    kept.sort_unstable();
    (kept, scores)
}

#[test]
fn every_world_selects_as_the_formula_says() {
    let model = dummy_model(&tiny_config(&[]), 1);
    for (shape, ratio, spec, options) in CASES {
        let asked = |world, exchange| with_ratio(plan(shape.0, shape.1, shape.2, world, method(spec), exchange), ratio);
        let one = asked(1, Exchange::PassQ);
        let (expected, scores) = selected(&*model, &one, options);
        assert_eq!(expected.len(), one.budget, "the budget is spent");
        for world in 1..=4 {
            for exchange in EXCHANGES {
                let (outcome, reports) = run(&model, world, &asked(world, exchange));
                let what = format!("{spec}, {shape:?}, world {world}, {exchange:?}");
                assert_eq!(outcome.selected, expected, "{what}");
                let found = outcome.scores.expect("scores");
                for (row, (found, expected)) in found.iter().zip(&scores).enumerate() {
                    assert!((f64::from(*found) - expected).abs() < 1e-5, "row {row}: {found}, not {expected}; {what}");
                }
                let prefilled: Vec<usize> = reports.iter().map(|report| report.prefilled_rows).collect();
                assert_eq!(prefilled, vec![shape.0; world], "the prefix alone: {what}");
                let recomputed: usize = reports.iter().map(|report| report.recomputed_rows).sum();
                assert_eq!(recomputed, one.budget + shape.2, "{what}");
                let reads = |phase: Phase| reports[0].spans.iter().any(|span| span.phase == phase);
                assert!(reads(Phase::Auxiliary) && !reads(Phase::Probe), "{what}");
            }
        }
    }
}

/// An end token is written, and no row after it is read.
#[test]
fn the_reading_ends_with_the_small_models_answer() {
    let (shape, ratio, spec, options) = CASES[1];
    let of = |changes: &[(&str, serde_json::Value)]| dummy_model(&tiny_config(changes), 1);
    let asked = with_ratio(plan(shape.0, shape.1, shape.2, 1, method(spec), Exchange::PassQ), ratio);
    let model = of(&[]);
    let tokens = written(&*model, &asked.auxiliary[0].prompts[0], options.0).1;
    assert_eq!(tokens.len(), options.0);
    let ending: Arc<dyn Model> = of(&[("eos_token_id", tokens[0].into())]);
    let expected = selected(&*ending, &asked, (1, options.1, options.2));
    let (found, longer) = (run(&ending, 1, &asked).0, run(&model, 1, &asked).0);
    assert_eq!(found.selected, expected.0);
    let far =
        |scores: &[f32]| scores.iter().zip(&expected.1).map(|(a, b)| (f64::from(*a) - b).abs()).fold(0.0, f64::max);
    assert!(far(&found.scores.expect("scores")) < 1e-5);
    assert!(far(&longer.scores.expect("scores")) > 1e-4, "later rows would have counted");
}

/// Prefix and query alone, of which the answer knows nothing else.
#[test]
fn without_a_budget_the_context_is_left_out() {
    let model = dummy_model(&tiny_config(&[]), 1);
    let shape = CASES[1].0;
    for world in 1..=3 {
        let asked = |lengths: &[usize], exchange| {
            let plan = plan(shape.0, lengths, shape.2, world, method("spec-prefill-like"), exchange);
            with_ratio(plan, 0.0)
        };
        for exchange in EXCHANGES {
            let one = asked(shape.1, exchange);
            assert!(one.drops() && !one.is_exact(), "nothing is reused");
            let mut other = one.clone();
            other.chunks.iter_mut().flat_map(|chunk| &mut chunk.ids).for_each(|id| *id = (*id + 1) % 96);
            let (found, reports) = run(&model, world, &one);
            let unread = run(&model, world, &other).0;
            assert_eq!((&found.tokens, &found.logits), (&unread.tokens, &unread.logits), "{exchange:?}, {world}");
            assert!(reports.iter().all(|report| report.auxiliary_s == 0.0), "no model reads for it");
            let full = run(&model, world, &with_ratio(one, 1.0)).0;
            assert!(relative_error(logits(&found), logits(&full)) > 1e-3, "{exchange:?}, {world}");
        }
    }
}
