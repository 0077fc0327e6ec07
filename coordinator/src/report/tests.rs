//! Reports made from invented timelines.

use std::time::Duration;

use tributary_comm::Collective;
use tributary_planner::{Cached, Machine, MemoryOf, MethodInputs, PlanInput, Planned, RequestSettings, plan};
use tributary_protocol::{Method, Outcome, Phase, RankReport, Sharpest, Span};

use super::{Environment, Report, Said, TraceRow, report};
use crate::demo::DEMO;
use crate::dispatch::Answer;
use crate::intake::Prepared;

fn planned(settings: &RequestSettings) -> Planned {
    let chunks = vec![vec![7; 100], vec![8; 60]];
    let input = PlanInput {
        request: 1,
        prefix: &[1],
        lead: &[],
        chunks: &chunks,
        cached: Cached::default(),
        query: &[3; 10],
        eos: &[2],
        method_inputs: MethodInputs::default(),
    };
    let machine = Machine {
        flops_per_s: 1e10,
        link_bytes_per_s: 1e9,
        memory: MemoryOf::Host,
        available_bytes: None,
        ranks_here: usize::MAX,
        weight_copies: 1,
        of_rank: None,
    };
    plan(&input, settings, &DEMO, &machine, None).unwrap()
}

/// A timeline without gaps of phases and their lengths and waits in milliseconds.
fn timeline(phases: &[(Phase, f64, f64)]) -> Vec<Span> {
    let mut start_s = 0.0;
    let span = |&(phase, length_ms, waited_ms): &(Phase, f64, f64)| {
        let seconds = length_ms / 1000.0;
        let span = Span { phase, start_s, seconds, waited_s: waited_ms / 1000.0 };
        start_s += seconds;
        span
    };
    phases.iter().map(span).collect()
}

fn answer() -> Answer {
    let first = [
        (Phase::ChunkPrefill, 40.0, 0.0),
        (Phase::Probe, 5.0, 1.0),
        (Phase::Select, 1.0, 0.0),
        (Phase::Probe, 5.0, 1.0),
        (Phase::Recompute, 20.0, 2.0),
        (Phase::FirstToken, 14.0, 13.0),
        (Phase::Decode, 500.0, 0.0),
    ];
    let second = [
        (Phase::ChunkPrefill, 20.0, 0.0),
        (Phase::Probe, 15.0, 12.0),
        (Phase::Select, 5.0, 1.0),
        (Phase::Probe, 15.0, 12.0),
        (Phase::Recompute, 21.0, 0.0),
        (Phase::FirstToken, 8.0, 0.0),
        (Phase::Decode, 400.0, 0.0),
    ];
    let mut reports = vec![
        RankReport { rank: 0, spans: timeline(&first), recomputed_rows: 12, ..RankReport::default() },
        RankReport { rank: 1, spans: timeline(&second), recomputed_rows: 22, ..RankReport::default() },
    ];
    reports[1].drew_first_token = true;
    for (rank, report) in reports.iter_mut().enumerate() {
        report.traffic.count(Collective::AllGather, 1000, 500 + rank as u64);
        report.traffic.count(Collective::AllGather, 10, 20);
        report.traffic.waited(Collective::AllGather, Duration::from_millis(3 + rank as u64));
        report.decode_traffic.count(Collective::Exchange, 1, 2);
    }
    Answer {
        tokenize: Duration::from_millis(3),
        queued: Duration::ZERO,
        ttft: Duration::from_millis(90),
        total: Duration::from_millis(700),
        outcome: Outcome {
            tokens: vec![9, 2],
            order: vec![1, 0],
            selected: vec![120, 130, 140],
            candidates: 60,
            ..Outcome::default()
        },
        reports,
    }
}

fn reported(settings: &RequestSettings, answer: &Answer) -> Report {
    let environment = Environment { threads: 1, model: "demo".into(), ..Environment::default() };
    let prepared = Prepared { notes: vec!["a note".into()], ..Prepared::default() };
    let said = Said { reasoning: None, answer: "nine".into() };
    report(&planned(settings), answer, &environment, &DEMO, said, &prepared)
}

/// The report includes free probes, also omitted ones.
#[test]
fn free_probes_are_reported() {
    let settings = RequestSettings { method: Method::named("trace").unwrap(), ..two_ranks() };
    let mut answer = answer();
    (answer.outcome.measured, answer.outcome.rounds) = (vec![120, 130, 110], vec![2, 1]);
    let found = reported(&settings, &answer);
    let moved = answer.outcome.order.windows(2).any(|pair| pair[0] > pair[1]);
    assert_eq!(
        found.trace,
        Some(TraceRow { measured_rows: 3, rounds: 2, moved, left_out: false, sharpest: None, sharpest_behind: None })
    );
    let blunt = "note: 2 free probes measured 3 rows; no reading between documents is sharp; documents were put in another order\n";
    assert!(found.render().contains(blunt), "{}", found.render());
    answer.outcome.sharpest = Sharpest { any: Some(0.625), behind: None };
    let found = reported(&settings, &answer);
    assert_eq!(found.trace.as_ref().and_then(|trace| trace.sharpest), Some(0.625));
    assert!(found.render().contains("the sharpest reading between documents is 0.62;"), "{}", found.render());
    answer.outcome.sharpest = Sharpest::default();
    (answer.outcome.measured, answer.outcome.rounds) = (Vec::new(), Vec::new());
    let found = reported(&settings, &answer);
    assert!(found.trace.as_ref().is_some_and(|trace| trace.left_out), "{:?}", found.trace);
    assert!(found.render().contains("note: the free probe was left out"), "{}", found.render());
    assert_eq!(reported(&two_ranks(), &answer).trace, None);
}

fn two_ranks() -> RequestSettings {
    RequestSettings { world: 2, ..RequestSettings::default() }
}

fn close(found: f64, wanted: f64) -> bool {
    (found - wanted).abs() < 1e-6
}

#[test]
fn the_critical_path_is_that_of_the_rank_that_drew_the_token() {
    let report = reported(&two_ranks(), &answer());
    let found: Vec<(&str, f64)> = report.phases.iter().map(|row| (row.phase, row.critical_path_ms.round())).collect();
    // Rank 1 ends at 84, rank 0 at 85: the token took 1 ms to it. 90 − 3 − 85 are left.
    let wanted = [
        ("tokenize", 3.0),
        ("chunk_prefill", 20.0),
        ("probe", 30.0),
        ("select", 5.0),
        ("recompute", 21.0),
        ("first_token", 9.0),
    ];
    assert_eq!(found, wanted);
    assert!(close(report.unaccounted_ms, 2.0), "{}", report.unaccounted_ms);
    let accounted: f64 = report.phases.iter().map(|row| row.critical_path_ms).sum();
    assert!(close(accounted + report.unaccounted_ms, report.ttft_ms));
    let shares: f64 = report.phases.iter().map(|row| row.share).sum();
    assert!(close(shares, 88.0 / 90.0), "{shares}");
}

#[test]
fn slowest_and_mean_are_compute_times() {
    let report = reported(&two_ranks(), &answer());
    let probe = report.phases.iter().find(|row| row.phase == "probe").unwrap();
    // Rank 0 computes 8 of 10 ms, rank 1 6 of 30.
    assert_eq!(probe.slowest_rank, Some(0));
    assert!(close(probe.slowest_ms, 8.0) && close(probe.mean_ms, 7.0), "{probe:?}");
    assert!(close(probe.imbalance, 8.0 / 7.0) && close(probe.waited_ms, 24.0), "{probe:?}");
    let tokenize = &report.phases[0];
    assert_eq!((tokenize.slowest_rank, tokenize.imbalance), (None, 1.0));
}

#[test]
fn the_way_of_the_token_is_no_longer_than_the_clock_allows() {
    let mut late = answer();
    late.reports[0].spans[5].seconds = 10.0;
    let report = reported(&two_ranks(), &late);
    assert!(close(report.unaccounted_ms, 0.0), "{}", report.unaccounted_ms);
}

#[test]
fn gaps_between_phases_are_unaccounted() {
    let mut gap = answer();
    gap.reports[1].spans.remove(2);
    let report = reported(&two_ranks(), &gap);
    assert!(close(report.unaccounted_ms, 7.0), "{}", report.unaccounted_ms);
}

#[test]
fn bytes_are_totals_over_ranks_and_the_most_on_one() {
    let report = reported(&two_ranks(), &answer());
    let row = report.bytes["all-gather"];
    assert_eq!((row.calls, row.sent_bytes), (2, 2020));
    assert_eq!((row.received_bytes, row.max_rank_received_bytes), (1041, 521));
    assert!(close(row.max_rank_waited_ms, 4.0));
    assert_eq!(report.decode_bytes["exchange"].received_bytes, 4);
    assert_eq!(report.ranks[1].tensor_bytes_received, 521);
}

#[test]
fn tokens_are_counted() {
    let tokens = reported(&two_ranks(), &answer()).tokens;
    assert_eq!((tokens.prefix, tokens.context, tokens.query), (1, 160, 10));
    assert_eq!((tokens.selected, tokens.candidates, tokens.recomputed), (3, 60, 34));
    assert_eq!(tokens.generated, 2);
}

#[test]
fn the_paper_clock_leaves_out_first_token_and_query() {
    let found = reported(&two_ranks(), &answer()).paper_clock_ms;
    // 90 − 9 for the first token, and of 21 ms of recompute the query's share: 10 of 22 rows, each
    // a little dearer.
    let by_rows = 81.0 - 21.0 * 10.0 / 22.0;
    assert!(found < by_rows && found > by_rows - 1.0, "{found}, {by_rows}");
    let none = RequestSettings { method: Method::named("none").unwrap(), ..two_ranks() };
    let mut nothing_selected = answer();
    nothing_selected.outcome.selected.clear();
    nothing_selected.reports[1].recomputed_rows = 10;
    let found = reported(&none, &nothing_selected).paper_clock_ms;
    assert!(close(found, 81.0 - 21.0), "all of the pass is the query's: {found}");
    let full = RequestSettings { method: Method::named("full").unwrap(), ..two_ranks() };
    // All 171 rows were computed, or the last 20 after a cached prefix.
    for (rows, name) in [(171, "full"), (20, "prefix-cache")] {
        let settings = RequestSettings { method: Method::named(name).unwrap(), ..full.clone() };
        let mut computed = answer();
        computed.reports.iter_mut().for_each(|report| report.prefilled_rows = 0);
        computed.reports[1].prefilled_rows = rows;
        let found = reported(&settings, &computed).paper_clock_ms;
        let by_rows = 81.0 - 20.0 * 10.0 / rows as f64;
        assert!(found <= by_rows && found > by_rows - 1.0, "{name}: {found}, {by_rows}");
    }
}

#[test]
fn json_has_the_names_that_readers_rely_on() {
    let json = serde_json::to_value(reported(&two_ranks(), &answer())).unwrap();
    let names = [
        "ttft_ms",
        "paper_clock_ms",
        "method",
        "exact",
        "settings",
        "phases",
        "unaccounted_ms",
        "ranks",
        "bytes",
        "tokens",
        "chunks",
        "order",
        "answer",
        "token_ids",
    ];
    for name in names {
        assert!(json.get(name).is_some(), "{name}");
    }
    let settings = [
        "ratio",
        "budget",
        "options",
        "reorder",
        "importance",
        "include_first_chunk",
        "exchange",
        "world",
        "threads",
        "chunking",
        "prefix",
        "template",
        "dtype",
        "temperature",
        "top_p",
        "top_k",
        "seed",
        "max_tokens",
        "kernels",
        "model",
    ];
    for name in settings {
        assert!(json["settings"].get(name).is_some(), "settings.{name}");
    }
    assert_eq!(json["settings"]["options"], serde_json::json!({"layers": "2..4", "layout": "global", "score": "norm"}));
    assert_eq!(json["settings"]["budget"], 24);
    assert_eq!(json["phases"][0]["phase"], "tokenize");
}

#[test]
fn settings_that_a_method_does_not_have_are_absent() {
    let full = RequestSettings { method: Method::named("full").unwrap(), ..two_ranks() };
    let settings = reported(&full, &answer()).settings;
    assert_eq!((settings.exchange, settings.options.len()), (None, 0));
    assert_eq!((settings.ratio, settings.budget), (0.0, 0));
}

#[test]
fn the_text_says_what_matters() {
    let text = reported(&two_ranks(), &answer()).render();
    let wanted = [
        "answer:      nine\n",
        "TTFT:        90.00 ms\n",
        "paper clock: ",
        "infoflow (approximate), ratio 0.15, layers 2..4, layout global, score norm, exchange replicate; world 2",
        "critical path [ms]",
        "\nunaccounted                  2.00        2.2\n",
        "\nall-gather                 2              1041                     521               4.00\n",
        "selected: 3 of 60 candidates (1.9 % of the context); recomputed: 34 rows",
        "order of the chunks: [1, 0]\n",
        "note: a note\n",
    ];
    for part in wanted {
        assert!(text.contains(part), "`{part}` is not in\n{text}");
    }
    assert!(!text.contains("-0"), "{text}");
    assert!(text.lines().all(|line| line.trim_end() == line), "{text}");
}

#[test]
fn a_straggler_is_noted_and_even_work_is_not() {
    let stragglers = |answer: &Answer| -> Vec<String> {
        let notes = reported(&RequestSettings { world: 2, ..RequestSettings::default() }, answer).notes;
        notes.into_iter().filter(|note| note.starts_with("straggler")).collect()
    };
    assert!(stragglers(&answer()).is_empty());
    let mut late = answer();
    late.ttft = Duration::from_millis(1600);
    let recompute = late.reports[1].spans.iter_mut().find(|span| span.phase == Phase::Recompute).unwrap();
    recompute.seconds += 1.5;
    assert_eq!(stragglers(&late), ["straggler: rank 1 in recompute, 1503 ms more than the others on average"]);
    // One rank waits for another: the waiting one is no straggler.
    let recompute = late.reports[0].spans.iter_mut().find(|span| span.phase == Phase::Recompute).unwrap();
    (recompute.seconds, recompute.waited_s) = (1.52, 1.502);
    assert_eq!(stragglers(&late).len(), 1);
    let settings = RequestSettings { method: Method::named("full").unwrap(), world: 2, ..RequestSettings::default() };
    let notes = reported(&settings, &late).notes;
    assert!(notes.iter().all(|note| !note.starts_with("straggler")), "full has one rank's work only: {notes:?}");
}
