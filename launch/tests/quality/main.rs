//! `tributary quality` as a user runs it: scores of answers made elsewhere, the suite of the demo
//! model's language, the resumption of an interrupted evaluation, and refusals.

mod axes;
#[path = "../kit/mod.rs"]
mod kit;
mod pages;
mod studies;

use std::path::Path;

use kit::{demo, root, run};
use serde_json::Value;

/// Runs the suite on the demo model.
fn hops(arguments: &[&str]) -> (Option<i32>, String, String) {
    let demo = demo();
    run(&[&["quality", "--suite", "hops", "--model", &demo], arguments].concat())
}

/// Asserts that a command is refused in one line that says this, and nothing is printed.
fn refused((code, out, errors): (Option<i32>, String, String), says: &[&str]) {
    assert_eq!((code, out.as_str(), errors.lines().count()), (Some(64), "", 1), "{errors}");
    assert!(says.iter().all(|part| errors.contains(part)), "{says:?}: {errors}");
}

fn json(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).expect("readable")).expect("JSON")
}

fn lines(folder: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(folder.join("answers.jsonl")).expect("answers");
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

fn point<'a>(report: &'a Value, method: &str, task: &str) -> &'a Value {
    let points = report["points"].as_array().expect("points");
    let found = points.iter().find(|point| point["method"] == method && point["task"] == task);
    found.unwrap_or_else(|| panic!("no point of {method} on {task}"))
}

#[test]
fn answers_made_elsewhere_are_scored() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("answers.jsonl");
    let path = file.display().to_string();
    let write = |text: &str| std::fs::write(&file, text).expect("written");
    write(
        "{\"metric\": \"qa_f1\", \"prediction\": \"the Paris\", \"references\": [\"London\", \"paris\"]}\n\
         {\"metric\": \"classification\", \"prediction\": \"a food\", \"references\": [\"food\"], \"classes\": [\"food\", \"a\"]}\n\
         {\"metric\": \"count\", \"prediction\": \"There are 4 or 5\", \"references\": [\"5\"]}\n",
    );
    assert_eq!(run(&["quality", "score", &path]), (Some(0), "1\n0.5\n0.5\n".to_owned(), String::new()));
    write(
        "{\"metric\": \"qa_f1\", \"prediction\": \"x\", \"references\": [\"y\"]}\n{\"metric\": \"bleu\", \"prediction\": \"\", \"references\": [\"\"]}\n",
    );
    refused(run(&["quality", "score", &path]), &["answers.jsonl, line 2: `metric`: bleu is none of qa_f1, rouge_l"]);
    refused(run(&["quality", "score", "/nowhere.jsonl"]), &["/nowhere.jsonl", "No such file"]);
}

#[test]
fn evaluations_that_ran_side_by_side_are_read_as_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let part = |task: &str, methods: &[&str]| {
        let out = folder.path().join(task).display().to_string();
        let asked = [&["--tasks", task, "--samples", "3", "--out", &out, "--methods"], methods].concat();
        assert_eq!(hops(&asked).0, Some(0));
        out
    };
    let (one, two) = (part("hop2", &["none", "infoflow", "epic"]), part("single", &["none", "infoflow"]));
    let (code, table, errors) = run(&["quality", "pool", &one, &two, "--methods", "none", "infoflow"]);
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    assert!(table.starts_with("# 6 requests with answers of all 3 methods, of 6\n"), "{table}");
    assert!(table.contains("all 6 requests pooled") && !table.contains("epic"), "{table}");
    let file = folder.path().join("pool.toml");
    std::fs::write(&file, "[quality.pool]\nmethods = [\"none\"]\nleast-gap = 0.1\n").expect("written");
    let (code, table, _) = run(&["quality", "pool", &one, &two, "--config", &file.display().to_string()]);
    assert!(code == Some(0) && table.contains("answers of all 2 methods"), "{table}");
    let part = [one.as_str(), &folder.path().display().to_string()].map(str::to_owned);
    refused(run(&["quality", "pool", &part[0], &part[1]]), &["design.json", "No such file"]);
}

/// The page, the tables and the text of that evaluation.
fn reports_show_it(out: &Path, table: &str) {
    // The contexts of the worst requests, with at least as many marks as rows would make if all
    // were adjacent.
    let page = std::fs::read_to_string(out.join("quality.html")).expect("a page");
    assert!(page.contains("<details><summary>hop2") && page.matches("<mark>").count() > 8, "{page}");
    assert!(page.contains("; chunks moved; “"), "{page}");
    let csv = std::fs::read_to_string(out.join("points.csv")).expect("points");
    assert!(csv.starts_with("method,ratio,task,length,depth,requests,") && csv.lines().count() == 1 + 6 * 4, "{csv}");
    let csv = std::fs::read_to_string(out.join("answers.csv")).expect("answers");
    assert!(csv.starts_with("task,length,depth,chunk_tokens,sample,id,method,ratio,score,first_token,"), "{csv}");
    assert_eq!(csv.lines().count(), 1 + 108);
    assert!(table.contains("# 108 answers to 18 requests; 0 of them were there before"), "{table}");
    assert!(table.contains("hop2_back") && table.contains("less full's"), "{table}");
}

#[test]
fn methods_answer_the_suite_side_by_side() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("quality");
    let shown = out.display().to_string();
    let asked =
        ["--tasks", "single,hop2,hop2_back", "--samples", "6", "--methods", "none", "infoflow", "infoflow:reorder"];
    let (code, table, errors) =
        hops(&[&asked[..], &["--ratios", "0.05,0.15", "--worlds", "2", "--out", &shown]].concat());
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    let report = json(&out.join("report.json"));
    // The reference is added; it and `none` have no ratio.
    assert_eq!((&report["answers"], &report["answers_before"]), (&(3 * 6 * 6).into(), &0.into()));
    assert_eq!(report["points"].as_array().map(Vec::len), Some(6 * 4));
    assert_eq!(report["failures"], Value::Array(Vec::new()));
    let score = |method: &str, task: &str| point(&report, method, task)["score"]["mean"].as_f64().expect("a number");
    assert_eq!(score("full", "single"), 1.0);
    assert!(score("full", "hop2") > 0.8 && score("none", "hop2") < 0.4, "{table}");
    assert!(score("full", "hop2_back") < 0.4 && score("infoflow:reorder", "hop2_back") > 0.6, "{table}");
    let none = point(&report, "none", "all");
    let pair = &none["against_full"];
    assert!(pair["full_alone"].as_u64() > pair["right_alone"].as_u64(), "{none}");
    assert!(pair["difference"]["low"].as_f64() <= pair["difference"]["mean"].as_f64(), "{none}");
    assert_eq!(point(&report, "full", "all")["against_full"], Value::Null);
    let share = point(&report, "infoflow", "all")["selected_share"].as_f64().expect("a number");
    assert!((0.03..0.07).contains(&share), "the first ratio: {share}");
    assert!(point(&report, "infoflow:reorder", "all")["moved_share"].as_f64() > Some(0.5));

    let answers = lines(&out);
    assert_eq!(answers.len(), 3 * 6 * 6);
    for answer in &answers {
        assert!(answer["ttft_ms"].as_f64().is_some_and(|ms| ms > 0.0) && answer["failure"].is_null(), "{answer}");
        assert_eq!(answer["prompt_hash"].as_str().map(str::len), Some(32));
        let text = format!("{} ", answer["answer"].as_str().expect("a text"));
        let is_right = text.starts_with(&format!("{} ", answer["references"][0].as_str().expect("a text")));
        assert_eq!(answer["score"], f64::from(u8::from(is_right)), "{answer}");
    }
    // Full prefill is not measured against itself; every other first token is.
    let nats = |answer: &Value| answer["kl_nats"].as_f64();
    assert!(answers.iter().all(|answer| nats(answer).is_some() == (answer["method"] != "full")));
    assert!(answers.iter().filter_map(nats).all(|nats| nats.is_finite() && nats >= 0.0));
    let mean = |method: &str| point(&report, method, "all")["agreement"]["kl_nats"]["mean"].as_f64().expect("a mean");
    assert!(mean("none") > 2.0 * mean("infoflow") && mean("infoflow") > 1e-3, "{} {}", mean("none"), mean("infoflow"));
    assert_eq!(point(&report, "full", "all")["agreement"], Value::Null);
    let first = &none["agreement"]["first_token"];
    assert!(first["low"].as_f64() < first["share"].as_f64() && first["share"].as_f64() < first["high"].as_f64());
    assert!(
        point(&report, "infoflow", "all")["family"] == "query" && point(&report, "full", "all")["family"] == "exact"
    );
    assert!(
        table.contains("p (Holm)")
            && none["against_full"]["holm_p"].as_f64() >= none["against_full"]["mcnemar_p"].as_f64()
    );
    assert!(table.contains("token 1 as full [%]") && table.contains("KL [nats]"), "{table}");
    reports_show_it(&out, &table);
}

#[test]
fn an_interrupted_evaluation_goes_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().display().to_string();
    let asked = ["--tasks", "single,vt2", "--samples", "3", "--methods", "infoflow", "--out", &out];
    assert_eq!(hops(&asked).0, Some(0));
    let file = folder.path().join("answers.jsonl");
    let whole = std::fs::read_to_string(&file).expect("answers");
    let kept: String = whole.lines().take(5).map(|line| format!("{line}\n")).collect();
    // As if the process had been stopped while it wrote the sixth.
    let cut = format!("{kept}{{\"task\": \"vt2\", \"samp");
    std::fs::write(&file, &cut).expect("written");
    refused(hops(&asked), &["answers.jsonl", "--resume", "--force"]);
    refused(hops(&[&asked[..], &["--resume", "--seed", "7"]].concat()), &["--resume: seed was 0 and is 7"]);
    refused(hops(&[&asked[..], &["--resume", "--documents", "9"]].concat()), &["--resume: documents was 8 and is 9"]);
    refused(
        hops(&[&asked[..], &["--resume", "--prefix", "none"]].concat()),
        &["--resume: prefix was null and is \"none\""],
    );
    assert_eq!(std::fs::read_to_string(&file).expect("answers"), cut, "nothing was written");

    let (code, table, errors) = hops(&[&asked[..], &["--resume"]].concat());
    assert_eq!(code, Some(0), "{errors}");
    assert!(table.contains("# 12 answers to 6 requests; 5 of them were there before"), "{table}");
    let measured = |answer: &Value| answer["kl_nats"].as_f64().is_some_and(|nats| nats < 10.0);
    let others = |answers: &[Value]| answers.iter().filter(|answer| answer["method"] == "infoflow").all(measured);
    assert!(others(&lines(folder.path())), "what came after the interruption is measured too");
    let text = std::fs::read_to_string(&file).expect("answers");
    assert!(text.starts_with(&kept), "what was answered is kept");
    let texts = |answers: &[Value]| {
        let mut all: Vec<String> =
            answers.iter().map(|a| format!("{} {} {} {}", a["task"], a["sample"], a["method"], a["answer"])).collect();
        all.sort();
        all
    };
    let before: Vec<Value> = whole.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(texts(&lines(folder.path())), texts(&before), "the same answers, each once");

    // More samples and another method: existing answers are kept.
    let more = ["--tasks", "single,vt2", "--samples", "4", "--methods", "infoflow,none", "--out", &out, "--resume"];
    let (code, table, errors) = hops(&more);
    assert_eq!(code, Some(0), "{errors}");
    assert!(table.contains("# 24 answers to 8 requests; 12 of them were there before"), "{table}");
    let mut other = lines(folder.path());
    other[3]["prompt_hash"] = "0".repeat(32).into();
    let text: String = other.iter().map(|line| format!("{line}\n")).collect();
    std::fs::write(&file, text).expect("written");
    refused(hops(&more), &["was another request"]);
    let (code, table, _) = hops(&[&asked[..], &["--force"]].concat());
    assert!(code == Some(0) && table.contains("; 0 of them were there before"), "{table}");
}

#[test]
fn a_dry_run_counts() {
    let (code, text, errors) =
        hops(&["--samples", "5", "--ratios", "0.05,0.15", "--methods", "full,none,relay", "--dry-run"]);
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    assert!(text.starts_with("# dry run of suite hops: nothing was asked"), "{text}");
    let all: Vec<&str> =
        text.lines().find(|line| line.starts_with("  all")).expect("a sum").split_whitespace().collect();
    assert_eq!((all[1], all[2]), ("85", "340"), "{text}");
    let tokens: f64 = all[3].parse().expect("a number");
    assert!((tokens / 340.0 - 512.0).abs() < 25.0, "{text}");
    assert!(text.contains("# 4 methods and ratios: full, none, relay at 0.05, relay at 0.15"), "{text}");
}

#[test]
fn what_cannot_be_is_refused_before_anything_is_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("out").display().to_string();
    let with = |arguments: &[&str], says: &[&str]| refused(hops(&[arguments, &["--out", &out]].concat()), says);
    with(&["--tasks", "vt9"], &["--tasks vt9: unknown", "hop2_shuf", "vt4_rev"]);
    with(&["--samples", "0"], &["--samples 0"]);
    with(&["--documents", "100", "--tasks", "vt3"], &["4096"]);
    with(&["--methods", "fully"], &["unknown method `fully`"]);
    with(&["--methods", "ring:world=2"], &["--methods ring:world=2"]);
    with(&["--ratios", "2"], &["`2` is no ratio"]);
    with(&["--methods", "epic:reorder", "--samples", "1"], &["epic"]);
    with(&["--resume"], &["--resume", "design.json"]);
    let demo = demo();
    let suite = run(&["quality", "--suite", "bench", "--model", &demo, "--out", &out]);
    refused(suite, &["--suite bench: unknown; known are hops"]);
    refused(run(&["quality", "--suite", "hops"]), &["--model"]);
    assert!(!Path::new(&out).exists());
}

#[test]
fn a_model_that_does_not_know_the_words_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["config.json", "model.safetensors", "tokenizer.json"] {
        std::fs::copy(root().join("examples/models/demo").join(name), folder.path().join(name)).expect("a copy");
    }
    let path = folder.path().join("tokenizer.json");
    let text = std::fs::read_to_string(&path).expect("a tokenizer").replace("\"lamp\"", "\"lamps\"");
    std::fs::write(&path, text).expect("written");
    let model = folder.path().display().to_string();
    let answer = run(&["quality", "--suite", "hops", "--model", &model, "--dry-run"]);
    refused(answer, &["does not know 1 of its words, such as `lamp`", "examples/models/demo"]);
}

/// A folder of data as users have it, made up: lists of words, paragraphs with questions, rows of
/// passages.
fn data() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: String| {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        std::fs::write(path, text).expect("written");
    };
    for (list, words) in [("adjective", "red\ngreen\n"), ("noun", "lamp\nriver\ntable\n"), ("verb", "runs\nsits\n")] {
        write(&format!("ruler/wordlists/{list}list.txt"), words.to_owned());
    }
    let text = |number: usize| format!("The house of fact{number} is near the lake. The old dog sits. The fox runs.");
    let paragraph = |number: usize| {
        let asked = serde_json::json!({"question": "Which fact?", "answers": [{"text": format!("fact{number}")}]});
        serde_json::json!({"context": text(number), "qas": [asked]})
    };
    let paragraphs: Vec<Value> = (0..30).map(paragraph).collect();
    write("ruler/xquad.en.json", serde_json::json!({"data": [{"paragraphs": paragraphs}]}).to_string());
    let row = |number: usize| {
        let passages: Vec<String> = (0..4).map(|at| format!("Passage {}:\n{}", at + 1, text(number + at))).collect();
        let row = serde_json::json!({"input": "Which fact?", "context": passages.join("\n"), "answers": ["fact1"],
            "length": 60, "dataset": "hotpotqa", "language": "en", "all_classes": null, "_id": format!("row-{number}")});
        format!("{row}\n")
    };
    write("longbench/derived_hotpotqa_10p.jsonl", (0..3).map(row).collect());
    folder
}

/// Runs a suite on the demo model, which can be asked and answers nothing right: its vocabulary is
/// another.
fn suite(name: &str, data: &Path, arguments: &[&str]) -> (Option<i32>, String, String) {
    let (demo, data) = (demo(), data.display().to_string());
    let methods = ["--methods", "none", "--chunk-tokens", "128"];
    run(&[&["quality", "--suite", name, "--model", &demo, "--data", &data], &methods[..], arguments].concat())
}

#[test]
fn rows_of_files_are_asked() {
    let (data, folder) = (data(), tempfile::tempdir().expect("a folder"));
    let out = folder.path().display().to_string();
    let (code, table, errors) = suite("longbench", data.path(), &["--samples", "2", "--out", &out]);
    assert!(
        code == Some(0) && table.contains("derived_hotpotqa_10p: derived, not LongBench itself"),
        "{table}{errors}"
    );
    let all = lines(folder.path());
    assert_eq!((all.len(), &all[0]["id"], &all[0]["references"][0]), (4, &"row-0".into(), &"fact1".into()));

    let long = data.path().join("longbench/derived_hotpotqa_10p.jsonl");
    let text = std::fs::read_to_string(&long).expect("rows").replace("The fox runs.", &"The fox runs. ".repeat(600));
    std::fs::write(&long, text).expect("written");
    let says = ["derived_hotpotqa_10p, request 0: ", "the model has 4096 positions; --lengths 4096 cuts contexts"];
    refused(suite("longbench", data.path(), &["--samples", "1", "--out", &out, "--force"]), &says);

    let own = data.path().join("own.jsonl");
    let name = own.display().to_string();
    let row = "{\"chunks\": [\"passage code of lamp is 1 2 3 .\", \"passage a dog sits .\"], \"question\": \"question : code of lamp is\", \
        \"references\": [\"1 2 3\"], \"metric\": \"begins_with\", \"max_tokens\": 4, \"task\": \"codes\"}\n";
    std::fs::write(&own, row).expect("written");
    let (code, table, errors) = suite(&name, data.path(), &["--out", &out, "--force"]);
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    assert_eq!(lines(folder.path())[0]["task"], "codes");
    let report = json(&folder.path().join("report.json"));
    assert_eq!(point(&report, "full", "codes")["score"]["mean"], 1.0, "{table}");
    std::fs::write(&own, format!("{row}{}", row.replace("\"max_tokens\": 4, ", ""))).expect("written");
    refused(suite(&name, data.path(), &["--dry-run"]), &["own.jsonl, line 2: missing field `max_tokens`"]);
}

#[test]
fn suites_say_what_they_lack() {
    let data = data();
    let (demo, nowhere) = (demo(), data.path().join("nowhere"));
    refused(
        suite("ruler", data.path(), &["--tasks", "vt,niah_9"]),
        &["--tasks niah_9: unknown", "niah_multiquery", "qa_2"],
    );
    refused(
        suite("ruler", data.path(), &["--lengths", "8192", "--tasks", "vt"]),
        &["--lengths 8192: the model has 4096 positions"],
    );
    refused(
        suite("ruler", data.path(), &["--lengths", "100", "--tasks", "vt"]),
        &["--lengths 100: vt needs ", "30 of them"],
    );
    let few = ["niah_multikey_2 needs 100000 pairs of an adjective and a noun; the lists have 6"];
    refused(suite("ruler", data.path(), &[]), &few);
    refused(suite("niah", data.path(), &["--depths", "120"]), &["--depths 120: from 0 to 100"]);
    refused(suite("hops", data.path(), &[]), &["--chunk-tokens: the suite hops does not take it"]);
    refused(
        suite("ruler", &nowhere, &["--tasks", "niah_single_2"]),
        &["nowhere has no ruler/wordlists/adjectivelist.txt"],
    );
    refused(run(&["quality", "--suite", "longbench", "--model", &demo]), &["--data DIR or TRIBUTARY_DATA"]);
}

#[test]
fn a_dry_run_predicts_memory_and_time() {
    let data = data();
    let asked = ["--tasks", "vt,fwe", "--lengths", "900", "--samples", "3", "--dry-run"];
    let (code, text, errors) = suite("ruler", data.path(), &[&asked[..], &["--profile", "h100x4"]].concat());
    assert_eq!(code, Some(0), "{errors}");
    let row = |text: &str, name: &str| -> Vec<String> {
        let line = text.lines().find(|line| line.split_whitespace().next() == Some(name)).expect("a row");
        line.split_whitespace().map(str::to_owned).collect()
    };
    assert_eq!(row(&text, "all")[1..3], ["6", "12"], "{text}");
    let full = row(&text, "full");
    assert!(full[1].parse::<f64>().unwrap() > 1.0 && full[2].parse::<f64>().unwrap() > 0.0, "{text}");
    assert!(text.contains("# predicted by the profile h100x4") && text.contains("nothing was measured"), "{text}");
    let (_, without, _) = suite("ruler", data.path(), &asked);
    assert_eq!(row(&without, "full")[2], "-");
    assert!(without.contains("# no times: --profile names a machine"), "{without}");
    // Chunks that the methods of a request share are computed by the first that needs them.
    let asked =
        [&asked[..], &["--profile", "h100x4", "--methods", "none", "infoflow", "--chunk-tokens", "64"]].concat();
    let [cold, warm] = [&[][..], &["--warm"]].map(|more| suite("ruler", data.path(), &[&asked[..], more].concat()).1);
    assert_eq!(row(&cold, "full"), row(&warm, "full"));
    assert_eq!(row(&cold, "none"), row(&warm, "none"));
    let longest = |text: &str| row(text, "infoflow")[4].parse::<f64>().expect("milliseconds");
    assert!(longest(&warm) < longest(&cold), "{warm}");
}
