//! `tributary quality --calibrate-trace`: α of trace is measured, kept beside the model, and taken
//! from there.

use std::path::Path;

use crate::kit::{copy_of_demo, run};
use serde_json::Value;

/// α is between the model's readings of references and those of lists, is written beside the model,
/// and holds for later requests; an option takes precedence.
#[test]
fn trace_is_calibrated_and_the_model_keeps_it() {
    let folder = copy_of_demo();
    let model = folder.path().display().to_string();
    let tasks = |tasks: &'static str| ["quality", "--suite", "hops", "--tasks", tasks, "--samples", "6", "--model"];
    let (code, out, errors) = run(&[&tasks("hop2,vt3_shuf,multivalue")[..], &[&model, "--calibrate-trace"]].concat());
    assert_eq!((code, errors.as_str()), (Some(0), ""), "{out}");
    let written = trace_file(folder.path());
    let readings = |name: &str| -> Vec<f64> {
        let list = written[name].as_array().expect("readings");
        list.iter().map(|reading| reading.as_f64().expect("a number")).collect()
    };
    let (referring, apart, alpha) = (readings("referring"), readings("apart"), written["alpha"].as_f64().expect("α"));
    assert_eq!((referring.len(), apart.len()), (12, 6));
    assert!(
        referring.iter().all(|&reading| reading > alpha) && apart.iter().all(|&reading| reading < alpha),
        "{written}"
    );
    assert!(out.starts_with(&format!("alpha {alpha:.3}\n")) && out.contains("in 12 requests"), "{out}");

    let request = crate::kit::request("vt3_rev-0");
    let alpha_of = |method: &str| {
        let base = ["prefill", "--model", &model, "--request", &request, "--json", "--max-tokens", "1", "--method"];
        crate::kit::json(&[&base[..], &[method]].concat())["settings"]["options"]["alpha"].as_f64().expect("α")
    };
    assert!((alpha_of("trace") - alpha).abs() < 1e-6, "the model's own");
    assert!((alpha_of("trace:alpha=0.5") - 0.5).abs() < 1e-6, "an option stands before it");

    for (method, says) in
        [("relay", "relay: alpha: makes no difference"), ("trace:alpha=0.5", "trace: alpha: is given twice")]
    {
        let (code, _, errors) = run(&[&tasks("hop2")[..], &[&model, "--calibrate-trace", method]].concat());
        assert!(code == Some(64) && errors.contains(&format!("--calibrate-trace {says}")), "{errors}");
    }
    let (code, out, errors) = run(&[&tasks("hop2,vt3")[..], &[&model, "--calibrate-trace"]].concat());
    assert_eq!((code, out.as_str(), errors.lines().count()), (Some(64), "", 1), "{errors}");
    assert!(errors.contains("--calibrate-trace --suite hops") && errors.contains("pairs has both"), "{errors}");
    std::fs::write(folder.path().join("trace.json"), "{\"alpha\": 2}").expect("written");
    let damaged = run(&["prefill", "--model", &model, "--request", &request, "--method", "full"]);
    assert!(damaged.2.lines().count() == 1 && damaged.2.contains("trace.json, line 1"), "{}", damaged.2);
    assert_ne!(damaged.0, Some(0));
}

fn trace_file(folder: &Path) -> Value {
    let text = std::fs::read_to_string(folder.join("trace.json")).expect("readable");
    serde_json::from_str(&text).expect("JSON")
}
