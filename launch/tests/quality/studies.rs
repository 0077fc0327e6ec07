//! The study files of `examples/studies/quality`: each is refused with the name of its missing
//! material, and a dry run needs only a model's config.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::kit::{skipped, told};
use crate::{data, refused, root};

/// The study files, by name.
fn studies() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(root().join("examples/studies/quality")).expect("a folder");
    let mut all: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    // Those of real models have no model in the repository, and a test of their own.
    let name = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    all.retain(|path| name(path).ends_with(".toml") && !name(path).starts_with("real-"));
    all.sort();
    assert!(all.len() >= 8, "{all:?}");
    all
}

/// Runs a study in the repository's root, as its page says.
fn study(file: &Path, arguments: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tributary"));
    command.current_dir(root()).env_remove("TRIBUTARY_DATA").args(["quality", "--study"]).arg(file).args(arguments);
    told(&command.output().expect("the command starts"))
}

/// Made-up rows of every dataset of the studies, with the made-up lists and paragraphs; there are
/// enough pairs of words for the needles.
fn whole_data() -> tempfile::TempDir {
    let folder = data();
    for (list, count) in [("adjective", 800), ("noun", 800), ("verb", 80)] {
        let words: String = (0..count).map(|number| format!("{list}{number}\n")).collect();
        std::fs::write(folder.path().join(format!("ruler/wordlists/{list}list.txt")), words).expect("written");
    }
    for dataset in ["hotpotqa", "2wikimqa", "musique", "qasper", "multifieldqa_en"] {
        let row = serde_json::json!({"input": "Which?", "context": "Passage 1:\nThe fox runs. The dog sits.\nPassage 2:\nIt rains.", "answers": ["fox"],
            "length": 9, "dataset": dataset, "language": "en", "all_classes": null, "_id": "row"});
        std::fs::write(folder.path().join(format!("longbench/{dataset}.jsonl")), format!("{row}\n")).expect("written");
    }
    folder
}

#[test]
fn every_study_says_in_one_line_what_it_lacks() {
    let data = whole_data();
    let given = data.path().display().to_string();
    let out = data.path().join("out");
    let shown = out.display().to_string();
    for file in studies() {
        // Without data, with or without a model; then without a model, for which the repository has
        // only the config.
        for arguments in [&["--dry-run"][..], &["--out", &shown], &["--data", "/nowhere", "--out", &shown]] {
            let (code, printed, errors) = study(&file, arguments);
            let names_it = errors.contains("--data DIR or TRIBUTARY_DATA") || errors.contains("/nowhere");
            assert!(names_it, "{}: {errors}", file.display());
            refused((code, printed, errors), &[]);
        }
        let model = study(&file, &["--data", &given, "--out", &shown]);
        assert!(model.2.contains("models/") && model.2.contains("tokenizer.json"), "{}: {}", file.display(), model.2);
        refused(model, &["No such file"]);
        refused(study(&file, &["--data", &given, "--model", "/nowhere/model"]), &["/nowhere/model"]);
    }
    assert!(!out.exists());
}

#[test]
fn a_dry_run_of_every_study_needs_no_more_than_a_config() {
    let data = whole_data();
    let given = data.path().display().to_string();
    for file in studies() {
        let name = file.display();
        // Made-up rows are short; texts that are filled to a length are filled to a small one.
        let is_filled = !name.to_string().contains("longbench");
        let lengths: &[&str] = if is_filled { &["--lengths", "4096"] } else { &[] };
        let few = ["--data", &given, "--samples", "1", "--dry-run", "--profile", "h100x4-paper"];
        let (code, text, errors) = study(&file, &[&few[..], lengths].concat());
        assert_eq!((code, errors.as_str()), (Some(0), ""), "{name}");
        let reproduces = std::fs::read_to_string(&file).expect("readable");
        let reproduces =
            reproduces.lines().find_map(|line| line.strip_prefix("reproduces = \"")).expect("what it is for");
        assert!(text.contains(&format!("# reproduces: {}\n", reproduces.trim_end_matches('"'))), "{name}: {text}");
        assert!(text.contains("# the model's folder has no tokenizer.json: tokens are estimated"), "{name}: {text}");
        assert!(text.contains("# predicted by the profile h100x4-paper"), "{name}: {text}");
        let line = text.lines().find(|line| line.trim_start().starts_with("full ")).expect("a row");
        let row: Vec<f64> = line.split_whitespace().skip(1).map(|word| word.parse().expect("a number")).collect();
        // Weights of eight billion and more, in 16 bits.
        assert!(row[0] > 14_000.0 && row[1] > 0.0 && row[2] > 0.0, "{name}: {line}");
        let all = text.lines().find(|line| line.trim_start().starts_with("all ")).expect("a sum");
        let all: Vec<usize> = all.split_whitespace().skip(1).map(|word| word.parse().expect("a number")).collect();
        assert!(all[1].is_multiple_of(all[0]) && all[2] > all[1], "requests, answers, tokens: {name}: {all:?}");
    }
}

/// Rows of HotpotQA of both types, as `make real-models` writes them, and paragraphs of several
/// articles.
fn with_sources(data: &Path) {
    let path = data.join("ruler/xquad.en.json");
    std::fs::remove_file(data.join("longbench/derived_hotpotqa_10p.jsonl")).expect("a file of few rows");
    let mut articles = crate::json(&path);
    let paragraphs = articles["data"][0]["paragraphs"].as_array().expect("paragraphs").clone();
    articles["data"] = paragraphs.chunks(5).map(|own| serde_json::json!({"paragraphs": own})).collect();
    std::fs::write(&path, articles.to_string()).expect("written");
    let row = |number: usize| {
        let passage = |at: usize| format!("Passage {at}:\nTitle {number} {at}\nIt is fact {at} of {number}.\n\n");
        let kind = ["bridge", "comparison"][number % 2];
        let row = serde_json::json!({"input": "Which?", "context": (1..=10).map(passage).collect::<String>(), "answers": ["fact"],
            "length": 9, "dataset": "hotpotqa", "type": kind, "needed": [2, 7],
            "sources": [format!("Title {number} 2"), format!("Title {number} 7")]});
        format!("{row}\n")
    };
    let rows: String = (0..200).map(row).collect();
    std::fs::write(data.join("longbench/derived_hotpotqa_dev.jsonl"), rows).expect("written");
}

/// The study that asks other requests of the report part makes them as the first one does, but for
/// the seed.
#[test]
fn a_study_with_another_seed_draws_other_requests_of_the_same_tasks() {
    let data = whole_data();
    with_sources(data.path());
    let given = data.path().display().to_string();
    let table = |name: &str| -> toml::Table {
        let file = root().join("examples/studies/quality").join(name);
        std::fs::read_to_string(file).expect("readable").parse().expect("TOML")
    };
    let (first, second) = (table("real-qwen-0.5b.toml"), table("real-qwen-0.5b-seed-1.toml"));
    for key in ["suite", "lengths", "documents", "document-tokens", "chunk-tokens", "split-salt", "ratios", "warm"] {
        assert_eq!(first[key], second[key], "{key}");
    }
    for list in ["tasks", "methods"] {
        let all = first[list].as_array().expect("a list");
        assert!(second[list].as_array().expect("a list").iter().all(|one| all.contains(one)), "{list}");
    }
    let file = root().join("examples/studies/quality/real-qwen-0.5b-seed-1.toml");
    let own = ["--data", &given, "--model", "examples/models/qwen3-14b", "--samples", "2", "--dry-run"];
    let (code, text, errors) = study(&file, &own);
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    assert!(text.contains("nothing was asked; seed 1") && text.contains("# 6 methods and ratios"), "{text}");
    assert!(text.contains("longbench/derived_hotpotqa_dev:bridge at 1536"), "{text}");
}

/// The study of a real model counts its requests with any model's config, in both parts; the report
/// part takes nothing that the study does not list.
#[test]
fn the_study_of_a_real_model_lists_what_is_reported() {
    let data = whole_data();
    with_sources(data.path());
    let given = data.path().display().to_string();
    let file = root().join("examples/studies/quality/real-qwen-0.5b.toml");
    let own = ["--data", &given, "--model", "examples/models/qwen3-14b", "--samples", "2", "--dry-run"];
    let asked = |more: &[&str]| study(&file, &[&own[..], more].concat());
    let (code, selection, errors) = asked(&[]);
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    assert!(selection.contains("longbench/derived_hotpotqa_dev:bridge at 1536"), "{selection}");
    assert!(selection.contains("# 7 methods and ratios: full, none, infoflow at 0.15"), "{selection}");
    let (code, report, errors) = asked(&["--split", "report", "--methods", "full,infoflow"]);
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    assert!(report.contains("# 2 methods and ratios: full, infoflow at 0.15"), "{report}");
    let said = |more: &[&str], says: &str| {
        refused(asked(&[&["--split", "report"], more].concat()), &[&format!("--split report: {says}")]);
    };
    said(&["--methods", "full", "trace"], "the study does not list trace at 0.15");
    said(&["--ratios", "0.2"], "the study does not list infoflow at 0.2");
    said(&["--split-salt", "mine"], "the study does not list this --split-salt");
    said(&["--seed", "4"], "the study does not list this --seed");
    said(&["--chunk-prefix", "head"], "the study does not list this --chunk-prefix");
    said(&["--tasks", "pairs/refer,ruler/niah_single_1"], "the study does not list the task ruler/niah_single_1");
    let many = study(
        &file,
        &["--data", &given, "--model", "examples/models/qwen3-14b", "--split", "report", "--samples", "101"],
    );
    refused(many, &["the study does not list --samples 101; it lists 100"]);
    let out = data.path().join("out").display().to_string();
    let demo = crate::demo();
    let bare =
        ["quality", "--suite", "pairs", "--model", &demo, "--split", "report", "--split-salt", "s", "--out", &out];
    refused(crate::run(&bare), &["--split report: it runs what a committed study file lists"]);
}

/// A run on the report part of a committed study leaves a line beside it, and the next report lists
/// it; a tree with changes is refused before anything is asked.
#[test]
fn runs_on_the_report_part_are_listed() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("study.toml");
    let text = "suite = \"pairs\"\ntasks = [\"refer\"]\nsamples = 2\ndocuments = 4\ndocument-tokens = [60]\nmethods = [\"full\", \"none\"]\nsplit-salt = \"s\"\n";
    std::fs::write(&file, text).expect("written");
    let git = |arguments: &[&str]| {
        let who = ["-c", "user.name=Test", "-c", "user.email=test@example.org"];
        let status = Command::new("git").arg("-C").arg(folder.path()).args(who).args(arguments).status();
        assert!(status.expect("git").success(), "git {arguments:?}");
    };
    let (model, out) = (crate::demo(), folder.path().join("out"));
    let out = |name: &str| out.join(name).display().to_string();
    let run = |name: &str, more: &[&str]| {
        study(&file, &[&["--model", &model, "--split", "report", "--out", &out(name)], more].concat())
    };
    git(&["init", "-q"]);
    refused(run("none", &[]), &["study.toml: it is not committed"]);
    git(&["add", "study.toml"]);
    git(&["commit", "-q", "-m", "A study"]);
    let (code, printed, errors) = run("first", &[]);
    assert_eq!((code, errors.as_str()), (Some(0), ""), "{printed}");
    assert!(printed.contains("# sources: the part report with salt s\n# study study.toml"), "{printed}");
    let (code, printed, errors) = run("first", &["--resume"]);
    assert_eq!((code, errors.as_str()), (Some(0), ""), "{printed}");
    assert!(printed.contains("# report runs before this one: 1\n"), "{printed}");
    let report = crate::json(&Path::new(&out("first")).join("report.json"));
    let earlier = &report["report_runs"]["earlier"];
    assert_eq!(
        (earlier.as_array().map(Vec::len), &earlier[0]["methods"]),
        (Some(1), &serde_json::json!(["full", "none"]))
    );
    assert_eq!((&report["design"]["split"], report["design"]["split_salt"].as_str()), (&"report".into(), Some("s")));
    let lines = std::fs::read_to_string(folder.path().join("report-runs.jsonl")).expect("a list");
    assert_eq!(lines.lines().count(), 2);
    std::fs::write(&file, format!("{text}seed = 1\n")).expect("written");
    refused(run("second", &[]), &["the git tree has changes, such as M study.toml"]);
    assert!(!Path::new(&out("second")).exists());
}

#[test]
fn options_stand_before_a_study_and_its_keys_are_checked() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("study.toml");
    let text = "model = \"examples/models/demo\"\nsuite = \"hops\"\ntasks = [\"single\"]\nsamples = 3\ndocument-tokens = [32]\nmethods = [\"full\", \"none\"]\n\
        reproduces = \"nothing\"\n";
    std::fs::write(&file, text).expect("written");
    let out = folder.path().join("out").display().to_string();
    let (code, table, errors) = study(&file, &["--samples", "2", "--out", &out]);
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    assert!(table.contains("# reproduces: nothing\n") && table.contains("# 4 answers to 2 requests"), "{table}");
    let report = crate::json(&Path::new(&out).join("report.json"));
    assert_eq!(
        (&report["design"]["reproduces"], &report["design"]["document_tokens"]),
        (&"nothing".into(), &32.into())
    );
    std::fs::write(&file, format!("{text}colour = 3\n")).expect("written");
    refused(study(&file, &[]), &["study.toml, line 8: no command has an option `colour`"]);
    refused(study(Path::new("/nowhere.toml"), &[]), &["/nowhere.toml", "No such file"]);
}

/// Real lists and paragraphs, where they are beside the repository: a study whose lengths are
/// filled as in a real run.
#[test]
fn a_study_on_real_texts_is_counted() {
    let found = root().join("../shared/data");
    if !found.join("ruler").is_dir() {
        return skipped("a study on real texts: no ../shared/data");
    }
    let data = found.display().to_string();
    let file = root().join("examples/studies/quality/prophetkv-ruler.toml");
    let (code, text, errors) = study(
        &file,
        &["--data", &data, "--samples", "1", "--lengths", "4096", "--tasks", "vt,cwe,qa_1,niah_single_2", "--dry-run"],
    );
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    let all = text.lines().find(|line| line.trim_start().starts_with("all ")).expect("a sum");
    let all: Vec<usize> = all.split_whitespace().skip(1).map(|word| word.parse().expect("a number")).collect();
    let each = (all[2] + all[3]) / all[1];
    assert!((3800..=4096).contains(&each), "tokens of a request and its answer: {each}: {text}");
}
