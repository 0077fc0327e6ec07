//! `tributary load` on `tributary serve` with the demo model: its requests are answered, its report
//! is true, and an error is one line.

use std::path::Path;

use crate::kit::server::Server;
use crate::kit::{json, root, tributary};
use serde_json::Value;
use tributary_planner::forecast::{Curve, Profile, RankRates};

/// Words that the demo's tokenizer has, one token each.
const WORDS: &str = "the wolf rests near field it rains slowly today stays with house of in question";

/// The arguments of a load on a server, with small documents of the demo's words.
fn arguments<'a>(url: &'a str, words: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let small = ["--documents-per-request", "4", "--document-tokens", "24", "--corpus", "8", "--max-tokens", "6"];
    [&["load", "--url", url, "--words", words], &small[..], more].concat()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is a number"))
}

#[test]
fn a_load_is_answered_and_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (words, csv, plot) = (path("words"), path("load.csv"), path("load.svg"));
    std::fs::write(&words, WORDS).expect("written");
    let server = Server::start(&["--world-size", "2"]);
    let url = format!("http://{}/v1", server.address);
    let files = ["--json", "--csv", &csv, "--plot", &plot];
    let load = |more: &[&str]| json(&arguments(&url, &words, &[more, &files[..]].concat()));

    let open = load(&["--rate", "40", "--requests", "30", "--fresh"]);
    let window = &open["windows"][0];
    assert_eq!((&open["schema"], &open["model"]), (&"tributary.load/1".into(), &"demo".into()));
    assert_eq!((&window["planned"], &window["answered"]), (&30.into(), &30.into()), "{window:#}");
    assert_eq!(number(&open["requests"]["tokens_per_word"]), 1.0, "words of the vocabulary are tokens");
    // Four documents, a question, and the beginning of the text.
    let prompt = number(&window["mean_prompt_tokens"]);
    assert!((4.0 * 24.0 + 16.0..4.0 * 24.0 + 24.0).contains(&prompt), "{prompt} tokens of a prompt");
    assert_eq!(number(&window["mean_cached_tokens"]), 0.0, "every document is new");
    assert_eq!(window["queue_ms"]["count"], 30, "the service says how long each waited");
    let (ttft, total) = (&window["ttft_ms"], &window["total_ms"]);
    assert!(number(&ttft["p50"]) > 0.0 && number(&ttft["max"]) <= number(&total["max"]), "{window:#}");
    assert_eq!(std::fs::read_to_string(&csv).expect("written").lines().count(), 31);
    assert!(std::fs::read_to_string(&plot).expect("drawn").starts_with("<svg"));
    // The metrics of the service: the service counts the same as the load, and two requests for the
    // tokens of a word.
    assert_eq!(server.metric("tributary_requests_total{method=\"infoflow\",outcome=\"answered\"}"), 32.0);

    let warm = load(&["--clients", "3", "--requests", "12", "--warm-up"]);
    let window = &warm["windows"][0];
    assert_eq!((&window["answered"], &window["clients"]), (&12.into(), &3.into()), "{window:#}");
    assert_eq!(number(&window["mean_cached_tokens"]), 4.0 * 24.0, "every document was sent before");
    server.ends_well();
}

/// A trace of one document set that comes again, in another order and with another system text,
/// and of a question alone.
const TRACE: &str = "\
    {\"timestamp\": 900, \"output_length\": 3, \"documents\": [{\"id\": \"b\", \"tokens\": 24}, {\"id\": \"a\", \"tokens\": 24}], \"query\": {\"tokens\": 9}}\n\
    {\"timestamp\": 100, \"output_length\": 4, \"documents\": [{\"id\": \"a\", \"tokens\": 24}, {\"id\": \"b\", \"tokens\": 24}], \"query\": {\"tokens\": 9}}\n\
    {\"timestamp\": 2100, \"output_length\": 5, \"system\": {\"id\": 1, \"tokens\": 30}, \"documents\": [{\"id\": \"a\", \"tokens\": 24}], \"query\": {\"tokens\": 9}}\n\
    {\"timestamp\": 4100, \"output_length\": 2, \"query\": {\"tokens\": 90}}\n";

/// A twin of the service takes its time for prefills and steps from the service's metrics.
fn fits(trace: &str, metrics: &str, folder: &Path) {
    std::fs::create_dir(folder).expect("a folder");
    let path = |name: &str| folder.join(name).display().to_string();
    let (machine, measured, fitted) = (path("machine.toml"), path("service.prom"), path("fitted.toml"));
    std::fs::write(&measured, metrics).expect("written");
    // Rates of about one core, so that the service is no hundred times slower.
    let profile = Profile::by_name("h100x4").expect("a shipped profile");
    let mut rank =
        RankRates { gemm_by_rows: Curve::default(), attention_by_keys: Curve::default(), ..profile.rank.clone() };
    (rank.gemm_flops_per_s, rank.attention_flops_per_s, rank.probe_flops_per_s) = (2e10, 2e10, 1e10);
    (rank.memory_bytes_per_s, rank.layer_s, rank.request_s) = (1e10, 1e-4, 1e-3);
    let profile = Profile { ranks: 1, ranks_per_host: 1, alone: None, rank, ..profile };
    std::fs::write(&machine, profile.to_toml()).expect("written");
    let demo = root().join("examples/models/demo").display().to_string();
    let base = [
        "plan", "--model", &demo, "--dtype", "f32", "--trace", trace, "--speed", "10x", "--method", "infoflow",
        "--json",
    ];
    let answer =
        json(&[&base[..], &["--profile", &machine, "--measured", &measured, "--save-profile", &fitted]].concat());
    let metric = |name: &str| {
        let line = metrics.lines().find_map(|line| line.strip_prefix(&format!("tributary_{name} ")));
        line.and_then(|value| value.parse::<f64>().ok()).expect("a metric")
    };
    let group_s = |work: &str| metric(&format!("group_seconds_total{{work=\"{work}\"}}"));
    let step_s = group_s("decode") / metric("decode_step_duration_seconds_count");
    let again = json(&[&base[..], &["--profile", &fitted]].concat());
    assert_eq!(again["rows"], answer["rows"], "the written profile predicts the same");
    let row = &again["rows"][0];
    let prefill_s = number(&row["busy"]["prefill"]) * number(&row["seconds"]);
    let found_s = [("prefill", group_s("prefill"), prefill_s), ("step", step_s, number(&row["mean_step_ms"]) / 1e3)];
    for (what, measured_s, found_s) in found_s {
        let compared = &answer["fit"][what];
        assert!((number(&compared["measured_s"]) / measured_s - 1.0).abs() < 1e-12, "{compared}");
        assert!(number(&compared["predicted_s"]) > 0.0 && measured_s > 0.0, "{compared}");
        assert!((found_s / measured_s - 1.0).abs() < 0.02, "{what}: {found_s} s of {measured_s}");
    }
}

#[test]
fn a_trace_is_replayed_counted_and_exported() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (words, trace, exported) = (path("words"), path("trace.jsonl"), path("mooncake.jsonl"));
    std::fs::write(&words, WORDS).expect("written");
    std::fs::write(&trace, TRACE).expect("written");
    let server = Server::start(&[]);
    let url = format!("http://{}", server.address);
    let base = ["load", "--url", &url, "--words", &words, "--trace", &trace];
    let found = json(&[&base[..], &["--speed", "10x", "--json"]].concat());
    let (shape, window) = (&found["requests"]["trace"], &found["windows"][0]);
    assert_eq!(
        (&shape["format"], &shape["requests"], &shape["unordered"]),
        (&"tributary".into(), &4.into(), &1.into())
    );
    assert_eq!((&window["answered"], &window["speed"]), (&4.into(), &10.0.into()), "{window:#}");
    assert_eq!(number(&window["mean_generated_tokens"]), f64::from(3 + 4 + 5 + 2) / 4.0, "as long as in the trace");
    assert!(number(&window["seconds"]) > 0.4, "a tenth of the four seconds between first and last: {window:#}");
    fits(&trace, &server.get("/metrics").body, &folder.path().join("metrics"));
    // The second request has both documents of the first; after a system text they are others.
    assert_eq!(number(&window["mean_cached_tokens"]), f64::from(2 * 24) / 4.0, "{window:#}");

    let offline = |more: &[&str]| {
        let run = tributary(&[&["load", "--trace", &trace], more].concat());
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
        String::from_utf8(run.stdout).expect("text")
    };
    let counted = offline(&["--count-reuse", "--cache-tokens", "24,1k"]);
    assert!(counted.contains("# 4 requests, 267 tokens in prompts, 120 of them in documents"), "{counted}");
    let row = |name: &str| counted.lines().find(|line| line.contains(name)).expect("a row").to_owned();
    assert!(
        row("--chunk-prefix head").contains("60.0 %") && row("--chunk-prefix system").contains("40.0 %"),
        "{counted}"
    );
    // Room for one document: the first of two that come together stays.
    let (small, large) = (row("  24 "), row("  1024 "));
    assert!(small.contains("20.0 %") && small.contains("40.0 %"), "{counted}");
    assert!(large.contains("40.0 %") && large.contains("60.0 %"), "{counted}");
    let told = offline(&["--export", &exported, "--window", "0..1.5", "--scale", "10"]);
    assert_eq!(told, format!("2 requests written to {exported}\n"));
    let lines = std::fs::read_to_string(&exported).expect("written");
    assert!(
        lines.starts_with("{\"timestamp\":0,\"input_length\":570,\"output_length\":40,\"hash_ids\":[0,1]}\n"),
        "{lines}"
    );
    server.ends_well();
}

#[test]
fn what_a_full_service_turns_away_is_counted() {
    let server = Server::start(&["--max-waiting", "1", "--max-running", "1"]);
    let url = format!("http://{}", server.address);
    let result = json(&["load", "--url", &url, "--rate", "2000", "--requests", "60", "--max-tokens", "40", "--json"]);
    let window = &result["windows"][0];
    let count = |name: &str| window["outcomes"][name].as_u64().unwrap_or(0);
    assert!(count("answered") >= 1 && count("http_429") >= 30, "{window:#}");
    assert_eq!(count("answered") + count("http_429"), 60, "{window:#}");
    assert_eq!(window["growth"]["grows"], true, "{window:#}");
    server.ends_well();
}

#[test]
fn what_is_wrong_is_a_line_and_a_code() {
    let refused = |arguments: &[&str], code: i32, begin: &str| {
        let output = tributary(&[&["load"], arguments].concat());
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((output.status.code(), errors.lines().count()), (Some(code), 1), "{arguments:?}: {errors}");
        assert!(errors.contains(begin), "{arguments:?}: {errors}");
    };
    refused(&["--url", "https://127.0.0.1:1"], 64, "--url https://127.0.0.1:1: there is no TLS here; let a proxy");
    refused(&["--rate", "1", "--clients", "2"], 64, "--rate and --clients: a loop is open or closed, not both");
    refused(&["--documents-per-request", "65"], 64, "--documents-per-request 65: there are 64 documents");
    refused(&["--url", "http://127.0.0.1:1"], 78, "http://127.0.0.1:1/v1/models: cannot connect");
    refused(&["--api-key-file", "/nowhere"], 64, "cannot read /nowhere");
    refused(&["--csv", "/nowhere/a.csv"], 74, "cannot write /nowhere/a.csv");
    refused(&["--colour", "red"], 64, "--colour");
}
