//! Auxiliary models: `--aux-model`, which reads for the main one, with the same tokenizer or
//! another one, and `--draft-model`, which writes ahead of it; and folders and requests that are
//! refused.

use std::path::Path;

use crate::kit::{demo, json, request, root, tributary};
use serde_json::Value;
use tempfile::TempDir;

/// The demo model under another config or tokenizer, changed by `change`.
fn demo_with(change: impl FnOnce(&Path)) -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["config.json", "model.safetensors", "tokenizer.json"] {
        std::fs::copy(Path::new(&demo()).join(name), folder.path().join(name)).expect("copied");
    }
    change(folder.path());
    folder
}

/// A tokenizer of single letters, which the demo model knows ids enough for.
fn letters(folder: &Path) {
    let vocab: serde_json::Map<String, Value> =
        (32..127u8).map(|byte| (char::from(byte).to_string(), u32::from(byte).into())).collect();
    let tokenizer = serde_json::json!({
        "version": "1.0",
        "added_tokens": [],
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    });
    std::fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).expect("written");
}

fn prefilled(auxiliary: &Path, more: &[&str]) -> Value {
    let (model, request, auxiliary) = (demo(), request("hop2-0"), auxiliary.display().to_string());
    let base =
        ["prefill", "--model", &model, "--request", &request, "--method", "cacheclip", "--aux-model", &auxiliary];
    let ratio: &[&str] = if more.contains(&"--ratio") { &[] } else { &["--ratio", "0.8"] };
    json(&[&base[..], ratio, &["--json", "--show-selected", "--max-tokens", "1"], more].concat())
}

#[test]
fn the_model_may_read_for_itself_and_reports_say_so() {
    let demo = demo();
    let report = prefilled(Path::new(&demo), &[]);
    let settings = &report["settings"];
    assert_eq!(settings["auxiliary_model"], demo.as_str(), "{settings}");
    assert_eq!(settings["auxiliary_hash"].as_str().map(str::len), Some(64), "{settings}");
    let read = &report["auxiliary"];
    let (context, query) = (report["tokens"]["context"].as_u64(), report["tokens"]["query"].as_u64());
    let first = report["chunks"]["tokens"][0].as_u64();
    let expected = context.zip(first).zip(query).map(|((context, first), query)| context - first + 7 * (query + 1));
    assert_eq!((read["prompts"].as_u64(), read["tokens"].as_u64()), (Some(7), expected), "{read}");
    let unspent = settings["budget"].as_u64().zip(report["tokens"]["selected"].as_u64());
    let (budget, selected) = unspent.expect("numbers");
    assert!(selected > 0, "{report}");
    assert_eq!(read["unspent_rows"], budget - selected, "{read}");
    let phases = report["phases"].as_array().expect("phases");
    assert!(phases.iter().any(|phase| phase["phase"] == "auxiliary"), "{phases:?}");
    let whole = prefilled(Path::new(&demo), &["--ratio", "1"]);
    assert_eq!(whole["tokens"]["selected"], whole["tokens"]["candidates"], "windows keep all where all are in the top");
}

#[test]
fn another_tokenizer_is_mapped_by_letters_in_every_world() {
    let folder = demo_with(letters);
    let worlds = ["1", "2", "3"].map(|world| prefilled(folder.path(), &["--world-size", world]));
    let [one, others @ ..] = &worlds;
    let own = prefilled(Path::new(&demo()), &[]);
    let tokens = |report: &Value| report["auxiliary"]["tokens"].as_u64().expect("tokens");
    assert!(tokens(one) > 2 * tokens(&own), "a token a letter: {} and {}", tokens(one), tokens(&own));
    assert!(one["tokens"]["selected"].as_u64() > Some(0), "{one}");
    assert_ne!(one["selected_rows"], own["selected_rows"], "it reads otherwise");
    for other in others {
        assert_eq!(other["selected_rows"], one["selected_rows"]);
        assert_eq!(other["token_ids"], one["token_ids"]);
    }
}

/// The small model reads the whole prompt, and nothing but prefix, spans and query is computed.
#[test]
fn a_small_model_chooses_the_spans_of_a_cold_prompt_in_every_world() {
    let (model, asked, folder) = (demo(), request("hop2-0"), demo_with(letters));
    let prefilled = |auxiliary: &str, more: &[&str]| {
        let base = ["prefill", "--model", &model, "--request", &asked, "--aux-model", auxiliary, "--json"];
        json(&[&base[..], &["--show-selected", "--max-tokens", "2"], more].concat())
    };
    let spans = ["--method", "spec-prefill-like:span=8:ratio=0.25"];
    let own = prefilled(&model, &spans);
    let tokens = |report: &Value, name: &str| report["tokens"][name].as_u64().expect("a number");
    let all = tokens(&own, "prefix") + tokens(&own, "context") + tokens(&own, "query");
    let read = &own["auxiliary"];
    assert_eq!((read["prompts"].as_u64(), read["written"].as_u64()), (Some(1), Some(8)), "{read}");
    assert_eq!((read["tokens"].as_u64(), read["unspent_rows"].as_u64()), (Some(all), Some(0)), "{read}");
    assert_eq!(tokens(&own, "selected"), tokens(&own, "context") / 4, "{own}");
    assert_eq!(own["exact"], false, "{own}");
    let folder = folder.path().display().to_string();
    let one = prefilled(&folder, &spans);
    assert!(one["auxiliary"]["tokens"].as_u64() > Some(2 * all), "a token a letter: {}", one["auxiliary"]);
    assert_ne!(one["selected_rows"], own["selected_rows"], "it reads otherwise");
    for world in ["2", "3"] {
        let other = prefilled(&folder, &[&spans[..], &["--world-size", world]].concat());
        assert_eq!(other["selected_rows"], one["selected_rows"]);
        assert_eq!(other["token_ids"], one["token_ids"]);
    }
    let whole = prefilled(&model, &["--method", "spec-prefill-like:ratio=1"]);
    let full = prefilled(&model, &["--method", "full"]);
    assert_eq!((&whole["exact"], &whole["token_ids"]), (&Value::Bool(true), &full["token_ids"]), "{whole}");
}

/// A real model of stories, whose tokenizer has words in pieces.
#[test]
fn a_real_tokenizer_is_mapped_too() {
    let folder = root().join("../shared/data/models/stories260K-hf");
    if !folder.is_dir() {
        return crate::kit::skipped("real inputs are not beside the repository: the tokenizer of stories260K");
    }
    let report = prefilled(&folder, &["--chunk", "32"]);
    assert!(report["auxiliary"]["tokens"].as_u64() > report["tokens"]["context"].as_u64(), "{report}");
    assert!(report["tokens"]["selected"].as_u64() > Some(0), "{report}");
}

#[test]
fn what_cannot_read_for_it_is_refused_in_one_line() {
    let (model, asked) = (demo(), request("hop2-0"));
    let refused = |arguments: &[&str], exit_code: i32, says: &str| {
        let output = tributary(&[&["prefill", "--method", "cacheclip"], arguments].concat());
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(exit_code), "{arguments:?}: {errors}");
        assert_eq!(errors.lines().count(), 1, "{arguments:?}: {errors}");
        assert!(errors.contains(says), "{arguments:?}: `{says}` is not in: {errors}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
    };
    let texts = ["--model", &model, "--request", &asked];
    let with = |auxiliary: &Path| [&texts[..], &["--aux-model", &auxiliary.display().to_string()]].concat().join("\n");
    let read_by = |auxiliary: &Path, exit_code, says: &str| {
        let all = with(auxiliary);
        refused(&all.split('\n').collect::<Vec<_>>(), exit_code, says);
    };
    refused(&texts, 64, "--method cacheclip: needs --aux-model DIR");
    let spans = |more: &[&str]| {
        let output = tributary(&[&["prefill", "--method", "spec-prefill-like"], &texts[..], more].concat());
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((output.status.code(), errors.lines().count()), (Some(64), 1), "{errors}");
        errors
    };
    assert!(spans(&[]).contains("--method spec-prefill-like: needs --aux-model DIR"));
    read_by(Path::new("/nowhere"), 64, "cannot read /nowhere");
    let damaged = demo_with(|folder| std::fs::write(folder.join("tokenizer.json"), "{}").expect("written"));
    read_by(damaged.path(), 64, "tokenizer: ");
    let short = demo_with(|folder| {
        let config = std::fs::read_to_string(folder.join("config.json")).expect("a config");
        let mut config: Value = serde_json::from_str(&config).expect("JSON");
        config["max_position_embeddings"] = 32.into();
        std::fs::write(folder.join("config.json"), config.to_string()).expect("written");
    });
    read_by(short.path(), 64, "chunk 2: with the query it is a prompt of ");
    let errors = spans(&["--aux-model", &short.path().display().to_string()]);
    assert!(errors.contains("tokens, and writes 8; the model has 32 positions"), "{errors}");
    let small_vocabulary = demo_with(|folder| {
        let config = std::fs::read_to_string(folder.join("config.json")).expect("a config");
        let mut config: Value = serde_json::from_str(&config).expect("JSON");
        config["vocab_size"] = 5.into();
        std::fs::write(folder.join("config.json"), config.to_string()).expect("written");
    });
    read_by(small_vocabulary.path(), 64, "is outside its vocabulary of 5");
    let dummy = root().join("examples/models/dummy-25m").display().to_string();
    let of_ids = ["--model", &dummy, "--load-format", "dummy", "--synthetic", "3x16+4", "--aux-model", &model];
    refused(&of_ids, 64, "so that it needs texts, and the request is made of token ids");
}

#[test]
fn a_draft_model_writes_what_an_eviction_listens_to() {
    let (model, asked) = (demo(), request("hop2-0"));
    let kept = |draft: &Path, world: &str| {
        let draft = draft.display().to_string();
        let base =
            ["prefill", "--model", &model, "--request", &asked, "--json", "--max-tokens", "4", "--world-size", world];
        json(&[&base[..], &["--method", "ring", "--evict", "speckv", "--keep", "48", "--draft-model", &draft]].concat())
    };
    let own = kept(Path::new(&model), "1");
    let evicted = &own["evicted"];
    assert_eq!((evicted["kept_rows"].as_f64(), evicted["asking_rows"].as_u64()), (Some(48.0), Some(32)), "{evicted}");
    assert_eq!(own["settings"]["draft_hash"].as_str().map(str::len), Some(64), "{own}");
    assert!(evicted["formula"]["flops"].as_f64() > Some(0.0), "{evicted}");
    for world in ["2", "3"] {
        assert_eq!(kept(Path::new(&model), world)["token_ids"], own["token_ids"], "world {world}");
    }
    let letters = demo_with(letters);
    let other = letters.path().display().to_string();
    let base = ["prefill", "--model", &model, "--request", &asked, "--evict", "speckv", "--keep", "48"];
    let output = tributary(&[&base[..], &["--draft-model", &other]].concat());
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), errors.lines().count()), (Some(64), 1), "{errors}");
    assert!(errors.contains("--draft-model") && errors.contains("must write the model's own tokens"), "{errors}");
}
