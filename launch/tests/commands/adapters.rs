//! `--adapter`: trained rows around chunks, with the method that consists of them and with others;
//! their reports, chunks that are kept with them, and folders that are refused.

use std::path::Path;

use crate::kit::adapter::{look_ahead, packet};
use crate::kit::{demo, json, request, root, tributary};
use serde_json::Value;

/// The report of a request of the demo model.
fn prefilled(more: &[&str]) -> Value {
    let (model, request) = (demo(), request("hop2-0"));
    let base =
        ["prefill", "--model", &model, "--request", &request, "--json", "--max-tokens", "4", "--world-size", "2"];
    json(&[&base[..], more].concat())
}

fn path(folder: &impl AsRef<Path>) -> String {
    folder.as_ref().display().to_string()
}

#[test]
fn the_rows_stand_around_chunks_and_reports_say_so() {
    let folder = packet(Path::new(&demo()), 0.5);
    let adapter = path(&folder);
    let report = prefilled(&["--method", "kv-packet", "--adapter", &adapter]);
    let settings = &report["settings"];
    let named = settings["adapters"][0].as_str().expect("a name");
    let number = named.strip_prefix(&format!("{adapter} (")).and_then(|rest| rest.strip_suffix(')'));
    assert_eq!(settings["packets"], serde_json::json!({"adapter": number, "head": 2, "tail": 1}), "{settings}");
    assert_eq!((&report["method"], &report["exact"]), (&"kv-packet".into(), &false.into()));
    let tokens = &report["tokens"];
    assert_eq!((&tokens["selected"], &tokens["recomputed"]), (&0.into(), &tokens["query"]), "{report}");
    // Tokens are counted as ever: the rows are none.
    let bare = prefilled(&["--method", "none"]);
    assert_eq!(report["tokens"]["context"], bare["tokens"]["context"]);
    assert!(bare["settings"].get("packets").is_none() && bare["settings"].get("adapters").is_none(), "{bare}");
    // The method that consists of them equals the method of plain chunks with them.
    let none = prefilled(&["--method", "none", "--adapter", &adapter]);
    assert_eq!(none["token_ids"], report["token_ids"]);
    // Other methods recompute in addition; exact ones have no chunks.
    let infoflow = prefilled(&["--method", "infoflow", "--ratio", "0.02", "--adapter", &adapter]);
    assert_eq!(infoflow["settings"]["packets"]["head"], 2);
    assert!(infoflow["tokens"]["selected"].as_u64() > Some(0), "{infoflow}");
    assert!(prefilled(&["--method", "ring", "--adapter", &adapter])["settings"].get("packets").is_none());
    let text = tributary(&["prefill", "--model", &demo(), "--request", &request("hop2-0"), "--adapter", &adapter]);
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(text.contains("2 + 1 trained rows around every chunk"), "{text}");
}

#[test]
fn in_a_comparison_each_method_says_whether_it_has_them() {
    let folder = packet(Path::new(&demo()), 0.5);
    let (model, request, adapter) = (demo(), request("hop2-0"), path(&folder));
    let base =
        ["compare", "--model", &model, "--request", &request, "--max-tokens", "2", "--json", "--adapter", &adapter];
    let found = json(&[&base[..], &["--methods", "none", "kv-packet", "infoflow", "infoflow:packets"]].concat());
    let methods = found["requests"][0]["methods"].as_array().expect("methods");
    let kl = |name: &str| {
        let row = methods.iter().find(|row| row["method"] == name).unwrap_or_else(|| panic!("no {name}: {found}"));
        row["kl_nats"].as_f64().unwrap_or_else(|| panic!("no KL of {name}: {row}"))
    };
    assert!((kl("none") - kl("kv-packet")).abs() > 1e-6, "{found}");
    assert!((kl("infoflow") - kl("infoflow:packets")).abs() > 1e-6, "{found}");
    let wrong = tributary(&["compare", "--model", &model, "--request", &request, "--methods", "infoflow:packets"]);
    let errors = String::from_utf8_lossy(&wrong.stderr);
    assert_eq!((wrong.status.code(), errors.lines().count()), (Some(64), 1), "{errors}");
    assert!(errors.contains("needs --adapter DIR"), "{errors}");
}

#[test]
fn chunks_are_stored_with_their_rows() {
    let (one, other) = (packet(Path::new(&demo()), 0.5), packet(Path::new(&demo()), 0.25));
    let store = tempfile::tempdir().expect("a folder");
    let store = path(&store);
    let ask = |method: &str, adapter: &Path| {
        prefilled(&["--method", method, "--adapter", &path(&adapter), "--chunk-store", &store])
    };
    let loaded = |report: &Value| report["chunk_cache"]["store"]["loaded"].as_u64();
    let first = ask("kv-packet", one.path());
    assert_eq!(loaded(&first).unwrap_or(0), 0, "{first}");
    let again = ask("kv-packet", one.path());
    assert_eq!(loaded(&again), first["chunks"]["count"].as_u64(), "{again}");
    assert_eq!(again["token_ids"], first["token_ids"]);
    assert_eq!(loaded(&ask("infoflow", one.path())), first["chunks"]["count"].as_u64(), "any method takes them");
    assert_eq!(loaded(&ask("kv-packet", other.path())).unwrap_or(0), 0, "another adapter's are other chunks");
    let bare = prefilled(&["--method", "none", "--chunk-store", &store]);
    assert_eq!(loaded(&bare).unwrap_or(0), 0, "bare ones are other chunks too");
}

#[test]
fn rows_that_look_ahead_say_what_decoding_keeps() {
    let (ahead, around) = (look_ahead(Path::new(&demo())), packet(Path::new(&demo()), 0.5));
    let (ahead, around) = (path(&ahead), path(&around));
    let evicting = ["--evict", "lookahead", "--keep", "64", "--adapter", &ahead];
    let whole = prefilled(&["--method", "full", "--adapter", &ahead]);
    assert!(whole.get("evicted").is_none_or(Value::is_null), "{whole}");
    for more in [&["--method", "full"][..], &["--method", "ring"], &["--method", "infoflow"]] {
        let report = prefilled(&[&evicting[..], more].concat());
        let evicted = &report["evicted"];
        assert_eq!(evicted["asking_rows"].as_u64(), Some(4), "{evicted}");
    }
    // Both kinds at once: rows around chunks, and rows after the prompt.
    let both = [&evicting[..], &["--method", "kv-packet", "--adapter", &around]].concat();
    let report = prefilled(&both);
    assert_eq!(report["settings"]["adapters"].as_array().map(Vec::len), Some(2), "{report}");
    assert_eq!(report["settings"]["packets"]["head"], 2);
    // With everything kept nothing changes.
    let rows = report["tokens"]["prefix"].as_u64().zip(report["tokens"]["context"].as_u64());
    let (prefix, context) = rows.expect("numbers");
    let all = (prefix + context + report["tokens"]["query"].as_u64().expect("a number")).to_string();
    let kept = prefilled(&["--method", "full", "--evict", "lookahead", "--keep", &all, "--adapter", &ahead]);
    assert_eq!(kept["token_ids"], whole["token_ids"]);
    let (model, asked) = (demo(), request("hop2-0"));
    let without =
        tributary(&["prefill", "--model", &model, "--request", &asked, "--evict", "lookahead", "--keep", "64"]);
    let errors = String::from_utf8_lossy(&without.stderr);
    assert_eq!((without.status.code(), errors.lines().count()), (Some(64), 1), "{errors}");
    assert!(errors.contains("needs --adapter DIR, a folder that `tributary train lookahead` wrote"), "{errors}");
}

#[test]
fn folders_that_cannot_be_are_refused_in_one_line() {
    let (model, asked) = (demo(), request("hop2-0"));
    let refused = |arguments: &[&str], exit_code: i32, says: &str| {
        let base = ["prefill", "--model", &model, "--request", &asked, "--method", "kv-packet"];
        let output = tributary(&[&base[..], arguments].concat());
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(exit_code), "{arguments:?}: {errors}");
        assert_eq!(errors.lines().count(), 1, "{arguments:?}: {errors}");
        assert!(errors.contains(says), "{arguments:?}: `{says}` is not in: {errors}");
    };
    let good = packet(Path::new(&model), 0.5);
    refused(&[], 64, "--method kv-packet: needs --adapter DIR");
    refused(&["--adapter", "/nowhere"], 64, "cannot read /nowhere/adapter.json");
    refused(&["--adapter", &path(&good), "--adapter", &path(&good)], 64, "both are for kv-packet");
    let tensors = good.path().join("adapter.safetensors");
    std::fs::write(&tensors, "no tensors").expect("written");
    refused(&["--adapter", &path(&good)], 65, "not a whole safetensors file");
    let others = tempfile::tempdir().expect("a folder");
    for name in ["config.json", "model.safetensors", "tokenizer.json"] {
        std::fs::copy(root().join("examples/models/demo").join(name), others.path().join(name)).expect("copied");
    }
    let weights = others.path().join("model.safetensors");
    let mut bytes = std::fs::read(&weights).expect("weights");
    *bytes.last_mut().expect("bytes") ^= 1;
    std::fs::write(&weights, bytes).expect("written");
    let another = packet(others.path(), 0.5);
    refused(&["--adapter", &path(&another)], 64, "the adapter was learned for another model");
}
