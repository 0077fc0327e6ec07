//! Axes of an evaluation: lengths, depths, sizes of chunks, and the rows that its methods select.

use serde_json::Value;

use crate::{data, demo, hops, json, lines, refused, run, suite};

#[test]
fn selections_of_layers_and_layouts_stand_beside_each_other() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().display().to_string();
    let methods = [
        "infoflow",
        "infoflow:layers=2..4",
        "infoflow:layers=0..1",
        "infoflow:layout=hl-tp",
        "relay",
        "random",
        "none",
    ];
    let asked = ["--tasks", "vt3,hop2_back", "--samples", "4", "--ratios", "0.05,0.15", "--out", &out, "--methods"];
    let (code, _, errors) = hops(&[&asked[..], &methods[..]].concat());
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    let report = json(&folder.path().join("report.json"));
    let all = report["overlaps"].as_array().expect("overlaps");
    assert_eq!(all.iter().map(|one| one["ratio"].as_f64().expect("a ratio")).collect::<Vec<_>>(), [0.05, 0.15]);
    for overlap in all {
        let names: Vec<&str> =
            overlap["methods"].as_array().expect("methods").iter().filter_map(Value::as_str).collect();
        assert_eq!(names, methods[..6], "who selects nothing is left out");
        let of = |one: &str, other: &str| {
            let at = |name| names.iter().position(|known| *known == name).expect("a method");
            overlap["jaccard"][at(one)][at(other)]["mean"].as_f64().expect("a mean")
        };
        // The demo model has five layers: 2..4 are those that infoflow takes.
        assert_eq!(of("infoflow", "infoflow:layers=2..4"), 1.0);
        let (layers, layout) = (of("infoflow", "infoflow:layers=0..1"), of("infoflow", "infoflow:layout=hl-tp"));
        let chance = of("random", "relay");
        assert!(layers < 1.0 && layout < 1.0 && layout > chance && chance < 0.2, "{layers} {layout} {chance}");
    }
    let answers = lines(folder.path());
    let selected = |answer: &Value| -> u64 {
        let ranges = answer["selected"].as_array().expect("ranges");
        ranges.iter().map(|range| range[1].as_u64().expect("an end") - range[0].as_u64().expect("a row")).sum()
    };
    assert!(answers.iter().all(|answer| selected(answer) == answer["selected_rows"].as_u64().expect("a number")));
    let page = std::fs::read_to_string(folder.path().join("quality.html")).expect("a page");
    assert!(page.contains("Shared rows at 0.15") && page.contains("<details><summary>Every pair"), "{page}");
}

#[test]
fn sizes_of_chunks_are_an_axis() {
    let (data, folder) = (data(), tempfile::tempdir().expect("a folder"));
    let (out, demo) = (folder.path().display().to_string(), demo());
    let given = data.path().display().to_string();
    let asked = |sizes: &str| {
        let fixed =
            ["quality", "--suite", "niah", "--model", &demo, "--data", &given, "--methods", "none", "--lengths", "300"];
        run(&[&fixed[..], &["--depths", "0,100", "--samples", "1", "--out", &out, "--resume", "--chunk-tokens", sizes]]
            .concat())
    };
    let first = ["--depths", "0,100", "--lengths", "300", "--samples", "1", "--out", &out, "--chunk-tokens", "64,100"];
    let (code, table, errors) = run(&[
        &["quality", "--suite", "niah", "--model", &demo, "--data", &given, "--methods", "none"][..],
        &first[..],
    ]
    .concat());
    assert_eq!(code, Some(0), "{errors}");
    assert!(
        table.contains("# in chunks of 64 tokens") && table.contains("# all tasks, by tokens of a chunk"),
        "{table}"
    );
    let (code, table, errors) = asked("64,100,128");
    assert!(
        code == Some(0) && table.contains("# 12 answers to 6 requests; 8 of them were there before"),
        "{table}{errors}"
    );
    let report = json(&folder.path().join("report.json"));
    assert_eq!(report["design"]["chunk_sizes"], serde_json::json!([64, 100, 128]));
    let points = report["points"].as_array().expect("points");
    let all = points.iter().filter(|point| point["task"] == "all" && point["chunk_tokens"] == 128);
    assert_eq!(all.map(|point| point["requests"].as_u64()).collect::<Vec<_>>(), [Some(2); 2], "of each method");
    // The same texts, cut otherwise: full prefill answers them alike.
    let answers = lines(folder.path());
    let of = |size: u64, depth: u64| {
        let is =
            |answer: &&Value| answer["method"] == "full" && answer["chunk_tokens"] == size && answer["depth"] == depth;
        answers.iter().find(is).expect("an answer")
    };
    assert_eq!((&of(64, 0)["references"], &of(64, 0)["answer"]), (&of(128, 0)["references"], &of(128, 0)["answer"]));
    assert_ne!(of(64, 0)["prompt_hash"], of(128, 0)["prompt_hash"]);
    let page = std::fs::read_to_string(folder.path().join("quality.html")).expect("a page");
    assert!(page.contains("Quality and chunks") && page.contains("none in chunks of 128"), "{page}");
    refused(asked("64"), &["--resume: chunk_tokens was null and is 64"]);
    refused(asked("64,0"), &["`0`: at least 1 token"]);

    let hops_out = folder.path().join("hops").display().to_string();
    let (code, table, errors) = hops(&[
        "--tasks",
        "single",
        "--samples",
        "2",
        "--methods",
        "none",
        "--document-tokens",
        "32,64",
        "--out",
        &hops_out,
    ]);
    assert!(code == Some(0) && table.contains("# in chunks of 32 tokens"), "{table}{errors}");
}

#[test]
fn ruler_is_asked_at_lengths_and_goes_on_after_an_interruption() {
    let (data, folder) = (data(), tempfile::tempdir().expect("a folder"));
    let out = folder.path().display().to_string();
    let asked = ["--tasks", "niah_single_1,vt,qa_1", "--lengths", "600,900", "--samples", "1", "--out", &out];
    let (code, table, errors) = suite("ruler", data.path(), &asked);
    assert_eq!(code, Some(0), "{errors}");
    assert!(table.contains("# at 600 tokens") && table.contains("# all tasks, by length"), "{table}");
    assert!(table.contains("# qa_1: XQuAD (English)"), "{table}");
    let report = json(&folder.path().join("report.json"));
    assert_eq!(report["design"]["lengths"], serde_json::json!([600, 900]));
    // Of two methods: six cells, two lengths, all of them.
    assert_eq!(report["points"].as_array().map(Vec::len), Some(2 * (6 + 2 + 1)));
    let all = lines(folder.path());
    assert_eq!(all.len(), 12);
    for answer in &all {
        let (context, length) = (answer["context_rows"].as_u64(), answer["length"].as_u64());
        assert!(context > Some(100) && context < length && answer["depth"].is_null(), "{answer}");
        assert!(answer["references"].as_array().is_some_and(|references| !references.is_empty()), "{answer}");
    }
    let chain = all.iter().find(|answer| answer["task"] == "vt").expect("an answer");
    assert_eq!(chain["references"].as_array().map(Vec::len), Some(5));
    let file = folder.path().join("answers.jsonl");
    let text = std::fs::read_to_string(&file).expect("answers");
    std::fs::write(&file, &text[..text.trim_end().rfind('\n').expect("lines") + 9]).expect("written");
    refused(
        suite("ruler", data.path(), &[&asked[..], &["--resume", "--seed", "7"]].concat()),
        &["seed was 0 and is 7"],
    );
    let (code, table, errors) = suite("ruler", data.path(), &[&asked[..], &["--resume"]].concat());
    assert!(code == Some(0) && table.contains("; 11 of them were there before"), "{table}{errors}");
}

#[test]
fn a_needle_is_looked_for_at_lengths_and_depths() {
    let (data, folder) = (data(), tempfile::tempdir().expect("a folder"));
    let out = folder.path().display().to_string();
    let asked = ["--lengths", "300,500", "--depths", "0,100", "--samples", "1", "--out", &out];
    let (code, table, errors) = suite("niah", data.path(), &asked);
    assert_eq!(code, Some(0), "{errors}");
    assert!(table.contains("depth [%]") && table.contains("# essays: paragraphs of XQuAD"), "{table}");
    let report = json(&folder.path().join("report.json"));
    let points = report["points"].as_array().expect("points");
    let of = |depth: u64| points.iter().filter(|point| point["depth"] == depth && point["task"] == "niah").count();
    assert_eq!((of(0), of(100), points.len()), (4, 4, 2 * (4 + 2 + 1)));
    let page = std::fs::read_to_string(folder.path().join("quality.html")).expect("a page");
    assert!(page.starts_with("<!DOCTYPE html>") && page.contains("mean score by length and depth"), "{page}");
}

#[test]
fn budgets_of_evictions_are_an_axis() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().display().to_string();
    let asked =
        ["--tasks", "single,hop2", "--samples", "3", "--methods", "none", "full:evict=random:keep=8", "--out", &out];
    let (code, text, errors) = hops(&[&asked[..], &["--evict", "snapkv,streamingllm", "--keep", "16,50%"]].concat());
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    let report = json(&folder.path().join("report.json"));
    let points = report["points"].as_array().expect("points");
    let of = |method: &str, task: &str| points.iter().find(|p| p["method"] == method && p["task"] == task);
    // Full prefill and none, each with two evictions of two budgets, and the method with its own
    // eviction.
    let methods: std::collections::BTreeSet<&str> =
        points.iter().filter_map(|point| point["method"].as_str()).collect();
    assert_eq!(methods.len(), 11, "{methods:?}");
    for (behind, evict) in [("full", "snapkv"), ("full", "streamingllm"), ("none", "snapkv"), ("none", "streamingllm")]
    {
        let all_kept = of(behind, "all").expect("the method without it")["kept_rows"].as_f64().expect("rows");
        for (keep, share) in [("16", 16.0 / all_kept), ("50%", 0.5)] {
            let method = format!("{behind}:evict={evict}:keep={keep}");
            let point = of(&method, "single").expect("a point");
            let (eviction, kept) = (&point["eviction"], point["kept_rows"].as_f64().expect("rows"));
            assert!((kept / all_kept - share).abs() < 0.01, "{method} {kept} of {all_kept}");
            assert_eq!((eviction["behind"].as_str(), eviction["keep"].as_str()), (Some(behind), Some(keep)));
            assert!(
                eviction["formula"]["memory_traffic_bytes"].as_u64() > Some(0) && eviction["difference"].is_object()
            );
            assert!(eviction["median_bytes_kept"].as_u64() < eviction["median_bytes_before"].as_u64());
            // The first token precedes eviction, and an answer of one token has no later one.
            let hop = of(&method, "hop2").expect("a point");
            assert_eq!(hop["score"], of(behind, "hop2").expect("a point")["score"], "{method}");
        }
    }
    let page = std::fs::read_to_string(folder.path().join("quality.html")).expect("a page");
    assert!(page.contains("Quality and kept rows") && page.contains("What decoding keeps"));
    assert!(text.contains("snapkv 50%") && text.contains("# kept: rows of the prompt"), "{text}");
    let refused = hops(&["--tasks", "single", "--samples", "1", "--evict", "snapkv", "--out", &out]);
    assert_eq!(refused.0, Some(64), "{}", refused.2);
}
