//! Tests of the suite: every answer is derived from its documents.

use super::*;
use crate::kit::count_words;
use crate::split::Part;

fn pairs(seed: u64, shape: Shape, split: &Split) -> Pairs {
    Pairs { tasks: Vec::new(), seed, shape, words: Words::of(split) }
}

fn usual(seed: u64) -> Pairs {
    pairs(seed, SHAPE, &Split::default())
}

fn made(suite: &Pairs, task: &str, number: usize) -> Made {
    suite.made(task, number, &Measure::new(&count_words)).expect("words are counted")
}

/// What stands in a sentence in the place of `{x}` or `{y}`, if it is one of these with the rest
/// given.
fn filled(sentence: &str, forms: &[&str; 2], known: (&str, &str), open: &str) -> Option<String> {
    forms.iter().find_map(|form| {
        let form = form.replace(known.0, known.1);
        let (before, after) = form.split_once(open).expect("a form has a gap");
        let inside = sentence.strip_prefix(before)?.strip_suffix(after)?;
        (inside.split_whitespace().count() <= 2).then(|| inside.to_owned())
    })
}

/// All values that the documents give, with the numbers of their documents.
fn found(documents: &[String], forms: &[&str; 2], known: (&str, &str), open: &str) -> Vec<(usize, String)> {
    let sentences = documents.iter().enumerate().flat_map(|(at, text)| {
        text.trim_end().split_inclusive(". ").map(move |sentence| (at, sentence.trim_end().to_owned()))
    });
    sentences.filter_map(|(at, sentence)| Some((at, filled(&sentence, forms, known, open)?))).collect()
}

/// The template of a question, and its person.
fn person(question: &str, form: &str) -> Option<String> {
    let (before, after) = form.split_once("{p}")?;
    let inside = question.strip_prefix("Question: ")?.strip_suffix("\nAnswer:")?;
    Some(inside.strip_prefix(before)?.strip_suffix(after)?.to_owned())
}

#[test]
fn an_answer_follows_from_two_documents_in_either_order() {
    let suite = usual(3);
    let (mut orders, mut used) = ([0, 0], std::collections::BTreeSet::new());
    for number in 0..200 {
        let Made { documents, question, references } = made(&suite, REFER, number);
        assert_eq!(documents.len(), SHAPE.documents);
        let (refer, person) =
            REFERS.iter().find_map(|refer| Some((refer, person(&question, refer.question)?))).expect("a template");
        used.insert(refer.question);
        let [(refers, thing)] = &found(&documents, &refer.refers, ("{p}", &person), "{x}")[..] else {
            panic!("{person} refers once: {documents:?}")
        };
        let [(says, value)] = &found(&documents, &refer.says, ("{x}", thing), "{y}")[..] else {
            panic!("{thing} once: {documents:?}")
        };
        assert_eq!([value.as_str()], references[..], "{documents:?}");
        assert_ne!(refers, says);
        orders[usize::from(refers < says)] += 1;
    }
    assert!(orders.iter().all(|&count| count > 60), "{orders:?}");
    assert_eq!(used.len(), REFERS.len());
}

#[test]
fn a_list_stands_in_documents_apart_in_its_order() {
    let suite = usual(3);
    for number in 0..200 {
        let Made { documents, question, references } = made(&suite, APART, number);
        let (apart, person) =
            APARTS.iter().find_map(|apart| Some((apart, person(&question, apart.question)?))).expect("a template");
        let said = found(&documents, &apart.says, ("{p}", &person), "{y}");
        assert!(said.windows(2).all(|pair| pair[0].0 < pair[1].0), "documents apart: {said:?}");
        assert_eq!(said.into_iter().map(|(_, value)| value).collect::<Vec<_>>(), references, "{documents:?}");
    }
}

#[test]
fn documents_have_their_tokens_and_end_with_a_blank_line() {
    for shape in [Shape { documents: 8, document_tokens: 60 }, Shape { documents: 32, document_tokens: 250 }] {
        let suite = pairs(1, shape, &Split::default());
        for task in [REFER, APART] {
            for number in 0..20 {
                let documents = made(&suite, task, number).documents;
                assert_eq!(documents.len(), shape.documents);
                assert!(documents.iter().all(|text| text.ends_with(".\n\n") && !text.starts_with(' ')));
                let tokens: Vec<usize> = documents.iter().map(|text| count_words(text).unwrap()).collect();
                assert!(tokens.iter().all(|&count| count <= shape.document_tokens), "{tokens:?}");
                let mean = tokens.iter().sum::<usize>() / tokens.len();
                assert!(mean * 10 >= shape.document_tokens * 6, "{mean} of {}", shape.document_tokens);
                assert!(tokens.iter().any(|count| count != &tokens[0]), "{tokens:?}");
            }
        }
    }
}

#[test]
fn other_people_have_facts_of_the_same_kind() {
    let suite = usual(5);
    for number in 0..50 {
        let Made { documents, question, .. } = made(&suite, REFER, number);
        let text = documents.concat();
        let others = PEOPLE.iter().filter(|name| text.contains(**name) && !question.contains(**name)).count();
        assert!(others >= 2, "{text}");
    }
}

#[test]
fn parts_share_neither_template_nor_name() {
    let of = |part| pairs(1, SHAPE, &Split { part, salt: "s".to_owned() });
    let (selection, report) = (of(Part::Selection), of(Part::Report));
    for (one, other) in [(&selection, &report), (&report, &selection)] {
        for number in 0..50 {
            let Made { documents, question, .. } = made(one, REFER, number);
            let text = documents.concat();
            assert!(one.words.refers.iter().any(|refer| person(&question, refer.question).is_some()), "{question}");
            assert!(!other.words.refers.iter().any(|refer| person(&question, refer.question).is_some()), "{question}");
            let foreign: Vec<_> =
                other.words.people.iter().chain(&other.words.names).filter(|name| text.contains(**name)).collect();
            assert!(foreign.is_empty(), "{foreign:?}");
        }
    }
}

#[test]
fn requests_follow_from_their_number() {
    let (one, two) = (usual(1), usual(2));
    assert_eq!(made(&one, REFER, 5), made(&one, REFER, 5));
    assert_ne!(made(&one, REFER, 5), made(&two, REFER, 5));
    assert_ne!(made(&one, APART, 5), made(&one, APART, 6));
}
