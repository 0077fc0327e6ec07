//! Log-probabilities of a prompt's query: equal to those of ever longer prompts, the same in exact
//! methods, every exchange and every world, and of a prompt without context.

use std::sync::Arc;

use tributary_kernels::Kernels;
use tributary_model::Model;
use tributary_protocol::{Exchange, Outcome, Plan, PlannedMethod, Prefill, ScoredQuery, ScoredToken};
use tributary_tests::samples::{Case, Sample};
use tributary_tests::{dummy_model, method, plan, run, run_all, tiny_config};

const SHAPE: (usize, &[usize], usize) = (3, &[7, 31, 2, 18], 41);

fn model() -> Arc<dyn Model> {
    dummy_model(&tiny_config(&[("num_hidden_layers", 3.into())]), 4)
}

fn scored(mut plan: Plan) -> Plan {
    plan.returns.prompt_logprobs = Some(2);
    plan
}

fn shaped(world: usize, method: PlannedMethod, exchange: Exchange) -> Plan {
    scored(plan(SHAPE.0, SHAPE.1, SHAPE.2, world, method, exchange))
}

fn prompt(outcome: &Outcome) -> &[ScoredToken] {
    &outcome.prompt.as_ref().expect("they were asked for").0
}

fn assert_near(found: &Outcome, expected: &[ScoredToken], what: &str) {
    let found = prompt(found);
    assert_eq!(found.len(), expected.len(), "{what}");
    for (place, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert_eq!((found.token, found.top.len()), (expected.token, 2), "{what}, place {place}");
        let error = (found.logprob - expected.logprob).abs();
        assert!(error < 2e-4, "{what}, place {place}: {found:?} for {expected:?}");
    }
}

#[test]
fn a_token_is_as_likely_as_it_would_be_as_the_first_of_an_answer() {
    let model = model();
    let whole = shaped(1, method("full"), Exchange::PassQ);
    let outcome = run(&model, 1, &whole).0;
    let told = prompt(&outcome);
    assert_eq!(told.iter().map(|told| told.token).collect::<Vec<_>>(), whole.query[1..]);
    for place in [1, 2, 17, SHAPE.2 - 1] {
        let mut begun = shaped(1, method("full"), Exchange::PassQ);
        (begun.query, begun.returns.prompt_logprobs) = (whole.query[..place].to_vec(), None);
        let logits = run(&model, 1, &begun).0.logits.expect("logits");
        let largest = logits.iter().copied().fold(f32::MIN, f32::max);
        let log_sum = largest + logits.iter().map(|logit| (logit - largest).exp()).sum::<f32>().ln();
        let (told, own) = (&told[place - 1], logits[whole.query[place] as usize]);
        assert!((told.logprob - (own - log_sum)).abs() < 1e-4, "place {place}: {told:?}, {}", own - log_sum);
        assert_eq!(told.rank as usize, 1 + logits.iter().filter(|&&logit| logit > own).count(), "place {place}");
    }
}

fn case(world: usize, exchange: Exchange, lead: &'static [u32]) -> Case<'static> {
    Case { prefix: SHAPE.0, lead, chunks: SHAPE.1, query: SHAPE.2, world, exchange, ratio: 0.2 }
}

#[test]
fn exact_methods_and_whole_recomputes_score_alike_in_every_world() {
    let model = model();
    let full = run(&model, 1, &shaped(1, method("full"), Exchange::PassQ)).0;
    for world in 1..=4 {
        let samples = [(Exchange::Replicate, &[][..]), (Exchange::PassQ, &[1, 1])]
            .map(|(exchange, lead)| case(world, exchange, lead).exact(&*model))
            .concat();
        let plans: Vec<Plan> = samples.iter().map(|sample| scored(sample.plan.clone())).collect();
        for (found, plan) in run_all(&model, Kernels::Auto, world, &plans).into_iter().zip(&samples) {
            if found.0.order.is_sorted() {
                let what = format!("{} {:?}, world {world}", plan.spec, plan.plan.exchange);
                assert_near(&found.0, prompt(&full), &what);
                assert_eq!(found.0.tokens, full.tokens, "{what}");
            }
        }
    }
}

/// Blocks are parts of the world unless their length is given.
#[test]
fn approximate_methods_score_alike_in_every_world_and_leave_the_answer_as_it_is() {
    let model = model();
    let samples = |world, exchange| {
        let mut samples = case(world, exchange, &[2]).samples("", &*model);
        samples.retain(|sample| !matches!(sample.plan.method.prefill, Prefill::Anchored { block_rows: None, .. }));
        samples
    };
    let unscored: Vec<Plan> = samples(1, Exchange::PassQ).into_iter().map(|sample| sample.plan).collect();
    let plans = |samples: &[Sample]| samples.iter().map(|sample| scored(sample.plan.clone())).collect::<Vec<_>>();
    let ones = run_all(&model, Kernels::Auto, 1, &plans(&samples(1, Exchange::PassQ)));
    for ((one, bare), plan) in ones.iter().zip(run_all(&model, Kernels::Auto, 1, &unscored)).zip(&unscored) {
        assert_eq!(bare.0.tokens, one.0.tokens, "{:?}", plan.method);
    }
    for (world, exchange) in [(2, Exchange::Replicate), (3, Exchange::PassQ)] {
        let samples = samples(world, exchange);
        let found = run_all(&model, Kernels::Auto, world, &plans(&samples));
        for ((found, one), sample) in found.iter().zip(&ones).zip(&samples) {
            assert_near(&found.0, prompt(&one.0), &format!("{} {exchange:?}, world {world}", sample.spec));
        }
    }
}

#[test]
fn a_prompt_without_context_is_scored_from_its_second_token_on() {
    let model = model();
    let with_context = shaped(1, method("full"), Exchange::PassQ);
    let all = with_context.all_ids();
    let expected = run(&model, 1, &with_context).0;
    for world in 1..=3 {
        let bare = Plan { prefix: Vec::new(), chunks: Vec::new(), query: all.clone(), ..with_context.clone() };
        let found = run(&model, world, &bare).0;
        assert_eq!((prompt(&found).len(), &found.tokens), (all.len() - 1, &expected.tokens));
        let last = prompt(&found).len() - prompt(&expected).len();
        let found = Outcome { prompt: Some(Box::new(ScoredQuery(prompt(&found)[last..].to_vec()))), ..found };
        assert_near(&found, prompt(&expected), &format!("world {world}"));
    }
    let one = Plan { prefix: Vec::new(), chunks: Vec::new(), query: all[..1].to_vec(), ..with_context };
    assert!(prompt(&run(&model, 1, &one).0).is_empty(), "nothing is known of a first token");
}
