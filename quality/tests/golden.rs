//! Scores against those that LongBench's own evaluation gave, which are kept outside the
//! repository.

use std::io::Write;
use std::path::Path;

use tributary_quality::score::{code_similarity, qa_f1, rouge_l};

#[test]
fn scores_are_those_of_the_published_evaluation() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data/metrics/golden_longbench_metrics.json");
    let Ok(text) = std::fs::read_to_string(&file) else {
        // Bypasses the test harness, which captures the output of passing tests; `.ci/skipped`
        // counts it.
        let _ = writeln!(std::io::stderr(), "skipped: {} is not there", file.display());
        return;
    };
    let cases: Vec<serde_json::Value> = serde_json::from_str(&text).expect("a list");
    assert!(cases.len() > 100, "{} cases", cases.len());
    for case in &cases {
        let text = |key: &str| case[key].as_str().expect("a text");
        let number = |key: &str| case[key].as_f64().expect("a number");
        assert!((qa_f1(text("hyp"), text("ref")) - number("qa_f1")).abs() < 1e-12, "{case}");
        assert!((rouge_l(text("hyp"), text("ref")) - number("rouge_l_f")).abs() < 1e-9, "{case}");
        let (a, b) = (text("line_a"), text("line_b"));
        // Marks of comments would hide a line.
        if !["`", "#", "//", "\n"].iter().any(|mark| a.contains(mark)) {
            assert_eq!((100.0 * code_similarity(a, b)).round(), number("fuzz_ratio"), "{case}");
        }
    }
}
