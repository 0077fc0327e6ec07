//! Later requests of a conversation: every method goes on from a kept sequence as if it had decoded
//! on, exact ones answer as a cold full prefill does, and only rows that are not shared are
//! computed.

use std::sync::Arc;

use candle_core::DType;
use tributary_kernels::Kernels;
use tributary_model::Model;
use tributary_planner::cost::{Selected, bytes};
use tributary_protocol::{Continues, Exchange, Outcome, Plan, RankReport, Returns, Slices};
use tributary_tests::samples::{Case, Sample, leads};
use tributary_tests::{
    dummy_model, gemma, group, logits, method, model_with_growing_queries, relative_error, run_all, run_one, shape,
};

/// Choices that two ways of computing the same logits may make differently.
const NEAR_TIE: f32 = 1e-4;

/// Tokens of the first answer, and of the second.
const FIRST: usize = 4;
const SECOND: usize = 5;

/// Its queries grow with their position, which a later turn's are beyond.
fn model() -> Arc<dyn Model> {
    model_with_growing_queries()
}

/// Samples of all methods, whose sequences stay whole.
fn samples(model: &dyn Model, world: usize) -> Vec<Sample> {
    let exchanges = [Exchange::Replicate, Exchange::PassQ, Exchange::Selected];
    let mut found = Vec::new();
    for (turn, exchange) in exchanges.into_iter().enumerate() {
        for options in ["", ":packets", ":keep-per-chunk=8"] {
            let lead = leads(3)[turn % 2];
            let chunks: &[usize] = [&[13, 21, 9][..], &[30, 7], &[11, 12, 10, 8]][turn];
            let case = Case { prefix: 3, lead, chunks, query: 6, world, exchange, ratio: 0.3 };
            found.extend(case.samples(options, model));
        }
    }
    found.retain(|sample| sample.plan.evict.is_none());
    found
}

/// One that drops rows beyond its windows.
fn model_with_windows() -> Arc<dyn Model> {
    dummy_model(&gemma(), 7)
}

/// Rows at the end of a prompt whose windows stay.
const LAST_ROWS: usize = 3;

/// The same request with a sequence that stays.
fn kept(plan: &Plan, request: u64, max_tokens: usize) -> Plan {
    let returns = Returns { logits: true, scores: false, ..Returns::default() };
    let windows_from = if plan.windows_from > 0 { plan.total_rows() - LAST_ROWS } else { 0 };
    Plan { request, max_tokens, returns, keep_sequence: true, windows_from, ..plan.clone() }
}

/// The request after `before`, whose query goes on with these tokens, and which shares `rows` rows.
fn next(before: &Plan, tokens: &[u32], rows: usize, max_tokens: usize) -> Plan {
    let first_rows = before.continues.map_or(before.total_rows(), |continues| continues.first_rows).min(rows);
    let continues = Some(Continues { request: before.request, rows, first_rows });
    let query = before.query.iter().chain(tokens).copied().collect();
    let plan = Plan { query, continues, auxiliary: Vec::new(), ..before.clone() };
    let plan = kept(&plan, before.request + 1, max_tokens);
    Plan { windows_from: if plan.windows_from > 0 { plan.windows_from.max(rows) } else { 0 }, ..plan }
}

/// Compares an answer with tokens, up to a near tie.
fn check_tokens(found: &Outcome, wanted: &[u32], margins: &[f32], what: &str) -> usize {
    let Some(first) = (0..wanted.len()).find(|&at| found.tokens[at] != wanted[at]) else { return 0 };
    assert!(margins[first] < NEAR_TIE, "{what}: token {first} of {:?}, not {wanted:?}", found.tokens);
    1
}

fn computed(reports: &[RankReport]) -> usize {
    reports.iter().map(|report| report.prefilled_rows + report.recomputed_rows).sum()
}

/// The second request repeats the first answer: its own must be what the first would have gone on
/// with.
fn goes_on_as_decoding(model: &Arc<dyn Model>, world: usize) {
    let model_shape = shape(&**model, DType::F32);
    let (mut ties, mut compared) = (0, 0);
    for Sample { spec, plan } in samples(&**model, world) {
        let whole = Plan { keep_sequence: false, windows_from: 0, ..kept(&plan, 1, FIRST + SECOND) };
        let first = kept(&plan, 2, FIRST);
        let group = group(model, world);
        let (wanted, _) = run_one(&group, &whole);
        let (answer, _) = run_one(&group, &first);
        assert_eq!(answer.tokens, wanted.tokens[..FIRST], "{spec}");
        let (total, start) = (plan.total_rows(), plan.query_rows().start as usize);
        // All that the ranks have, one row less, the prompt alone, a part of its query, none of it.
        let places = [total + FIRST - 1, total + FIRST - 2, total, total - 2, start];
        for rows in places.into_iter().filter(|&rows| rows >= first.windows_from) {
            let mut second = next(&first, &answer.tokens, rows, SECOND);
            second.slices = Slices { context_rows: (rows % 4) as u32, ..second.slices };
            let what = format!("{spec}, world {world}, {rows} rows of {}", second.total_rows());
            let (found, reports) = run_one(&group, &second);
            assert_eq!(computed(&reports), second.total_rows() - rows, "{what}");
            ties += check_tokens(&found, &wanted.tokens[FIRST..], &wanted.margins[FIRST..], &what);
            compared += 1;
            let formula = bytes::received(&second, world, &model_shape, &Selected::from(&found));
            let counted: Vec<u64> = reports.iter().map(|report| report.traffic.tensor_bytes_received()).collect();
            assert_eq!(counted, formula, "bytes: {what}");
        }
        group.end().expect("the group ends well");
    }
    assert!(50 * ties <= compared, "{ties} near ties of {compared}");
}

#[test]
fn a_request_that_goes_on_from_a_kept_sequence_decodes_on() {
    let model = model();
    (1..=3).for_each(|world| goes_on_as_decoding(&model, world));
    goes_on_as_decoding(&model_with_windows(), 2);
}

#[test]
fn exact_methods_answer_later_turns_as_a_cold_full_prefill_does() {
    for (model, world) in (1..=4).flat_map(|world| [(model(), world), (model_with_windows(), world)]) {
        let case =
            Case { prefix: 2, lead: &[], chunks: &[13, 21, 9], query: 6, world, exchange: Exchange::PassQ, ratio: 0.3 };
        let exact = case.samples("", &*model).into_iter().filter(|sample| sample.plan.is_exact());
        for Sample { spec, plan } in exact {
            let group = group(&model, world);
            let mut before = kept(&plan, 1, FIRST);
            let (mut answer, _) = run_one(&group, &before);
            for turn in 2..12 {
                // The last token of the answer has no row yet; a question follows it.
                let question = (0..turn).map(|i| (31 * turn + 7 * i) as u32 % 96);
                let tokens: Vec<u32> = answer.tokens.iter().copied().chain(question).collect();
                let rows = before.total_rows() + answer.tokens.len() - 1;
                let later = next(&before, &tokens, rows, FIRST);
                let (found, reports) = run_one(&group, &later);
                let cold = Plan {
                    request: 99,
                    method: method("full"),
                    owner: 0,
                    order: found.order.clone(),
                    continues: None,
                    keep_sequence: false,
                    windows_from: 0,
                    ..later.clone()
                };
                let cold = Plan { order: Vec::new(), ..cold };
                let (wanted, _) = run_one(&group, &cold);
                let (error, what) = (relative_error(logits(&found), logits(&wanted)), format!("{spec}, turn {turn}"));
                assert!(error < 1e-4, "{what}, world {world}: {error:e}");
                assert_eq!(computed(&reports), turn + 1, "rows of {what}: the last token drawn, and the question");
                check_tokens(&found, &wanted.tokens, &wanted.margins, &what);
                (before, answer) = (later, found);
            }
            group.end().expect("the group ends well");
        }
    }
}

/// Two later requests may go on from one, as different answers to a question do.
#[test]
fn several_requests_go_on_from_one_sequence() {
    let model = model();
    for world in 1..=2 {
        let case =
            Case { prefix: 2, lead: &[], chunks: &[13, 9], query: 6, world, exchange: Exchange::Replicate, ratio: 0.3 };
        for spec in ["full", "ring", "infoflow"] {
            let first = kept(&case.planned(spec, &*model).expect("a plan"), 1, FIRST);
            let rows = first.total_rows() + FIRST - 1;
            let later = |request: u64, question: u32| {
                let found = run_all(&model, Kernels::Auto, world, std::slice::from_ref(&first));
                let tokens = [found[0].0.tokens.clone(), vec![question; 3]].concat();
                Plan { request, ..next(&first, &tokens, rows, FIRST) }
            };
            let (one, other) = (later(2, 5), later(3, 80));
            let found =
                run_all(&model, Kernels::Auto, world, &[first.clone(), one.clone(), other.clone(), one.clone()]);
            let alone = run_all(&model, Kernels::Auto, world, &[first.clone(), other]);
            assert_eq!(found[1].0.tokens, found[3].0.tokens, "{spec}: the second has not changed what the first found");
            assert_eq!(found[2].0.tokens, alone[1].0.tokens, "{spec}");
        }
    }
}

#[test]
fn a_sequence_that_is_not_there_is_refused() {
    let model = model();
    let case = Case { prefix: 2, lead: &[], chunks: &[9], query: 4, world: 2, exchange: Exchange::PassQ, ratio: 0.3 };
    let first = kept(&case.planned("infoflow", &*model).expect("a plan"), 1, FIRST);
    let group = group(&model, 2);
    let later = next(&first, &[3, 4], first.total_rows(), FIRST);
    let refused = tributary_coordinator::dispatch::run(
        group.link(),
        &Arc::new(later),
        &tributary_coordinator::Clock::start(),
        &mut |_| {},
    );
    let message = refused.expect_err("there is no sequence").to_string();
    assert!(message.contains("there is no sequence of request 1 to go on from"), "{message}");
    run_one(&group, &first);
    group.end().expect("the group lives on");
}

#[test]
fn a_row_whose_window_is_not_kept_is_refused() {
    let model = model_with_windows();
    let case = Case { prefix: 2, lead: &[], chunks: &[19], query: 6, world: 2, exchange: Exchange::PassQ, ratio: 0.3 };
    for spec in ["full", "ring"] {
        let first = kept(&case.planned(spec, &*model).expect("a plan"), 1, FIRST);
        assert_eq!(first.windows_from, first.total_rows() - LAST_ROWS, "{spec}");
        let group = group(&model, 2);
        run_one(&group, &first);
        let goes_on = |rows: usize| {
            let later = Plan { windows_from: 0, ..next(&first, &[3, 4], rows, FIRST) };
            let clock = tributary_coordinator::Clock::start();
            tributary_coordinator::dispatch::run(group.link(), &Arc::new(later), &clock, &mut |_| {})
        };
        assert!(goes_on(first.windows_from).is_ok(), "{spec}");
        let message = goes_on(first.windows_from - 1).expect_err("its window is gone").to_string();
        assert!(message.contains("row 23 of request 1, whose windows are kept from row 24 on"), "{spec}: {message}");
        run_one(&group, &first);
        group.end().expect("the group lives on");
    }
}
