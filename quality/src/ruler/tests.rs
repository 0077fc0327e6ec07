//! A reader that knows the tasks, but not the generator of samples, finds every answer in its
//! prompt.

use std::collections::{BTreeMap, BTreeSet};

use super::TASKS;
use crate::design::Asked;
use crate::kit::{asked, count_words, data};
use crate::suite::{Cell, Measure, Sample, Suite};

/// Opens the suite on made-up material.
fn opened(asked: &Asked) -> Box<dyn Suite> {
    super::open(asked).unwrap()
}

/// Values that a reader finds in the words of a sentence such as `One of the special magic numbers
/// for K is: V.`
fn needles(context: &str) -> BTreeMap<&str, BTreeSet<&str>> {
    let mut known: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for part in context.split("One of the special magic ").skip(1) {
        let (head, rest) = part.split_once(" is: ").expect("a value");
        let key = head.split_once(" for ").expect("a key").1;
        let is_new = known.entry(key).or_default().insert(rest.split_once('.').expect("an end").0);
        assert!(is_new, "{key} is said twice");
    }
    known
}

/// The variables that have a value, through any number of assignments.
fn holders<'a>(context: &'a str, value: &str) -> BTreeSet<&'a str> {
    let mut values: BTreeMap<&str, &str> = BTreeMap::new();
    for line in context.lines().filter_map(|line| line.strip_prefix("VAR ")) {
        let (name, said) = line.split_once(" = ").expect("an assignment");
        let said = said.trim_end();
        // Causal models read forward: a definition precedes its references.
        let found = said.strip_prefix("VAR ").map_or(said, |other| values[other]);
        values.insert(name, found);
    }
    values.into_iter().filter(|(_, found)| *found == value).map(|(name, _)| name).collect()
}

/// The `count` most frequent words; the next one is less frequent.
fn most_common<'a>(words: impl Iterator<Item = &'a str>, count: usize) -> BTreeSet<&'a str> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    words.for_each(|word| *counts.entry(word).or_default() += 1);
    let mut ranked: Vec<(usize, &str)> = counts.into_iter().map(|(word, count)| (count, word)).collect();
    ranked.sort_unstable_by(|a, b| b.cmp(a));
    assert!(ranked[count - 1].0 > ranked.get(count).map_or(0, |next| next.0), "{ranked:?}");
    ranked.into_iter().take(count).map(|(_, word)| word).collect()
}

/// A reader's answer.
fn read<'a>(task: &str, context: &'a str, query: &str) -> BTreeSet<&'a str> {
    let after = |mark: &str| query.split_once(mark).expect("the mark").1;
    match task {
        "vt" => holders(context, after("assigned the value ").split_once(' ').expect("a value").0),
        "cwe" => most_common(context.split(' ').filter(|word| !word.ends_with('.')), 10),
        "fwe" => most_common(context.split(' ').filter(|word| *word != "..."), 3),
        _ => {
            let known = needles(context);
            let keys = after(" for ").split_once(" mentioned").expect("keys").0;
            keys.split(", ").flat_map(|key| known[key.trim_start_matches("and ")].clone()).collect()
        }
    }
}

fn check(cell: &Cell, sample: &Sample, measure: &Measure<'_>) {
    let (task, length, context) = (cell.task.as_str(), cell.length.unwrap(), sample.chunks.concat());
    let references: BTreeSet<&str> = sample.scoring.references.iter().map(String::as_str).collect();
    assert_eq!(references.len(), sample.scoring.references.len(), "{task}: each once");
    if task.starts_with("qa") {
        let documents: Vec<&str> = context.split("Document ").skip(1).collect();
        assert!(
            documents.len() > 1 && documents.iter().any(|text| references.iter().any(|it| text.contains(it))),
            "{cell}"
        );
        let numbered = documents.iter().enumerate().all(|(index, text)| text.starts_with(&format!("{}:\n", index + 1)));
        assert!(numbered, "{context}");
    } else {
        assert_eq!(read(task, &context, &sample.query), references, "{cell}");
    }
    assert_eq!(sample.scoring.score(&sample.scoring.references.join(", ").to_uppercase()), 1.0);
    let tokens = measure.length(sample).unwrap();
    assert!(tokens <= length, "{cell}: {tokens} tokens");
    let is_short = tokens * 10 < length * 9;
    assert!(!is_short, "{cell}: only {tokens} tokens");
}

#[test]
fn every_answer_follows_from_its_prompt() {
    let folder = data();
    let measure = Measure::new(&count_words);
    measure.set_around(3);
    let suite = opened(&Asked { lengths: vec![1500, 4096], ..asked("ruler", folder.path()) });
    assert_eq!(suite.cells().len(), 26);
    for cell in suite.cells() {
        for number in 0..suite.most_samples(&cell).unwrap_or(6).min(6) {
            check(&cell, &suite.sample(&cell, number, &measure).unwrap(), &measure);
        }
    }
}

#[test]
fn samples_follow_from_seed_and_number() {
    let folder = data();
    let measure = Measure::new(&count_words);
    let asked = asked("ruler", folder.path());
    let (one, other) = (opened(&asked), opened(&asked));
    let seeded = opened(&Asked { seed: 9, ..asked });
    for cell in one.cells() {
        let third = one.sample(&cell, 3, &measure).unwrap();
        assert_ne!(third, one.sample(&cell, 2, &measure).unwrap(), "{cell}");
        assert_eq!(third, other.sample(&cell, 3, &measure).unwrap(), "{cell}: whatever was asked for before");
        assert_ne!(third, seeded.sample(&cell, 3, &measure).unwrap(), "{cell}");
    }
}

#[test]
fn needles_are_whole_in_one_chunk() {
    let folder = data();
    let measure = Measure::new(&count_words);
    let small = opened(&Asked { chunk_tokens: vec![16], ..asked("ruler", folder.path()) });
    let large = opened(&asked("ruler", folder.path()));
    for cell in small.cells() {
        let sample = small.sample(&cell, 1, &measure).unwrap();
        assert!(sample.chunks.len() > 20, "{cell}: {} chunks", sample.chunks.len());
        let most = sample.chunks.iter().map(|chunk| count_words(chunk).unwrap()).max().unwrap();
        assert!(most <= 16, "{cell}: {most}");
        for (mark, end) in [("One of the special magic", "."), ("VAR ", "")] {
            let begun = sample.chunks.concat().matches(mark).count();
            let whole = |chunk: &str| chunk.split(mark).skip(1).filter(|rest| rest.contains(end)).count();
            assert_eq!(sample.chunks.iter().map(|chunk| whole(chunk)).sum::<usize>(), begun, "{cell}");
        }
        let joined = large.sample(&cell, 1, &measure).unwrap();
        assert_eq!(
            (joined.chunks.concat(), joined.query),
            (sample.chunks.concat(), sample.query),
            "{cell}: the same text"
        );
        let documents = joined.chunks.concat().matches("Document ").count();
        assert_eq!(joined.chunks.len(), if documents > 0 { documents } else { 2 }, "{cell}");
    }
}

#[test]
fn a_length_that_is_too_short_is_told_with_what_is_needed() {
    let folder = data();
    let measure = Measure::new(&count_words);
    for task in TASKS {
        let cell = Cell::at(task.name, 130);
        let suite = opened(&Asked { lengths: vec![130], ..asked("ruler", folder.path()) });
        let said = suite.sample(&cell, 0, &measure).map(|sample| measure.length(&sample).unwrap());
        let Err(error) = said else {
            assert!(said.unwrap() <= 130, "{}", task.name);
            continue;
        };
        let text = error.to_string();
        assert!(text.starts_with(&format!("--lengths 130: {} needs ", task.name)) && error.exit_code() == 64, "{text}");
    }
}

#[test]
fn lists_of_too_few_words_are_refused() {
    let folder = data();
    let said = |tasks: &[&str]| {
        let tasks = tasks.iter().map(|task| (*task).to_owned()).collect();
        super::open(&Asked { tasks, ..asked("ruler", folder.path()) }).err().map(|error| error.to_string())
    };
    let list =
        |name: &str, words: &str| std::fs::write(folder.path().join("ruler/wordlists").join(name), words).unwrap();
    list("nounlist.txt", "a\nb\n");
    let pairs = "--suite ruler: niah_multikey_2 needs 100000 pairs of an adjective and a noun; the lists have 80";
    assert_eq!(said(&["niah_multikey_2"]).as_deref(), Some(pairs));
    assert!(said(&["cwe"]).unwrap().contains("cwe needs 100 different words; the lists have 92"));
    assert_eq!(said(&["niah_single_1", "niah_multikey_3", "vt"]), None);
    list("nounlist.txt", "\n");
    assert!(said(&["niah_single_1"]).unwrap().ends_with("nounlist.txt: it has no words"));
}
