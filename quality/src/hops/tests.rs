//! A reader that knows the language, but not the generator of samples, finds every answer in the
//! documents. Samples are distributed as those of the recipe.

use std::collections::{BTreeMap, BTreeSet};

use super::*;

/// Knowledge of a reader of documents.
#[derive(Default)]
struct Reader {
    codes: BTreeMap<String, String>,
    houses: BTreeMap<String, String>,
    hosts: BTreeMap<String, String>,
    values: BTreeMap<String, String>,
    fruits: BTreeMap<String, Vec<String>>,
    sentences: BTreeMap<&'static str, usize>,
}

impl Reader {
    fn of(sample: &Sample) -> Self {
        let mut reader = Self::default();
        for document in &sample.documents {
            let text = document.strip_prefix("passage ").expect("a document begins with its word");
            let sentences = text.strip_suffix(" .").expect("a sentence ends").split(" . ");
            sentences.for_each(|sentence| reader.read(&sentence.split(' ').collect::<Vec<_>>()));
        }
        reader
    }

    /// Every subject is said once; people may like several things.
    fn read(&mut self, sentence: &[&str]) {
        let text = |word: &str| word.to_owned();
        let (kind, known) = match *sentence {
            ["code", "of", key, "is", a, b, c] => ("code", self.codes.insert(text(key), format!("{a} {b} {c}"))),
            ["house", "of", name, "in", city] => ("house", self.houses.insert(text(name), text(city))),
            [name, "stays", "with", host] => ("stay", self.hosts.insert(text(name), text(host))),
            ["let", variable, "=", value] if self.is_variable(value) => {
                ("reference", self.values.insert(text(variable), text(value)))
            }
            ["let", variable, "=", value] => ("let", self.values.insert(text(variable), text(value))),
            [name, "likes", fruit] => {
                self.fruits.entry(text(name)).or_default().push(text(fruit));
                ("like", None)
            }
            _ => ("filler", None),
        };
        assert_eq!(known, None, "{sentence:?} is said twice");
        *self.sentences.entry(kind).or_default() += 1;
    }

    fn is_variable(&self, word: &str) -> bool {
        words::variables().iter().any(|variable| variable == word)
    }

    fn answer(&self, query: &str) -> String {
        let words: Vec<&str> = query.split(' ').collect();
        match words[..] {
            ["question", ":", "code", "of", key, "is"] => self.codes[key].clone(),
            ["question", ":", "codes", "of", ref keys @ .., "?", "answer", ":"] => {
                keys.iter().map(|key| format!("{key} is {}", self.codes[*key])).collect::<Vec<_>>().join(" ")
            }
            ["question", ":", name, "likes"] => self.fruits[name].join(" "),
            ["question", ":", name, "stays", "in"] => self.houses[&self.hosts[name]].clone(),
            ["question", ":", "let", variable, "="] => {
                let mut value = &self.values[variable];
                while let Some(next) = self.values.get(value) {
                    value = next;
                }
                value.clone()
            }
            _ => panic!("no question: {query}"),
        }
    }
}

#[test]
fn every_answer_follows_from_the_documents() {
    let vocabulary: BTreeSet<String> = words::all().into_iter().collect();
    assert_eq!(vocabulary.len(), 375, "the tokenizer has these words and three marks");
    for task in &TASKS {
        for number in 0..100 {
            let sample = sample(task, SHAPE, 3, number);
            assert_eq!(Reader::of(&sample).answer(&sample.query), sample.answer, "{} {number}", task.name);
            assert_eq!(sample.documents.len(), SHAPE.documents);
            for text in sample.documents.iter().chain([&sample.query, &sample.answer]) {
                let words: Vec<&str> = text.split(' ').collect();
                assert!(words.len() <= SHAPE.document_tokens, "{text}");
                assert!(words.iter().all(|word| vocabulary.contains(*word)), "{text}");
            }
        }
    }
}

#[test]
fn samples_follow_from_seed_and_number() {
    let task = Task::find("vt3").unwrap();
    assert_eq!(sample(task, SHAPE, 3, 5), sample(task, SHAPE, 3, 5));
    assert_ne!(sample(task, SHAPE, 3, 5), sample(task, SHAPE, 3, 6));
    assert_ne!(sample(task, SHAPE, 3, 5), sample(task, SHAPE, 4, 5));
    let wide = Shape { documents: 40, document_tokens: 128 };
    for task in &TASKS {
        let sample = sample(task, wide, 3, 0);
        assert_eq!(Reader::of(&sample).answer(&sample.query), sample.answer, "{}: subjects run out", task.name);
        assert!(sample.documents.iter().all(|text| text.split(' ').count() > 118));
    }
}

/// Means over 2000 samples that `examples/models/demo/recipe/tasks.py` has made: codes, houses,
/// stays, assignments of colours, those of variables, likes, fillers; tokens of the documents.
const RECIPE: [(&str, [f64; 7], f64); 9] = [
    ("single", [1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 74.88], 492.7),
    ("multikey", [32.39, 2.25, 1.28, 2.24, 1.25, 1.75, 28.5], 491.5),
    ("multiquery", [33.25, 2.15, 1.18, 2.2, 1.27, 1.74, 27.6], 491.2),
    ("multivalue", [2.16, 2.77, 1.8, 2.81, 1.87, 47.44, 36.51], 496.0),
    ("hop2", [2.03, 15.75, 27.22, 2.52, 1.57, 2.14, 33.3], 495.3),
    ("hop2_back", [1.92, 15.88, 27.31, 2.57, 1.55, 2.09, 33.19], 494.9),
    ("vt2", [2.01, 2.56, 1.63, 16.77, 28.04, 2.15, 33.86], 495.4),
    ("vt3", [2.02, 2.55, 1.63, 16.5, 28.77, 2.09, 33.55], 495.4),
    ("vt3s", [4.53, 4.78, 0.78, 1.0, 2.0, 4.82, 60.05], 493.4),
];

#[test]
fn samples_are_distributed_as_those_of_the_recipe() {
    const SAMPLES: usize = 1000;
    for (name, wanted, wanted_tokens) in RECIPE {
        let task = Task::find(name).unwrap();
        let (mut counts, mut all_tokens) = ([0.0; 7], 0);
        for number in 0..SAMPLES {
            let sample = sample(task, SHAPE, 2, number);
            all_tokens += sample.documents.iter().map(|document| tokens(document)).sum::<usize>();
            let reader = Reader::of(&sample);
            let kinds = ["code", "house", "stay", "let", "reference", "like", "filler"];
            for (count, kind) in counts.iter_mut().zip(kinds) {
                *count += *reader.sentences.get(kind).unwrap_or(&0) as f64 / SAMPLES as f64;
            }
        }
        // Counts of a kind differ by some 5 between samples: a standard error of 0.2.
        let near = counts.iter().zip(wanted).all(|(found, wanted)| (found - wanted).abs() < 0.6);
        assert!(near, "{name}: {counts:?}, not {wanted:?}");
        let mean = all_tokens as f64 / SAMPLES as f64;
        assert!((mean - wanted_tokens).abs() < 1.0, "{name}: {mean} tokens, not {wanted_tokens}");
    }
}

/// Places in the request of the facts that a chain needs, from its beginning on.
fn chain(sample: &Sample) -> Vec<usize> {
    let said = |start: &str| {
        sample.documents.iter().position(|document| document.contains(start)).expect("the fact is somewhere")
    };
    let words: Vec<&str> = sample.query.split(' ').collect();
    let reader = Reader::of(sample);
    let mut places = Vec::new();
    if words[3] == "stays" {
        places =
            vec![said(&format!("{} stays with", words[2])), said(&format!("house of {} in", reader.hosts[words[2]]))];
    } else {
        let mut variable = words[3];
        while let Some(next) = reader.values.get(variable) {
            places.push(said(&format!("let {variable} =")));
            variable = next;
        }
    }
    places.reverse();
    places
}

#[test]
fn chains_lie_as_their_tasks_say() {
    let ascending = |places: &[usize]| places.windows(2).all(|pair| pair[0] < pair[1]);
    for (name, facts, forward) in [
        ("hop2", 2, 1.0),
        ("hop2_back", 2, 0.0),
        ("hop2_shuf", 2, 1.0 / 2.0),
        ("vt2", 2, 1.0),
        ("vt3", 3, 1.0),
        ("vt3s", 3, 1.0),
        ("vt3_back", 3, 0.0),
        ("vt3_rev", 3, 0.0),
        ("vt3_shuf", 3, 1.0 / 6.0),
        ("vt4", 4, 1.0),
        ("vt4_rev", 4, 0.0),
    ] {
        let task = Task::find(name).unwrap();
        let mut in_order = 0;
        for number in 0..400 {
            let places = chain(&sample(task, SHAPE, 1, number));
            assert_eq!(places.iter().collect::<BTreeSet<_>>().len(), facts, "{name}: each in a document of its own");
            in_order += usize::from(ascending(&places));
            let reversed: Vec<usize> = places.iter().rev().copied().collect();
            assert!(forward > 0.0 || ascending(&reversed), "{name}: {places:?}");
        }
        assert!((in_order as f64 / 400.0 - forward).abs() < 0.08, "{name}: {in_order} of 400 as they were written");
    }
}
