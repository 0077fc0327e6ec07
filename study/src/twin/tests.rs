//! Replays whose results can be worked out by hand.

use std::path::Path;
use std::time::Duration;

use tributary_coordinator::ChunkPrefix;
use tributary_coordinator::scheduler::{Limits, Policy};
use tributary_load::{Part, Trace, TraceRequest};
use tributary_planner::ModelShape;
use tributary_planner::forecast::{Profile, UnderLoad};

use super::caches::Hits;
use super::fit::Measured;
use super::group::{Answered, Outcome, Usage};
use super::limit::Limit;
use super::replay::{Replayed, replay};
use super::{Answer, Question, render};

fn part(id: u64, tokens: usize) -> Part {
    Part { id, tokens }
}

/// A request of these documents and a question of its own.
fn request(at_s: f64, number: u64, documents: &[Part], output_tokens: usize) -> TraceRequest {
    let rest = vec![part(1_000_000 + number, 20)];
    TraceRequest { at_s, output_tokens, system: vec![part(1, 50)], documents: documents.to_vec(), rest }
}

fn question(method: &str, requests: Vec<TraceRequest>) -> Question {
    Question {
        model: "llama-3.1-8b".to_owned(),
        shape: ModelShape::named("llama-3.1-8b").expect("a known shape"),
        profile: Profile::by_name("h100x4").expect("a shipped profile"),
        path: "trace.jsonl".to_owned(),
        trace: Trace { format: "tributary", requests, unordered: 0 },
        speed: 1.0,
        methods: vec![method.parse().expect("a method")],
        ratio: None,
        gpus: vec![4],
        world: None,
        head_tokens: 1,
        chunk_prefix: ChunkPrefix::System,
        limits: Limits::default(),
        chunk_cache_bytes: None,
        store_bytes: None,
        measured: None,
        slo_s: None,
    }
}

/// The replay of the only method on the only number of GPUs.
fn replayed(question: &Question) -> Replayed {
    let (_, service, groups) = question.services().expect("a service").swap_remove(0);
    replay(&service, &question.trace.requests, (groups, question.speed)).expect("a replay")
}

fn answered(replayed: &Replayed) -> Vec<Answered> {
    replayed.answered().copied().collect()
}

/// Requests of five of sixty documents at each of these times, in a fixed disorder.
fn busy(count: u64, every_s: f64, output_tokens: usize) -> Vec<TraceRequest> {
    let documents =
        |number: u64| (0..5).map(|place| part(10 + (number * 7 + place * 13) % 60, 400)).collect::<Vec<_>>();
    (0..count).map(|number| request(number as f64 * every_s, number, &documents(number), output_tokens)).collect()
}

#[test]
fn the_second_of_two_equal_requests_is_warm() {
    let documents = [part(10, 100), part(11, 200), part(12, 300)];
    let twice = |method| {
        let mut requests = vec![request(0.0, 0, &documents, 1), request(60.0, 0, &documents, 1)];
        requests.push(request(120.0, 2, &[part(12, 300), part(13, 70)], 1));
        answered(&replayed(&question(method, requests)))
    };
    let chunks = twice("infoflow");
    // A head of 1, a system text of 50, documents, and a question of 20.
    let of = |memory: usize, prompt: usize| Hits { memory, store: 0, prompt, lead: 0 };
    assert_eq!(chunks.iter().map(|one| one.hits).collect::<Vec<_>>(), [of(0, 671), of(600, 671), of(300, 441)]);
    assert!(chunks[1].prefill_s < chunks[0].prefill_s, "{chunks:?}");
    // All but the last token is cached; the third prompt departs within its first piece of 64.
    let prefix = twice("prefix-cache");
    assert_eq!(prefix.iter().map(|one| one.hits).collect::<Vec<_>>(), [of(0, 671), of(670, 671), of(0, 441)]);
    assert!(chunks.iter().chain(&prefix).all(|one| one.queue_s == 0.0), "each finds an idle group");
}

#[test]
fn a_lead_is_warm_up_to_where_it_differs() {
    let documents = [part(10, 100), part(11, 200)];
    let of = |last: u64, at_s: f64| {
        let system = vec![part(1, 600), part(last, 100)];
        TraceRequest { system, ..request(at_s, last, &documents, 1) }
    };
    let requests = vec![of(2, 0.0), of(3, 60.0)];
    let asked = Question { chunk_prefix: ChunkPrefix::Head { more: 0 }, ..question("infoflow", requests.clone()) };
    let found = answered(&replayed(&asked));
    // Pieces of 256, 256 and 188 tokens, of which the last one has another end.
    let expected = [Hits { prompt: 1021, ..Hits::default() }, Hits { memory: 300, store: 0, prompt: 1021, lead: 512 }];
    assert_eq!(found.iter().map(|one| one.hits).collect::<Vec<_>>(), expected);
    let after_system = answered(&replayed(&question("infoflow", requests)));
    assert_eq!(after_system[1].hits.memory, 0, "another system text, other chunks");
}

#[test]
fn requests_that_come_together_wait_for_each_other() {
    let requests = (0..3).map(|number| request(0.0, number, &[part(20 + number, 500), part(40, 500)], 1)).collect();
    let found = answered(&replayed(&question("ring", requests)));
    let mut waited = 0.0;
    for one in &found {
        assert!((one.queue_s - waited).abs() < 1e-12, "{found:?}");
        waited += one.prefill_s;
    }
}

/// Without a queue a percentile is off by what times are; at a busy pace by more.
#[test]
fn ranges_are_those_of_shorter_and_longer_times() {
    let off_by = question("ring", Vec::new()).profile.spread().whole();
    assert!(off_by > 0.05, "{off_by}");
    let row = |requests| Answer::new(question("ring", requests)).expect("an answer").report().rows.swap_remove(0);
    let alone = row((0..40).map(|number| request(10.0 * number as f64, number, &[part(20, 500)], 1)).collect());
    let (times, range) = (alone.ttft_ms, alone.ttft_range_ms.expect("a range"));
    assert_eq!(range.off_by, off_by);
    for (found, [low, high]) in [(times.p50, range.p50), (times.p95, range.p95.expect("enough requests"))] {
        let expected = [1.0 / (1.0 + off_by), 1.0 + off_by].map(|factor| factor * found.expect("enough requests"));
        assert!((low - expected[0]).abs() + (high - expected[1]).abs() < 1e-6, "{low} to {high}, {expected:?}");
    }
    let each_s = row(busy(40, 10.0, 1)).ttft_ms.p50.expect("a median") / 1e3;
    let busy = row(busy(200, 1.02 * each_s, 1));
    let (p95, [low, high]) = (busy.ttft_ms.p95.expect("a p95"), busy.ttft_range_ms.expect("a range").p95.expect("one"));
    assert!(low < p95 && high > 5.0 * p95, "a queue that grows with longer times: {low} to {high} around {p95}");
    assert_eq!(row(Vec::new()).ttft_range_ms, None, "nothing is answered");
}

#[test]
fn the_shortest_of_waiting_requests_goes_first_until_another_is_too_old() {
    // The first one keeps the group busy, and leaves the documents of the fifth in the cache.
    let documents = [[20, 2000], [21, 4000], [22, 1000], [23, 3000], [20, 2000]];
    let requests = (0..).zip(documents);
    let requests: Vec<_> = requests
        .map(|(number, [id, tokens])| {
            let at_s = if number == 0 { 0.0 } else { 0.001 * (number + 1) as f64 };
            request(at_s, number, &[part(id, tokens as usize), part(30 + id, 10)], 1)
        })
        .collect();
    let order = |policy| {
        let mut asked = question("infoflow", requests.clone());
        (asked.gpus, asked.limits.policy) = (vec![1], policy);
        let found = answered(&replayed(&asked));
        let mut order: Vec<usize> = (0..found.len()).collect();
        let began_s = |number: usize| requests[number].at_s + found[number].queue_s;
        order.sort_by(|one, other| began_s(*one).total_cmp(&began_s(*other)));
        order
    };
    let shortest = |max_age_s| Policy::Shortest { max_age: Duration::from_secs(max_age_s) };
    assert_eq!(order(Policy::Fifo), [0, 1, 2, 3, 4]);
    assert_eq!(order(shortest(0)), [0, 1, 2, 3, 4]);
    assert_eq!(order(shortest(60)), [0, 4, 2, 3, 1], "what is cached need not be computed");
}

#[test]
fn an_answer_takes_a_step_for_each_token_after_the_first() {
    let of = |requests: Vec<TraceRequest>| replayed(&question("full", requests));
    let documents = [part(10, 1000)];
    let alone = of(vec![request(0.0, 0, &documents, 41)]);
    assert_eq!(alone.usage[0].steps, 40);
    let prefill_s = answered(&alone)[0].prefill_s;
    assert!((alone.seconds - prefill_s - alone.usage[0].decode_s).abs() < 1e-9);
    // The second prefill comes between the first and the second step: one at a time by default.
    let both = of(vec![request(0.0, 0, &documents, 41), request(0.0, 1, &documents, 41)]);
    let (usage, found) = (both.usage[0], answered(&both));
    assert_eq!((usage.running, usage.waiting), (2, 2));
    let step_s = usage.decode_s / usage.steps as f64;
    let between_s = found[1].queue_s - found[0].prefill_s;
    assert!(between_s > 0.5 * step_s && between_s < 1.5 * step_s, "{between_s} s, a step {step_s} s");
    assert!(usage.steps == 41 && usage.decode_s < 1.5 * alone.usage[0].decode_s, "steps are shared: {usage:?}");
}

#[test]
fn a_replay_is_the_same_each_time_and_more_gpus_are_never_slower() {
    for method in ["infoflow", "prefix-cache"] {
        let p95_s = |gpus: usize| {
            let asked = Question { gpus: vec![gpus], ..question(method, busy(200, 0.02, 30)) };
            let found = replayed(&asked);
            assert_eq!(found, replayed(&asked), "{method} on {gpus}");
            assert_eq!(answered(&found).len(), 200);
            let (prefill, decode) = found.busy();
            assert!(prefill > 0.0 && decode > 0.0 && prefill + decode <= 1.0 + 1e-9, "{prefill} {decode}");
            found.loaded_and_alone_s(0.95).expect("answered requests").0
        };
        let times = [4, 8, 16, 32].map(p95_s);
        assert!(times.is_sorted_by(|fewer, more| more <= fewer), "{method}: {times:?}");
        assert!(times[3] < 0.7 * times[0], "{method}: {times:?}");
    }
}

#[test]
fn a_small_cache_evicts_what_a_large_one_keeps_and_a_store_keeps_more() {
    // One rank; three documents of 1000 tokens in turn, and room for two.
    let documents = |number: u64| [part(10 + number % 3, 1000), part(100 + number % 3, 100)];
    let requests: Vec<_> = (0..9).map(|number| request(60.0 * number as f64, number, &documents(number), 1)).collect();
    let of = |tokens: u64, store_bytes: Option<u64>| {
        let mut asked = question("infoflow", requests.clone());
        (asked.gpus, asked.store_bytes) = (vec![1], store_bytes);
        asked.chunk_cache_bytes = Some(tokens * asked.shape.kv_bytes());
        let store = Profile::by_name("h100x4").expect("a shipped profile").store;
        assert_eq!(store, None, "the shipped profile has no store");
        let rates = tributary_planner::forecast::StoreRates { cached_bytes_per_s: 1e10, bytes_per_s: 1e9 };
        asked.profile.store = Some(rates);
        let found = replayed(&asked);
        let sum = |of: fn(&Hits) -> usize| found.answered().map(|one| of(&one.hits)).sum::<usize>();
        (sum(|hits| hits.memory), sum(|hits| hits.store), found)
    };
    // Room for the head of 51 tokens and all six documents, or for two of each.
    let (memory, store, large) = of(51 + 3300, None);
    assert_eq!((memory, store, large.evicted), (6 * 1100, 0, 0));
    let (memory, store, small) = of(51 + 2200, None);
    assert_eq!((memory, store), (0, 0));
    assert!(small.evicted > 0 && small.cached_bytes <= (51 + 2200) * 131_072, "{small:?}");
    let (memory, store, behind) = of(51 + 2200, Some(1 << 40));
    assert_eq!((memory, store), (0, 6 * 1100));
    let seconds = |found: &Replayed| answered(found)[8].prefill_s;
    assert!(seconds(&large) < seconds(&behind) && seconds(&behind) < seconds(&small), "memory, store, computed");
}

#[test]
fn requests_that_cannot_be_answered_are_counted() {
    let mut requests = busy(10, 0.0, 4);
    requests.push(request(0.0, 50, &[part(7, 200_000)], 1));
    let mut asked = question("infoflow", requests);
    asked.limits.max_waiting = 6;
    let found = replayed(&asked);
    assert_eq!([Outcome::TooLong, Outcome::QueueFull, Outcome::Memory].map(|end| found.count(end)), [1, 4, 0]);
    assert_eq!((answered(&found).len(), found.outcomes[10]), (6, Outcome::TooLong));
    // 16 GB of weights and no memory for anything else.
    asked.profile.rank.memory_bytes = 19 << 30;
    asked.trace.requests = vec![request(0.0, 0, &[part(7, 100_000), part(8, 20_000)], 1)];
    assert_eq!(replayed(&asked).outcomes, [Outcome::Memory]);
}

#[test]
fn what_breaks_first_is_where_the_answer_changes() {
    let mut asked = question("infoflow", busy(150, 0.2, 10));
    let edge = |asked: &Question| Answer::new(asked.clone()).expect("an answer").cells[0].edge.expect("an edge");
    let found = edge(&asked);
    let at = |asked: &Question, pace: f64| replayed(&Question { speed: pace, ..asked.clone() });
    let (holds, breaks) = (found.holds.expect("a pace"), found.breaks.expect("a pace"));
    assert!(breaks / holds < 1.06, "{found:?}");
    assert_eq!((super::limit::broken(&at(&asked, holds), None), found.broken), (None, Some(Limit::TimeToFirstToken)));
    assert_eq!(super::limit::broken(&at(&asked, breaks), None), Some(Limit::TimeToFirstToken));
    // A bound that nothing reaches leaves the queue.
    (asked.slo_s, asked.limits.max_waiting) = (Some(1e6), 8);
    assert_eq!(edge(&asked).broken, Some(Limit::Queue));
}

#[test]
fn the_text_has_a_row_for_each_method_and_number_of_gpus() {
    let mut asked = question("infoflow", busy(120, 0.05, 8));
    (asked.methods, asked.gpus) = (vec!["prefix-cache".parse().unwrap(), "infoflow".parse().unwrap()], vec![4, 8]);
    let answer = Answer::new(asked.clone()).expect("an answer");
    let report = answer.report();
    let rows: Vec<_> = report.rows.iter().map(|row| (row.method.as_str(), row.gpus, row.groups)).collect();
    assert_eq!(rows, [("prefix-cache", 4, 1), ("prefix-cache", 8, 2), ("infoflow", 4, 1), ("infoflow", 8, 2)]);
    for row in &report.rows {
        let tokens = row.tokens;
        assert_eq!(tokens.prompt, 120 * 2071, "{row:?}");
        assert_eq!(tokens.prompt, tokens.memory + tokens.store + tokens.computed, "{row:?}");
        assert!((row.busy.prefill + row.busy.decode + row.busy.idle - 1.0).abs() < 1e-9, "{row:?}");
        let ttft = row.ttft_ms;
        assert!(ttft.p50 <= ttft.p95 && ttft.p95 <= ttft.p99 && ttft.p99_low <= ttft.p99, "{row:?}");
    }
    let text = render(&answer);
    for part in ["infoflow on 8 GPUs: breaks first: ", "times as fast as real time", "2 x 4", "none was measured"] {
        assert!(text.contains(part), "`{part}` is not in\n{text}");
    }
    assert!(text.lines().all(|line| line.trim_end() == line), "{text}");
    let refused = |asked: Question| Answer::new(asked).map(|_| ()).unwrap_err().to_string();
    let wrong = refused(Question { gpus: vec![6], ..asked.clone() });
    assert!(wrong.starts_with("--gpus 6: a multiple of the 4 ranks"), "{wrong}");
    let wrong = refused(Question { world: Some(5), ..asked.clone() });
    assert!(wrong.starts_with("--world 5: profile h100x4 has 4 ranks"), "{wrong}");
    let wrong = refused(Question { store_bytes: Some(1), ..asked });
    assert!(wrong.starts_with("--chunk-store-size: profile h100x4 has no rates"), "{wrong}");
}

/// The metrics of a service whose prefills and steps take so many times what the profile says.
fn metrics_of(slower: &Question, factors: [f64; 2]) -> String {
    let mut service = slower.clone();
    service.profile.under_load = Some(UnderLoad { prefill: factors[0], decode: factors[1] });
    let found = replayed(&service);
    let sum = |of: fn(&Usage) -> f64| found.usage.iter().map(of).sum::<f64>();
    let count = found.answered().count();
    let mut text =
        "# HELP tributary_group_seconds_total Time.\n# TYPE tributary_group_seconds_total counter\n".to_owned();
    for (work, seconds) in [("prefill", sum(|usage| usage.prefill_s)), ("decode", sum(|usage| usage.decode_s))] {
        text += &format!("tributary_group_seconds_total{{work=\"{work}\"}} {seconds}\n");
    }
    text += &format!("tributary_decode_step_duration_seconds_count {}\n", sum(|usage| usage.steps as f64));
    text += &format!("tributary_requests_total{{method=\"infoflow\",outcome=\"answered\"}} {count}\n");
    text + "tributary_requests_total{method=\"ring\",outcome=\"answered\"} 0\ntributary_requests_total{method=\"ring\",outcome=\"failed\"} 7\n"
}

#[test]
fn a_twin_that_is_fitted_to_a_slower_service_finds_its_factors_and_waits() {
    let asked = question("infoflow", busy(200, 0.06, 60));
    let factors = [1.2, 1.4];
    let parse = |text: &str| Measured::parse(text, Path::new("m.prom"));
    let measured = Some(parse(&metrics_of(&asked, factors)).expect("metrics"));
    let answer = Answer::new(Question { measured, ..asked.clone() }).expect("an answer");
    let fit = answer.report().fit.expect("a fit");
    for (found, factor) in [fit.under_load.prefill, fit.under_load.decode].into_iter().zip(factors) {
        assert!((found / factor - 1.0).abs() < 0.01, "{fit:?}");
    }
    assert!(fit.prefill.measured_s > 1.1 * fit.prefill.predicted_s, "{fit:?}");
    let mut slower = asked.clone();
    slower.profile.under_load = Some(UnderLoad { prefill: factors[0], decode: factors[1] });
    let p95 = |answer: &Answer| answer.report().rows[0].ttft_ms.p95.expect("enough requests");
    let (plain, expected) = (Answer::new(asked.clone()).expect("one"), Answer::new(slower).expect("one"));
    assert!((p95(&answer) / p95(&expected) - 1.0).abs() < 0.03, "{} {}", p95(&answer), p95(&expected));
    assert!(p95(&answer) > 1.1 * p95(&plain), "{} {}", p95(&answer), p95(&plain));
    assert!(render(&answer).contains("measured by the service in this replay: prefills"), "{}", render(&answer));
    // The profile that is written predicts other replays so.
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("fitted.toml");
    answer.save_profile(&file).expect("it is written");
    let read = Profile::from_file(&file).expect("a profile");
    assert_eq!(read.under_load, Some(fit.under_load));
    assert!(read.sources["under_load"].contains("200 requests"), "{read:?}");
    assert!(answer.save_profile(&file).is_err(), "it is there already");
    let again = Answer::new(Question { profile: read, ..asked.clone() }).expect("an answer");
    assert_eq!(p95(&again), p95(&answer));
    assert_eq!(again.report().fit, None);
}

#[test]
fn metrics_of_another_service_or_replay_are_refused() {
    let asked = question("infoflow", busy(40, 0.2, 8));
    let text = metrics_of(&asked, [1.0, 1.0]);
    let parse = |text: &str| Measured::parse(text, Path::new("m.prom"));
    let refused = |asked: Question, text: &str| {
        let measured = Some(parse(text).expect("metrics"));
        Answer::new(Question { measured, ..asked }).map(|_| ()).unwrap_err().to_string()
    };
    let wrong = parse("tributary_state{state=\"serving\"} 1\n").unwrap_err().to_string();
    assert!(wrong.starts_with("--measured m.prom: no tributary_decode_step_duration_seconds_count"), "{wrong}");
    let wrong = parse(&text.replace("work=\"decode\"", "work=\"other\"")).unwrap_err().to_string();
    assert!(wrong.contains("tributary_group_seconds_total{work=\"decode\"}"), "{wrong}");
    let odd = text.lines().map(|line| {
        if line.contains("work=\"prefill\"") { "tributary_group_seconds_total{work=\"prefill\"} NaN" } else { line }
    });
    let wrong = parse(&odd.collect::<Vec<_>>().join("\n")).unwrap_err().to_string();
    assert!(wrong.contains("no tributary_group_seconds_total{work=\"prefill\"}"), "{wrong}");
    let wrong = refused(asked.clone(), &text.replace("\"answered\"} 40", "\"answered\"} 43"));
    assert!(wrong.contains("answered 43 requests, this replay answers 40"), "{wrong}");
    let wrong = refused(asked.clone(), &metrics_of(&asked, [500.0, 1.0]));
    assert!(wrong.contains("not this service"), "{wrong}");
    let wrong = refused(Question { gpus: vec![4, 8], ..asked }, &text);
    assert!(wrong.contains("one of --methods and of --gpus"), "{wrong}");
}
