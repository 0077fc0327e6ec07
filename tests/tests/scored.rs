//! Log-probabilities of a prompt's query: equal to those of ever longer prompts, the same in exact methods, every exchange and every
//! world, and of a prompt without context.

use std::sync::Arc;

use tributary_kernels::Kernels;
use tributary_protocol::{Ape, Exchange, Method, Outcome, Plan, ScoredQuery, ScoredToken};
use tributary_tests::{dummy_model, infoflow, plan, run, run_all, tiny_config, with_ratio};
use tributary_worker::Model;

const SHAPE: (usize, &[usize], usize) = (3, &[7, 31, 2, 18], 41);

fn model() -> Arc<dyn Model> {
    dummy_model(&tiny_config(&[("num_hidden_layers", 3.into())]), 4)
}

fn scored(mut plan: Plan) -> Plan {
    plan.returns.prompt_logprobs = Some(2);
    plan
}

fn shaped(world: usize, method: Method, exchange: Exchange) -> Plan {
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
    let whole = shaped(1, Method::Full, Exchange::PassQ);
    let outcome = run(&model, 1, &whole).0;
    let told = prompt(&outcome);
    assert_eq!(told.iter().map(|told| told.token).collect::<Vec<_>>(), whole.query[1..]);
    for place in [1, 2, 17, SHAPE.2 - 1] {
        let mut begun = shaped(1, Method::Full, Exchange::PassQ);
        (begun.query, begun.returns.prompt_logprobs) = (whole.query[..place].to_vec(), None);
        let logits = run(&model, 1, &begun).0.logits.expect("logits");
        let largest = logits.iter().copied().fold(f32::MIN, f32::max);
        let log_sum = largest + logits.iter().map(|logit| (logit - largest).exp()).sum::<f32>().ln();
        let (told, own) = (&told[place - 1], logits[whole.query[place] as usize]);
        assert!((told.logprob - (own - log_sum)).abs() < 1e-4, "place {place}: {told:?}, {}", own - log_sum);
        assert_eq!(told.rank as usize, 1 + logits.iter().filter(|&&logit| logit > own).count(), "place {place}");
    }
}

#[test]
fn exact_methods_and_whole_recomputes_score_alike_in_every_world() {
    let model = model();
    let full = run(&model, 1, &shaped(1, Method::Full, Exchange::PassQ)).0;
    let exact = [
        Method::Full,
        Method::Ring,
        Method::PassQ,
        Method::AllGather { heads_per_gather: None },
        Method::Star { block_tokens: Some(10_000) },
    ];
    for world in 1..=4 {
        let mut plans: Vec<Plan> = exact.iter().map(|method| shaped(world, method.clone(), Exchange::PassQ)).collect();
        for exchange in [Exchange::Replicate, Exchange::PassQ] {
            plans.push(with_ratio(shaped(world, infoflow(1, 3), exchange), 1.0));
        }
        for (found, plan) in run_all(&model, Kernels::Auto, world, &plans).into_iter().zip(&plans) {
            let what = format!("{} {:?}, world {world}", plan.method.name(), plan.exchange);
            assert_near(&found.0, prompt(&full), &what);
            assert_eq!(found.0.tokens, full.tokens, "{what}");
        }
    }
}

#[test]
fn approximate_methods_score_alike_in_every_world_and_leave_the_answer_as_it_is() {
    let model = model();
    for method in [infoflow(1, 3), Method::None, Method::Ape(Ape::default()), Method::Star { block_tokens: Some(20) }] {
        let make = |world, exchange| with_ratio(shaped(world, method.clone(), exchange), 0.2);
        let one = run(&model, 1, &make(1, Exchange::PassQ)).0;
        let mut unscored = make(1, Exchange::PassQ);
        unscored.returns.prompt_logprobs = None;
        assert_eq!(run(&model, 1, &unscored).0.tokens, one.tokens, "{}", method.name());
        for (world, exchange) in [(2, Exchange::Replicate), (3, Exchange::PassQ)] {
            let found = run(&model, world, &make(world, exchange)).0;
            assert_near(&found, prompt(&one), &format!("{} {exchange:?}, world {world}", method.name()));
        }
    }
}

#[test]
fn a_prompt_without_context_is_scored_from_its_second_token_on() {
    let model = model();
    let with_context = shaped(1, Method::Full, Exchange::PassQ);
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
