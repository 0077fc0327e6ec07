//! The suite `hops`: look-ups, lists and chains in the demo language, which
//! `examples/models/demo/recipe/tasks.py` defines. A sample follows from seed, task, shape and
//! number alone.
//!
//! Needed facts are in different documents, among distractors of the same kind. A definition
//! precedes its references unless the task reverses the order.

mod suite;
mod task;
#[cfg(test)]
mod tests;
pub mod words;
mod world;

use crate::random::Random;

pub use self::suite::{open, unknown_word};
use self::task::{Order, Question};
pub use self::task::{TASKS, Task};
use self::world::{World, filler};

/// The fewest tokens of a document: the word that begins it, the longest sentence, and room for
/// another.
pub const LEAST_DOCUMENT_TOKENS: usize = 24;

/// Documents of a sample, and tokens of each at most. A word is a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Documents.
    pub documents: usize,
    /// Tokens of each, at most; the gap is a sentence that did not fit.
    pub document_tokens: usize,
}

/// Default shape of requests.
pub const SHAPE: Shape = Shape { documents: 8, document_tokens: 64 };

/// A request and its right answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sample {
    /// The documents, in the order of the request.
    pub documents: Vec<String>,
    /// The question.
    pub query: String,
    /// The words with which a right answer begins.
    pub answer: String,
}

/// The needed facts, each with its document, and the question.
struct Asked {
    facts: Vec<(usize, String)>,
    query: String,
    answer: String,
}

/// The sample of a number.
pub fn sample(task: &Task, shape: Shape, seed: u64, number: usize) -> Sample {
    let Shape { documents, document_tokens } = shape;
    let mut random = Random::of(&format!("hops {seed} {} {documents}x{document_tokens} {number}", task.name));
    drawn(task, shape, &mut random, &|random| places(task, documents, random))
}

/// A sample from draws. `places` gives the documents of its needed facts.
pub fn drawn(task: &Task, shape: Shape, random: &mut Random, places: &dyn Fn(&mut Random) -> Vec<usize>) -> Sample {
    let Shape { documents, document_tokens } = shape;
    let mut world = World::new(random);
    let asked = ask(task, &places(random), &mut world, random);
    let mut written: Vec<String> = (0..documents)
        .map(|place| {
            let needed: Vec<&String> =
                asked.facts.iter().filter(|(own, _)| *own == place).map(|(_, fact)| fact).collect();
            document(task, &needed, document_tokens, &mut world, random)
        })
        .collect();
    match task.order {
        Order::AsWritten | Order::ChainReversed => {}
        Order::Reversed => written.reverse(),
        Order::Shuffled => random.shuffle(&mut written),
    }
    Sample { documents: written, query: asked.query, answer: asked.answer }
}

/// Different documents for a task's facts, ascending; descending where it reverses its chain.
pub fn places(task: &Task, documents: usize, random: &mut Random) -> Vec<usize> {
    let all: Vec<usize> = (0..documents).collect();
    let mut places = random.some_of(&all, task.question.facts());
    places.sort_unstable();
    if task.order == Order::ChainReversed {
        places.reverse();
    }
    places
}

/// Draws a question and the facts that answer it, for these documents.
fn ask(task: &Task, places: &[usize], world: &mut World, random: &mut Random) -> Asked {
    let placed = |facts: Vec<String>| places.iter().copied().zip(facts).collect();
    match task.question {
        Question::Code => {
            let (key, digits) = (world.take_key(), world::digits(random));
            let facts = placed(vec![world::code(key, &digits)]);
            Asked { facts, query: format!("question : code of {key} is"), answer: digits }
        }
        Question::Codes(count) => {
            let mut codes: Vec<_> = (0..count).map(|_| (world.take_key(), world::digits(random))).collect();
            let facts = placed(codes.iter().map(|(key, digits)| world::code(key, digits)).collect());
            random.shuffle(&mut codes);
            let keys: Vec<&str> = codes.iter().map(|(key, _)| *key).collect();
            let answers: Vec<String> = codes.iter().map(|(key, digits)| format!("{key} is {digits}")).collect();
            let query = format!("question : codes of {} ? answer :", keys.join(" "));
            Asked { facts, query, answer: answers.join(" ") }
        }
        Question::Likes(count) => {
            let name = world.take_name();
            let fruits = random.some_of(&words::list(words::FRUITS), count);
            let facts = placed(fruits.iter().map(|fruit| world::like(name, fruit)).collect());
            Asked { facts, query: format!("question : {name} likes"), answer: fruits.join(" ") }
        }
        Question::House => {
            let (guest, host) = (world.take_name(), world.take_name());
            let city = random.one_of(&words::list(words::CITIES));
            let facts = placed(vec![world::house(host, city), world::stay(guest, host)]);
            Asked { facts, query: format!("question : {guest} stays in"), answer: city.to_owned() }
        }
        Question::Chain(count) => {
            let colour = random.one_of(&words::list(words::COLOURS));
            let mut value = colour.to_owned();
            let mut facts = Vec::new();
            for _ in 0..count {
                let variable = world.take_variable();
                facts.push(world::let_be(&variable, &value));
                value = variable;
            }
            Asked { facts: placed(facts), query: format!("question : let {value} ="), answer: colour.to_owned() }
        }
    }
}

fn tokens(sentence: &str) -> usize {
    sentence.split_whitespace().count()
}

/// A document: sentences until no further one fits. A needed one goes to a random place; the others
/// keep their order.
fn document(task: &Task, needed: &[&String], document_tokens: usize, world: &mut World, random: &mut Random) -> String {
    let taken: usize = needed.iter().map(|fact| tokens(fact)).sum();
    let mut left = document_tokens.saturating_sub(1 + taken);
    let mut sentences: Vec<String> = Vec::new();
    loop {
        let fact = random.happens(task.density).then(|| {
            let kinds = if random.happens(0.75) { task.kinds } else { task.other_kinds };
            world.say(random.one_of(kinds), random)
        });
        let mut sentence = match fact.flatten() {
            Some(fact) if tokens(&fact.text) <= left => Some(fact.text),
            Some(fact) => {
                world.forget(&fact);
                None
            }
            None => Some(filler(random)).filter(|text| tokens(text) <= left),
        };
        if sentence.is_none() {
            sentence = Some(filler(random)).filter(|text| tokens(text) <= left);
        }
        let Some(sentence) = sentence else { break };
        left -= tokens(&sentence);
        sentences.push(sentence);
    }
    for fact in needed {
        sentences.insert(random.below(sentences.len() + 1), (*fact).clone());
    }
    format!("passage {}", sentences.join(" "))
}
