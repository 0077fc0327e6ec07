//! The demo VLM: it answers its example requests, and the suite `pages` shows what chunked pages
//! lose and what their recompute mends.

use serde_json::Value;

use crate::{json, lines, point, root, run};

fn demo_vlm() -> String {
    root().join("examples/models/demo-vlm").display().to_string()
}

#[test]
fn the_demo_vlm_answers_its_requests() {
    let folder = root().join("examples/models/demo-vlm/requests");
    for (name, tiles) in
        [("single", "1"), ("hop2", "1"), ("mixed", "1"), ("legend", "1"), ("legend", "2"), ("legend", "4")]
    {
        let file = folder.join(name).with_extension("json");
        let expected = json(&file)["answer"].as_str().expect("an answer").to_owned();
        for method in ["full", "infoflow"] {
            let file = file.display().to_string();
            let asked =
                ["prefill", "--model", &demo_vlm(), "--request", &file, "--method", method, "--world-size", "2"];
            let more = ["--image-tiles", tiles, "--max-tokens", "4", "--json"];
            let (code, out, errors) = run(&[&asked[..], &more].concat());
            assert_eq!(code, Some(0), "{name}, {method}: {errors}");
            let report: Value = serde_json::from_str(&out).expect("JSON");
            let answer = report["answer"].as_str().expect("a text");
            assert!(answer.starts_with(&expected), "{name} in {tiles}, {method}: {answer}, not {expected}");
        }
    }
}

#[test]
fn recompute_mends_pages_that_were_read_apart() {
    let folder = tempfile::tempdir().expect("a folder");
    let (out, study) = (folder.path().join("pages"), root().join("examples/studies/pages.toml"));
    let (shown, study) = (out.display().to_string(), study.display().to_string());
    let asked = ["quality", "--config", &study, "--model", &demo_vlm(), "--samples", "10", "--out", &shown];
    let methods = ["--methods", "full", "none", "infoflow", "random", "infoflow:picture-rows=never"];
    let tasks = ["--tasks", "hop2_pages,hop2_tiles2"];
    let (code, table, errors) = run(&[&asked[..], &tasks, &methods].concat());
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    let report = json(&out.join("report.json"));
    let score = |method: &str, task: &str| point(&report, method, task)["score"]["mean"].as_f64().expect("a number");
    let [full, none, infoflow, random, text] =
        ["full", "none", "infoflow", "random", "infoflow:picture-rows=never"].map(|method| score(method, "all"));
    assert!(full > 0.8 && none < 0.4 && infoflow > 0.9 * full, "{table}");
    assert!(random < infoflow - 0.3 && text < infoflow - 0.3, "{table}");
    // A large page is one document and four chunks, none of which sees another.
    assert_eq!(lines(&out).iter().filter(|line| line["task"] == "hop2_tiles2").count(), 10 * 5);
    assert!(score("none", "hop2_tiles2") < 0.4 && score("infoflow", "hop2_tiles2") > 0.6, "{table}");
    let again = run(&[&asked[..], &tasks, &methods, &["--resume"]].concat());
    assert!(again.0 == Some(0) && again.1.contains("100 of them were there before"), "{}", again.1);
}
