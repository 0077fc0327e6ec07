//! Keys and values that are handed over: another decoder, which knows token ids and these, goes on
//! with the tokens that the ranks would have drawn.

use std::sync::Arc;
use std::time::Duration;

use candle_core::{DType, Device, Tensor};
use tributary_coordinator::dispatch;
use tributary_engine::Group;
use tributary_kernels::{Kernels, Keys, Partial, Positions, Query};
use tributary_model::{Attention, LayerAttention, Model, Progress, Qkv};
use tributary_planner::{Cached, MethodInputs, PlanInput, RequestSettings};
use tributary_protocol::{Event, Exchange, HandOver, Order, Outcome, Plan};
use tributary_tests::samples::{COMBINATIONS, Case, MACHINE, Sample, leads};
use tributary_tests::{dummy_model, group, relative_error, run_one, shape, tiny_config};

/// Choices that two ways of computing the same logits may make differently.
const NEAR_TIE: f32 = 1e-4;

/// Longest wait for an event.
const PATIENCE: Duration = Duration::from_secs(60);

/// Tokens of an answer.
const TOKENS: usize = 5;

/// A decoder of its own: dense attention over keys and values that it was given, and over those of
/// the rows that it has computed.
struct Decoder<'a> {
    model: &'a dyn Model,
    /// Of each layer: keys after RoPE and values, `[rows, kv_heads, head_dim]`.
    layers: Vec<Option<(Tensor, Tensor)>>,
    at: Positions,
    progress: Progress,
}

impl<'a> Decoder<'a> {
    fn new(model: &'a dyn Model, layers: Vec<Option<(Tensor, Tensor)>>) -> Self {
        Self { model, layers, at: Positions::run(0, 0), progress: Progress::default() }
    }

    /// Computes rows from position `first` on; returns the logits of the last.
    fn run(&mut self, ids: &[u32], first: usize) -> Vec<f32> {
        self.at = Positions::run(first as u32, ids.len());
        let model = self.model;
        let rows = model.embed(ids).expect("ids");
        let rows = model.layers(0..model.config().layers, rows, self).expect("layers");
        let logits = model.logits(&rows).expect("logits").to_vec2::<f32>().expect("numbers");
        logits.into_iter().next_back().expect("a row")
    }
}

impl Attention for Decoder<'_> {
    type Error = tributary_model::Error;

    fn progress(&self) -> &Progress {
        &self.progress
    }

    fn attend(&mut self, layer: usize, Qkv { q, k, v }: Qkv) -> tributary_model::Result<Partial> {
        let LayerAttention { rope, scale, .. } = &self.model.layer_attention(4096)?[layer];
        let (q, k) = (rope.apply(&q, &self.at)?, rope.apply(&k, &self.at)?);
        let (k, v) = match self.layers[layer].take() {
            Some((before_k, before_v)) => (Tensor::cat(&[before_k, k], 0)?, Tensor::cat(&[before_v, v], 0)?),
            None => (k, v),
        };
        let keys = [Keys { k: k.clone(), v: v.clone(), at: Positions::run(0, k.dim(0)?) }];
        self.layers[layer] = Some((k, v));
        let query = Query { q: &q, at: &self.at, keys: &keys, rope: None, scale: *scale, dtype: DType::F32 };
        Ok(Kernels::Plain.attend(&query)?)
    }
}

/// Runs a prefill that halts wherever it can, and reads the first layer that has not been read at
/// each halt. Returns the bytes of the layers that were read before its end, and its outcome.
fn read_meanwhile(group: &Group, plan: &Plan, layers: usize) -> (Vec<Vec<u8>>, Outcome) {
    let (link, request) = (group.link(), plan.request);
    let (mut read, mut outcome) = (Vec::new(), None);
    link.send(Order::Prefill(Arc::new(plan.clone()))).expect("the ranks live");
    link.signals().halt(request);
    while outcome.is_none() {
        match link.next(PATIENCE).expect("the ranks live").expect("an event in time") {
            Event::Halted { .. } => {
                if read.len() < layers {
                    let wanted = HandOver { request, layer: read.len() as u32, rows: 0..plan.total_rows() as u32 };
                    let found = dispatch::hand_over(link, wanted).expect("the ranks live");
                    read.extend(found.expect("each row once"));
                }
                link.signals().halt(request);
                link.send(Order::Resume).expect("the ranks live");
            }
            Event::FirstToken { .. } => {}
            Event::Prefilled { outcome: found, .. } => outcome = Some(*found),
            other => panic!("{other:?}"),
        }
    }
    (read, outcome.expect("the prefill has ended"))
}

/// A layer of a kept sequence as it is handed over, read in two pieces.
fn handed_over(group: &Group, model: &dyn Model, plan: &Plan, layer: usize) -> (Tensor, Tensor) {
    let rows = plan.total_rows() as u32;
    let mut numbers = Vec::new();
    for rows in [0..rows / 3, rows / 3..rows] {
        let wanted = HandOver { request: plan.request, layer: layer as u32, rows };
        let bytes = dispatch::hand_over(group.link(), wanted).expect("the ranks live");
        let bytes = bytes.expect("each row once").expect("the layer is there");
        numbers.extend(bytes.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().expect("four bytes"))));
    }
    let config = model.config();
    let shape = (rows as usize, 2, config.kv_heads, config.head_dim);
    let pairs = Tensor::from_vec(numbers, shape, &Device::Cpu).expect("as many numbers as rows have");
    let of = |which: usize| {
        pairs.narrow(1, which, 1).and_then(|x| x.squeeze(1)).and_then(|x| x.contiguous()).expect("keys and values")
    };
    (of(0), of(1))
}

fn flat(tensor: &Tensor) -> Vec<f32> {
    tensor.flatten_all().and_then(|flat| flat.to_vec1()).expect("numbers")
}

/// The greedy answer of another decoder that has these keys and values, after the first token.
fn decoded(model: &dyn Model, layers: &[(Tensor, Tensor)], first: u32) -> Vec<u32> {
    let rows = layers[0].0.dim(0).expect("rows");
    let mut decoder = Decoder::new(model, layers.iter().cloned().map(Some).collect());
    let mut tokens = vec![first];
    while tokens.len() < TOKENS {
        let logits = decoder.run(&tokens[tokens.len() - 1..], rows + tokens.len() - 1);
        let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b]).then(b.cmp(&a)));
        tokens.push(best.expect("a vocabulary") as u32);
    }
    tokens
}

/// Whether a sample cannot be handed over.
fn is_refused(sample: &Sample) -> bool {
    let why = sample.plan.no_hand_over();
    assert!(why.is_none_or(|why| !why.is_empty()), "{}: a reason", sample.what());
    why.is_some()
}

fn case(world: usize, turn: usize) -> Case<'static> {
    let exchange = [Exchange::Replicate, Exchange::PassQ, Exchange::Selected][turn % 3];
    let chunks: &[usize] = [&[13, 21, 9][..], &[30, 7], &[11, 12, 10, 8]][turn % 3];
    Case { prefix: 3, lead: leads(3)[turn % 2], chunks, query: 6, world, exchange, ratio: 0.3 }
}

/// Hands over every sample of a case, and compares what another decoder makes of it. Returns how
/// many were handed over, and how many answers differ from the exact one.
fn hands_over(model: &Arc<dyn Model>, case: &Case<'_>, options: &str) -> (usize, usize) {
    let (mut handed, mut different) = (0, 0);
    for sample in case.samples(options, &**model) {
        if is_refused(&sample) {
            continue;
        }
        let (what, group) = (sample.what(), group(model, case.world));
        let whole = Plan { request: 1, max_tokens: TOKENS, ..sample.plan.clone() };
        let held = Plan { request: 2, max_tokens: 1, keep_sequence: true, ..sample.plan.clone() };
        let (wanted, _) = run_one(&group, &whole);
        let (outcome, _) = run_one(&group, &held);
        let layers: Vec<(Tensor, Tensor)> =
            (0..model.config().layers).map(|layer| handed_over(&group, &**model, &held, layer)).collect();
        group.end().expect("the group ends well");
        let ids = held.placed_ids(&final_order(&held, &outcome));
        let exact = judge(&**model, &ids, &layers, (&held, &what));
        let found = decoded(&**model, &layers, outcome.tokens[0]);
        if let Some(first) = (0..TOKENS).find(|&at| found[at] != wanted.tokens[at]) {
            assert!(wanted.margins[first] < NEAR_TIE, "{what}: token {first} of {found:?}, not {:?}", wanted.tokens);
        }
        handed += 1;
        different += usize::from(wanted.tokens != exact);
    }
    (handed, different)
}

fn final_order(plan: &Plan, outcome: &Outcome) -> Vec<u32> {
    plan.final_order().unwrap_or_else(|| outcome.order.clone())
}

/// The exact answer to the prompt. The first layer's keys and values are those of its ids at their
/// positions, whatever the method; all layers' are if the method is exact.
fn judge(model: &dyn Model, ids: &[u32], layers: &[(Tensor, Tensor)], (plan, what): (&Plan, &str)) -> Vec<u32> {
    let mut full = Decoder::new(model, vec![None; layers.len()]);
    let logits = full.run(ids, 0);
    let exact: Vec<(Tensor, Tensor)> = full.layers.into_iter().flatten().collect();
    for (layer, (found, wanted)) in layers.iter().zip(&exact).enumerate() {
        let compared = if plan.is_exact_as_placed() { layers.len() } else { 1 };
        if layer < compared {
            for (found, wanted) in [(&found.0, &wanted.0), (&found.1, &wanted.1)] {
                let error = relative_error(&flat(found), &flat(wanted));
                assert!(error < 1e-4, "{what}: layer {layer}, {error}");
            }
        }
    }
    let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b]).then(b.cmp(&a)));
    decoded(model, &exact, best.expect("a vocabulary") as u32)
}

#[test]
fn another_decoder_goes_on_with_every_method_that_can_be_handed_over() {
    let model = dummy_model(&tiny_config(&[]), 11);
    let (mut handed, mut different) = (0, 0);
    for world in 1..=4 {
        for turn in 0..3 {
            let (these, others) = hands_over(&model, &case(world, turn), "");
            (handed, different) = (handed + these, different + others);
        }
    }
    assert!(10 * different >= 3 * handed, "{different} of {handed} answers differ from the exact one");
}

#[test]
fn layers_are_read_while_later_ones_are_computed() {
    let model = dummy_model(&tiny_config(&[]), 11);
    let layers = model.config().layers;
    let (mut early, mut samples) = (0, 0);
    for (world, turn) in [(1, 0), (2, 1), (3, 2), (2, 0), (3, 1)] {
        for sample in case(world, turn).samples("", &*model) {
            if sample.plan.no_hand_over().is_some() {
                continue;
            }
            let (what, group) = (sample.what(), group(&model, world));
            let plan = Plan { request: 7, max_tokens: 1, keep_sequence: true, hands_over: true, ..sample.plan };
            let (read, _) = read_meanwhile(&group, &plan, layers);
            for (layer, early) in read.iter().enumerate() {
                let rows = 0..plan.total_rows() as u32;
                let late = dispatch::hand_over(group.link(), HandOver { request: 7, layer: layer as u32, rows });
                let late = late.expect("the ranks live").expect("each row once").expect("it is there");
                assert!(*early == late, "{what}: layer {layer} was another before the end of the prefill");
            }
            group.end().expect("the group ends well");
            (early, samples) = (early + read.len(), samples + 1);
        }
    }
    // The halt after the last layer but one may come too late; more would mean that layers are not
    // there when they are computed.
    assert!(early >= samples * (layers - 2), "{early} layers of {samples} prefills were read early");
}

#[test]
fn rows_that_no_token_id_stands_for_are_not_handed_over() {
    let model = dummy_model(&tiny_config(&[]), 11);
    for options in COMBINATIONS.iter().skip(1) {
        let case = case(2, 0);
        for sample in case.samples(options, &*model) {
            assert!(is_refused(&sample), "{} changes rows, and may be handed over", sample.what());
        }
    }
    let refused: Vec<String> = case(2, 0)
        .samples("", &*model)
        .into_iter()
        .filter_map(|sample| sample.plan.no_hand_over().map(|_| sample.plan.method.name().to_owned()))
        .collect();
    for name in ["ape", "kv-packet", "samkv", "excerpt", "spec-prefill-like"] {
        assert!(refused.iter().any(|refused| refused == name), "{name} may be handed over, {refused:?} may not");
    }
}

#[test]
fn the_planner_holds_a_sequence_that_is_handed_over_or_says_why_not() {
    let model = dummy_model(&tiny_config(&[]), 11);
    let planned = |spec: &str| {
        let chunks = [vec![5; 9], vec![6; 8]];
        let input = PlanInput {
            request: 1,
            prefix: &[1],
            lead: &[],
            chunks: &chunks,
            cached: Cached::default(),
            query: &[7, 8],
            eos: &[],
            method_inputs: MethodInputs::default(),
        };
        let spec: tributary_methods::MethodSpec = spec.parse().expect("a spec");
        let settings = RequestSettings { max_tokens: 40, ..RequestSettings::default() }.apply(&spec).for_hand_over();
        tributary_planner::plan(&input, &settings, &shape(&*model, DType::F32), &MACHINE, None)
    };
    for spec in ["full", "infoflow:ratio=0.2"] {
        let plan = planned(spec).expect("a plan").plan;
        assert!(plan.keep_sequence && plan.max_tokens == 1, "{spec}");
    }
    let refused = planned("ape").expect_err("parallel documents");
    assert_eq!(refused.exit_code(), 64);
    assert!(refused.to_string().starts_with("the keys and values of ape cannot be handed over: "), "{refused}");
}
