//! Rows as requests: places of their fields, cuts, refusals; and a comparison with the published
//! prompts.

use std::io::Write;
use std::path::Path;

use super::*;
use crate::kit::{asked, count_words, data};

/// A data folder with one file of these rows.
fn with(name: &str, rows: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join(name), rows).unwrap();
    folder
}

fn row(dataset: &str, context: &str, rest: &str) -> String {
    let context = serde_json::to_string(context).unwrap();
    format!(
        "{{\"input\": \"Q?\", \"context\": {context}, \"answers\": [\"food\"], \"dataset\": \"{dataset}\"{rest}}}\n"
    )
}

#[test]
fn passages_are_documents_and_the_prompt_is_the_published_one() {
    let folder = data();
    let measure = Measure::new(&count_words);
    let suite = open(&asked("longbench", folder.path())).unwrap();
    let cell = Cell::of("derived_hotpotqa_10p");
    assert_eq!((suite.cells(), suite.most_samples(&cell)), (vec![cell.clone()], Some(4)));
    assert_eq!(suite.made_of(), ["derived_hotpotqa_10p: derived, not LongBench itself"]);
    let sample = suite.sample(&cell, 2, &measure).unwrap();
    assert_eq!((sample.chunks.len(), sample.id.as_deref(), sample.answer_tokens), (10, Some("2"), 32));
    assert!(
        sample.chunks.iter().enumerate().all(|(index, text)| text.starts_with(&format!("Passage {}:\n", index + 1)))
    );
    let prompt = format!("{}{}{}", sample.lead, sample.chunks.concat(), sample.query);
    let file = std::fs::read_to_string(folder.path().join("longbench/derived_hotpotqa_10p.jsonl")).unwrap();
    let row: Row = serde_json::from_str(file.lines().nth(2).unwrap()).unwrap();
    let published = DATASETS.iter().find(|dataset| dataset.name == "hotpotqa").unwrap().prompt;
    assert_eq!(prompt, published.replace("{input}", &row.input).replace("{context}", &row.context));
}

#[test]
fn rows_of_longbench_e_and_v2_and_answers_of_other_forms_are_read() {
    let measure = Measure::new(&count_words);
    let of = |name: &str, rows: &str| {
        let folder = with(&format!("{name}.jsonl"), rows);
        let suite = open(&asked("longbench", folder.path())).unwrap();
        suite.sample(&Cell::of(name), 0, &measure).unwrap()
    };
    let references = |answers: &str| {
        let row = row("qasper", "One. Two.", "").replace(r#"["food"]"#, answers);
        of("qasper", &row).scoring.references
    };
    assert_eq!(references(r#""food""#), ["food"]);
    assert_eq!(references("[3, \"x\", 2.5]"), ["3", "x", "2.5"]);
    assert_eq!(references("7"), ["7"]);
    let extended =
        row("hotpotqa_e", "One. Two.", r#", "length": 3, "language": "en", "all_classes": null, "_id": "x""#);
    assert_eq!(of("hotpotqa_e", &extended).answer_tokens, 32);
    let choices = r#"{"_id": "v", "domain": "d", "sub_domain": "s", "difficulty": "easy", "length": "short", "question": "Which?",
        "choice_A": "a", "choice_B": "b", "choice_C": "c", "choice_D": "d", "answer": "C", "context": "One. Two."}"#;
    let sample = of("v2", &choices.replace('\n', " "));
    assert!(sample.query.contains("Which?\nChoices:\n(A) a\n(B) b\n(C) c\n(D) d\n\nFormat"), "{}", sample.query);
    assert_eq!(sample.scoring.references, ["correct answer is (C)", "correct answer is C"]);
}

#[test]
fn texts_are_chunks_of_so_many_tokens_and_are_cut_in_the_middle() {
    let text: String = (0..200).map(|index| format!("Sentence {index} is here. ")).collect();
    let folder = with("qasper.jsonl", &row("qasper", &text, ""));
    let measure = Measure::new(&count_words);
    let asked = Asked { chunk_tokens: vec![50], ..asked("longbench", folder.path()) };
    let of = |lengths: Vec<usize>, cell: Cell| {
        open(&Asked { lengths, ..asked.clone() }).unwrap().sample(&cell, 0, &measure).unwrap()
    };
    let whole = of(Vec::new(), Cell::of("qasper"));
    assert_eq!((whole.chunks.concat(), whole.chunks.len()), (text, 17));
    assert!(whole.chunks.iter().all(|chunk| count_words(chunk).unwrap() <= 50));
    let cut = of(vec![600], Cell::at("qasper", 600));
    let length = measure.length(&cut).unwrap();
    assert!((590..=600).contains(&length), "{length}");
    let context = cut.chunks.concat();
    assert!(context.starts_with("Sentence 0 is here.") && context.ends_with("Sentence 199 is here. "), "{context}");
    assert!(!context.contains("Sentence 100 "));
    assert_eq!(of(vec![9000], Cell::at("qasper", 9000)), whole);
}

/// Ten passages, of which the fourth and the eighth are needed.
fn typed(number: usize, kind: &str) -> String {
    let passage =
        |at: usize| format!("Passage {at}:\nTitle {at}\n{}\n\n", format!("Fact {at} of {number}. ").repeat(8));
    let context: String = (1..=10).map(passage).collect();
    let sources = [format!("Title {number} a"), format!("Title {number} b")];
    let rest = serde_json::json!({"type": kind, "needed": [4, 8], "sources": sources}).to_string();
    row("hotpotqa", &context, &format!(", {}", &rest[1..rest.len() - 1]))
}

#[test]
fn types_of_rows_are_tasks() {
    let rows: String =
        (0..9).map(|number| typed(number, ["bridge", "comparison"][usize::from(number % 3 == 0)])).collect();
    let folder = with("dev.jsonl", &rows);
    let of = |tasks: &[&str]| {
        let tasks = tasks.iter().map(|task| (*task).to_owned()).collect();
        open(&Asked { tasks, ..asked("longbench", folder.path()) })
    };
    let cells = |tasks: &[&str]| of(tasks).unwrap().cells().iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(cells(&[]), ["dev:bridge", "dev:comparison"]);
    assert_eq!(cells(&["dev"]), ["dev:bridge", "dev:comparison"]);
    assert_eq!(cells(&["dev:comparison"]), ["dev:comparison"]);
    let suite = of(&[]).unwrap();
    let counts = ["dev:bridge", "dev:comparison"].map(|task| suite.most_samples(&Cell::of(task)));
    assert_eq!(counts, [Some(4), Some(3)], "as many of each as there are samples");
    let said = of(&["dev:yes"]).err().unwrap().to_string();
    assert!(said.contains("--tasks dev:yes: unknown; dev has dev:bridge, dev:comparison"), "{said}");
}

#[test]
fn a_seed_draws_rows_and_more_samples_keep_the_first() {
    let rows: String = (0..40).map(|number| typed(number, ["bridge", "comparison"][number % 2])).collect();
    let folder = with("dev.jsonl", &rows);
    let of = |seed: u64, samples: usize| -> Vec<String> {
        let asked = Asked { seed, samples, tasks: vec!["dev:bridge".to_owned()], ..asked("longbench", folder.path()) };
        let suite = open(&asked).unwrap();
        let context =
            |number| suite.sample(&Cell::of("dev:bridge"), number, &Measure::new(&count_words)).unwrap().chunks;
        (0..samples).map(|number| context(number).concat()).collect()
    };
    let number = |text: &String| text.split_once(" of ").unwrap().1.split_once('.').unwrap().0.parse::<u32>().unwrap();
    let first: Vec<u32> = of(0, 6).iter().map(number).collect();
    assert_eq!(first, [0, 2, 4, 6, 8, 10], "seed 0 takes the first rows of the type");
    let (few, all) = (of(1, 6), of(1, 20));
    assert_eq!(few, all[..6], "more samples add to those that fewer have");
    assert_ne!(few, of(0, 6));
    assert_ne!(few, of(2, 6));
    let mut numbers: Vec<u32> = all.iter().map(number).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..20).map(|number| 2 * number).collect::<Vec<_>>(), "each row once");
}

#[test]
fn documents_end_with_a_blank_line_and_the_needed_ones_stay() {
    let folder = with("dev.jsonl", &typed(1, "bridge"));
    let measure = Measure::new(&count_words);
    let of = |length: usize| {
        let suite = open(&Asked { lengths: vec![length], ..asked("longbench", folder.path()) }).unwrap();
        suite.sample(&Cell::at("dev:bridge", length), 0, &measure).unwrap()
    };
    let whole = of(9000);
    assert_eq!(whole.chunks.len(), 10);
    assert!(whole.chunks.iter().all(|chunk| chunk.ends_with("\n\n")) && whole.query.starts_with("Answer the question"));
    let short = of(300);
    assert!(measure.length(&short).unwrap() <= 300 && (2..10).contains(&short.chunks.len()), "{:?}", short.chunks);
    assert!(short.chunks.iter().all(|chunk| chunk.ends_with("\n\n")));
    let text = short.chunks.concat();
    assert!(text.contains("Title 4\n") && text.contains("Title 8\n") && !text.contains("Title 10\n"), "{text}");
    let numbered =
        short.chunks.iter().enumerate().all(|(at, chunk)| chunk.starts_with(&format!("Passage {}:\n", at + 1)));
    assert!(numbered, "{text}");
}

#[test]
fn a_row_is_in_a_part_with_all_its_sources() {
    let rows: String = (0..60).map(|number| typed(number, "bridge")).collect();
    let folder = with("dev.jsonl", &rows);
    let of = |part| {
        let split = crate::split::Split { part, salt: "s".to_owned() };
        let suite = open(&Asked { split, samples: 60, ..asked("longbench", folder.path()) }).unwrap();
        suite.most_samples(&Cell::of("dev:bridge")).unwrap()
    };
    let (selection, report) = (of(crate::split::Part::Selection), of(crate::split::Part::Report));
    assert!(
        selection > 5 && report > 5 && selection + report < 60,
        "{selection} {report}: those of both are in neither"
    );
}

#[test]
fn first_lines_and_classes_count_where_the_published_evaluation_says_so() {
    let rest = ", \"all_classes\": [\"food\", \"animal\"]";
    let folder = with("trec.jsonl", &row("trec", "Question: a\nType: food\n", rest));
    let measure = Measure::new(&count_words);
    let sample = open(&asked("longbench", folder.path())).unwrap().sample(&Cell::of("trec"), 0, &measure).unwrap();
    assert!(!sample.uses_template);
    assert_eq!(sample.scoring.score("\nfood\nanimal"), 1.0);
    assert_eq!(sample.scoring.score("food or animal"), 0.5);
}

#[test]
fn what_is_wrong_is_said_with_its_line() {
    let said = |rows: &str| open(&asked("longbench", with("x.jsonl", rows).path())).err().expect("refused").to_string();
    let good = row("qasper", "A.", "");
    assert!(said(&format!("{good}{{\"input\": \"\"}}")).contains("x.jsonl, line 2: missing field `context`"));
    let unknown = said(&format!("{good}\n{}", row("dureader", "A.", "")));
    assert!(unknown.contains("line 3: `dataset`: dureader cannot be scored; known are narrativeqa"), "{unknown}");
    assert!(said("").contains("x.jsonl: it has no rows"));
    let empty = tempfile::tempdir().unwrap();
    assert!(open(&asked("longbench", empty.path())).err().unwrap().to_string().contains("has no longbench/*.jsonl"));
    let without = Asked { data: None, ..asked("longbench", empty.path()) };
    assert!(open(&without).err().unwrap().to_string().contains("--data DIR or TRIBUTARY_DATA"));
}

#[test]
fn prompts_and_lengths_are_those_of_the_published_files() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data/longbench/config");
    let read = |name: &str| std::fs::read_to_string(folder.join(name));
    let (Ok(prompts), Ok(lengths)) = (read("dataset2prompt.json"), read("dataset2maxlen.json")) else {
        // Bypasses the test harness, which captures the output of passing tests; `.ci/skipped`
        // counts it.
        let _ = writeln!(std::io::stderr(), "skipped: {} is not there", folder.display());
        return;
    };
    let json = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
    let (prompts, lengths) = (json(&prompts), json(&lengths));
    for dataset in DATASETS {
        assert_eq!(prompts[dataset.name], dataset.prompt, "{}", dataset.name);
        assert_eq!(lengths[dataset.name], dataset.answer_tokens, "{}", dataset.name);
    }
}
