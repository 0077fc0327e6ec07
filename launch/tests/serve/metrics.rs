//! `/metrics` keeps the rules of `promtool check metrics`, knows its labels before the first
//! request, and counts the work.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;

use crate::kit::promtool;
use crate::kit::server::{Server, body};

/// One metric, as the text has it.
#[derive(Debug, Default)]
struct Family {
    help: String,
    kind: String,
    /// Name with labels, and value, in the order of the text.
    samples: Vec<(String, f64)>,
}

/// The text in families. A sample belongs to the type line above it.
fn families(text: &str) -> BTreeMap<String, Family> {
    let (mut families, mut newest): (BTreeMap<String, Family>, String) = (BTreeMap::new(), String::new());
    for line in text.lines().filter(|line| !line.is_empty()) {
        if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) {
            let family = families.entry(name.to_owned()).or_default();
            assert!(family.help.is_empty(), "{name} is described once");
            family.help = help.to_owned();
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            let family = families.entry(name.to_owned()).or_default();
            assert!(family.kind.is_empty(), "{name} has one type");
            (family.kind, newest) = (kind.to_owned(), name.to_owned());
        } else {
            let (name, value) = line.rsplit_once(' ').expect("a name and a value");
            assert!(name.starts_with(&newest), "{name} stands below the type of {newest}");
            let value = value.parse().expect("a number");
            families.get_mut(&newest).expect("its type stands above").samples.push((name.to_owned(), value));
        }
    }
    families
}

/// Checks that promtool would make.
fn lint(name: &str, family: &Family) {
    assert!(name.starts_with("tributary_"), "{name}: our prefix");
    assert!(name.chars().all(|c| c.is_ascii_lowercase() || c == '_'), "{name}: no colons, no capitals");
    assert!(family.help.ends_with('.') && family.help.len() > 10, "{name}: `{}` is no sentence", family.help);
    assert!(["counter", "gauge", "histogram"].contains(&family.kind.as_str()), "{name}: {}", family.kind);
    assert_eq!(
        name.ends_with("_total"),
        family.kind == "counter",
        "{name}: `_total` stands on counters, and only there"
    );
    for unit in ["milliseconds", "ms", "minutes", "kilobytes", "kib", "mib", "percent", "count", "bucket", "sum"] {
        assert!(!name.split('_').any(|word| word == unit), "{name}: base units only, and no word of histograms");
    }
    for kind in ["counter", "gauge", "histogram"] {
        assert!(!name.contains(kind), "{name}: no type in a name");
    }
    assert!(!family.samples.is_empty(), "{name} has samples from the beginning");
    let distinct: BTreeSet<&str> = family.samples.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(distinct.len(), family.samples.len(), "{name}: a sample stands twice");
    for (sample, _) in &family.samples {
        assert!(!sample.contains("chatcmpl") && !sample.contains("request=\""), "{sample}: never a request's number");
    }
}

/// The upper bounds of a histogram's buckets, whose counts grow from one to the next.
fn bounds(family: &Family, labels: &str) -> Vec<f64> {
    let buckets = family.samples.iter().filter(|(name, _)| name.contains("_bucket{") && name.contains(labels));
    let buckets: Vec<(f64, f64)> = buckets
        .map(|(name, count)| {
            let bound = name.split("le=\"").nth(1).and_then(|rest| rest.split('"').next()).expect("a bound");
            (bound.parse().expect("a number"), *count)
        })
        .collect();
    assert!(buckets.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1), "{buckets:?}");
    buckets.into_iter().map(|(bound, _)| bound).collect()
}

const SECONDS: [f64; 29] = [
    0.001,
    0.002,
    0.005,
    0.01,
    0.02,
    0.05,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    1.5,
    2.0,
    3.0,
    5.0,
    7.5,
    10.0,
    15.0,
    20.0,
    30.0,
    45.0,
    60.0,
    90.0,
    120.0,
    180.0,
    300.0,
    600.0,
    1200.0,
    f64::INFINITY,
];

#[test]
fn the_text_keeps_the_rules_from_the_beginning() {
    let server = Server::start(&["--world-size", "2"]);
    let page = server.get("/metrics");
    assert!(page.header("content-type").is_some_and(|kind| kind.starts_with("text/plain; version=0.0.4")));
    let before = families(&page.body);
    before.iter().for_each(|(name, family)| lint(name, family));
    let stands = |family: &Family| family.samples.iter().all(|(_, value)| *value == 0.0);
    for (name, family) in &before {
        let of_ranks = ["build_info", "world_size", "state", "rank_up", "heartbeat_age_seconds"];
        let is_of_ranks = of_ranks.iter().any(|of_ranks| name.strip_prefix("tributary_") == Some(of_ranks));
        assert!(is_of_ranks || stands(family), "{name} begins at 0: {family:?}");
    }
    let histograms = [
        ("time_to_first_token", "method=\"infoflow\",cache=\"cold\""),
        ("request_queue_time", ""),
        ("request_duration", ""),
    ];
    for (name, labels) in histograms {
        let family = &before[&format!("tributary_{name}_seconds")];
        assert_eq!((family.kind.as_str(), bounds(family, labels)), ("histogram", SECONDS.to_vec()), "{name}");
    }
    // For every rank and phase: fewer bounds, because there are many of them.
    let phases = &before["tributary_phase_duration_seconds"];
    let few = [0.001, 0.01, 0.05, 0.25, 1.0, 2.0, 5.0, 20.0, 60.0, 600.0, f64::INFINITY];
    assert_eq!((phases.kind.as_str(), bounds(phases, "phase=\"queue\"")), ("histogram", few.to_vec()));

    // No request adds a label that was not there before.
    for method in ["infoflow", "relay", "full", "ring", "all-gather", "none"] {
        let mut request = body("hop2-0", 2);
        request["tributary"] = json!({"method": method, "reorder": false});
        assert_eq!(server.chat(&request).status, 200);
    }
    server.chat(&json!({"messages": []}));
    let text = server.get("/metrics").body;
    let after = families(&text);
    after.iter().for_each(|(name, family)| lint(name, family));
    promtool::finds_nothing(&text);
    // Those of a method that is used for the first time are like the others'.
    let of_any = |name: &str| match name.split_once("method=\"") {
        Some((head, rest)) => format!("{head}{}", rest.split_once('"').expect("a label's end").1),
        None => name.to_owned(),
    };
    for (name, family) in &after {
        let names =
            |family: &Family| -> BTreeSet<String> { family.samples.iter().map(|(name, _)| of_any(name)).collect() };
        assert_eq!(names(&before[name]), names(family), "{name}");
    }
    server.ends_well();
}

#[test]
fn what_was_done_is_counted() {
    let server = Server::start(&["--world-size", "2"]);
    let cold = server.chat(&body("hop2-0", 3)).json();
    let warm = server.chat(&body("hop2-0", 3)).json();
    server.chat(&json!({"messages": [], "n": 3}));
    let of = |name: &str| server.metric(&format!("tributary_{name}"));
    assert_eq!(of("world_size"), 2.0);
    assert_eq!((of("state{state=\"serving\"}"), of("state{state=\"failed\"}")), (1.0, 0.0));
    for rank in 0..2 {
        assert_eq!(of(&format!("rank_up{{rank=\"{rank}\"}}")), 1.0);
        let age_s = of(&format!("heartbeat_age_seconds{{rank=\"{rank}\"}}"));
        assert!((0.0..10.0).contains(&age_s), "rank {rank}: {age_s} s");
        assert!(of(&format!("chunk_cache_used_bytes{{rank=\"{rank}\",tier=\"memory\"}}")) > 0.0);
        assert!(of(&format!("device_memory_used_bytes{{rank=\"{rank}\",pool=\"process\"}}")) > f64::from(1 << 20));
        let prefilled_s = of(&format!("rank_phase_seconds_total{{rank=\"{rank}\",phase=\"chunk_prefill\"}}"));
        assert!(prefilled_s > 0.0, "rank {rank}");
        assert_eq!(of(&format!("running_sequences{{rank=\"{rank}\"}}")), 0.0);
    }
    // Two answers of three tokens: two steps each.
    assert_eq!((of("decode_step_duration_seconds_count"), of("inter_token_latency_seconds_count")), (4.0, 4.0));
    assert!(of("inter_token_latency_seconds_sum") >= of("decode_step_duration_seconds_sum"));
    // Work of the group covers what its ranks measured.
    assert!(of("group_seconds_total{work=\"decode\"}") >= of("decode_step_duration_seconds_sum"));
    let chunks_s = of("phase_duration_seconds_sum{phase=\"chunk_prefill\"}");
    assert!(of("group_seconds_total{work=\"prefill\"}") > chunks_s && of("group_seconds_total{work=\"idle\"}") > 0.0);
    let slowest: f64 =
        (0..2).map(|rank| of(&format!("rank_slowest_total{{rank=\"{rank}\",phase=\"recompute\"}}"))).sum();
    assert_eq!((slowest, of("phase_imbalance_ratio_count{phase=\"recompute\"}")), (2.0, 2.0));
    assert_eq!(of("recompute_ratio_count"), 2.0);
    let lookups = |result: &str| of(&format!("chunk_cache_lookups_total{{tier=\"memory\",result=\"{result}\"}}"));
    let chunks = body("hop2-0", 3)["documents"].as_array().expect("documents").len() as f64;
    assert_eq!((lookups("miss"), lookups("hit"), lookups("corrupt")), (chunks, chunks, 0.0));
    assert_eq!(of("requests_total{method=\"infoflow\",outcome=\"answered\"}"), 2.0);
    assert_eq!(of("request_errors_total{error_type=\"invalid_request_error\"}"), 1.0);
    assert_eq!(of("generated_tokens_total"), 6.0);
    assert_eq!((of("requests_running"), of("requests_waiting")), (0.0, 0.0));
    for (cache, answer) in [("cold", &cold), ("warm", &warm)] {
        let labels = format!("{{method=\"infoflow\",cache=\"{cache}\"}}");
        assert_eq!(of(&format!("time_to_first_token_seconds_count{labels}")), 1.0);
        let told_s = answer["metrics"]["ttft_ms"].as_f64().expect("a time") / 1000.0;
        let counted_s = of(&format!("time_to_first_token_seconds_sum{labels}"));
        assert!((told_s - counted_s).abs() < 1e-9, "{told_s} s told, {counted_s} s counted");
    }
    let number = |answer: &serde_json::Value, key: &str| answer["metrics"][key].as_f64().expect("a number");
    assert_eq!(of("selected_tokens_total"), number(&cold, "selected_tokens") + number(&warm, "selected_tokens"));
    assert_eq!(of("prompt_tokens_total{source=\"cached\"}"), 496.0);
    let (queued_s, phase_s) = (of("request_queue_time_seconds_sum"), of("phase_duration_seconds_sum{phase=\"queue\"}"));
    assert_eq!(
        (of("request_queue_time_seconds_count"), of("phase_duration_seconds_count{phase=\"queue\"}")),
        (2.0, 2.0)
    );
    assert!((queued_s - phase_s).abs() < 1e-9 && queued_s > 0.0, "{queued_s} s, {phase_s} s");
    let gathered = |rank: usize, direction: &str| {
        of(&format!("collective_bytes_total{{rank=\"{rank}\",collective=\"all-gather\",direction=\"{direction}\"}}"))
    };
    assert!(gathered(0, "sent") > 0.0);
    assert_eq!((gathered(0, "sent"), gathered(1, "sent")), (gathered(1, "received"), gathered(0, "received")));
    assert!(server.get("/metrics").body.contains(&format!("revision=\"{}\"", revision())), "which commit this is");
    server.ends_well();
}

/// The commit that the command was built from, as its build script finds it; nothing outside a
/// repository.
fn revision() -> String {
    option_env!("TRIBUTARY_REVISION").unwrap_or_default().to_owned()
}

#[test]
fn predictions_stand_beside_what_was_measured() {
    // A profile of another machine: its prediction is a time too.
    let server = Server::start(&["--world-size", "2", "--profile", "h100x4"]);
    let cold = "{method=\"infoflow\",cache=\"cold\"}";
    let of = |name: &str| server.metric(&format!("tributary_{name}{cold}"));
    assert_eq!(of("predicted_time_to_first_token_seconds_count"), 0.0);
    server.chat(&body("hop2-0", 2));
    assert_eq!(of("predicted_time_to_first_token_seconds_count"), 1.0);
    assert_eq!(of("time_to_first_token_seconds_count"), 1.0);
    let predicted_s = of("predicted_time_to_first_token_seconds_sum");
    assert!(predicted_s > 0.0 && predicted_s < 60.0, "{predicted_s} s");
    // The same documents again: they are warm, and the pace learned from the first request counts.
    server.chat(&body("hop2-0", 2));
    let warm_s =
        server.metric("tributary_predicted_time_to_first_token_seconds_sum{method=\"infoflow\",cache=\"warm\"}");
    assert!(warm_s > 0.0 && warm_s < 60.0, "{warm_s} s");
    let pace = |phase: &str| {
        server.metric(&format!("tributary_predicted_pace_ratio{{claim=\"selective\",phase=\"{phase}\"}}"))
    };
    assert!(pace("recompute") > 1.0, "a core is slower than an H100: {}", pace("recompute"));
    assert_eq!(server.metric("tributary_predicted_pace_ratio{claim=\"exact\",phase=\"recompute\"}"), 0.0);
    let predictions = &server.get("/v1/status").json()["predictions"];
    assert_eq!(predictions["profile"], "h100x4");
    let learned = predictions["learned"].as_array().expect("a list");
    let of_recompute = learned.iter().find(|found| found["phase"] == "recompute").expect("what was learned");
    assert_eq!((&of_recompute["requests"], &of_recompute["exact"]), (&json!(2), &json!(false)));
    server.ends_well();
}

#[test]
fn without_a_profile_requests_are_predicted_by_those_before_them() {
    let server = Server::start(&["--world-size", "2"]);
    let count = |cache: &str| {
        let labels = format!("{{method=\"infoflow\",cache=\"{cache}\"}}");
        server.metric(&format!("tributary_predicted_time_to_first_token_seconds_count{labels}"))
    };
    server.chat(&body("hop2-0", 2));
    assert_eq!((count("cold"), count("warm")), (0.0, 0.0), "nothing was known");
    server.chat(&body("hop2-0", 2));
    assert_eq!((count("cold"), count("warm")), (0.0, 1.0), "all phases of a warm request are known");
    server.chat(&body("hop2-1", 2));
    assert_eq!((count("cold"), count("warm")), (1.0, 1.0));
    (0..4).for_each(|_| _ = server.chat(&body("hop2-0", 2)));
    let mean = |name: &str| {
        let of = |what: &str| server.metric(&format!("tributary_{name}_{what}{{method=\"infoflow\",cache=\"warm\"}}"));
        of("sum") / of("count")
    };
    let [predicted_s, measured_s] = ["predicted_time_to_first_token_seconds", "time_to_first_token_seconds"].map(mean);
    let ratio = predicted_s / measured_s;
    assert!(
        (0.2..5.0).contains(&ratio),
        "{predicted_s} s predicted, {measured_s} s measured, the waits of others included"
    );
    assert_eq!(server.get("/v1/status").json()["predictions"]["profile"], "assumed");
    server.ends_well();
}

#[test]
fn bytes_of_a_request_that_was_cancelled_are_counted() {
    let server = Server::start(&["--world-size", "2"]);
    let sent = |rank: usize| {
        let labels = format!("{{rank=\"{rank}\",collective=\"all-gather\",direction=\"sent\"}}");
        server.metric(&format!("tributary_collective_bytes_total{labels}"))
    };
    assert_eq!([sent(0), sent(1)], [0.0, 0.0]);
    let mut stream = server.stream(&body("hop2-0", 3000));
    (0..3).for_each(|_| _ = stream.event().expect("an event"));
    drop(stream);
    server.becomes("tributary_requests_running", 0.0);
    assert_eq!(server.metric("tributary_requests_total{method=\"infoflow\",outcome=\"cancelled\"}"), 1.0);
    assert_eq!(server.metric("tributary_requests_cancelled_total{stage=\"decode\"}"), 1.0);
    assert!(sent(0) > 0.0 && sent(1) > 0.0, "{} and {}", sent(0), sent(1));
    server.ends_well();
}

#[test]
fn the_status_says_what_the_metrics_say_and_no_text() {
    let server = Server::start(&["--world-size", "2"]);
    let status = || server.get("/v1/status").json();
    let before = status();
    assert_eq!(before["schema"], "tributary.status/1");
    assert_eq!(
        (&before["state"], &before["world_size"], &before["recent"]),
        (&json!("serving"), &json!(2), &json!([]))
    );
    let answer = server.chat(&body("hop2-0", 3)).json();
    server.chat(&body("hop2-0", 3));
    let after = status();
    let methods = after["methods"].as_array().expect("methods");
    let of = |name: &str| methods.iter().find(|method| method["name"] == name).expect("a method");
    assert_eq!((&of("full")["exact"], &of("full")["default_ratio"]), (&json!(true), &json!(null)));
    assert!(of("infoflow")["default_ratio"].as_f64().is_some_and(|ratio| ratio > 0.0 && ratio < 1.0));
    let ranks = after["ranks"].as_array().expect("ranks");
    assert_eq!(ranks.len(), 2);
    assert!(
        ranks.iter().all(|rank| rank["up"] == true && rank["chunk_cache_used_bytes"].as_u64() > Some(0)),
        "{ranks:?}"
    );
    let used: u64 = ranks.iter().filter_map(|rank| rank["chunk_cache_used_bytes"].as_u64()).sum();
    assert_eq!(after["chunk_cache"]["used_bytes"], used);
    assert_eq!(after["chunk_cache"]["hits"], after["chunk_cache"]["misses"]);
    assert_eq!(after["requests"], json!({"waiting": 0, "running": 0}));
    let recent = after["recent"].as_array().expect("requests");
    let seen: Vec<_> = recent.iter().map(|request| (&request["cache"], &request["outcome"])).collect();
    let answered = json!("answered");
    assert_eq!(seen, [(&json!("warm"), &answered), (&json!("cold"), &answered)]);
    assert_eq!((&recent[1]["id"], &recent[1]["ttft_ms"]), (&answer["id"], &answer["metrics"]["ttft_ms"]));
    assert_eq!(recent[1]["prompt_tokens"], answer["usage"]["prompt_tokens"]);
    assert_eq!(recent[1]["generated_tokens"], 3);
    assert!(!after.to_string().contains("hugo") && !after.to_string().contains("lyon"), "never a text");
    server.ends_well();
}
