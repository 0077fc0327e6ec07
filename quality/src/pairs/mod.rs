//! The suite `pairs`: short English documents. In one task one document refers to another; in the
//! other none does, and their order carries the answer. It measures how sharply a model reads a
//! reference between documents, for [`crate::calibrate`]. Any model that reads English can answer
//! its questions.
//!
//! Every document ends with a blank line: documents that run together with the next one and with
//! the query make a small model continue the text instead of answering.

mod templates;
#[cfg(test)]
mod tests;

use self::templates::{APARTS, Apart, FILLERS, KINDS, NAMES, PEOPLE, REFERS, Refer};
use crate::design::{Asked, at_least, chosen};
use crate::error::Result;
use crate::hops::Shape;
use crate::random::Random;
use crate::score::Metric;
use crate::split::Split;
use crate::suite::{Cell, Measure, Sample, Scoring, Suite};

/// A document names a thing, another one says something about that.
const REFER: &str = "refer";
/// Documents each name one thing, and are asked for in their order.
const APART: &str = "apart";

/// Default shape of a request.
pub const SHAPE: Shape = Shape { documents: 12, document_tokens: 100 };

/// The fewest documents, and tokens of a document.
const LEAST_DOCUMENTS: usize = 4;
const LEAST_TOKENS: usize = 40;
/// The least share of its tokens that a document has, in per cent.
const LEAST_SHARE: usize = 60;
/// Number of documents for each fact of the same kind about something else: a model of 0.5B
/// parameters answers hardly anything among many.
const DOCUMENTS_PER_DISTRACTOR: usize = 4;
/// Things that are asked for in their order.
const THINGS: usize = 3;
/// Tokens of the answer, at most.
const ANSWER_TOKENS: usize = 24;

/// The tasks that were asked for, from a seed, with the words of a part.
struct Pairs {
    tasks: Vec<String>,
    seed: u64,
    shape: Shape,
    words: Words,
}

/// Templates and names of a part of the sources.
struct Words {
    refers: Vec<&'static Refer>,
    aparts: Vec<&'static Apart>,
    people: Vec<&'static str>,
    names: Vec<&'static str>,
}

impl Words {
    fn of(split: &Split) -> Self {
        let words = |kind: &str, all: &[&'static str]| split.half(kind, all.to_vec(), |word| (*word).to_owned());
        Self {
            refers: split.half("template", REFERS.iter().collect(), |refer| refer.question.to_owned()),
            aparts: split.half("template", APARTS.iter().collect(), |apart| apart.question.to_owned()),
            people: words("person", &PEOPLE),
            names: words("name", &NAMES),
        }
    }
}

/// The suite as it was asked for.
///
/// # Errors
/// Returns an error if the task is unknown, or if there are too few documents or tokens.
pub fn open(asked: &Asked) -> Result<Box<dyn Suite>> {
    let documents = asked.documents.unwrap_or(SHAPE.documents);
    let document_tokens = asked.document_tokens.first().copied().unwrap_or(SHAPE.document_tokens);
    at_least("--documents", documents, LEAST_DOCUMENTS)?;
    at_least("--document-tokens", document_tokens, LEAST_TOKENS)?;
    Ok(Box::new(Pairs {
        tasks: chosen("pairs", &asked.tasks, &[REFER, APART])?,
        seed: asked.seed,
        shape: Shape { documents, document_tokens },
        words: Words::of(&asked.split),
    }))
}

/// A request: its documents in their order, its question, the names in a right answer.
#[derive(Debug, PartialEq, Eq)]
struct Made {
    documents: Vec<String>,
    question: String,
    references: Vec<String>,
}

/// Facts of a request, the needed ones in the order of their documents.
struct Facts {
    needed: Vec<String>,
    distractors: Vec<String>,
    question: String,
    references: Vec<String>,
}

/// Draws for a request, each name once.
struct Draw {
    random: Random,
    people: Vec<&'static str>,
    things: Vec<String>,
}

impl Draw {
    fn new(mut random: Random, words: &Words) -> Self {
        let names = random.some_of(&words.names, words.names.len());
        let things = names.into_iter().map(|name| format!("{name} {}", random.one_of(&KINDS))).collect();
        Self { people: random.some_of(&words.people, words.people.len()), things, random }
    }

    fn person(&mut self) -> &'static str {
        self.people.pop().expect("a request has fewer people")
    }

    fn thing(&mut self) -> String {
        self.things.pop().expect("a request has fewer things")
    }

    fn phrase(&mut self, of: &[&'static str; 2]) -> &'static str {
        self.random.one_of(of)
    }

    /// A sentence that is needed nowhere.
    fn filler(&mut self) -> String {
        let [subjects, verbs, ends] = FILLERS;
        let [subject, verb, end] = [subjects, verbs, ends].map(|of| self.random.one_of(of));
        format!("{subject} {verb} {end}.")
    }

    /// A document with the given facts among filler, of at most `most_tokens` tokens where the
    /// facts leave room.
    fn document(&mut self, facts: &[String], most_tokens: usize, measure: &Measure<'_>) -> Result<String> {
        let least = most_tokens * LEAST_SHARE / 100;
        let wanted = least + self.random.below(most_tokens - least + 1);
        // The blank line, too.
        let mut tokens = 1;
        for fact in facts {
            tokens += measure.tokens(&format!(" {fact}"))?;
        }
        let mut sentences: Vec<String> = Vec::new();
        loop {
            let filler = self.filler();
            tokens += measure.tokens(&format!(" {filler}"))?;
            if tokens > wanted {
                break;
            }
            sentences.push(filler);
        }
        for fact in facts {
            let at = self.random.below(sentences.len() + 1);
            sentences.insert(at, fact.clone());
        }
        if sentences.is_empty() {
            sentences.push(self.filler());
        }
        Ok(sentences.join(" ") + "\n\n")
    }

    /// A reference and what it refers to, and `others` such facts about other people and things.
    fn refer(&mut self, refer: &Refer, others: usize) -> Facts {
        let (person, thing) = (self.person(), self.thing());
        let value = self.random.one_of(refer.values);
        let rest: Vec<&'static str> = refer.values.iter().copied().filter(|other| *other != value).collect();
        let mut needed = vec![
            refer.refers_to(self.phrase(&refer.refers), person, &thing),
            refer.says(self.phrase(&refer.says), &thing, value),
        ];
        self.random.shuffle(&mut needed); // which of them comes first
        let mut distractors = Vec::new();
        for number in 0..others.min(2 * self.people.len()) {
            // Each other thing has a reference to it and a fact about it, in turn.
            if number % 2 == 0 {
                let (person, thing) = (self.person(), self.things.last().cloned());
                let Some(thing) = thing else { break };
                distractors.push(refer.refers_to(self.phrase(&refer.refers), person, &thing));
            } else {
                let Some(thing) = self.things.pop() else { break };
                let value = self.random.one_of(&rest);
                distractors.push(refer.says(self.phrase(&refer.says), &thing, value));
            }
        }
        let question = refer.question.replace("{p}", person);
        Facts { needed, distractors, question, references: vec![value.to_owned()] }
    }

    /// Facts of a list, and of other people's lists.
    fn apart(&mut self, apart: &Apart, others: usize) -> Facts {
        let person = self.person();
        let values = self.random.some_of(apart.values, THINGS);
        let rest: Vec<&'static str> = apart.values.iter().copied().filter(|other| !values.contains(other)).collect();
        let fact = |draw: &mut Self, person: &str, value: &str| {
            draw.phrase(&apart.says).replace("{p}", person).replace("{y}", value)
        };
        let needed = values.iter().map(|value| fact(self, person, value)).collect();
        let mut distractors = Vec::new();
        for _ in 0..others.min(self.people.len()) {
            let (other, value) = (self.person(), self.random.one_of(&rest));
            distractors.push(fact(self, other, value));
        }
        let references = values.into_iter().map(str::to_owned).collect();
        Facts { needed, distractors, question: apart.question.replace("{p}", person), references }
    }
}

impl Pairs {
    fn made(&self, task: &str, number: usize, measure: &Measure<'_>) -> Result<Made> {
        let Self { seed, words, shape, .. } = self;
        let mut draw = Draw::new(Random::of(&format!("pairs {seed} {task} {number}")), words);
        let count = shape.documents;
        let others = count / DOCUMENTS_PER_DISTRACTOR;
        let Facts { needed, distractors, question, references } = if task == REFER {
            let refer = draw.random.one_of(&words.refers);
            draw.refer(refer, others)
        } else {
            let apart = draw.random.one_of(&words.aparts);
            draw.apart(apart, others)
        };
        let mut places = draw.random.some_of(&(0..count).collect::<Vec<_>>(), needed.len());
        places.sort_unstable();
        let mut facts: Vec<Vec<String>> = vec![Vec::new(); count];
        places.into_iter().zip(needed).for_each(|(place, fact)| facts[place].push(fact));
        for distractor in distractors {
            let place = draw.random.below(count);
            facts[place].push(distractor);
        }
        let of = |facts: &Vec<String>| draw.document(facts, shape.document_tokens, measure);
        let documents = facts.iter().map(of).collect::<Result<_>>()?;
        Ok(Made { documents, question: format!("Question: {question}\nAnswer:"), references })
    }
}

impl Suite for Pairs {
    fn made_of(&self) -> Vec<String> {
        let Shape { documents, document_tokens } = self.shape;
        let templates = self.words.refers.len() + self.words.aparts.len();
        vec![format!(
            "sentences of Tributary's own, {templates} templates; {documents} documents of at most {document_tokens} tokens a request"
        )]
    }

    fn cells(&self) -> Vec<Cell> {
        self.tasks.iter().map(|task| Cell::of(task)).collect()
    }

    fn refers(&self, task: &str) -> Option<bool> {
        Some(task == REFER)
    }

    fn sample(&self, cell: &Cell, number: usize, measure: &Measure<'_>) -> Result<Sample> {
        let Made { documents, question, references } = self.made(&cell.task, number, measure)?;
        Ok(Sample {
            lead: String::new(),
            chunks: documents,
            pages: Vec::new(),
            query: question,
            begun: String::new(),
            uses_template: true,
            scoring: Scoring { first_line: true, ..Scoring::new(Metric::MatchAll, references) },
            answer_tokens: ANSWER_TOKENS,
            id: None,
        })
    }
}
