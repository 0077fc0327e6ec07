//! `tributary prefill` on the demo model: its output, dumps and pages.

use crate::kit::{demo, json, request, tributary};
use candle_core::{DType, Device, safetensors};
use serde_json::Value;

fn prefill(name: &str, more: &[&str]) -> serde_json::Value {
    let (demo, request) = (demo(), request(name));
    let mut all = vec!["prefill", "--json", "--max-tokens", "4", "--model", &demo, "--request", &request];
    all.extend(more);
    json(&all)
}

#[test]
fn the_json_carries_settings_times_and_bytes() {
    let report =
        prefill("hop2-0", &["--world", "2", "--ratio", "0.2", "--method", "infoflow:exchange=pass-q:score=mass"]);
    let settings = &report["settings"];
    for (key, expected) in [("method", "infoflow"), ("exchange", "pass-q"), ("dtype", "f32")] {
        assert_eq!(settings[key], expected, "{key}");
    }
    assert_eq!(settings["options"], serde_json::json!({"layers": "2..4", "layout": "global", "score": "mass"}));
    assert_eq!(settings["world"], 2);
    assert_eq!(settings["ratio"], 0.2);
    assert_eq!(report["exact"], false);
    assert_eq!(report["tokens"]["selected"], 99); // ⌊0.2 · 496⌋
    let number = |value: &serde_json::Value| value.as_f64().expect("a number");
    let ttft_ms = number(&report["ttft_ms"]);
    let path_ms: f64 =
        report["phases"].as_array().expect("rows").iter().map(|row| number(&row["critical_path_ms"])).sum();
    let rest_ms = number(&report["unaccounted_ms"]);
    assert!((path_ms + rest_ms - ttft_ms).abs() < 1e-6 * ttft_ms, "{path_ms} + {rest_ms} = {ttft_ms}");
    assert!(number(&report["paper_clock_ms"]) < ttft_ms);
    let received = number(&report["bytes"]["all-gather"]["received_bytes"]);
    assert!(received > 0.0);
}

/// The fact comes after the sentence that needs it: `trace` puts its document before the other, and
/// reports it.
#[test]
fn a_traced_request_says_what_moved() {
    for (name, moved) in [("hop2_back-0", true), ("hop2-0", false)] {
        let report = prefill(name, &["--method", "trace", "--world", "2"]);
        let trace = &report["trace"];
        assert_eq!((&trace["moved"], &trace["left_out"]), (&moved.into(), &false.into()), "{name}: {trace}");
        let (rows, rounds) =
            (trace["measured_rows"].as_u64().expect("rows"), trace["rounds"].as_u64().expect("rounds"));
        assert!((24..=37).contains(&rows) && (1..=4).contains(&rounds), "{name}: {trace}");
        assert!((report["settings"]["options"]["alpha"].as_f64().expect("a number") - 0.18).abs() < 1e-6);
    }
    assert_eq!(prefill("hop2-0", &["--method", "relay"]).get("trace"), None);
}

#[test]
fn one_rank_sends_nothing() {
    let report = prefill("hop2-0", &["--method", "relay"]);
    for (name, row) in report["bytes"].as_object().expect("rows") {
        assert_eq!(row["received_bytes"], 0, "{name}");
    }
}

#[test]
fn a_dump_holds_what_another_implementation_needs() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("new/dump");
    let dump = path.display().to_string();
    let report = prefill("hop2-0", &["--world", "3", "--reorder", "--show-selected", "--dump", &dump]);
    let text = std::fs::read_to_string(path.join("request.json")).expect("a request");
    let request: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let lengths: Vec<usize> =
        request["chunks"].as_array().expect("chunks").iter().map(|ids| ids.as_array().expect("ids").len()).collect();
    assert_eq!(lengths.len(), 8);
    assert_eq!(request["prefix"], serde_json::json!([1]));
    assert_eq!(request["order"], report["order"]);
    assert_eq!(request["generated"], report["token_ids"]);
    let settings = &request["settings"];
    assert_eq!(settings["options"]["layers"], "2..4");
    assert!(request["query"].is_array());
    for key in ["method", "ratio", "options", "reorder", "importance", "include_first_chunk", "exchange", "world"] {
        assert!(!settings[key].is_null(), "{key}");
    }
    let tensors = safetensors::load(path.join("result.safetensors"), &Device::Cpu).expect("a result");
    assert_eq!(tensors["first_token_logits"].dims(), [378]);
    assert_eq!(tensors["selected"].dtype(), DType::U32);
    let selected = tensors["selected"].to_vec1::<u32>().expect("rows");
    assert_eq!(serde_json::json!(selected), report["selected_rows"]);
    let scores = tensors["scores"].to_vec1::<f32>().expect("scores");
    assert_eq!(scores.len(), 1 + lengths.iter().sum::<usize>());
    // The first chunk of the layout is exact already; elsewhere the best scores were taken.
    let first_chunk = report["order"][0].as_u64().expect("a number") as usize;
    let start = 1 + lengths[..first_chunk].iter().sum::<usize>();
    let is_first = |row: usize| (start..start + lengths[first_chunk]).contains(&row);
    assert!(selected.iter().all(|&row| !is_first(row as usize)));
    let least = selected.iter().map(|&row| scores[row as usize]).fold(f32::INFINITY, f32::min);
    let left = (1..scores.len()).filter(|&row| !is_first(row) && !selected.contains(&(row as u32)));
    assert!(left.map(|row| scores[row]).fold(0.0, f32::max) <= least);
    let names: Vec<String> = std::fs::read_dir(&path)
        .expect("the folder")
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect();
    assert_eq!(names.len(), 2, "{names:?}");
}

/// A folder gets the pages of one prompt after the other, and none of another server.
#[test]
fn pages_are_exported_into_a_folder_of_one_server() {
    let folder = tempfile::tempdir().expect("a folder");
    let pages = folder.path().join("pages");
    let run = |settings: &str, more: &[&str]| {
        let (demo, request) = (demo(), request("vt3-1"));
        let target = format!("sglang:{},page-size=16{settings}", pages.display());
        let all = ["prefill", "--model", &demo, "--request", &request, "--max-tokens", "2", "--export-kv", &target];
        crate::kit::run(&[&all[..], more].concat())
    };
    let manifest = || -> serde_json::Value {
        serde_json::from_slice(&std::fs::read(pages.join("manifest.json")).expect("a manifest")).expect("JSON")
    };
    let (code, told, errors) = run("", &["--method", "full"]);
    assert_eq!(code, Some(0), "{errors}");
    let count = manifest()["prompts"][0]["pages"].as_array().expect("pages").len();
    assert!(told.contains(&format!("({count} written, 0 were there)")) && told.contains("cache_salt none"), "{told}");
    // The same prompt again, computed by two ranks: its pages are there.
    let (_, told, _) = run("", &["--method", "ring", "--world-size", "2"]);
    assert!(told.contains(&format!("(0 written, {count} were there)")), "{told}");
    let (code, told, errors) = run("", &["--method", "infoflow:reorder", "--world-size", "2"]);
    assert_eq!(code, Some(0), "{errors}");
    let prompts = manifest()["prompts"].as_array().expect("prompts").clone();
    assert_eq!((prompts.len(), &prompts[1]["exact"]), (2, &false.into()));
    let salt = prompts[1]["cache_salt"].as_str().expect("a salt");
    assert!(told.contains(&format!("cache_salt {salt}")), "{told}");
    let there = std::fs::read_dir(&pages).expect("readable").count();
    assert_eq!(there, 2 * count + 1, "the pages of two prompts, and the manifest");
    for (settings, more, word) in [
        (",layout=layer_first", &[][..], "layout"),
        ("", &["--dtype", "bf16"], "dtype"),
        (",tp=3", &[], "tp=3"),
        ("", &["--method", "ape"], "cannot be handed over"),
    ] {
        let (code, _, errors) = run(settings, more);
        assert_eq!(code, Some(64), "{settings} {more:?}: {errors}");
        assert!(errors.contains(word), "{errors}");
    }
    assert_eq!(std::fs::read_dir(&pages).expect("readable").count(), there, "refusals write nothing");
}

#[test]
fn selected_tokens_are_shown_in_their_text() {
    let (demo, request) = (demo(), request("hop2-0"));
    let output =
        tributary(&["prefill", "--model", &demo, "--request", &request, "--max-tokens", "1", "--show-selected"]);
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(output.status.success());
    assert_eq!(text.matches("--- chunk").count(), 8);
    assert!(text.contains("--- chunk 0: 0 of"), "the first chunk is exact already");
    assert!(text.contains('»') && text.contains('«'));
    assert!(text.contains("answer:      lyon"), "{text}");
    assert!(text.contains("TTFT") && text.contains("paper clock") && text.contains("selected: 74 of"));
}

#[test]
fn a_spec_says_what_options_say() {
    let settings = |more: &[&str]| prefill("hop2-0", more)["settings"].clone();
    for (spec, flags) in [
        ("relay:reorder:ratio=0.3:layout=hl-tp", &["relay:layout=hl-tp", "--ratio", "0.3", "--reorder"][..]),
        ("infoflow:evict=snapkv:keep=30%", &["infoflow", "--evict", "snapkv", "--keep", "30%"]),
        ("infoflow:evict=[snapkv:window=8]:keep=30%", &["infoflow:evict=[snapkv:window=8]", "--keep", "30%"]),
    ] {
        let by_spec = settings(&["--world", "2", "--method", spec]);
        assert_eq!(by_spec, settings(&[&["--world", "2", "--method"], flags].concat()), "{spec}");
    }
    // An option of the command is refused where the method does not take it, as ever.
    let both = prefill("hop2-0", &["--ratio", "0.3", "--method", "relay:ratio=0.2"]);
    assert_eq!(both["settings"]["ratio"], 0.2, "the method's own option stands before the command's");
}

#[test]
fn rows_a_chunk_stand_in_for_the_ratio() {
    let (demo, request) = (demo(), request("hop2-0"));
    let base = ["prefill", "--model", &demo, "--request", &request, "--max-tokens", "1"];
    let output = tributary(&[&base[..], &["--method", "epic:rows=2"]].concat());
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("epic (approximate), rows 2, exchange"), "{text}");
    assert!(text.contains("selected: 14 of"), "two rows of each of seven chunks: {text}");
}

#[test]
fn chunks_are_cut_as_asked() {
    let cut = |chunk: &str| prefill("hop2-0", &["--method", "full", "--chunk", chunk])["chunks"]["tokens"].clone();
    let lengths = |value: &serde_json::Value| -> Vec<u64> {
        value.as_array().expect("lengths").iter().map(|length| length.as_u64().expect("a number")).collect()
    };
    assert_eq!(lengths(&cut("documents")), [62, 64, 61, 63, 61, 62, 62, 61]);
    assert!(lengths(&cut("20")).iter().all(|&length| length <= 20));
    assert_eq!(lengths(&cut("20")).iter().sum::<u64>(), 496);
    assert!(lengths(&cut("20:5")).iter().sum::<u64>() > 496);
    assert!(lengths(&cut("separator: .")).len() > 20);
}

#[test]
fn dummy_weights_need_a_config_only() {
    let folder = crate::kit::root().join("examples/models/dummy-25m").display().to_string();
    let run = |seed: &str, dtype: &str| {
        json(&[
            "prefill",
            "--json",
            "--model",
            &folder,
            "--load-format",
            "dummy",
            "--synthetic",
            "3x40+4",
            "--seed",
            seed,
            "--max-tokens",
            "3",
            "--dtype",
            dtype,
            "--world",
            "2",
        ])
    };
    let report = run("1", "f32");
    assert_eq!(report["token_ids"], run("1", "f32")["token_ids"]);
    assert_ne!(report["token_ids"], run("2", "f32")["token_ids"]);
    assert_eq!(report["tokens"]["context"], 120);
    assert_eq!(report["tokens"]["query"], 4);
    assert_eq!(run("1", "bf16")["settings"]["dtype"], "bf16");
}

#[test]
fn keys_and_values_in_8_bits_make_messages_short_and_no_answer_exact() {
    let run = |kv_dtype: &str, method: &str| {
        let demo = demo();
        let of = ["--kv-dtype", kv_dtype, "--method", method];
        let request = ["prefill", "--json", "--model", &demo, "--synthetic", "4x60+6", "--world", "2"];
        json(&[&request[..], &of].concat())
    };
    for method in ["ring", "infoflow:exchange=replicate"] {
        let [whole, packed] = ["auto", "fp8"].map(|kv_dtype| run(kv_dtype, method));
        assert_eq!((&whole["settings"]["kv_dtype"], &packed["settings"]["kv_dtype"]), (&Value::Null, &"fp8".into()));
        assert_eq!((whole["exact"] == true, &packed["exact"]), (method == "ring", &false.into()), "{method}");
        let bytes = |report: &Value| -> u64 {
            let all = report["bytes"].as_object().expect("collectives");
            let of = |name: &str| all.get(name).map_or(0, |of| of["received_bytes"].as_u64().expect("bytes"));
            of("exchange") + of("all-gather")
        };
        // Heads of 32 numbers in f32: 33 of 128 bytes.
        let share = bytes(&packed) as f64 / bytes(&whole) as f64;
        assert!((33.0 / 128.0..0.4).contains(&share), "{method}: {share}");
    }
}

#[test]
fn compare_measures_methods_against_full_prefill() {
    let (demo, one, two) = (demo(), request("hop2-0"), request("hop2_back-0"));
    let report = json(&[
        "compare",
        "--json",
        "--model",
        &demo,
        "--request",
        &one,
        &two,
        "--world",
        "2",
        "--max-tokens",
        "2",
        "--repeat",
        "2",
        "--methods",
        "ring",
        "none",
        "infoflow:reorder",
        "full:world=1:threads=2",
    ]);
    let requests = report["requests"].as_array().expect("requests");
    assert_eq!(requests.len(), 2);
    for request in requests {
        let methods = request["methods"].as_array().expect("methods");
        let names: Vec<&str> = methods.iter().map(|row| row["method"].as_str().expect("a name")).collect();
        assert_eq!(names, ["ring", "none", "infoflow:reorder", "full:world=1:threads=2"]);
        for row in methods {
            assert_eq!(row["ttft_ms"].as_array().expect("samples").len(), 2);
        }
        let difference = |row: usize| methods[row]["max_logit_difference"].as_f64().expect("a number");
        assert!(difference(0) < 1e-3, "ring is exact: {}", difference(0));
        assert!(difference(1) > 0.1, "none is not: {}", difference(1));
        assert_eq!(methods[0]["exact"], true);
        assert!((methods[3]["ttft_ratio_to_full"].as_f64().expect("a number") - 1.0).abs() < 1e-12);
    }
    assert_eq!(requests[0]["methods"][0]["right"], true);
    assert_eq!(requests[1]["methods"][0]["right"], false);
    assert_eq!(requests[1]["methods"][2]["right"], true);
}

#[test]
fn help_and_version_are_no_errors() {
    for arguments in [&["--help"][..], &["--version"], &["prefill", "--help"], &["compare", "--help"]] {
        let output = tributary(arguments);
        assert!(output.status.success(), "{arguments:?}");
        assert!(output.stderr.is_empty(), "{arguments:?}");
    }
    assert_eq!(tributary(&[]).status.code(), Some(64));
}
