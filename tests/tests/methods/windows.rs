//! Rows that decoding drops in layers with a sliding window: answers are those of sequences that
//! keep all rows.

use tributary_protocol::{Exchange, Outcome, Plan};
use tributary_tests::samples::{Case, Sample};
use tributary_tests::{dummy_model, gemma, gpt_oss, group, run_one};

/// Margins below which two ways of computing the same logits may choose differently.
const NEAR_TIE: f32 = 1e-4;

/// Compares the tokens of two answers and their margins, up to a near tie.
fn check(found: &Outcome, wanted: &Outcome, what: &str) -> bool {
    for (at, (token, margin)) in wanted.tokens.iter().zip(&wanted.margins).enumerate() {
        if found.tokens[at] != *token {
            assert!(*margin < NEAR_TIE, "{what}: token {at} of {:?}, not {:?}", found.tokens, wanted.tokens);
            return false;
        }
        assert!((found.margins[at] - margin).abs() < 1e-4, "{what}: margin {margin} of token {at}");
    }
    true
}

/// Answers of `max_tokens` tokens with and without the rows beyond windows.
fn compare(samples: Vec<Sample>, model: &std::sync::Arc<dyn tributary_model::Model>, world: usize, max_tokens: usize) {
    let (mut ties, mut compared) = (0, 0);
    let group = group(model, world);
    for Sample { spec, plan } in samples {
        let dropping = Plan { request: 1, max_tokens, ..plan };
        let keeps_all = dropping.compresses() || dropping.method.parallel().is_some();
        let from = if keeps_all { 0 } else { dropping.total_rows() };
        assert_eq!(dropping.windows_from, from, "{spec}: what the planner says");
        let keeping = Plan { request: 2, windows_from: 0, ..dropping.clone() };
        let (wanted, found) = (run_one(&group, &keeping).0, run_one(&group, &dropping).0);
        assert_eq!(wanted.tokens.len(), max_tokens, "{spec}");
        ties += usize::from(!check(&found, &wanted, &format!("{spec}, world {world}")));
        compared += 1;
    }
    group.end().expect("the group ends well");
    assert!(compared > 0 && 20 * ties <= compared, "{ties} near ties of {compared}");
}

#[test]
fn rows_beyond_windows_are_not_missed() {
    for (index, config) in [gemma(), gpt_oss()].iter().enumerate() {
        let model = dummy_model(config, 7);
        for world in 1..=4 {
            let exchange = [Exchange::Replicate, Exchange::PassQ, Exchange::Selected][(world + index) % 3];
            let case = Case { prefix: 3, lead: &[], chunks: &[13, 21, 9], query: 6, world, exchange, ratio: 0.3 };
            let mut samples = case.samples("", &*model);
            samples.retain(|sample| sample.plan.evict.is_none());
            compare(samples, &model, world, 24);
        }
    }
}

/// A long answer loses its own first rows.
#[test]
fn rows_of_a_long_answer_are_not_missed() {
    let model = dummy_model(&gpt_oss(), 7);
    for (world, specs) in [(1, ["full", "infoflow"]), (3, ["ring", "infoflow"])] {
        let exchange = Exchange::PassQ;
        let case = Case { prefix: 3, lead: &[], chunks: &[13, 21, 9], query: 6, world, exchange, ratio: 0.3 };
        let sample = |spec: &str| Sample { spec: spec.to_owned(), plan: case.planned(spec, &*model).expect("a plan") };
        compare(specs.map(sample).into(), &model, world, 600);
    }
}
