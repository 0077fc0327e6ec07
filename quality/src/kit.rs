//! What tests of several suites share.

use crate::cut::words;
use crate::error::Result;

/// Tokens of a tokenizer that has a token for every word: for tests.
///
/// # Errors
/// None.
pub fn count_words(text: &str) -> Result<usize> {
    Ok(words(text).iter().filter(|word| !word.trim().is_empty()).count())
}

/// A folder of made-up data as users have it: lists of words, paragraphs with questions, rows of passages.
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

/// What asks for all of a suite, on made-up data.
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
