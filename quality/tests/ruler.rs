//! RULER's tasks with real words, paragraphs and questions, counted by a real tokenizer; those are
//! kept outside the repository.

use std::io::Write;
use std::path::Path;

use tributary_coordinator::Tokenizer;
use tributary_quality::suite::Measure;
use tributary_quality::{Asked, open};

#[test]
fn every_task_fills_its_length_with_real_texts() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data");
    let Ok(tokenizer) = Tokenizer::from_folder(&data.join("tokenizers/smollm2"), None) else {
        // Bypasses the test harness, which captures the output of passing tests; `.ci/skipped`
        // counts it.
        let _ = writeln!(std::io::stderr(), "skipped: {} is not there", data.display());
        return;
    };
    let asked = Asked { suite: "ruler".to_owned(), samples: 3, data: Some(data), threads: 1, ..Asked::default() };
    let (design, suite) =
        open(&Asked { lengths: vec![4096], chunk_tokens: vec![512], ..asked }).expect("the suite opens");
    assert_eq!(design.tasks.len(), 13);
    assert!(
        design.made_of.iter().any(|line| line.contains("qa_2: rows derived from HotpotQA")),
        "{:?}",
        design.made_of
    );
    let count = |text: &str| Ok(tokenizer.encode(text)?.ids.len());
    let measure = Measure::new(&count);
    for cell in suite.cells() {
        for number in 0..3 {
            let sample = suite.sample(&cell, number, &measure).expect("a sample");
            let tokens = measure.length(&sample).expect("tokens");
            assert!((3500..=4096).contains(&tokens), "{cell}: {tokens} tokens");
            let longest = sample.chunks.iter().map(|chunk| count(chunk).expect("tokens")).max();
            assert!(longest <= Some(512), "{cell}: {longest:?}");
            let prompt = format!("{}{}{}", sample.lead, sample.chunks.concat(), sample.query);
            let there =
                sample.scoring.references.iter().filter(|reference| prompt.contains(reference.as_str())).count();
            // Questions have several right answers, or `yes` and `no`.
            let is_question = cell.task.starts_with("qa");
            assert!(is_question || there == sample.scoring.references.len(), "{cell}: {:?}", sample.scoring.references);
        }
    }
}
