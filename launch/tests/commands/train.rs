//! `tributary train`: an adapter of each kind, and a small model that reads, for the demo model in
//! a few steps; refusals with their exit codes.

use std::path::Path;

use crate::kit::mounts::{in_own_mounts, quoted};
use crate::kit::{demo, run};
use serde_json::Value;

/// A short training, with more options.
fn trained(out: &Path, more: &[&str]) -> (Option<i32>, String, String) {
    let (model, out) = (demo(), out.display().to_string());
    let base = ["train", "kv-packet", "--model", &model, "--suite", "hops", "--tasks", "single", "--out", &out];
    let usual = [("--samples", "4"), ("--batch", "2"), ("--head", "2"), ("--tail", "1")];
    let missing = usual.into_iter().filter(|(option, _)| !more.contains(option));
    let usual: Vec<&str> = missing.flat_map(|(option, value)| [option, value]).collect();
    run(&[&base[..], &usual, more].concat())
}

fn read(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).expect("readable")).expect("JSON")
}

#[test]
fn an_adapter_is_learned_in_parts_on_two_ranks() {
    let folder = tempfile::tempdir().expect("a folder");
    let [straight, parts] = ["straight", "parts"].map(|name| folder.path().join(name));
    let more = ["--epochs", "2", "--world", "2", "--lr", "0.02", "--prefix", "none", "--teacher-prefix", "bos"];
    let (code, out, errors) = trained(&straight, &more);
    assert_eq!((code, errors.as_str()), (Some(0), ""), "{out}");
    assert!(out.starts_with("4 of 4 steps over 4 samples") && out.contains("384 numbers are learned"), "{out}");
    assert!(out.contains("predicted") && out.contains("# written to"), "{out}");
    let training = read(&straight.join("training.json"));
    let losses: Vec<f64> = training["epoch_losses"]
        .as_array()
        .expect("losses")
        .iter()
        .map(|loss| loss.as_f64().expect("a loss"))
        .collect();
    assert!(losses.len() == 2 && losses[1] < losses[0], "{losses:?}");
    let adapter = read(&straight.join("adapter.json"));
    assert_eq!(adapter["kind"], serde_json::json!({ "kv-packet": { "head": 2, "tail": 1 } }));
    assert_eq!(adapter["base_model"].as_str().map(str::len), Some(64));
    assert_eq!(std::fs::read_to_string(straight.join("loss.csv")).expect("a table").lines().count(), 5);

    let (code, ..) = trained(&parts, &[&more[..], &["--stop-after", "2"]].concat());
    assert_eq!(code, Some(0));
    let (code, out, errors) = trained(&parts, &[&more[..], &["--resume"]].concat());
    assert_eq!((code, errors.as_str()), (Some(0), ""), "{out}");
    let [one, other] = [&straight, &parts].map(|out| std::fs::read(out.join("adapter.safetensors")).expect("tensors"));
    assert_eq!(one, other, "bit for bit");
}

#[test]
fn rows_that_look_ahead_are_learned_and_then_evict() {
    let folder = tempfile::tempdir().expect("a folder");
    let (model, adapter) = (demo(), folder.path().display().to_string());
    let base = ["train", "lookahead", "--model", &model, "--suite", "hops", "--tasks", "multiquery", "--out", &adapter];
    let more = ["--samples", "4", "--batch", "2", "--epochs", "3", "--rows", "4", "--rank", "2", "--alpha", "8"];
    let (code, out, errors) = run(&[&base[..], &more].concat());
    assert_eq!((code, errors.as_str()), (Some(0), ""), "{out}");
    // Rows of 128, and matrices of rank 2 beside the seven linear layers of five layers.
    assert!(out.starts_with("6 of 6 steps over 4 samples") && out.contains("20992 numbers are learned"), "{out}");
    let training = read(&folder.path().join("training.json"));
    let losses: Vec<f64> = serde_json::from_value(training["epoch_losses"].clone()).expect("losses");
    assert!(losses.len() == 3 && losses[2] < losses[0], "{losses:?}");
    assert_eq!(training["settings"]["learning_rate"], 0.001, "LookaheadKV's own");
    let about = read(&folder.path().join("adapter.json"));
    assert_eq!(about["kind"], serde_json::json!({ "lookahead": { "rows": 4, "rank": 2, "alpha": 8.0 } }));
    let asked = crate::kit::request("hop2-0");
    let base = ["prefill", "--model", &model, "--request", &asked, "--method", "full", "--json", "--max-tokens", "4"];
    let report =
        crate::kit::json(&[&base[..], &["--evict", "lookahead", "--keep", "64", "--adapter", &adapter]].concat());
    assert_eq!(report["evicted"]["asking_rows"].as_u64(), Some(4), "{report}");
    for (option, value, words) in [("--rows", "0", "--rows 0: there would be nothing"), ("--alpha", "0", "above 0")] {
        let base = ["train", "lookahead", "--model", &model, "--suite", "hops", "--out", &adapter];
        let (code, _, errors) = run(&[&base[..], &[option, value]].concat());
        assert_eq!((code, errors.lines().count()), (Some(64), 1), "{errors}");
        assert!(errors.contains(words), "{errors}");
    }
}

/// A few steps of a small model, or none.
fn read_by(out: &Path, more: &[&str]) -> (Option<i32>, String, String) {
    let (model, out) = (demo(), out.display().to_string());
    let base = ["train", "auxiliary", "--model", &model, "--suite", "hops", "--batch", "4", "--out", &out];
    run(&[&base[..], more].concat())
}

/// Agreement of a folder's small model with the main one, before and after a training.
fn agreement(folder: &Path) -> Vec<f64> {
    serde_json::from_value(read(&folder.join("training.json"))["agreement"].clone()).expect("a pair")
}

#[test]
fn a_small_model_is_learned_in_two_stages_and_then_reads() {
    let folder = tempfile::tempdir().expect("a folder");
    let [first, second] = ["first", "second"].map(|name| folder.path().join(name));
    let sizes = ["--layers", "2", "--hidden", "16", "--heads", "2", "--intermediate", "16"];
    let more = ["--objective", "language", "--samples", "4", "--epochs", "3", "--world", "2"];
    let (code, out, errors) = read_by(&first, &[&sizes[..], &more].concat());
    assert_eq!((code, errors.as_str()), (Some(0), ""), "{out}");
    assert!(out.starts_with("3 of 3 steps over 4 samples") && out.contains("(Jaccard): "), "{out}");
    let begun = first.display().to_string();
    let (code, out, errors) =
        read_by(&second, &["--aux-model", &begun, "--samples", "8", "--epochs", "6", "--lr", "0.01"]);
    assert_eq!((code, errors.as_str()), (Some(0), ""), "{out}");
    let training = read(&second.join("training.json"));
    let losses: Vec<f64> = serde_json::from_value(training["epoch_losses"].clone()).expect("losses");
    assert!(losses[5] < losses[0], "{losses:?}");
    let (model, asked, reader) = (demo(), crate::kit::request("hop2-0"), second.display().to_string());
    let base = ["prefill", "--model", &model, "--request", &asked, "--method", "cacheclip", "--ratio", "0.8"];
    let report = crate::kit::json(&[&base[..], &["--aux-model", &reader, "--json", "--max-tokens", "1"]].concat());
    assert_eq!(report["auxiliary"]["prompts"].as_u64(), Some(7), "{report}");

    // Another tokenizer means other tokens by the same ids.
    std::fs::write(second.join("tokenizer.json"), "{}").expect("written");
    let (code, out, errors) = read_by(&first, &["--aux-model", &reader]);
    assert_eq!((code, out.as_str(), errors.lines().count()), (Some(64), "", 1), "{errors}");
    assert!(errors.contains("its tokenizer.json is not that of --model"), "{errors}");
    let (code, _, errors) = read_by(&first, &["--hidden", "18"]);
    assert!(code == Some(64) && errors.contains("--heads 4: --hidden 18"), "{errors}");
}

#[test]
fn the_demo_models_small_one_chooses_better_than_one_that_has_not_learned() {
    let folder = tempfile::tempdir().expect("a folder");
    let [shipped, drawn] = ["shipped", "drawn"].map(|name| folder.path().join(name));
    let auxiliary = crate::kit::root().join("examples/models/demo/auxiliary").display().to_string();
    // Requests of another seed than those it has learned from.
    let unseen = ["--epochs", "0", "--samples", "34", "--seed", "0"];
    let (code, _, errors) = read_by(&shipped, &[&unseen[..], &["--aux-model", &auxiliary]].concat());
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    let (code, ..) = read_by(&drawn, &unseen);
    assert_eq!(code, Some(0));
    let [shipped, drawn] = [shipped, drawn].map(|folder| agreement(&folder)[1]);
    assert!(shipped > 1.5 * drawn, "{shipped} beside {drawn}");
}

#[test]
fn what_cannot_be_learned_is_refused_in_one_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("out");
    let rows = folder.path().join("rows.jsonl");
    std::fs::write(&rows, "{\"documents\": [\"code of purse is 1 2 3 .\"], \"question\": \"code\"}\n")
        .expect("written");
    let file = folder.path().join("a file");
    std::fs::write(&file, "no folder").expect("written");
    let rows = rows.display().to_string();
    let said = |(code, out, errors): (Option<i32>, String, String), expected: i32, words: &str| {
        assert_eq!((code, out.as_str(), errors.lines().count()), (Some(expected), "", 1), "{words}: {errors}");
        assert!(errors.contains(words), "{errors}");
    };
    said(trained(&out, &["--batch", "0"]), 64, "--batch 0");
    said(trained(&out, &["--lr", "0"]), 64, "--lr 0");
    said(trained(&out, &["--head", "0", "--tail", "0"]), 64, "nothing to learn");
    said(trained(&out, &["--resume"]), 64, "checkpoint.safetensors");
    said(trained(&file.join("out"), &["--epochs", "1"]), 74, "cannot write");
    said(trained(&out, &["--epochs", "3", "--lr", "1e300"]), 70, "not a finite number");
    let model = demo();
    let own = ["train", "kv-packet", "--model", &model, "--data", &rows, "--out", &rows];
    said(run(&own), 64, "line 1: missing field `references`");
    let (code, told, _) = trained(&out, &["--epochs", "30", "--dry-run"]);
    assert!(code == Some(0) && told.starts_with("4 samples, 60 steps; "), "{told}");
    let (code, told, _) = trained(&out, &["--epochs", "0"]);
    assert!(code == Some(0) && told.starts_with("0 of 0 steps") && out.join("adapter.json").exists(), "{told}");
}

/// A disk that is full when a checkpoint is due: the one before it stays whole, and a disk with
/// room lets the training go on from it.
#[test]
fn a_full_disk_keeps_the_last_checkpoint() {
    let folder = tempfile::tempdir().expect("a folder");
    let [kept, full] = ["kept", "full"].map(|name| folder.path().join(name));
    std::fs::create_dir(&full).expect("made");
    let more = ["--epochs", "2", "--prefix", "bos"];
    let (code, _, errors) = trained(&kept, &[&more[..], &["--stop-after", "2"]].concat());
    assert_eq!(code, Some(0), "{errors}");
    let (model, full) = (demo(), full.display().to_string());
    let arguments = ["train", "kv-packet", "--model", &model, "--suite", "hops", "--tasks", "single", "--out", &full];
    let usual = ["--samples", "4", "--batch", "2", "--head", "2", "--tail", "1", "--resume"];
    let resume = quoted(&[&arguments[..], &usual, &more].concat());
    let checkpoint = kept.join("checkpoint.safetensors").display().to_string();
    let line = format!(
        "mount -t tmpfs -o size=256k none '{full}'; cp '{checkpoint}' '{full}'; head -c 1000000 /dev/zero >'{full}/filler' || true; \
         code=0; {resume} || code=$?; cmp '{checkpoint}' '{full}/checkpoint.safetensors'; rm '{full}/filler'; {resume}; exit $code"
    );
    let Some(output) = in_own_mounts(&line) else { return };
    let (out, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(74), "{errors}");
    assert!(errors.contains("cannot write") && errors.contains("checkpoint.safetensors"), "{errors}");
    assert!(out.contains("4 of 4 steps over 4 samples"), "with room it goes on: {out}");
}

#[test]
fn a_training_is_watched_as_other_jobs_are() {
    let folder = tempfile::tempdir().expect("a folder");
    let (out, file) = (folder.path().join("packet"), folder.path().join("train.prom"));
    let (code, _, errors) = trained(&out, &["--epochs", "2", "--metrics-file", &file.display().to_string()]);
    assert_eq!(code, Some(0), "{errors}");
    let text = std::fs::read_to_string(&file).expect("metrics");
    let of = |name: &str| -> f64 {
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("tributary_{name} ")));
        line.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("{name}: {text}"))
    };
    assert_eq!((of("training_steps_total"), of("job_progress_ratio"), of("rank_up{rank=\"0\"}")), (4.0, 1.0, 1.0));
    assert_eq!(of("job_info{command=\"train\",study=\"packet\"}"), 1.0);
    assert!(of("training_loss") > 0.0 && of("training_gradient_norm") > 0.0, "{text}");
}
