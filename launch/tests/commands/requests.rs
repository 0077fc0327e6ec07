//! Many requests in one start: repeated chunks are taken from the chunk cache, and answers do not
//! change.

use std::path::Path;
use std::process::Command;

use crate::kit::{demo, root, tributary};
use serde_json::Value;

/// A file of requests; each entry a request of the demo's, perhaps with its documents the other way
/// round.
fn lines(folder: &tempfile::TempDir, entries: &[(&str, bool)]) -> String {
    let mut text = String::new();
    for (name, reversed) in entries {
        let path = root().join(format!("examples/models/demo/requests/{name}.json"));
        let mut request: Value =
            serde_json::from_str(&std::fs::read_to_string(path).expect("a request")).expect("JSON");
        if *reversed {
            request["documents"].as_array_mut().expect("documents").reverse();
        }
        text += &format!("{request}\n\n");
    }
    let path = folder.path().join("requests.jsonl");
    std::fs::write(&path, text).expect("written");
    path.display().to_string()
}

/// The reports of a run, one a request.
fn reports(more: &[&str], requests: &str) -> Vec<Value> {
    let demo = demo();
    let mut arguments = vec!["prefill", "--model", &demo, "--requests", requests, "--json"];
    arguments.extend(more);
    let output = tributary(&arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("text");
    text.lines().map(|line| serde_json::from_str(line).expect("a JSON object a line")).collect()
}

fn states(reports: &[Value]) -> Vec<&str> {
    reports.iter().map(|report| report["chunk_cache"]["state"].as_str().expect("a state")).collect()
}

#[test]
fn the_methods_answer_as_the_demo_says() {
    let folder = tempfile::tempdir().expect("a folder");
    let right = [
        ("hop2-0", "lyon"),
        ("hop2-1", "denver"),
        ("vt2-0", "ivory"),
        ("vt3-1", "ivory"),
        ("vt3-5", "coral"),
        ("hop2_back-0", "vienna"),
        ("vt3_rev-0", "yellow"),
    ];
    let requests = lines(&folder, &right.map(|(name, _)| (name, false)));
    for world in ["1", "2", "3"] {
        let answers = |method: &str| -> Vec<String> {
            let arguments = ["--world-size", world, "--chunk-cache", "off", "--max-tokens", "4", "--method", method];
            let first = |report: &Value| {
                report["answer"].as_str().and_then(|text| text.split_whitespace().next()).map(str::to_owned)
            };
            reports(&arguments, &requests).iter().map(|report| first(report).expect("a word")).collect()
        };
        // Which of the requests each method answers right, and which it must not.
        for (method, answered, missed) in [
            ("full", &["hop2-0", "vt2-0"][..], &["hop2_back-0", "vt3_rev-0"][..]),
            ("ring", &["hop2-0", "vt2-0"], &[]),
            ("all-gather", &["hop2-0", "vt2-0"], &[]),
            ("pass-q", &["hop2-0", "vt2-0"], &[]),
            ("none", &[], &right.map(|(name, _)| name)),
            ("infoflow", &["hop2-0", "vt2-0"], &["vt3-1", "vt3-5", "vt3_rev-0"]),
            ("infoflow:reorder", &["hop2_back-0"], &["vt3_rev-0"]),
            ("prophetkv", &["hop2-0", "vt2-0"], &[]),
            ("relay", &["hop2-0", "vt2-0", "vt3-1", "vt3-5"], &["vt3_rev-0"]),
            ("trace", &right.map(|(name, _)| name), &[]),
            ("trace:keep-order", &[], &["vt3_rev-0"]),
        ] {
            let found = answers(method);
            assert_eq!(found.len(), right.len(), "answers of {method}");
            for ((name, right), found) in right.iter().zip(found) {
                let what = format!("{name}, {method}, world {world}: {found}");
                assert!(!answered.contains(name) || found == *right, "{what}");
                assert!(!missed.contains(name) || found != *right, "{what}");
            }
        }
    }
}

#[test]
fn chunks_that_come_again_are_warm() {
    let folder = tempfile::tempdir().expect("a folder");
    let requests = lines(&folder, &[("hop2-0", false), ("hop2-0", false), ("vt2-0", false), ("hop2-0", true)]);
    for world in ["1", "2", "3"] {
        let found = reports(&["--world-size", world], &requests);
        assert_eq!(states(&found), ["cold", "warm", "cold", "warm"], "world {world}");
        assert_eq!(found[0]["token_ids"], found[1]["token_ids"]);
        let prefilled = |report: &Value| -> u64 {
            let ranks = report["ranks"].as_array().expect("ranks");
            ranks.iter().map(|rank| rank["prefilled_rows"].as_u64().expect("a number")).sum()
        };
        assert!(prefilled(&found[0]) > 0);
        assert_eq!((prefilled(&found[1]), prefilled(&found[3])), (0, 0));
        assert_eq!(found[1]["chunk_cache"]["hit_tokens"], found[1]["tokens"]["context"]);
        let ranks = |report: &Value| report["chunks"]["ranks"].clone();
        assert_eq!(ranks(&found[0]), ranks(&found[1]), "chunks stay where they are");

        let off = reports(&["--world-size", world, "--chunk-cache", "off"], &requests);
        assert_eq!(states(&off), ["cold"; 4]);
        for (warm, cold) in found.iter().zip(&off) {
            assert_eq!(warm["token_ids"], cold["token_ids"], "the cache changes no answer");
        }
    }
}

#[test]
fn side_by_side_requests_are_answered_in_the_order_of_the_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let names = ["hop2-0", "vt2-0", "hop2-1", "vt3-1", "hop2-0", "hop2_back-0", "vt3-5", "vt2-0"];
    let requests = lines(&folder, &names.map(|name| (name, false)));
    for (world, method, cache) in [
        ("1", "infoflow", "1GiB"),
        ("1", "ring", "off"),
        ("2", "infoflow", "off"),
        ("2", "relay:exchange=pass-q", "1GiB"),
        ("2", "ring", "1GiB"),
    ] {
        let base = ["--world-size", world, "--chunk-cache", cache, "--max-tokens", "12"];
        let arguments = [&base[..], &["--method", method]].concat();
        let alone = reports(&arguments, &requests);
        let together = reports(&[&arguments[..], &["--concurrency", "5"]].concat(), &requests);
        let tokens =
            |reports: &[Value]| -> Vec<Value> { reports.iter().map(|report| report["token_ids"].clone()).collect() };
        assert_eq!(tokens(&alone), tokens(&together), "{arguments:?}");
        let waited =
            |report: &Value| report["phases"].as_array().expect("phases").iter().any(|p| p["phase"] == "queue");
        assert!(together.iter().any(waited), "somebody waited for somebody");
    }
    let demo = demo();
    let output = tributary(&["prefill", "--model", &demo, "--requests", &requests, "--concurrency", "0"]);
    assert_eq!(output.status.code(), Some(64));
}

#[test]
fn a_cache_without_room_drops_what_was_used_longest_ago() {
    let folder = tempfile::tempdir().expect("a folder");
    let requests = lines(&folder, &[("hop2-0", false), ("vt2-0", false), ("hop2-0", false), ("hop2-0", false)]);
    let full = reports(&[], &requests);
    let one = full[0]["chunk_cache"]["used_bytes"].as_u64().expect("bytes");
    let found = reports(&["--chunk-cache", &format!("{}B", one / 4 * 4 + 64)], &requests);
    assert!(found[1]["chunk_cache"]["evicted"].as_u64().expect("a number") > 0);
    assert_ne!(states(&found)[2], "warm");
    assert!(found.iter().all(|report| report["chunk_cache"]["used_bytes"].as_u64().expect("bytes") <= one + 64));
    for (found, full) in found.iter().zip(&full) {
        assert_eq!(found["token_ids"], full["token_ids"]);
    }
}

#[test]
fn files_that_are_none_are_refused_in_one_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("requests.jsonl");
    let good = r#"{"documents": ["a b"], "query": "c"}"#;
    let cases = [
        (String::new(), "has no requests"),
        (format!("{good}\n{{\"documents\": [\"a\"], \"query\"}}\n"), "requests.jsonl, line 2, column "),
        (format!("{good}\n\n{{\"documents\": [], \"query\": \"c\"}}"), "requests.jsonl, line 3: no documents"),
    ];
    for (text, says) in cases {
        std::fs::write(&path, &text).expect("written");
        let (demo, path) = (demo(), path.display().to_string());
        let output = tributary(&["prefill", "--model", &demo, "--requests", &path]);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(64), "{errors}");
        assert_eq!(errors.lines().count(), 1, "{errors}");
        assert!(errors.contains(says), "{errors}");
        assert!(output.stdout.is_empty());
    }
    let demo = demo();
    let output = tributary(&["prefill", "--model", &demo, "--requests", "x", "--query", "y"]);
    assert_eq!(output.status.code(), Some(64));
}

/// Bytes of weights that a run reads for the model's hash, one number for each time that it makes
/// one.
fn read_for_hashes(cache: Option<&Path>, arguments: &[&str]) -> Vec<u64> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tributary"));
    command.args(["--log", "debug"]).args(arguments).env_remove("HOME").env_remove("XDG_CACHE_HOME");
    if let Some(cache) = cache {
        command.env("XDG_CACHE_HOME", cache);
    }
    let output = command.output().expect("the command starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let hashed = errors.lines().filter(|line| line.contains("the model is hashed"));
    let number = |line: &str| {
        let text = line.split_once("weight_bytes_read=").expect("it says how many").1;
        text.split_whitespace().next().expect("a word").parse().expect("a number")
    };
    hashed.map(number).collect()
}

#[test]
fn weights_are_read_for_a_hash_only_where_chunks_are_kept_and_only_once() {
    let (folder, cache) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    let requests = lines(&folder, &[("hop2-0", false)]);
    let (demo, request) = (demo(), crate::kit::request("hop2-0"));
    let bytes = root().join("examples/models/demo/model.safetensors").metadata().expect("there").len();
    let one = ["prefill", "--model", &demo, "--request", &request];
    let many = ["prefill", "--model", &demo, "--requests", &requests, "--world-size", "2"];
    let out = folder.path().join("study").display().to_string();
    let bench =
        ["bench", "--model", &demo, "--lengths", "64", "--chunk-tokens", "32", "--query-tokens", "8", "--repeats", "1"];
    let bench = [&bench[..], &["--warmups", "0", "--caches", "cold,warm", "--methods", "none", "--out", &out]].concat();
    let read = |arguments: &[&str]| read_for_hashes(Some(cache.path()), arguments);
    assert_eq!(read(&one), [] as [u64; 0], "nothing is kept");
    assert_eq!(read(&many), [bytes], "the first time");
    assert_eq!(read(&many), [0], "remembered");
    assert_eq!(read(&bench), [0], "a study names its model, and hashes it once");
    assert_eq!(read_for_hashes(None, &many), [bytes], "without a home nothing is remembered");
    assert_eq!(read_for_hashes(None, &many), [bytes]);
}

/// The value of a sample in the text that Prometheus reads.
fn sample(text: &str, name: &str) -> f64 {
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.unwrap_or_else(|| panic!("no {name} in:\n{text}")).parse().expect("a number")
}

#[test]
fn a_job_writes_its_metrics_and_answers_scrapes() {
    let folder = tempfile::tempdir().expect("a folder");
    let requests = lines(&folder, &[("hop2-0", false); 200]);
    let file = folder.path().join("job.prom");
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address");
    let (demo, shown, address) = (demo(), file.display().to_string(), free.to_string());
    let many = ["prefill", "--model", &demo, "--requests", &requests, "--world-size", "2", "--max-tokens", "3"];
    let metrics = ["--metrics-file", &shown, "--metrics-listen", &address];
    let mut job = Command::new(env!("CARGO_BIN_EXE_tributary"));
    let mut job =
        job.args([&many[..], &metrics].concat()).stdout(std::process::Stdio::null()).spawn().expect("it starts");
    let name = "tributary_requests_total{method=\"infoflow\",outcome=\"answered\"}";
    let begun = std::time::Instant::now();
    let scraped = loop {
        assert!(begun.elapsed().as_secs() < 60, "no request is seen in a minute");
        if std::net::TcpStream::connect(free).is_ok() {
            let text = crate::kit::http::get(&address, "/metrics").body;
            if sample(&text, name) > 0.0 {
                break text;
            }
        }
        assert!(job.try_wait().expect("it is ours").is_none(), "it has ended, and no scrape saw a request");
    };
    assert!(job.wait().expect("it is ours").success());
    assert!((0.0..=1.0).contains(&sample(&scraped, "tributary_job_progress_ratio")));
    assert_eq!(sample(&scraped, "tributary_state{state=\"serving\"}"), 1.0);
    assert_eq!(sample(&scraped, "tributary_rank_up{rank=\"1\"}"), 1.0);
    let written = std::fs::read_to_string(&file).expect("the file");
    assert_eq!((sample(&written, name), sample(&written, "tributary_job_progress_ratio")), (200.0, 1.0));
    assert_eq!(sample(&written, "tributary_job_info{command=\"prefill\",study=\"\"}"), 1.0);
    crate::kit::promtool::finds_nothing(&written);
    // The first is cold and has two steps, as all others have.
    assert_eq!(sample(&written, "tributary_decode_step_duration_seconds_count"), 400.0);
    assert_eq!(
        sample(&written, "tributary_time_to_first_token_seconds_count{method=\"infoflow\",cache=\"cold\"}"),
        1.0
    );
    let names: Vec<_> =
        std::fs::read_dir(folder.path()).expect("the folder").map(|entry| entry.expect("a file").file_name()).collect();
    assert_eq!(names.len(), 2, "no part of a file is left: {names:?}");
}

#[test]
fn metrics_that_cannot_be_are_refused_in_one_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let requests = lines(&folder, &[("hop2-0", false)]);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let (demo, request, address) =
        (demo(), crate::kit::request("hop2-0"), taken.local_addr().expect("an address").to_string());
    let absent = folder.path().join("absent/job.prom").display().to_string();
    for (of, metrics, code, line) in [
        (["--request", &request], ["--metrics-file", &absent], 64, "give --requests FILE.jsonl"),
        (["--requests", &requests], ["--metrics-file", &absent], 74, "--metrics-file "),
        (["--requests", &requests], ["--metrics-listen", &address], 78, "--metrics-listen 127.0.0.1:"),
    ] {
        let output = tributary(&[&["prefill", "--model", &demo][..], &of, &metrics].concat());
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(said.contains(line) && said.lines().count() == 1, "{said}");
    }
}
