//! `tributary plan`: predictions without a machine, a tokenizer or weights; impossible values are
//! refused in one line.

use std::path::Path;

use crate::kit::{json, root, tributary};
use serde_json::Value;

const BASE: [&str; 5] = ["plan", "--model", "qwen3-14b", "--profile", "h100x4"];

fn with<'a>(arguments: &[&'a str]) -> Vec<&'a str> {
    [&BASE, arguments].concat()
}

fn text(arguments: &[&str]) -> String {
    let output = tributary(arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.is_empty(), "{arguments:?}: {errors}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

fn refused(arguments: &[&str], says: &[&str]) {
    let output = tributary(arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(64), "{arguments:?}: {errors}");
    assert_eq!(errors.lines().count(), 1, "{arguments:?}: {errors}");
    for part in says {
        assert!(errors.contains(part), "{arguments:?}: `{part}` is not in: {errors}");
    }
    assert!(output.stdout.is_empty(), "{arguments:?}");
}

/// The only point with these values.
fn point<'a>(answer: &'a Value, tokens: usize, method: &str, hit_rate: f64) -> &'a Value {
    let points = answer["points"].as_array().expect("points");
    let is = |point: &&Value| {
        point["context_tokens"] == tokens && point["method"] == method && point["hit_rate"].as_f64() == Some(hit_rate)
    };
    let found: Vec<&Value> = points.iter().filter(is).collect();
    assert_eq!(found.len(), 1, "{tokens} {method} {hit_rate}");
    found[0]
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

#[test]
fn every_method_and_hit_rate_has_its_prediction_and_everything_is_labelled() {
    let arguments = with(&["--tokens", "8k..128k", "--hit-rate", "0,0.5,1", "--json"]);
    let answer = json(&arguments);
    assert_eq!(answer["predicted"], true);
    assert_eq!(answer["profile"]["measured_here"], false);
    assert_eq!(answer["world"], 4);
    assert_eq!(answer["points"].as_array().map(Vec::len), Some(5 * (3 + 3 * 3)));
    for point in answer["points"].as_array().expect("points") {
        let sum: f64 = point["phases"].as_array().expect("phases").iter().map(|phase| number(&phase["ms"])).sum();
        assert!((sum / number(&point["ttft_ms"]) - 1.0).abs() < 1e-9, "phases add up: {point}");
        assert!(number(&point["exposed_ms"]) < number(&point["ttft_ms"]));
    }
    let ttft = |tokens, method, hit_rate| number(&point(&answer, tokens, method, hit_rate)["ttft_ms"]);
    for tokens in [16_384, 32_768, 65_536] {
        let [cold, half, warm] = [0.0, 0.5, 1.0].map(|rate| ttft(tokens, "infoflow", rate));
        assert!(cold > half && half > warm, "{tokens}: {cold} {half} {warm}");
        assert!(ttft(tokens, "full", 0.0) > ttft(tokens, "all-gather", 0.0));
        assert_eq!(ttft(tokens, "full", 0.0), ttft(tokens, "prefix-cache", 0.0), "nothing is cached");
        let [half, warm] = [0.5, 1.0].map(|rate| ttft(tokens, "prefix-cache", rate));
        assert!(ttft(tokens, "full", 0.0) > half && half > warm, "{tokens}: {half} {warm}");
        assert!(ttft(tokens, "all-gather", 0.0) > ttft(tokens, "ring", 0.0));
        assert!(ttft(tokens, "relay", 0.0) > cold, "relay does more");
    }

    let shown = text(&with(&["--tokens", "8k..128k", "--hit-rate", "0,0.5,1"]));
    for part in
        ["predicted TTFT", "not measured here", "infoflow cold", "infoflow 50%", "infoflow warm", "predicted faster"]
    {
        assert!(shown.contains(part), "`{part}` is not in:\n{shown}");
    }
    assert!(shown.contains("40960 positions"), "more than the model was made for is allowed, and told:\n{shown}");
    assert!(!text(&with(&["--tokens", "8k"])).contains("positions"), "nothing to tell");
}

#[test]
fn a_point_that_does_not_fit_is_marked_with_both_numbers() {
    let arguments = with(&["--tokens", "8k,1m", "--methods", "ring", "infoflow"]);
    let answer = json(&[&arguments[..], &["--json"]].concat());
    let (small, large) = (point(&answer, 8192, "ring", 0.0), point(&answer, 1 << 20, "ring", 0.0));
    assert_eq!((&small["fits"], &large["fits"]), (&Value::Bool(true), &Value::Bool(false)));
    let needed = large["rank_memory_bytes"].as_array().expect("ranks").iter().map(number).fold(0.0, f64::max);
    assert!(needed > number(&large["rank_has_bytes"]));
    let both = format!("{:.1}! of 80.0", needed / 1e9);
    assert!(text(&arguments).contains(&both), "{both}");
}

#[test]
fn a_crossover_is_the_length_at_which_the_faster_method_changes() {
    let answer = json(&with(&["--tokens", "8k", "--methods", "ring,infoflow", "--hit-rate", "0", "--json"]));
    let found = &answer["crossovers"][0];
    let tokens = found["wins_from_tokens"].as_u64().expect("a length");
    assert_eq!(found["wins_at_every_length"], false);
    for (tokens, wins) in [(tokens, true), (tokens - 8192, false)] {
        let list = tokens.to_string();
        let answer = json(&with(&["--tokens", &list, "--methods", "ring,infoflow", "--hit-rate", "0", "--json"]));
        let ttft = |method| number(&point(&answer, tokens as usize, method, 0.0)["ttft_ms"]);
        assert_eq!(ttft("infoflow") < ttft("ring"), wins, "{tokens} tokens");
    }
    let nothing = text(&with(&["--tokens", "8k", "--methods", "infoflow"]));
    assert!(nothing.contains("no exact method"), "{nothing}");
}

#[test]
fn a_folder_needs_a_config_only() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = serde_json::json!({
        "architectures": ["Qwen3ForCausalLM"], "hidden_size": 5120, "intermediate_size": 17408,
        "num_hidden_layers": 40, "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128,
        "vocab_size": 151_936, "max_position_embeddings": 40960, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
        "tie_word_embeddings": false, "hidden_act": "silu",
    });
    std::fs::write(folder.path().join("config.json"), config.to_string()).expect("a config");
    let path = folder.path().display().to_string();
    let request = ["--profile", "h200x8", "--tokens", "32k", "--json"];
    let from_folder = json(&[&["plan", "--model", path.as_str()], &request[..]].concat());
    let by_name = json(&[&["plan", "--model", "qwen3-14b"], &request[..]].concat());
    assert_eq!(from_folder["points"], by_name["points"]);
    let narrow = json(&[&["plan", "--model", "qwen3-14b", "--dtype", "f32"], &request[..]].concat());
    let bytes = |answer: &Value| point(answer, 32_768, "ring", 0.0)["received_bytes"][0].as_u64().expect("bytes");
    assert_eq!(bytes(&narrow), 2 * bytes(&by_name));
}

#[test]
fn a_model_that_reads_for_a_method_is_named_and_counted() {
    let asked = with(&["--tokens", "8k", "--methods", "full", "cacheclip", "spec-prefill-like", "--hit-rate", "0"]);
    refused(&asked, &["--method cacheclip: needs --aux-model DIR"]);
    refused(
        &[&asked[..], &["--aux-model", "nothing"]].concat(),
        &["--aux-model nothing: neither a folder", "qwen3-14b"],
    );
    let small = root().join("examples/models/dummy-25m").display().to_string();
    let [none, small, large] = [None, Some(small.as_str()), Some("qwen3-14b")].map(|model| {
        let asked = if model.is_none() { with(&["--tokens", "8k", "--methods", "full"]) } else { asked.clone() };
        json(&[&asked[..], &model.map_or(vec![], |model| vec!["--aux-model", model]), &["--json"]].concat())
    });
    let ttft = |answer: &Value, method: &str| number(&point(answer, 8192, method, 0.0)["ttft_ms"]);
    assert_eq!(ttft(&none, "full"), ttft(&large, "full"));
    for method in ["cacheclip", "spec-prefill-like"] {
        assert!(ttft(&small, method) < ttft(&large, method), "{method}");
        let phases = point(&large, 8192, method, 0.0)["phases"].as_array().expect("phases");
        let auxiliary = phases.iter().find(|phase| phase["phase"] == "auxiliary").expect("its phase");
        assert!(number(&auxiliary["ms"]) > 0.0, "{method}");
    }
    // What it computes in the main model is 15 % of the rows.
    let phases = point(&small, 8192, "spec-prefill-like", 0.0)["phases"].as_array().expect("phases");
    let recompute = phases.iter().find(|phase| phase["phase"] == "recompute").expect("its phase");
    assert!(number(&recompute["ms"]) < 0.25 * ttft(&small, "full"), "{recompute}");
}

#[test]
fn options_reach_the_prediction() {
    let base = ["--tokens", "64k", "--methods", "infoflow", "--hit-rate", "0", "--json"];
    let ttft = |more: &[&str]| {
        let answer = json(&[&BASE, &base[..], more].concat());
        number(&point(&answer, 65_536, "infoflow", 0.0)["ttft_ms"])
    };
    let plain = ttft(&[]);
    assert!(ttft(&["--ratio", "0.3"]) > plain);
    assert!(ttft(&["--chunk-tokens", "rank"]) > plain, "longer chunks cost more attention");
    assert!(ttft(&["--world", "2"]) > plain);
    assert!(ttft(&["--query-tokens", "512"]) > plain);
    let by = |method: &str| {
        let answer = json(&with(&["--tokens", "64k", "--methods", method, "--hit-rate", "0", "--json"]));
        point(&answer, 65_536, method, 0.0).clone()
    };
    let exchange = |name: &str| by(&format!("infoflow:exchange={name}"));
    assert_eq!(exchange("pass-q")["exchange"], "pass-q");
    assert_ne!(exchange("pass-q")["received_bytes"], exchange("replicate")["received_bytes"]);
    assert_eq!(number(&by("infoflow:ratio=0.3")["ttft_ms"]), ttft(&["--ratio", "0.3"]));
    assert_eq!(by("infoflow:ratio=0.3")["ratio"], 0.3);
    let heads = |heads: &str| number(&by(&format!("all-gather:heads={heads}"))["ttft_ms"]);
    assert!(heads("1") > heads("8"), "a KV head at a time takes more messages");
    let both = ["--tokens", "64k", "--methods", "ring", "relay:ratio=0.1", "relay:ratio=0.4", "--hit-rate", "1"];
    let shown = text(&with(&both));
    assert!(shown.contains("relay:ratio=0.1 warm") && shown.contains("relay:ratio=0.4 warm: "), "{shown}");
}

#[test]
fn a_profile_may_be_a_file() {
    let shipped = root().join("planner/profiles/h100x4.toml");
    let folder = tempfile::tempdir().expect("a folder");
    let own = folder.path().join("mine.toml");
    let text = std::fs::read_to_string(&shipped).expect("a profile");
    let run = |profile: &Path| {
        let path = profile.display().to_string();
        let answer = json(&[
            "plan",
            "--model",
            "llama-3.1-8b",
            "--profile",
            &path,
            "--tokens",
            "32k",
            "--methods",
            "ring",
            "--json",
        ]);
        number(&point(&answer, 32_768, "ring", 0.0)["ttft_ms"])
    };
    std::fs::write(&own, text.replace("gemm_flops_per_s = 640e12", "gemm_flops_per_s = 320e12")).expect("written");
    assert!(run(&own) > 1.3 * run(&shipped), "half the rate");
    std::fs::write(&own, text.replace("ranks = 4", "ranks = four")).expect("written");
    let path = own.display().to_string();
    let line = 1 + text.lines().position(|line| line == "ranks = 4").expect("a line");
    refused(&["plan", "--model", "qwen3-14b", "--profile", &path], &["mine.toml", &format!("line {line}")]);
}

#[test]
fn what_cannot_be_is_refused() {
    refused(&["plan", "--model", "qwen3-14b", "--profile", "h900x4"], &["h900x4", "h100x4", "h100x8x2", "h200x8"]);
    refused(
        &["plan", "--model", "qwen9", "--profile", "h100x4"],
        &["qwen9", "qwen3-14b", "llama-3.1-8b", "config.json"],
    );
    refused(&["plan", "--model", "qwen3-14b"], &["--profile"]);
    refused(&with(&["--world", "8"]), &["--world 8", "h100x4 has 4 ranks"]);
    refused(&with(&["--world", "0"]), &["--world", "0"]);
    refused(&with(&["--tokens", "8q"]), &["8q", "8k"]);
    refused(&with(&["--tokens", "64k..8k"]), &["ends before it begins"]);
    refused(&with(&["--tokens", "100m"]), &["16m"]);
    refused(&with(&["--hit-rate", "0,1.5"]), &["--hit-rate 1.5", "from 0 to 1"]);
    refused(&with(&["--hit-rate", "NaN"]), &["--hit-rate NaN"]);
    refused(&with(&["--ratio", "2"]), &["--ratio 2", "from 0 to 1"]);
    refused(&with(&["--methods", "fastest"]), &["fastest", "infoflow"]);
    refused(&with(&["--methods", "ring,ring"]), &["ring", "twice"]);
    refused(&with(&["--methods", "ring:world=2"]), &["ring: world", "unknown option"]);
    refused(&with(&["--methods", "infoflow:ratio=2"]), &["2", "from 0 to 1"]);
    refused(&with(&["--chunk-tokens", "0"]), &["--chunk-tokens"]);
    refused(&with(&["--query-tokens", "0"]), &["--query-tokens"]);
    refused(&with(&["--profile", "no/such.toml"]), &["--profile"]);
    refused(&["plan", "--model", "qwen3-14b", "--profile", "no/such.toml"], &["no/such.toml"]);
}

/// Four requests a second of 16k tokens, four fifths of them warm, each within a second.
const LOAD: [&str; 8] = ["--slo-ttft", "1s", "--requests-per-second", "4", "--hit-rate", "0.8", "--tokens", "16k"];

/// Deployment of a method in an answer.
fn deployment<'a>(answer: &'a Value, method: &str) -> &'a Value {
    let points = answer["points"].as_array().expect("points");
    &points.iter().find(|point| point["method"] == method).expect("the method")["deployment"]
}

#[test]
fn a_load_is_answered_by_gpus_memory_and_what_breaks_first() {
    let base = with(&[&LOAD[..], &["--methods", "ring,infoflow"]].concat());
    let answer = json(&[&base[..], &["--json"]].concat());
    let (ring, infoflow) = (deployment(&answer, "ring"), deployment(&answer, "infoflow"));
    assert!(ring["gpus"].as_u64() > infoflow["gpus"].as_u64(), "warm chunks save GPUs: {ring} {infoflow}");
    assert_eq!((&ring["documents"], &answer["predicted"]), (&Value::Null, &Value::Bool(true)));
    for found in [ring, infoflow] {
        let of = |name: &str| number(&found[name]);
        assert_eq!(of("gpus"), of("groups") * of("world"));
        assert!(of("world") <= 4.0 && of("ttft_ms") <= of("mean_ttft_ms"), "{found}");
        assert!(of("mean_ttft_ms") < of("p95_ttft_ms") && of("p95_ttft_ms") <= 1000.0 + 1e-6, "{found}");
        let busy = of("ttft_ms") / 1e3 * 4.0 / of("groups");
        assert!((of("utilisation") / busy - 1.0).abs() < 1e-9, "{found}");
        let memory = |name: &str| number(&found["rank_memory"][name]);
        let parts = ["weight_bytes", "request_bytes", "overhead_bytes", "left_bytes"].map(memory);
        assert_eq!(parts.iter().sum::<f64>(), memory("has_bytes"), "{found}");
    }
    let documents = &infoflow["documents"];
    let bytes = number(&answer["document_bytes"]);
    assert_eq!(bytes, 2048.0 * 2.0 * 40.0 * 8.0 * 128.0 * 2.0, "keys and values of 2048 tokens");
    assert_eq!(number(&documents["left_over_bytes"]), bytes * number(&documents["left_over"]));
    assert_eq!(number(&documents["held"]).min(1000.0) + number(&documents["left_over"]), 1000.0);

    // Its forecast is the one that is printed without a load.
    let world = infoflow["world"].to_string();
    let plain = ["--tokens", "16k", "--hit-rate", "0.8", "--methods", "infoflow", "--world", &world, "--json"];
    assert_eq!(point(&json(&with(&plain)), 16_384, "infoflow", 0.8)["ttft_ms"], infoflow["ttft_ms"]);

    let shown = text(&base);
    let gpus = format!("16k tokens, smallest: {} GPU", infoflow["gpus"]);
    for part in
        [&gpus, "exact instead: ", "by ring (exact)", "breaks first: ", "requests a second", "not measured here"]
    {
        assert!(shown.contains(part), "`{part}` is not in:\n{shown}");
    }
    let with_prefixes = text(&with(&[&LOAD[..], &["--methods", "prefix-cache,infoflow"]].concat()));
    assert!(with_prefixes.contains("note: prefix-cache: timed cold"), "{with_prefixes}");
    assert!(!shown.contains("timed cold"), "{shown}");
}

#[test]
fn what_breaks_is_where_the_answer_changes() {
    let ask = |more: &[&str]| {
        let base =
            ["plan", "--model", "llama-3.1-8b", "--profile", "h100x8", "--methods", "infoflow", "--slo-ttft", "500ms"];
        json(&[&base[..], more, &["--json"]].concat())
    };
    let answer = ask(&["--requests-per-second", "3", "--hit-rate", "0.8", "--tokens", "64k", "--documents", "10"]);
    let breaks = answer["smallest"][0]["breaks"].as_array().expect("edges");
    let edge = |name: &str| breaks.iter().find(|edge| edge["changing"] == name).expect("an edge");
    let gpus = |answer: &Value| number(&deployment(answer, "infoflow")["gpus"]);
    let rates = ["holds", "breaks"].map(|side| {
        let rate = edge("requests-per-second")[side].to_string();
        gpus(&ask(&["--requests-per-second", &rate, "--hit-rate", "0.8", "--tokens", "64k", "--documents", "10"]))
    });
    let now = gpus(&answer);
    assert!(rates[0] <= now && rates[1] > now, "{now} GPUs; at the edge and beyond {rates:?}");
    let cold = edge("hit-rate");
    assert!(number(&cold["holds"]) > number(&cold["breaks"]), "a hit rate breaks by falling: {cold}");
    let near = breaks.iter().filter_map(|edge| Some((edge["breaks"].as_f64()? / edge["today"].as_f64()? - 1.0).abs()));
    assert!(near.is_sorted(), "the nearest first: {breaks:#?}");
}

#[test]
fn charts_are_written_by_their_endings() {
    let folder = tempfile::tempdir().expect("a folder");
    let [svg, html] = ["a.svg", "a.html"].map(|name| folder.path().join(name).display().to_string());
    text(&with(&[&LOAD[..], &["--methods", "ring,infoflow", "--chart", &svg, "--chart", &html]].concat()));
    let [svg, html] = [svg, html].map(|path| std::fs::read_to_string(path).expect("a file"));
    assert!(svg.starts_with("<svg class=\"chart\"") && svg.contains("requests a second"), "{svg}");
    assert!(html.starts_with("<!DOCTYPE html>") && html.contains("infoflow (approximate)"), "{html}");
}

#[test]
fn questions_about_a_load_that_cannot_be_are_refused() {
    let loaded = |more: &[&'static str]| with(&[&LOAD[..], more].concat());
    refused(&with(&["--slo-ttft", "1s"]), &["--requests-per-second"]);
    refused(&with(&["--requests-per-second", "4"]), &["--slo-ttft"]);
    refused(&with(&["--document-tokens", "2k"]), &["--slo-ttft"]);
    refused(&with(&["--documents", "5"]), &["--slo-ttft"]);
    refused(&with(&["--chart", "a.svg"]), &["--slo-ttft"]);
    refused(&loaded(&["--world", "2"]), &["--world", "--slo-ttft"]);
    refused(&loaded(&["--chunk-tokens", "2k"]), &["--chunk-tokens", "--slo-ttft"]);
    refused(&loaded(&["--chart", "a.png"]), &["a.png", ".svg or .html"]);
    refused(&loaded(&["--document-tokens", "0"]), &["--document-tokens"]);
    refused(&loaded(&["--documents", "-1"]), &["--documents"]);
    refused(&with(&["--slo-ttft", "soon", "--requests-per-second", "4"]), &["soon", "800ms"]);
    refused(&with(&["--slo-ttft", "1s", "--requests-per-second", "0"]), &["--requests-per-second"]);
    refused(&with(&["--slo-ttft", "1s", "--requests-per-second", "4", "--hit-rate", "2"]), &["--hit-rate 2"]);
    let [plan, model, name, profile, _] = BASE;
    refused(&[plan, model, name, profile, "h100x4,h100x8"], &["h100x4,h100x8", "--slo-ttft"]);
}

/// Requests of a trace: documents of which most come again, one request longer than the model.
fn trace(folder: &Path) -> String {
    let line = |number: usize| {
        let documents: Vec<_> =
            (0..3).map(|place| serde_json::json!({"id": (number + 2 * place) % 9, "tokens": 300})).collect();
        let system = serde_json::json!({"id": "s", "tokens": 40});
        let query = serde_json::json!({"tokens": if number == 7 { 200_000 } else { 30 }});
        let (timestamp, output) = (250 * number, 5 + number % 7);
        serde_json::json!({"timestamp": timestamp, "output_length": output, "system": system, "documents": documents, "query": query})
    };
    let path = folder.join("trace.jsonl");
    std::fs::write(&path, (0..160).map(|number| format!("{}\n", line(number))).collect::<String>()).expect("written");
    path.display().to_string()
}

#[test]
fn a_trace_is_replayed_on_each_number_of_gpus() {
    let folder = tempfile::tempdir().expect("a folder");
    let trace = trace(folder.path());
    let base = ["plan", "--model", "llama-3.1-8b", "--profile", "h100x8", "--trace", &trace];
    let ask = |more: &[&str]| json(&[&base[..], more, &["--json"]].concat());
    let answer = ask(&["--gpus", "8,16,64", "--method", "infoflow", "--speed", "20x"]);
    let rows = answer["rows"].as_array().expect("rows");
    let shapes: Vec<_> = rows.iter().map(|row| (row["gpus"].as_u64(), row["groups"].as_u64())).collect();
    assert_eq!(shapes, [(Some(8), Some(1)), (Some(16), Some(2)), (Some(64), Some(8))]);
    let p95: Vec<f64> = rows.iter().map(|row| number(&row["ttft_ms"]["p95"])).collect();
    assert!(p95.is_sorted_by(|fewer, more| more <= fewer), "{p95:?}");
    for row in rows {
        assert_eq!((row["answered"].as_u64(), row["too_long"].as_u64()), (Some(159), Some(1)), "{row}");
        let tokens = &row["tokens"];
        assert!(number(&tokens["memory"]) > 0.2 * number(&tokens["prompt"]), "{tokens}");
    }
    let again = ask(&["--gpus", "8,16,64", "--method", "infoflow", "--speed", "20x"]);
    assert_eq!(again["rows"], answer["rows"], "a replay is the same each time");
    // An exact method and a selective one where none is named; all ranks of the profile.
    let usual = ask(&["--requests", "5"]);
    let methods: Vec<_> = usual["rows"].as_array().expect("rows").iter().map(|row| row["method"].as_str()).collect();
    assert_eq!(methods, [Some("prefix-cache"), Some("infoflow")]);
    assert_eq!((usual["rows"][0]["gpus"].as_u64(), usual["replayed"]["requests"].as_u64()), (Some(8), Some(5)));
    let shown = text(&[&base[..], &["--gpus", "4", "--slo-ttft", "1s", "--method", "none"]].concat());
    for part in ["none on 4 GPUs: breaks first: ", "times as fast as real time", "not measured here"] {
        assert!(shown.contains(part), "`{part}` is not in:\n{shown}");
    }
}

#[test]
fn traces_that_cannot_be_replayed_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let (trace, empty) = (trace(folder.path()), folder.path().join("empty.jsonl").display().to_string());
    std::fs::write(&empty, "\n").expect("written");
    let replay = |more: &[&str], says: &[&str]| {
        refused(&[&BASE[..], &["--trace", &trace], more].concat(), says);
    };
    replay(&["--gpus", "6"], &["--gpus 6", "--world"]);
    replay(&["--world", "8"], &["--world 8", "h100x4"]);
    replay(&["--method", "nothing"], &["nothing"]);
    replay(&["--window", "1e6..2e6"], &["--window", "no request"]);
    replay(&["--speed", "0"], &["--speed 0"]);
    replay(&["--max-running", "0"], &["--max-running 0"]);
    replay(&["--policy", "shortest"], &["--policy shortest", "--max-age"]);
    replay(&["--tokens", "8k"], &["--tokens", "--trace"]);
    replay(&["--chunk-store-size", "1GiB"], &["--chunk-store-size", "no rates"]);
    refused(&[&BASE[..], &["--trace", &empty]].concat(), &["empty.jsonl", "no request"]);
    let metrics = folder.path().join("other.prom").display().to_string();
    std::fs::write(&metrics, "tributary_state{state=\"serving\"} 1\n").expect("written");
    replay(&["--measured", "no/such"], &["--measured no/such"]);
    replay(&["--measured", &metrics], &["--measured", "other.prom", "tributary_decode_step_duration_seconds_count"]);
    replay(&["--save-profile", "fitted.toml"], &["--measured"]);
    refused(&with(&["--measured", &metrics]), &["--trace"]);
    refused(&with(&["--gpus", "8"]), &["--trace"]);
    refused(&with(&["--speed", "2"]), &["--trace"]);
    refused(&with(&["--policy", "fifo"]), &["--trace"]);
}

#[test]
fn pictures_are_predicted_with_their_phase_and_refused_where_no_tower_is() {
    let vlm = ["plan", "--model", "qwen3-vl-8b", "--profile", "h100x4", "--tokens", "8k", "--hit-rate", "0,1"];
    let with_pictures = [&vlm[..], &["--images", "20x1024x1024"]].concat();
    let answer = json(&[&with_pictures[..], &["--json"]].concat());
    let pictures = &answer["pictures"];
    let told = ["count", "lines", "columns", "tokens"].map(|name| pictures[name].as_u64());
    assert_eq!(told, [Some(20), Some(32), Some(32), Some(20 * 1026)], "{pictures}");
    let vision = |answer: &Value, method: &str, hit_rate| {
        let phases = point(answer, 8192, method, hit_rate)["phases"].as_array().expect("phases");
        phases.iter().find(|phase| phase["phase"] == "vision").map_or(0.0, |phase| number(&phase["ms"]))
    };
    let cold = vision(&answer, "infoflow", 0.0);
    assert!(cold > 20.0 && vision(&answer, "infoflow", 1.0) < 0.2 * cold, "{cold} ms cold");
    assert!(vision(&answer, "ring", 0.0) > 20.0);
    assert!(answer["notes"].to_string().contains("left out, since they read no pictures: "), "{}", answer["notes"]);
    let texts = json(&[&vlm[..], &["--json"]].concat());
    assert_eq!((vision(&texts, "infoflow", 0.0), &texts["pictures"]), (0.0, &Value::Null));
    let shown = text(&with_pictures);
    let head = "0.6 B of them of its vision tower";
    assert!(shown.contains("  vision  ") && shown.contains(head), "{shown}");
    refused(&with(&["--images", "2x64x64"]), &["--images 2x64x64: model qwen3-14b reads no pictures"]);
    refused(&[&vlm[..], &["--images", "257x64x64"]].concat(), &["257 pictures; a request has 1 to 256"]);
    refused(&[&vlm[..], &["--images", "1x9000x20"]].concat(), &["--images 1x9000x20: ", "more than 200 times"]);
    let star = ["--images", "1x64x64", "--methods", "star"];
    refused(&[&vlm[..], &star].concat(), &["no pictures are read by star"]);
}
