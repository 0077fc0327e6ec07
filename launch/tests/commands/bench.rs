//! `tributary bench` as a user runs it: its measurements and files, the resumption of an
//! interrupted study, and refusals.

use std::path::Path;

use crate::kit::{demo, root, run};
use serde_json::Value;

/// Runs `bench` on the demo model with chunks of 64 tokens.
fn bench(arguments: &[&str]) -> (Option<i32>, String, String) {
    let demo = demo();
    let mut all = vec!["bench", "--model", &demo, "--chunk-tokens", "64", "--query-tokens", "8"];
    all.extend(arguments);
    run(&all)
}

fn report(folder: &Path) -> Value {
    let text = std::fs::read_to_string(folder.join("report.json")).expect("a report");
    serde_json::from_str(&text).expect("JSON")
}

fn points(report: &Value) -> &Vec<Value> {
    report["points"].as_array().expect("points")
}

fn samples(point: &Value) -> &Vec<Value> {
    point["samples"].as_array().expect("samples")
}

const SWEEP: [&str; 10] = [
    "--lengths",
    "128,256",
    "--worlds",
    "1,2",
    "--methods",
    "full,ring,infoflow:exchange=pass-q,infoflow",
    "--ratios",
    "0.15,1",
    "--repeats",
    "2",
];

#[test]
fn a_study_is_measured_and_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("study");
    let mut arguments = SWEEP.to_vec();
    let shown = out.display().to_string();
    arguments.extend(["--out", &shown]);
    let (code, table, errors) = bench(&arguments);
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    let report = report(&out);
    assert_eq!(report["schema"], "tributary.study/1");
    assert_eq!(report["provenance"]["build"].as_str().map(str::len), Some(16));
    // Two lengths, two worlds; full and ring once, both forms of infoflow at two ratios. One rank
    // makes no difference between exchanges, but the methods were asked for by two names.
    assert_eq!(points(&report).len(), 2 * 2 * (2 + 2 * 2));
    let mut runs = Vec::new();
    for point in points(&report) {
        assert_eq!(samples(point).len(), 2, "{}", point["id"]);
        let summary = &point["summary"];
        assert_eq!(summary["interval"], "range", "two samples have no interval");
        assert!(summary["min_ttft_ms"].as_f64() <= summary["median_ttft_ms"].as_f64(), "{summary}");
        for sample in samples(point) {
            runs.push(sample["run"].as_u64().expect("a number"));
            assert!(sample["wall_ms"].as_f64() >= sample["ttft_ms"].as_f64(), "{sample}");
            let ranks = sample["ranks"].as_array().expect("ranks");
            assert_eq!(ranks.len() as u64, point["world"].as_u64().expect("a number"));
            for rank in ranks {
                assert_eq!(rank["received_bytes"], rank["formula_bytes"], "{}: {rank}", point["id"]);
            }
        }
        let difference = point["accuracy"]["max_logit_difference"].as_f64().expect("full is part of the study");
        if point["exact"] == true || point["ratio"] == 1.0 {
            assert!(difference < 1e-3, "{}: {difference:e}", point["id"]);
        }
    }
    let busy = &report["busy"][0];
    assert!(busy["cpu_s"].as_f64() > Some(0.0) && busy["load_after"][0].is_number(), "{busy}");
    let heads = table.lines().find(|line| line.starts_with("# tokens")).expect("names of columns");
    assert!(heads.contains("  range  ") && !heads.contains("predicted") && !table.contains("95 % interval"), "{table}");
    runs.sort_unstable();
    // After two warm-ups of all 24 points.
    assert_eq!(runs, (48..96).collect::<Vec<u64>>(), "every counted run once");
    assert!(table.starts_with("# tributary bench") && table.contains("# strong scaling"), "{table}");
    check_files(&out);
}

fn check_files(out: &Path) {
    let read = |name: &str| std::fs::read_to_string(out.join(name)).expect("readable");
    let (points, samples) = (read("points.csv"), read("samples.csv"));
    assert!(points.starts_with("id,method,") && points.lines().next().is_some_and(|line| line.contains("p99_ttft_ms")));
    assert_eq!((points.lines().count(), samples.lines().count()), (1 + 24, 1 + 48));
    let page = read("report.html");
    assert!(page.starts_with("<!DOCTYPE html>") && page.matches("<svg ").count() > 5);
    assert!(!page.replace("http://www.w3.org/2000/svg", "").contains("http"), "nothing from elsewhere");
    for name in ["charts/ttft-2-ranks.svg", "charts/speed-up-256.svg", "charts/bytes.svg", "charts/timeline-1.svg"] {
        assert!(read(name).starts_with("<svg "), "{name}");
    }
    let left: Vec<_> =
        std::fs::read_dir(out).expect("a folder").filter_map(Result::ok).map(|file| file.file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().ends_with(".part")), "{left:?}");
}

#[test]
fn an_interrupted_study_goes_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().display().to_string();
    let study = ["--lengths", "128", "--methods", "full,ring", "--warmups", "1", "--repeats", "3", "--out", &out];
    assert_eq!(bench(&study).0, Some(0));
    // As if it had ended after the first counted round.
    let mut cut = report(folder.path());
    for point in cut["points"].as_array_mut().expect("points") {
        point["samples"].as_array_mut().expect("samples").truncate(1);
    }
    let write = |report: &Value| {
        std::fs::write(folder.path().join("report.json"), report.to_string()).expect("written");
    };
    write(&cut);
    let refused = |arguments: &[&str], says: &[&str]| {
        let (code, out, errors) = bench(arguments);
        assert_eq!((code, out.as_str(), errors.lines().count()), (Some(64), "", 1), "{arguments:?}: {errors}");
        assert!(says.iter().all(|part| errors.contains(part)), "{arguments:?}: {errors}");
        assert_eq!(report(folder.path()), cut, "nothing was written");
    };
    refused(&study, &["--resume", "--force"]);
    refused(&[&study[..], &["--resume", "--seed", "7"]].concat(), &["--resume: seed was 0 and is 7"]);
    refused(&[&study[..], &["--resume", "--threads", "2"]].concat(), &["--resume: threads was 1 and is 2"]);

    // The rest of the command may be left out, as a whole: the study knows its design.
    let (code, _, errors) = run(&["bench", "--resume", "--out", &out, "--repeats", "3"]);
    assert!(code == Some(64) && errors.contains("leave the study's options out, or give all"), "{errors}");
    let (code, _, errors) = run(&["bench", "--resume", "--out", &out]);
    assert_eq!(code, Some(0), "{errors}");
    let whole = report(folder.path());
    for (before, after) in points(&cut).iter().zip(points(&whole)) {
        assert_eq!(samples(after).len(), 3);
        assert_eq!(samples(after)[0], samples(before)[0], "what was measured is kept");
        assert_eq!(after["summary"]["count"], 3);
    }

    let (code, _, errors) = bench(&[&study[..], &["--resume", "--profile", "h100x4"]].concat());
    assert!(code == Some(64) && errors.contains("the profile was none and is h100x4"), "{errors}");
    let mut other = whole.clone();
    other["provenance"]["cores"] = 100_000.into();
    write(&other);
    let (code, _, errors) = run(&["bench", "--resume", "--out", &out]);
    assert!(code == Some(64) && errors.contains("the number of cores was 100000"), "{errors}");
    other = whole.clone();
    other["provenance"]["build"] = "0123456789abcdef".into();
    write(&other);
    let (code, _, errors) = run(&["bench", "--resume", "--out", &out]);
    assert!(code == Some(64) && errors.contains("the program was 0123456789abcdef"), "{errors}");
    other["schema"] = "tributary.study/9".into();
    write(&other);
    let (code, _, errors) = run(&["bench", "--resume", "--out", &out]);
    assert!(code == Some(64) && errors.contains("schema tributary.study/9, not tributary.study/1"), "{errors}");
    for name in ["charts/old.svg", "charts/own.txt"] {
        std::fs::write(folder.path().join(name), "old").expect("written");
    }
    assert_eq!(bench(&[&study[..], &["--force"]].concat()).0, Some(0));
    assert_eq!(report(folder.path())["points"][0]["samples"].as_array().map(Vec::len), Some(3));
    assert!(!folder.path().join("charts/old.svg").exists(), "nothing of the old study stays");
    assert!(folder.path().join("charts/own.txt").exists(), "what no study wrote stays");
}

#[test]
fn a_dry_run_loads_and_writes_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    // A config and no weights: whatever loads them fails.
    std::fs::copy(root().join("examples/models/demo/config.json"), folder.path().join("config.json")).expect("a copy");
    let (model, out) = (folder.path().display().to_string(), folder.path().join("out"));
    let shown = out.display().to_string();
    let common = ["bench", "--model", &model, "--lengths", "512,1k", "--worlds", "1,4", "--out", &shown, "--dry-run"];
    let (code, table, errors) = run(&common);
    assert_eq!(code, Some(0), "{errors}");
    assert!(table.contains("16 points, 2 warm-ups and 5 counted runs each: 112 runs"), "{table}");
    let ring = table.lines().find(|line| line.contains("1024  ring") && line.contains("  4  ")).expect("a row");
    // 5 layers, keys and values, 2 heads of 32 numbers of 4 bytes: each of 1057 rows comes to 3
    // other ranks.
    assert!(ring.contains(&(5 * 2 * 2 * 32 * 4 * 3 * 1057).to_string()), "{ring}");
    let (code, table, errors) = run(&[&common[..], &["--profile", "h100x4"]].concat());
    assert!(code == Some(0) && table.contains("112 runs, about "), "{table}{errors}");
    let eight = ["bench", "--model", &model, "--lengths", "512", "--worlds", "1,8", "--dry-run", "--profile", "h100x4"];
    let (code, table, errors) = run(&eight);
    assert_eq!(code, Some(0), "{errors}");
    assert!(table.contains("has 4 ranks: no times are predicted for 8\n") && !table.contains("runs, about"), "{table}");
    assert!(table.contains("predictions for 1 use the same rates"), "{table}");
    assert!(!out.exists(), "nothing was written");
}

#[test]
fn this_machine_can_be_calibrated() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("here.toml").display().to_string();
    let (code, _, errors) = bench(&["--worlds", "2", "--calibrate", &file, "--repeats", "3"]);
    assert_eq!(code, Some(0), "{errors}");
    let (code, _, errors) = bench(&["--worlds", "2", "--calibrate", &file]);
    assert!(code == Some(64) && errors.contains("--force"), "{errors}");
    let nowhere = folder.path().join("none/here.toml").display().to_string();
    let (code, _, errors) = bench(&["--calibrate", &nowhere]);
    assert!(code == Some(64) && errors.contains(&nowhere) && errors.contains("no such folder"), "{errors}");
    let (code, _, errors) = bench(&["--calibrate", "--repeats", "2"]);
    assert!(code == Some(64) && errors.contains("--repeats 2: a calibration needs 3 rounds"), "{errors}");
    let (code, table, errors) = bench(&["--lengths", "256", "--worlds", "2", "--profile", &file, "--dry-run"]);
    assert!(code == Some(0) && table.contains("runs, about"), "{table}{errors}");
    let (code, text, _) = bench(&["--calibrate", "--repeats", "3"]);
    assert!(code == Some(0) && text.contains("measured_here = true") && text.contains("gemm_flops_per_s"), "{text}");
}

#[test]
fn what_cannot_be_is_refused_in_one_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("out");
    let shown = out.display().to_string();
    let refused = |arguments: &[&str], says: &[&str]| {
        let lengths: &[&str] = if arguments[0] == "--lengths" { &[] } else { &["--lengths", "128"] };
        let (code, table, errors) = bench(&[arguments, lengths, &["--out", &shown]].concat());
        assert_eq!((code, table.as_str(), errors.lines().count()), (Some(64), "", 1), "{arguments:?}: {errors}");
        for part in says {
            assert!(errors.contains(part), "{arguments:?}: `{part}` is not in: {errors}");
        }
        assert!(!out.exists(), "{arguments:?}: something was written");
    };
    let file = folder.path().join("study.toml");
    let study = file.display().to_string();
    for (text, says) in [
        ("seed = 1\nlengts = [512]\n", "line 2: no command has an option `lengts`; the nearest is `lengths`"),
        ("repeats = 3\nratios = [0.1,\n 1.5]\n", "line 2: invalid value '1.5' for '--ratios"),
        ("query_tokens = 8\n", "line 1: no command has an option `query_tokens`; the nearest is `query-tokens`"),
        ("repeats = \n", "line 1: "),
    ] {
        std::fs::write(&file, text).expect("written");
        refused(&["--study", &study], &["study.toml", says]);
    }
    refused(&["--study", "/no/such.toml"], &["/no/such.toml", "No such file"]);
    refused(&["--lengths", "100"], &["--lengths 100", "multiple of --chunk-tokens 64"]);
    refused(&["--lengths", "64,8k"], &["--lengths 8192", "8202 positions", "the model has 4096"]);
    refused(&["--methods", "fully"], &["fully", "known are full"]);
    refused(&["--methods", "ring:world=2"], &["ring:world=2", "--worlds"]);
    refused(&["--methods", "epic:reorder"], &["epic: reorder", "makes no difference to this method"]);
    refused(&["--ratios", "2"], &["`2` is no ratio"]);
    refused(&["--worlds", "0"], &["--worlds 0"]);
    refused(&["--worlds", "1,5000"], &["5000"]);
    refused(&["--repeats", "0"], &["--repeats 0"]);
    let most = u64::MAX.to_string();
    for option in ["--repeats", "--warmups"] {
        refused(&[option, &most], &[option, &most, "at most 1000000"]);
    }
    for option in ["--collective-timeout", "--start-timeout"] {
        refused(&[option, &most], &[option, &most, "1..=2592000"]);
    }
    refused(&["--caches", "hot"], &["`hot` is no state of the cache"]);
    refused(&["--caches", "0.3"], &["--caches 0.3: of --lengths 128 in 2 chunks that is 0 chunks; 0.5 is one of them"]);
    refused(&["--lengths", "192", "--caches", "0.33"], &["in 3 chunks that is 0 chunks; 0.3334 is one"]);
    refused(&["--lengths", "64", "--caches", "0.5"], &["in 1 chunks", "a single chunk is cold or warm"]);
    refused(&["--profile", "h900"], &["h900", "h100x4", "h200x8"]);
    refused(&["--resume"], &["report.json", "No such file"]);
    refused(&["--resume", "--force"], &["cannot be used with"]);
}

#[test]
fn a_point_beyond_the_memory_is_refused_with_both_numbers() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = std::fs::read_to_string(root().join("examples/models/dummy-25m/config.json")).expect("a config");
    let huge = config.replace("\"num_hidden_layers\": 8", "\"num_hidden_layers\": 800000");
    assert_ne!(huge, config);
    std::fs::write(folder.path().join("config.json"), huge).expect("written");
    let (model, out) = (folder.path().display().to_string(), folder.path().join("out"));
    let shown = out.display().to_string();
    let (code, _, errors) = run(&["bench", "--model", &model, "--load-format", "dummy", "--out", &shown]);
    assert_eq!((code, errors.lines().count()), (Some(64), 1), "{errors}");
    assert!(errors.contains("the request needs about 11.3 TiB of memory, "), "{errors}");
    assert!(errors.contains("iB are available") && errors.contains("full of 4096 tokens on 1 ranks"), "{errors}");
    assert!(!out.exists());
}

#[test]
fn the_study_files_of_the_repository_are_sound() {
    let folder = root();
    for name in ["examples/studies/dummy-25m.toml", "examples/studies/demo.toml", "examples/studies/picture.toml"] {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_tributary"))
            .current_dir(&folder)
            .args(["bench", "--study", name, "--dry-run"])
            .output()
            .expect("the command starts");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{name}: {errors}");
    }
}

#[test]
fn a_study_has_metrics_of_all_its_runs() {
    let folder = tempfile::tempdir().expect("a folder");
    let (out, file) = (folder.path().join("short"), folder.path().join("job.prom"));
    let (shown, path) = (out.display().to_string(), file.display().to_string());
    let sweep =
        ["--lengths", "128", "--worlds", "1,2", "--methods", "full,infoflow", "--repeats", "2", "--warmups", "1"];
    let (code, _, errors) = bench(&[&sweep[..], &["--out", &shown, "--metrics-file", &path]].concat());
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    let text = std::fs::read_to_string(&file).expect("the file");
    let of = |name: &str| -> f64 {
        let value =
            text.lines().find_map(|line| line.strip_prefix("tributary_")?.strip_prefix(name)?.strip_prefix(' '));
        value.unwrap_or_else(|| panic!("no {name} in:\n{text}")).parse().expect("a number")
    };
    // Two points a method, a warm-up and two runs each.
    assert_eq!(of("requests_total{method=\"full\",outcome=\"answered\"}"), 6.0);
    assert_eq!(of("requests_total{method=\"infoflow\",outcome=\"answered\"}"), 6.0);
    assert_eq!((of("job_progress_ratio"), of("job_info{command=\"bench\",study=\"short\"}")), (1.0, 1.0));
    assert_eq!(of("world_size"), 2.0);
    assert!(of("collective_bytes_total{rank=\"1\",collective=\"all-gather\",direction=\"received\"}") > 0.0);
    assert!(of("rank_phase_seconds_total{rank=\"1\",phase=\"chunk_prefill\"}") > 0.0);
}

#[test]
fn pictures_of_noise_are_measured_with_their_towers() {
    let folder = tempfile::tempdir().expect("a folder");
    let (model, out) = (root().join("examples/models/dummy-vlm"), folder.path().join("study"));
    let (model, shown) = (model.display().to_string(), out.display().to_string());
    let study = ["bench", "--model", &model, "--load-format", "dummy", "--lengths", "64", "--chunk-tokens", "32"];
    let own = ["--query-tokens", "8", "--images", "2x300x200", "--worlds", "2", "--methods", "ring,infoflow"];
    let runs = ["--caches", "cold,warm", "--repeats", "2", "--warmups", "0", "--out", &shown];
    let (code, table, errors) = run(&[&study[..], &own, &runs].concat());
    assert_eq!((code, errors.as_str()), (Some(0), ""), "{table}");
    let report = report(&out);
    assert_eq!(report["design"]["images"], "2x300x200");
    assert_eq!(points(&report).len(), 3, "ring, infoflow cold and warm");
    for point in points(&report) {
        assert_eq!(samples(point).len(), 2, "{}", point["id"]);
    }
    let dry = [&study[..], &own, &["--dry-run"]].concat();
    let (code, table, _) = run(&dry);
    assert!(code == Some(0) && table.contains("# pictures after each context: 2x300x200"), "{table}");
    let text = ["--images", "2x300x200", "--lengths", "64", "--out", &shown, "--force"];
    let (code, _, errors) = bench(&text);
    assert_eq!(code, Some(64), "{errors}");
    assert!(errors.contains("reads no pictures") && errors.lines().count() == 1, "{errors}");
}
