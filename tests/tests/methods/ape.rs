//! APE against its formula, written out over every row, key and head in f64: the first token's
//! logits and the tokens that follow, in every world and exchange; and against a full prefill where
//! it claims to be exact.

use candle_core::Tensor;
use tributary_kernels::{Partial, Positions, Rope};
use tributary_model::{Attention, LayerAttention, Model, Progress, Qkv, Result};
use tributary_protocol::{Ape, Exchange, Outcome, Plan, PlannedMethod, Prefill, Selection};
use tributary_tests::equal::Largest;
use tributary_tests::samples::leads;
use tributary_tests::{dummy_model, logits, method, plan, relative_error, run, tiny_config};

const EXCHANGES: [Exchange; 3] = [Exchange::Replicate, Exchange::PassQ, Exchange::Selected];

/// Prefix, chunk lengths, query length.
const SHAPES: [(usize, &[usize], usize); 3] = [(1, &[16, 16, 16, 16], 5), (3, &[7, 31, 2, 18, 1], 4), (0, &[12, 9], 1)];

/// Keys with their positions and values of some rows, one entry a layer, each
/// `[rows][kv heads][head dim]`.
type Layers = Vec<(Numbers, Numbers)>;

/// `[rows][heads][head dim]`.
type Numbers = Vec<Vec<Vec<f64>>>;

/// Rows that see `rest` and each other as ever, and `context` as the formula says.
struct Written {
    rope: Rope,
    scale: f64,
    at: Positions,
    ape: Ape,
    context: Layers,
    rest: Layers,
    /// Those of the rows themselves, so far.
    own: Layers,
    /// The same without positions.
    bare: Vec<(Tensor, Tensor)>,
    progress: Progress,
}

fn numbers(x: &Tensor) -> Numbers {
    let rows = x.to_vec3::<f32>().expect("f32");
    rows.into_iter()
        .map(|heads| heads.into_iter().map(|head| head.into_iter().map(f64::from).collect()).collect())
        .collect()
}

/// Softmax at a scale over the given keys: the weighted value, and the log-sum-exp.
fn softmax(q: &[f64], keys: &[(&[f64], &[f64])], scale: f64) -> (Vec<f64>, f64) {
    let score = |k: &[f64]| q.iter().zip(k).map(|(q, k)| q * k).sum::<f64>() * scale;
    let scores: Vec<f64> = keys.iter().map(|(k, _)| score(k)).collect();
    let sum: f64 = scores.iter().map(|score| score.exp()).sum();
    let mut out = vec![0.0; q.len()];
    for (score, (_, v)) in scores.iter().zip(keys) {
        out.iter_mut().zip(*v).for_each(|(out, v)| *out += score.exp() / sum * v);
    }
    (out, sum.ln())
}

impl Attention for Written {
    type Error = tributary_model::Error;

    fn progress(&self) -> &Progress {
        &self.progress
    }

    fn attend(&mut self, layer: usize, qkv: Qkv) -> Result<Partial> {
        let (rows, heads, head_dim) = qkv.q.dims3()?;
        let q = numbers(&self.rope.apply(&qkv.q, &self.at)?);
        self.bare.push((qkv.k.clone(), qkv.v.clone()));
        self.own.push((numbers(&self.rope.apply(&qkv.k, &self.at)?), numbers(&qkv.v)));
        let mut found = Vec::new();
        for (row, q) in q.iter().enumerate() {
            for (head, q) in q.iter().enumerate() {
                let kv = head / (heads / self.own[layer].0[0].len());
                let of = |(k, v): &(Numbers, Numbers), count: usize| -> Vec<(Vec<f64>, Vec<f64>)> {
                    k.iter().zip(v).take(count).map(|(k, v)| (k[kv].clone(), v[kv].clone())).collect()
                };
                let mut rest = of(&self.own[layer], row + 1);
                rest.extend(self.rest.get(layer).map_or_else(Vec::new, |rest| of(rest, usize::MAX)));
                let context = self.context.get(layer).map_or_else(Vec::new, |context| of(context, usize::MAX));
                let borrowed = |keys: &[(Vec<f64>, Vec<f64>)], scale: f64| {
                    let keys: Vec<(&[f64], &[f64])> = keys.iter().map(|(k, v)| (&k[..], &v[..])).collect();
                    softmax(q, &keys, scale)
                };
                let (mut out, rest_lse) = borrowed(&rest, self.scale);
                if !context.is_empty() {
                    let (tau, s) = (f64::from(self.ape.temperature), f64::from(self.ape.scale));
                    let (of_context, lse) = borrowed(&context, self.scale / tau);
                    let (a, b) = ((s * tau * lse).exp(), rest_lse.exp());
                    out.iter_mut().zip(of_context).for_each(|(out, context)| *out = (a * context + b * *out) / (a + b));
                }
                found.extend(out.into_iter().map(|number| number as f32));
            }
        }
        Ok(Partial::of_output(Tensor::from_vec(found, (rows, heads, head_dim), qkv.q.device())?)?)
    }
}

/// Logits after the query and the given tokens.
fn written(model: &dyn Model, plan: &Plan, ape: Ape, tokens: &[u32]) -> Vec<f32> {
    let LayerAttention { rope, scale, .. } = &model.layer_attention(512).expect("tables")[0];
    let run = |ids: &[u32], from: usize, context: &Layers, rest: &Layers| {
        let mut attention = Written {
            rope: rope.clone(),
            scale: f64::from(*scale),
            at: Positions::run(from as u32, ids.len()),
            ape,
            context: context.clone(),
            rest: rest.clone(),
            own: Vec::new(),
            bare: Vec::new(),
            progress: Progress::default(),
        };
        let rows = model.embed(ids).expect("ids");
        let rows = model.layers(0..model.config().layers, rows, &mut attention).expect("layers");
        (model.logits(&rows.last(1).expect("a row")).expect("logits"), attention.bare)
    };
    let (head, prefix, longest) = (plan.head_tokens(), plan.prefix.len(), plan.longest_group_rows());
    // Rows from `from` on, at positions from `first` on.
    let placed = |bare: &[(Tensor, Tensor)], from: usize, first: usize| -> Layers {
        let of = |(k, v): &(Tensor, Tensor)| {
            let rows = k.dims()[0] - from;
            let part = |x: &Tensor| x.narrow(0, from, rows).expect("rows");
            let k = rope.apply(&part(k), &Positions::run(first as u32, rows)).expect("turned");
            (numbers(&k), numbers(&part(v)))
        };
        bare.iter().map(of).collect()
    };
    let mut context: Layers = vec![(Vec::new(), Vec::new()); model.config().layers];
    let rest = match prefix {
        0 => context.clone(),
        _ => placed(&run(&plan.prefix, 0, &Vec::new(), &Vec::new()).1, 0, 0),
    };
    for chunk in &plan.chunks {
        let own = run(&[plan.head(), &chunk.ids].concat(), 0, &Vec::new(), &Vec::new()).1;
        for ((k, v), own) in context.iter_mut().zip(placed(&own, head, prefix)) {
            k.extend(own.0);
            v.extend(own.1);
        }
    }
    let ids: Vec<u32> = plan.query.iter().chain(tokens).copied().collect();
    let logits = run(&ids, prefix + longest, &context, &rest).0;
    logits.flatten_all().and_then(|logits| logits.to_vec1()).expect("f32")
}

fn likeliest(logits: &[f32]) -> u32 {
    let best = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    logits.iter().position(|&logit| logit == best).expect("logits") as u32
}

fn asked(shape: (usize, &[usize], usize), world: usize, ape: Ape, exchange: Exchange, max_tokens: usize) -> Plan {
    Plan {
        max_tokens,
        ..plan(
            shape.0,
            shape.1,
            shape.2,
            world,
            PlannedMethod { prefill: Prefill::Chunks(Selection::Parallel(ape)), ..method("ape") },
            exchange,
        )
    }
}

#[test]
fn every_world_answers_as_the_formula_says_and_goes_on_so() {
    let mut largest = Largest::new("ape = its formula");
    let qwen = [("architectures", serde_json::json!(["Qwen3ForCausalLM"])), ("head_dim", 24.into())];
    for (number, model) in [dummy_model(&tiny_config(&[]), 1), dummy_model(&tiny_config(&qwen), 2)].iter().enumerate() {
        for (shape, ape) in SHAPES.into_iter().zip([
            Ape::default(),
            Ape { temperature: 0.5, scale: 1.3 },
            Ape { temperature: 1.4, scale: 0.6 },
        ]) {
            let lead = leads(shape.0).pop().expect("a lead");
            let asked =
                |world, exchange, lead: &[u32]| Plan { lead: lead.to_vec(), ..asked(shape, world, ape, exchange, 4) };
            for lead in [&[][..], lead] {
                let one = asked(1, Exchange::PassQ, lead);
                let expected = written(&**model, &one, ape, &[]);
                let mut tokens = Vec::new();
                for _ in 0..4 {
                    tokens.push(likeliest(&written(&**model, &one, ape, &tokens)));
                }
                for world in 1..=4 {
                    for exchange in EXCHANGES {
                        let found: Outcome = run(model, world, &asked(world, exchange, lead)).0;
                        let what = format!("model {number}, {shape:?}, {lead:?}, {ape:?}, world {world}, {exchange:?}");
                        largest.check(relative_error(logits(&found), &expected), &what);
                        assert_eq!(found.tokens, tokens, "{what}");
                        assert!(found.selected.is_empty(), "{what}");
                    }
                }
            }
        }
    }
}

#[test]
fn one_chunk_at_temperature_and_scale_1_is_a_full_prefill() {
    let mut largest = Largest::new("ape of one chunk = full");
    let model = dummy_model(&tiny_config(&[]), 1);
    let shape = (3, &[57][..], 5);
    let full = run(&model, 1, &Plan { max_tokens: 5, ..plan(3, &[57], 5, 1, method("full"), Exchange::PassQ) }).0;
    let ape = Ape { temperature: 1.0, scale: 1.0 };
    for world in 1..=4 {
        for exchange in EXCHANGES {
            for owner in 0..world {
                let plan = Plan { owner, ..asked(shape, world, ape, exchange, 5) };
                let found = run(&model, world, &plan).0;
                let what = format!("world {world}, owner {owner}, {exchange:?}");
                largest.check(relative_error(logits(&found), logits(&full)), &what);
                assert_eq!(found.tokens, full.tokens, "{what}");
            }
        }
    }
}

/// A temperature and a scale change the answer, so that the claim above is not one of everything.
#[test]
fn other_temperatures_and_scales_differ_from_a_full_prefill() {
    let model = dummy_model(&tiny_config(&[]), 1);
    let shape = (3, &[57][..], 5);
    let full = run(&model, 1, &plan(3, &[57], 5, 1, method("full"), Exchange::PassQ)).0;
    for ape in [Ape { temperature: 0.5, scale: 1.0 }, Ape { temperature: 1.0, scale: 0.5 }] {
        let found = run(&model, 1, &asked(shape, 1, ape, Exchange::PassQ, 1)).0;
        let error = relative_error(logits(&found), logits(&full));
        assert!(error > 1e-4, "{ape:?}: {error:e}");
    }
}
