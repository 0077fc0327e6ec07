//! Shared parts of the tests of several suites.

use tributary_engine::{Question, Synthetic};
use tributary_methods::ModelFacts;

use crate::cut::words;
use crate::error::Result;
use crate::score::Metric;
use crate::suite::Scoring;

/// Tokens of a tokenizer that has a token for every word: for tests.
///
/// # Errors
/// Never fails.
pub fn count_words(text: &str) -> Result<usize> {
    Ok(words(text).iter().filter(|word| !word.trim().is_empty()).count())
}

/// A folder of made-up data as users have it: lists of words, paragraphs with questions, rows of
/// passages.
pub fn data() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: String| {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        std::fs::write(path, text).expect("written");
    };
    for (list, stem, count) in [("adjective", "adj", 40), ("noun", "thing", 3000), ("verb", "do", 50)] {
        let words: String = (0..count).map(|index| format!("{stem}{index}\n")).collect();
        write(&format!("ruler/wordlists/{list}list.txt"), words);
    }
    let text = |number: usize| {
        let sentence = |index: usize| format!("Sentence {index} of text {number} says little. ");
        format!("{}The answer is fact{number}.", (0..8).map(sentence).collect::<String>())
    };
    let paragraph = |number: usize| {
        serde_json::json!({"context": text(number), "qas": [
            {"question": format!("What is the answer of text {number}?"), "answers": [{"text": format!("fact{number}")}]},
        ]})
    };
    let article = |number: usize| serde_json::json!({"paragraphs": (4 * number..4 * number + 4).map(paragraph).collect::<Vec<_>>()});
    write("ruler/xquad.en.json", serde_json::json!({"data": (0..40).map(article).collect::<Vec<_>>()}).to_string());
    let row = |number: usize| {
        let passage =
            |index: usize| format!("Passage {}:\nTitle {number} {index}\n{}", index + 1, text(10 * number + index));
        let context: Vec<String> = (0..10).map(passage).collect();
        let row = serde_json::json!({
            "input": format!("What follows from {number}?"), "context": context.join("\n"), "answers": [format!("fact{number}3")],
            "length": 100, "dataset": "hotpotqa", "language": "en", "all_classes": null, "_id": number.to_string(),
        });
        format!("{row}\n")
    };
    write("longbench/derived_hotpotqa_10p.jsonl", (0..30).map(row).collect());
    folder
}

/// A request for all of a suite, on made-up data.
pub fn asked(suite: &str, data: &std::path::Path) -> crate::design::Asked {
    crate::design::Asked {
        suite: suite.to_owned(),
        samples: 4,
        data: Some(data.to_owned()),
        world: 1,
        threads: 1,
        ..crate::design::Asked::default()
    }
}

/// An empty answer; tests change the fields that matter.
pub fn reply() -> crate::answers::Reply {
    crate::answers::Reply {
        answer: String::new(),
        first_token: 1,
        selected_rows: 1,
        measured_rows: 0,
        context_rows: 10,
        ttft_ms: 1.0,
        phases: vec![crate::answers::PhaseTime { phase: "chunks".to_owned(), ms: 0.25 }],
        received_bytes: 0,
        moved: false,
        kl_nats: None,
        selected: crate::selected::Rows::default(),
        order: Vec::new(),
        decoding: None,
    }
}

/// Decoding after a first token, with `kept_rows` rows kept; of `rows` where some were evicted.
pub fn decoding(kept_rows: f64, rows: Option<f64>) -> crate::decoding::Decoding {
    let evicted = rows.map(|rows| crate::decoding::Evicted {
        rows,
        bytes_before: 100 * rows as u64,
        bytes_kept: 100 * kept_rows as u64,
        received_bytes: 7,
        ms: 0.5,
        recall: Some(0.75),
        formula: tributary_coordinator::report::EvictionFormula {
            flops: 5e5 * rows,
            memory_traffic_bytes: 2048,
            received_bytes: 1024,
        },
    });
    crate::decoding::Decoding { kept_rows, total_ms: 4.0, token_ms: Some(0.25), evicted }
}

/// A method with a ratio.
pub fn arm(method: &str, ratio: Option<f64>) -> crate::design::Arm {
    let settings = tributary_planner::RequestSettings::default();
    let run_config = tributary_engine::RunConfig { settings, threads: 1 };
    crate::design::Arm { ratio, ..crate::design::Arm::new(method.to_owned(), run_config) }
}

/// A text with one token a word.
pub fn piece(text: &str) -> tributary_coordinator::Piece {
    let (mut at, mut spans) = (0, Vec::new());
    for word in text.split(' ') {
        spans.push(at..at + word.len());
        at += word.len() + 1;
    }
    spans.retain(|span| !span.is_empty());
    tributary_coordinator::Piece { ids: vec![0; spans.len()], text: text.to_owned(), spans, ..Default::default() }
}

/// An evaluation of `count` requests of the task `single`, answered by `arms`.
pub fn evaluation(arms: Vec<crate::design::Arm>, count: usize) -> crate::evaluation::Evaluation {
    let asked = crate::design::Asked {
        suite: "hops".to_owned(),
        tasks: vec!["single".to_owned()],
        samples: count,
        seed: 1,
        world: 1,
        threads: 1,
        ..crate::design::Asked::default()
    };
    let cell = crate::suite::Cell::of("single");
    let request = |number: usize| crate::evaluation::Request {
        cell: cell.clone(),
        number,
        id: None,
        question: Question::Random(Synthetic { chunks: 1, chunk_tokens: 1, query_tokens: 1 }, 0),
        scoring: Scoring::new(Metric::BeginsWith, vec!["1 2 3".to_owned()]),
        prompt_hash: number.to_string(),
        prompt_tokens: 2,
        answer_tokens: 4,
    };
    crate::evaluation::Evaluation {
        design: crate::suites::open(&asked).expect("a suite").0,
        arms,
        requests: (0..count).map(request).collect(),
        cells: vec![(cell, count)],
        longest: Vec::new(),
        is_estimated: false,
    }
}

/// A point over all tasks, with a score and a time.
pub fn point(method: &str, ratio: Option<f64>, score: f64, median_ttft_ms: f64) -> crate::points::Point {
    let one = [(crate::suite::Cell::of("all"), 1)];
    let points = crate::points::points(&one, 0, &[arm(method, ratio)], &crate::answers::Answers::default());
    let mean = crate::statistics::Mean { mean: score, low: score - 0.05, high: score + 0.05 };
    let known = tributary_protocol::Method::find(method);
    let family = known.map_or(points[0].family, |method| {
        let settings = tributary_planner::RequestSettings { method, ..Default::default() };
        settings.method(ModelFacts::new(32, 8)).expect("usual settings").0.family().name()
    });
    crate::points::Point { score: mean, median_ttft_ms, family, ..points[0].clone() }
}

/// Origin of numbers that were not measured.
pub fn origin() -> crate::report::Origin {
    crate::report::Origin {
        command: vec!["tributary".to_owned()],
        version: "0".to_owned(),
        revision: None,
        build: String::new(),
        model_hash: String::new(),
        calibrations: None,
        host: "here".to_owned(),
        cpu: "none".to_owned(),
        cores: 1,
    }
}

/// Environment of a process that was not started.
pub fn environment() -> tributary_coordinator::Environment {
    tributary_coordinator::Environment { model: "<model>".to_owned(), ..tributary_coordinator::Environment::default() }
}
