//! Chunks that are prefilled after the head of the template alone: they are warm after any system
//! text, while today's are not, and answers of exact methods stay the same.

use serde_json::{Value, json};

use crate::kit::http;
use crate::kit::server::{Server, body};
use crate::kit::{copy_of_demo, json as report, request, tributary};

const TEMPLATE: &str = "{{ bos_token }}passage {% for m in messages %}{{ m.content }} {% endfor %}answer :";

/// A model with a template, and its folder's path.
fn templated(template: &str) -> (tempfile::TempDir, String) {
    let folder = copy_of_demo();
    std::fs::write(folder.path().join("chat_template.jinja"), template).expect("a template");
    let path = folder.path().display().to_string();
    (folder, path)
}

/// A service of two ranks whose chunks follow that part of the prefix.
fn serving(model: &str, kind: &str) -> Server {
    let named = ["--model", model, "--served-model-name", "demo", "--world-size", "2"];
    Server::start(&[&named[..], &["--chunk-prefix", kind]].concat())
}

/// A chat with documents after a system text.
fn after(system: &str, method: &str) -> Value {
    let mut chat = body("hop2-0", 4);
    chat["messages"] = json!([{"role": "system", "content": system}, chat["messages"][0]]);
    chat["tributary"] = json!({"method": method});
    chat
}

const SYSTEMS: [&str; 2] = ["it rains slowly today .\n\nhugo stays with mary .", "mary stays in lyon ."];

#[test]
fn chunks_are_warm_after_another_system_text_where_they_follow_the_head() {
    let (_folder, model) = templated(TEMPLATE);
    let mut exact = Vec::new();
    for (kind, second) in [("system", "cold"), ("head", "warm"), ("3", "cold"), ("1000", "cold")] {
        let server = serving(&model, kind);
        assert_eq!(server.get("/v1/status").json()["chunk_prefix"], kind);
        let asked = SYSTEMS.map(|system| server.chat(&after(system, "infoflow")).json());
        let caches = asked.each_ref().map(|answer| answer["metrics"]["cache"].clone());
        assert_eq!(caches, ["cold", second], "{kind}");
        exact.push(SYSTEMS.map(|system| server.answer(&after(system, "full"))));
        let whole = SYSTEMS.map(|system| server.answer(&after(system, "infoflow:ratio=1")));
        assert_eq!(Some(&whole), exact.last(), "{kind}: everything is recomputed");
        server.ends_well();
    }
    assert!(exact.windows(2).all(|pair| pair[0] == pair[1]), "{exact:?}");
}

#[test]
fn chunks_ahead_of_use_need_no_system_text() {
    let (_folder, model) = templated(TEMPLATE);
    let server = serving(&model, "head");
    let documents = json!({"documents": body("hop2-0", 4)["documents"]});
    assert_eq!(http::post(&server.address, "/v1/chunks", &documents).status, 200);
    for system in SYSTEMS {
        assert_eq!(server.chat(&after(system, "relay")).json()["metrics"]["cache"], "warm", "{system}");
    }
    // A single document is prefilled after all that precedes it, and is exact.
    let mut one = after(SYSTEMS[0], "relay");
    one["documents"] = json!([one["documents"][0]]);
    let (first, again) = (server.chat(&one).json(), server.chat(&one).json());
    assert_eq!([&first["metrics"]["cache"], &again["metrics"]["cache"]], ["cold", "warm"]);
    assert_eq!((&first["metrics"]["exact"], &again["metrics"]["exact"]), (&json!(true), &json!(true)));
    one["tributary"] = json!({"method": "full"});
    assert_eq!(server.chat(&one).json()["choices"][0]["message"], first["choices"][0]["message"]);
    server.ends_well();
}

#[test]
fn a_report_says_what_chunks_follow_and_the_store_keeps_it() {
    let (folder, model) = templated(TEMPLATE);
    let (store, request) = (folder.path().join("store").display().to_string(), request("hop2-0"));
    let asked = |prefix: &str, kind: &str| {
        let words = ["prefill", "--model", &model, "--request", &request, "--method", "infoflow", "--json"];
        let more = ["--prefix", prefix, "--chunk-prefix", kind, "--chunk-store", &store, "--chunk-store-reserve", "1"];
        report(&[&words[..], &more].concat())
    };
    let [first, second] = SYSTEMS.map(|system| asked(system, "head"));
    for report in [&first, &second] {
        let (prefix, lead) = (report["tokens"]["prefix"].as_u64(), report["tokens"]["lead"].as_u64());
        assert_eq!(
            (prefix.zip(lead).map(|(all, lead)| all - lead), &report["settings"]["chunk_prefix"]),
            (Some(2), &json!("head"))
        );
        assert_eq!(report["settings"]["include_first_chunk"], false);
    }
    assert_eq!(first["chunk_cache"]["state"], "cold");
    assert_eq!(second["chunk_cache"]["state"], "warm");
    let today = asked(SYSTEMS[0], "system");
    assert_eq!((&today["tokens"]["lead"], &today["chunk_cache"]["state"]), (&json!(0), &json!("cold")));
}

#[test]
fn a_head_that_is_not_there_is_refused() {
    let (_folder, bare) = templated("{{ messages[-1].content }}");
    let request = request("hop2-0");
    for (model, more, exit_code) in [
        (bare.as_str(), &["--chunk-prefix", "head"][..], 64),
        (&bare, &["--chunk-prefix", "7"], 64),
        (&bare, &["--chunk-prefix", "system"], 0),
        (&bare, &["--template", "none", "--chunk-prefix", "head"], 0),
        (&bare, &["--template", "none", "--prefix", "none", "--chunk-prefix", "head"], 64),
        (&bare, &["--chunk-prefix", "heads"], 64),
    ] {
        let words = ["prefill", "--model", model, "--request", &request, "--max-tokens", "1"];
        let output = tributary(&[&words[..], more].concat());
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(exit_code), "{more:?}: {errors}");
        let named =
            errors.contains("--chunk-prefix") && (errors.contains("--chunk-prefix system") || more.contains(&"heads"));
        assert_eq!(named, exit_code == 64, "{more:?}: {errors}");
    }
}
