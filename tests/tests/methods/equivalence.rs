//! Invariants 2 to 5 of the design: required equalities, at several shapes, chunkings and worlds,
//! with random weights. Each test prints the largest error it saw (`--nocapture`).

use std::collections::BTreeMap;
use std::sync::Arc;

use tributary_kernels::Kernels;
use tributary_model::Model;
use tributary_protocol::{Chunk, Exchange, Outcome, Plan, PlannedMethod};
use tributary_tests::equal::{Concatenation, Largest, assert_same_selection};
use tributary_tests::samples::{COMBINATIONS, Case, Sample, leads};
use tributary_tests::{
    dummy_model, gemma, glm_with_experts, gpt_oss, group, infoflow, logits, method, model_with_experts,
    model_with_growing_queries, packed, plan, relative_error, reordered, run, run_all, run_one, tiny_config,
    with_ratio,
};

const EXACT_EXCHANGES: [Exchange; 2] = [Exchange::Replicate, Exchange::PassQ];

/// Prefix, chunk lengths, query length.
const SHAPES: [(usize, &[usize], usize); 5] = [
    (1, &[16, 16, 16, 16], 5),
    (3, &[7, 31, 2, 18, 1], 4),
    (0, &[12, 9], 1),
    (2, &[40], 6),
    (4, &[70, 1, 150, 33, 64, 5, 90], 9),
];

/// Seven shapes of decoders: Llama; Qwen3 with experts and a separate head width; Qwen2 with one KV
/// head and biases; Ministral 3, whose queries grow with their position; GLM with experts in
/// groups; Gemma 3 with windows; gpt-oss with windows and sinks; one with packed weights.
fn models() -> Vec<Arc<dyn Model>> {
    let qwen2 = [
        ("architectures", serde_json::json!(["Qwen2ForCausalLM"])),
        ("num_key_value_heads", 1.into()),
        ("tie_word_embeddings", true.into()),
        ("num_hidden_layers", 3.into()),
    ];
    vec![
        dummy_model(&tiny_config(&[]), 1),
        model_with_experts(),
        dummy_model(&tiny_config(&qwen2), 3),
        model_with_growing_queries(),
        dummy_model(&glm_with_experts(), 6),
        dummy_model(&gemma(), 7),
        dummy_model(&gpt_oss(), 8),
        dummy_model(&packed(), 9),
    ]
}

/// Models with their numbers, each with the shapes that it meets, with leads or without: every
/// shape meets two models, and every model some shapes.
fn meetings(models: &[Arc<dyn Model>]) -> impl Iterator<Item = (usize, &Arc<dyn Model>, Led)> {
    let all = models.len();
    let of_model = move |(index, model)| {
        let meets = move |number: &usize| (number + index) % all < 2;
        led_shapes().enumerate().filter(move |(number, _)| meets(number)).map(move |(_, led)| (index, model, led))
    };
    models.iter().enumerate().flat_map(of_model)
}

fn case(
    (shape, lead): ((usize, &'static [usize], usize), &'static [u32]),
    world: usize,
    exchange: Exchange,
    ratio: f64,
) -> Case<'static> {
    Case { prefix: shape.0, lead, chunks: shape.1, query: shape.2, world, exchange, ratio }
}

/// A shape with a lead.
type Led = ((usize, &'static [usize], usize), &'static [u32]);

/// All shapes, without a lead and with one.
fn led_shapes() -> impl Iterator<Item = Led> {
    SHAPES.into_iter().flat_map(|shape| leads(shape.0).into_iter().map(move |lead| (shape, lead)))
}

/// The plan with a lead.
fn led(plan: Plan, lead: &[u32]) -> Plan {
    Plan { lead: lead.to_vec(), ..plan }
}

/// Plans of samples with these options, restricted to those that a test can check.
fn samples(case: Case<'_>, options: &str, model: &dyn Model, is_meant: impl Fn(&Plan) -> bool) -> Vec<Sample> {
    case.samples(options, model).into_iter().filter(|sample| is_meant(&sample.plan)).collect()
}

fn full(model: &Arc<dyn Model>, shape: (usize, &[usize], usize)) -> Outcome {
    run(model, 1, &plan(shape.0, shape.1, shape.2, 1, method("full"), Exchange::PassQ)).0
}

/// The same with chunks in another order.
fn full_in(model: &Arc<dyn Model>, shape: (usize, &[usize], usize), order: &[u32]) -> Outcome {
    let mut plan = plan(shape.0, shape.1, shape.2, 1, method("full"), Exchange::PassQ);
    if !order.is_empty() {
        plan.chunks = order.iter().map(|&chunk| plan.chunks[chunk as usize].clone()).collect();
    }
    run(model, 1, &plan).0
}

#[test]
fn methods_equal_full_prefill_where_they_claim_it() {
    let mut largest = Largest::new("2: ratio 1 = full, and 4: exact methods = full");
    let mut moved = 0;
    for (index, model, (shape, lead)) in meetings(&models()) {
        // By the order of chunks: a request that is reordered equals a full prefill in that order.
        let mut fulls = BTreeMap::new();
        for world in 1..=4 {
            let way = EXACT_EXCHANGES[(world + index) % 2];
            let mut samples = case((shape, lead), world, way, 0.3).exact(&**model);
            let fresh = with_ratio(plan(shape.0, shape.1, shape.2, world, method("random"), Exchange::Selected), 1.0);
            let fresh = led(Plan { include_first_chunk: true, ..fresh }, lead);
            samples.push(Sample { spec: "every row fresh on every rank".to_owned(), plan: fresh });
            let plans: Vec<Plan> = samples.iter().map(|sample| sample.plan.clone()).collect();
            for (found, sample) in run_all(model, Kernels::Auto, world, &plans).into_iter().zip(samples) {
                let order = found.0.order.clone();
                moved += usize::from(order.windows(2).any(|pair| pair[0] > pair[1]));
                let full = fulls.entry(order.clone()).or_insert_with(|| full_in(model, shape, &order));
                let what = format!("{} model {index}, world {world}, {shape:?}", sample.what());
                largest.check(relative_error(logits(&found.0), logits(full)), &what);
                assert_eq!(found.0.tokens, full.tokens, "{what}");
            }
        }
    }
    assert!(moved > 20, "only {moved} requests were reordered");
}

#[test]
fn one_chunk_equals_full_prefill() {
    let mut largest = Largest::new("2: one chunk = full");
    let model = &models()[1];
    let shape = (3, &[57][..], 5);
    let full = full(model, shape);
    // Parallel contexts, rows of an adapter and dropped rows change a prompt of one chunk too.
    let is_meant = |plan: &Plan| {
        let is_whole = !plan.drops() || plan.budget == plan.context_tokens();
        plan.method.in_chunks() && plan.method.parallel().is_none() && plan.chunks[0].around.is_none() && is_whole
    };
    for world in 1..=3 {
        for exchange in [Exchange::Replicate, Exchange::PassQ, Exchange::Selected] {
            for (ratio, lead) in [(0.0, &[][..]), (0.2, &[]), (0.0, &[1, 1]), (0.2, &[2])] {
                let samples = samples(case((shape, lead), world, exchange, ratio), "", &**model, is_meant);
                let plans: Vec<Plan> = samples.iter().map(|sample| sample.plan.clone()).collect();
                for (found, sample) in run_all(model, Kernels::Auto, world, &plans).into_iter().zip(samples) {
                    let what = format!("{} {exchange:?}, world {world}, ratio {ratio}, {lead:?}", sample.spec);
                    largest.check(relative_error(logits(&found.0), logits(&full)), &what);
                    assert_eq!(found.0.tokens, full.tokens, "{what}");
                }
            }
        }
    }
}

#[test]
fn recomputing_nothing_equals_plain_concatenation() {
    let mut largest = Largest::new("2: ratio 0 = concatenation");
    for (index, model, (shape, lead)) in meetings(&models()) {
        let reference = led(plan(shape.0, shape.1, shape.2, 1, method("none"), Exchange::PassQ), lead);
        let expected = Concatenation::logits(&**model, &reference);
        for world in 1..=4 {
            for exchange in [Exchange::Replicate, Exchange::PassQ, Exchange::Selected] {
                for method in [method("none"), infoflow(0, 2)] {
                    let plan = led(plan(shape.0, shape.1, shape.2, world, method, exchange), lead);
                    let found = run(model, world, &plan).0;
                    let what = format!("{} {exchange:?} model {index}, world {world}", method.name());
                    let what = format!("{what}, {shape:?}, {lead:?}");
                    largest.check(relative_error(logits(&found), &expected), &what);
                    assert!(found.selected.is_empty(), "{what}");
                }
            }
        }
    }
}

/// With all options that methods combine with. Exchanges take turns but for the first shape. Blocks
/// are parts of the world unless their length is given, and are tested elsewhere.
#[test]
fn every_world_selects_and_answers_as_one_rank_does() {
    let mut largest = Largest::new("3: world W = world 1, and 4: replicate = pass-q");
    let models = models();
    let bare = meetings(&models).map(|(_, model, shape)| (model, shape, ""));
    let combined = COMBINATIONS[1..].iter().flat_map(|&options| {
        [SHAPES[1], SHAPES[3]]
            .into_iter()
            .flat_map(|shape| leads(shape.0).into_iter().map(move |lead| (shape, lead)))
            .map(move |shape| (shape, options))
    });
    let combined = combined.map(|(shape, options)| (&models[0], shape, options));
    let cases: Vec<_> = bare.chain(combined).collect();
    for (turn, (model, shape, options)) in cases.into_iter().enumerate() {
        let plans = |world, exchange| case(shape, world, exchange, 0.3).selecting(options, &**model);
        let one = group(model, 1);
        let expected: Vec<Outcome> =
            plans(1, Exchange::PassQ).iter().map(|sample| run_one(&one, &sample.plan).0).collect();
        one.end().expect("the group ends well");
        for world in 2..=4 {
            let ranks = group(model, world);
            let exchanges = if turn == 0 { &EXACT_EXCHANGES[..] } else { &EXACT_EXCHANGES[(turn + world) % 2..][..1] };
            for &exchange in exchanges {
                for (Sample { spec, plan }, expected) in plans(world, exchange).iter().zip(&expected) {
                    let found = run_one(&ranks, plan).0;
                    let what = format!("{spec} {exchange:?}, world {world}, {shape:?}");
                    assert_eq!((&found.rounds, &found.measured), (&expected.rounds, &expected.measured), "{what}");
                    largest.check_answer(&found, expected, plan, &what);
                }
            }
            ranks.end().expect("the group ends well");
        }
    }
}

/// Every owner of a request gives the same answer, in its first token and in the decoded ones.
#[test]
fn every_owner_answers_alike() {
    let mut largest = Largest::new("every owner = the usual one");
    let model = &models()[1];
    let bare = [(SHAPES[1], &[][..]), (SHAPES[1], &[1, 1]), (SHAPES[2], &[])].map(|shape| (shape, ""));
    let combined = COMBINATIONS[1..].iter();
    let combined =
        combined.flat_map(|&options| leads(SHAPES[1].0).into_iter().map(move |lead| ((SHAPES[1], lead), options)));
    for (shape, options) in bare.into_iter().chain(combined) {
        for world in 2..=3 {
            let with = |exchange| case(shape, world, exchange, 0.4).samples(options, &**model);
            let mut samples = match options {
                "" => EXACT_EXCHANGES.map(with).concat(),
                _ => with(EXACT_EXCHANGES[world % 2]),
            };
            let ranks = group(model, world);
            let usual: Vec<Outcome> = samples.iter().map(|sample| run_one(&ranks, &sample.plan).0).collect();
            for owner in 0..world {
                for (Sample { spec, plan }, usual) in samples.iter_mut().zip(&usual) {
                    plan.owner = owner;
                    let (found, reports) = run_one(&ranks, plan);
                    let what = format!("{spec} {:?}, owner {owner} of {world}, {shape:?}", plan.exchange);
                    let drew: Vec<bool> = reports.iter().map(|report| report.drew_first_token).collect();
                    assert_eq!(drew, (0..world).map(|rank| rank == owner).collect::<Vec<_>>(), "{what}");
                    largest.check_answer(&found, usual, plan, &what);
                }
            }
            ranks.end().expect("the group ends well");
        }
    }
}

/// Samples take turns.
#[test]
fn plain_kernels_answer_as_the_fast_ones_do() {
    let mut largest = Largest::new("plain = fast kernels");
    let model = &models()[0];
    for (turn, shape) in led_shapes().enumerate() {
        let samples = case(shape, 2, Exchange::PassQ, 0.3).samples("", &**model);
        let samples: Vec<Sample> = samples.into_iter().skip(turn / 2 % 2).step_by(2).collect();
        let plans: Vec<Plan> = samples.iter().map(|sample| sample.plan.clone()).collect();
        let fast = run_all(model, Kernels::Auto, 2, &plans);
        let plain = run_all(model, Kernels::Plain, 2, &plans);
        for ((fast, plain), sample) in fast.iter().zip(&plain).zip(&samples) {
            assert_same_selection(&fast.0, &plain.0, shape.0.0 as u32, &sample.spec);
            if fast.0.selected == plain.0.selected {
                largest.check(relative_error(logits(&fast.0), logits(&plain.0)), &sample.spec);
            }
        }
    }
}

#[test]
fn reordering_moves_positions_only() {
    let mut largest = Largest::new("5: reordered request = request in that order");
    let model = &models()[0];
    let mut moved = 0;
    for (shape, lead) in led_shapes() {
        for world in 1..=3 {
            for exchange in EXACT_EXCHANGES {
                let given = with_ratio(plan(shape.0, shape.1, shape.2, world, infoflow(1, 3), exchange), 0.3);
                let given = led(given, lead);
                let found = run(model, world, &reordered(given.clone())).0;
                moved += usize::from(found.order.windows(2).any(|pair| pair[0] > pair[1]));
                // The same chunks handed over in the order that was found, each on the rank it was
                // on.
                let mut sorted = given.clone();
                sorted.chunks =
                    found.order.iter().map(|&chunk| given.chunks[chunk as usize].clone()).collect::<Vec<Chunk>>();
                let plain = run(model, world, &sorted).0;
                let again = run(model, world, &reordered(sorted)).0;
                let what = format!("{exchange:?}, world {world}, {shape:?}, {lead:?}");
                assert!(again.order.windows(2).all(|pair| pair[0] < pair[1]), "{what}: {:?}", again.order);
                assert_eq!(again.selected, plain.selected, "{what}");
                assert_eq!(again.logits, plain.logits, "{what}: the identity order changes nothing, bit for bit");
                largest.check(relative_error(logits(&found), logits(&plain)), &what);
                assert_eq!(found.tokens, plain.tokens, "{what}");
            }
        }
    }
    assert!(moved > 6, "only {moved} of the requests were reordered at all");
}

#[test]
fn the_selected_exchange_differs_from_the_exact_ones_and_says_so() {
    let model = &models()[0];
    let shape = SHAPES[4];
    let make = |exchange| with_ratio(plan(shape.0, shape.1, shape.2, 3, infoflow(1, 3), exchange), 0.15);
    let exact = run(model, 3, &make(Exchange::PassQ)).0;
    let floor = run(model, 3, &make(Exchange::Selected)).0;
    assert_eq!(exact.selected, floor.selected);
    let error = relative_error(logits(&floor), logits(&exact));
    println!("`selected` against `pass-q`, world 3, ratio 0.15: {error:.1e}");
    assert!(error > 1e-6, "rows that see less than everything cannot give the same logits: {error:e}");
    assert!(error < 1.0, "{error:e}");
}

#[test]
fn sampling_depends_on_the_seed_and_on_nothing_else() {
    let model = &models()[0];
    let make = |world, seed| {
        let mut plan = plan(1, &[20, 30, 10], 4, world, method("ring"), Exchange::PassQ);
        plan.sampling.temperature = 5.0;
        plan.sampling.seed = seed;
        plan.max_tokens = 12;
        plan
    };
    let one = run(model, 1, &make(1, 7)).0.tokens;
    assert_eq!(one.len(), 12);
    assert_eq!(run(model, 3, &make(3, 7)).0.tokens, one);
    assert_ne!(run(model, 3, &make(3, 8)).0.tokens, one);
}

#[test]
fn an_end_token_ends_the_answer() {
    let model = &models()[0];
    let mut plan = plan(1, &[20, 30], 4, 2, method("none"), Exchange::PassQ);
    plan.max_tokens = 10;
    let tokens = run(model, 2, &plan).0.tokens;
    assert_eq!(tokens.len(), 10);
    let first_seen = |token: &u32| tokens.iter().position(|other| other == token).expect("it is there");
    plan.eos = vec![tokens[3]];
    let ended = run(model, 2, &plan).0.tokens;
    assert_eq!(ended, tokens[..=first_seen(&tokens[3])]);
}

/// A generated token equals that of full prefill of prompt and answer so far: decoding is checked
/// against prefill, not against itself.
#[test]
fn decoding_continues_as_full_prefill_would() {
    for model in models() {
        let (shape, count) = (SHAPES[1], 6);
        let mut prompt = plan(shape.0, shape.1, shape.2, 1, method("full"), Exchange::PassQ);
        prompt.max_tokens = 1;
        let mut expected = Vec::new();
        for _ in 0..count {
            let token = run(&model, 1, &prompt).0.tokens[0];
            expected.push(token);
            prompt.query.push(token);
        }
        let mut ways = vec![(1, method("full"), Exchange::PassQ), (3, method("ring"), Exchange::PassQ)];
        ways.extend(EXACT_EXCHANGES.map(|exchange| (2, method("random"), exchange)));
        for (world, method, exchange) in ways {
            let mut plan = with_ratio(plan(shape.0, shape.1, shape.2, world, method, exchange), 1.0);
            plan.max_tokens = count;
            let found = run(&model, world, &plan).0.tokens;
            assert_eq!(found, expected, "{} {exchange:?}, world {world}", method.name());
        }
    }
}

/// In the first layer a row of the query attends as if the query ended with it, so that what a row
/// adds to the mass is that of a query up to it less that of a query up to the row before. With
/// `recency` these parts are weighed by their distance from the last row.
#[test]
fn rows_of_the_query_count_by_their_distance_from_the_last() {
    let model = &models()[0];
    let (prefix, chunks, query) = SHAPES[1];
    assert!(query > 1);
    for world in 1..=3 {
        let scores = |options: &str, rows: usize| -> Vec<f32> {
            let method = method(&format!("infoflow:score=mass{options}:layers=0..1"));
            let mut plan = with_ratio(plan(prefix, chunks, query, world, method, Exchange::PassQ), 0.3);
            plan.query.truncate(rows);
            run(model, world, &plan).0.scores.expect("a method with scores")
        };
        let alike = scores("", query);
        let (mut expected, mut before) = (vec![0.0; alike.len()], vec![0.0; alike.len()]);
        for rows in 1..=query {
            let weight = (-((query - rows) as f32) / 1.5).exp();
            let until = scores("", rows);
            for (sum, (now, before)) in expected.iter_mut().zip(until.iter().zip(&before)) {
                *sum += weight * (now - before);
            }
            before = until;
        }
        let found = scores(":recency=1.5", query);
        let apart = |one: &[f32], other: &[f32]| {
            one.iter().zip(other).map(|(one, other)| (one - other).abs()).fold(0.0_f32, f32::max)
        };
        assert!(apart(&found, &expected) < 1e-5, "world {world}: {}", apart(&found, &expected));
        assert!(apart(&found, &alike) > 1e-3, "world {world}: {}", apart(&found, &alike));
    }
}

/// Normalisation of scores: ProphetKV's over the context alone, so that they sum to 1; A³'s
/// likewise, a 1 for each head and query row; InfoFlow's mass over all keys that the query sees, so
/// that prefix and query keep a part of each query row's 1.
#[test]
fn scores_are_normalised_over_what_the_method_says() {
    let model = &models()[0];
    let (prefix, chunks, query) = SHAPES[1];
    for world in 1..=3 {
        let sum = |method: PlannedMethod| -> f32 {
            let plan = with_ratio(plan(prefix, chunks, query, world, method, Exchange::PassQ), 0.3);
            run(model, world, &plan).0.scores.expect("a method with scores").iter().sum()
        };
        let over_context = sum(method("prophetkv"));
        assert!((over_context - 1.0).abs() < 1e-5, "world {world}: {over_context}");
        let one_each = (model.config().heads * query) as f32;
        let of_first_layer = sum(method("a3"));
        assert!((of_first_layer / one_each - 1.0).abs() < 1e-5, "world {world}: {of_first_layer} of {one_each}");
        let over_everything = sum(method("infoflow:layers=0..4:score=mass"));
        assert!(over_everything < 0.99 * query as f32, "world {world}: {over_everything} of {query}");
        assert!(over_everything > 0.2 * query as f32, "world {world}: {over_everything} of {query}");
    }
}
