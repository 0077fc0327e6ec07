//! The suite as an evaluation takes it: its material is read when it is opened, and its requests
//! are as long as they may be.

use super::{Draft, Haystack, Kind, Needles, Place, TASKS, Task, chains, coded, common, questions};
use crate::cut::{TEXT_CHUNK_TOKENS, chunks};
use crate::design::{Asked, chosen, numbers};
use crate::error::{Error, Result};
use crate::fitted::{BySize, Sizes};
use crate::material::{Essay, Material, Questions, Words};
use crate::random::Random;
use crate::suite::{Cell, Measure, Sample, Scoring, Suite};

/// Default tokens of requests.
const LENGTH: usize = 4096;

/// The fewest pairs of words for keys that differ: a few, or one for each line of a context of some
/// two million tokens. The fewest words for lists.
const PAIRS: usize = 4;
const PAIRS_AMONG_NEEDLES: usize = 100_000;
const WORDS: usize = 100;

/// The most lines, sentences or documents of a context.
const MOST: usize = 1 << 24;

/// Tasks at lengths, with the material of their texts.
struct Ruler {
    tasks: Vec<&'static Task>,
    lengths: Vec<usize>,
    chunk_tokens: Option<usize>,
    seed: u64,
    words: Words,
    essay: Essay,
    one_paragraph: Questions,
    several_passages: Questions,
    sizes: Sizes,
}

/// The suite as it was asked for.
///
/// # Errors
/// Returns an error if a task is unknown, with the known tasks, or if material that the tasks need
/// is missing.
pub fn open(asked: &Asked) -> Result<Box<dyn Suite>> {
    let names = chosen("ruler", &asked.tasks, &TASKS.map(|task| task.name))?;
    let tasks: Vec<&Task> = names.iter().filter_map(|name| Task::find(name)).collect();
    let material = Material::of(asked);
    let is_needed = |needs: fn(&Task) -> bool| tasks.iter().any(|task| needs(task));
    let words = if is_needed(Task::needs_words) { material.words()? } else { Words::default() };
    tasks.iter().try_for_each(|task| enough_words(task, &words))?;
    Ok(Box::new(Ruler {
        words,
        essay: if is_needed(Task::needs_essay) { material.essay()? } else { Essay::default() },
        one_paragraph: match is_needed(|task| task.kind == Kind::OneParagraph) {
            true => material.squad()?,
            false => Questions::default(),
        },
        several_passages: match is_needed(|task| task.kind == Kind::SeveralPassages) {
            true => material.several_hops()?,
            false => Questions::default(),
        },
        lengths: numbers(&asked.lengths, &[LENGTH]),
        chunk_tokens: asked.chunk_tokens.first().copied(),
        seed: asked.seed,
        tasks,
        sizes: Sizes::default(),
    }))
}

/// There are as many words as a task may draw different ones.
fn enough_words(task: &Task, words: &Words) -> Result<()> {
    let Words { adjectives, nouns, all } = words;
    let (found, needed, what) = match task.kind {
        Kind::Needles(Needles { haystack: Haystack::Needles, .. }) if task.needs_words() => {
            (adjectives.len() * nouns.len(), PAIRS_AMONG_NEEDLES, "pairs of an adjective and a noun")
        }
        Kind::Needles(_) if task.needs_words() => {
            (adjectives.len() * nouns.len(), PAIRS, "pairs of an adjective and a noun")
        }
        Kind::CommonWords => (all.len(), WORDS, "different words"),
        _ => return Ok(()),
    };
    match found < needed {
        true => {
            Err(Error::usage(format!("--suite ruler: {} needs {needed} {what}; the lists have {found}", task.name)))
        }
        false => Ok(()),
    }
}

impl Task {
    fn needs_words(&self) -> bool {
        match self.kind {
            Kind::Needles(needles) => needles.key == super::Form::Word,
            kind => kind == Kind::CommonWords,
        }
    }

    fn needs_essay(&self) -> bool {
        matches!(self.kind, Kind::Needles(Needles { haystack: Haystack::Essay, .. }))
    }

    /// Whether its context is documents.
    fn has_documents(&self) -> bool {
        matches!(self.kind, Kind::OneParagraph | Kind::SeveralPassages)
    }
}

impl Ruler {
    fn questions(&self, task: &Task) -> Option<&Questions> {
        match task.kind {
            Kind::OneParagraph => Some(&self.one_paragraph),
            Kind::SeveralPassages => Some(&self.several_passages),
            _ => None,
        }
    }

    /// The question of a number: all of them, in an order of the seed.
    fn question(&self, task: &Task, number: usize) -> Option<(&Questions, usize)> {
        let questions = self.questions(task)?;
        let mut order: Vec<usize> = (0..questions.questions.len()).collect();
        Random::of(&format!("ruler {} {} questions", self.seed, task.name)).shuffle(&mut order);
        Some((questions, order[number]))
    }

    /// The least and the largest size of a task's context.
    fn bounds(&self, task: &Task, number: usize) -> (usize, usize) {
        let least = match task.kind {
            Kind::Needles(needles) => needles.keys * needles.values,
            Kind::Chain => chains::LEAST,
            Kind::CommonWords => return (common::LEAST, self.words.all.len()),
            Kind::CodedWords => coded::LEAST,
            Kind::OneParagraph | Kind::SeveralPassages => self
                .question(task, number)
                .map_or(1, |(questions, index)| questions::least(&questions.questions[index])),
        };
        (least, MOST)
    }

    fn draft(
        &self,
        task: &Task,
        (length, number): (usize, usize),
        size: usize,
        measure: &Measure<'_>,
    ) -> Result<Draft> {
        let random = &mut Random::of(&format!("ruler {} {} {length} {number}", self.seed, task.name));
        let Self { words, essay, .. } = self;
        Ok(match task.kind {
            Kind::Needles(needles) => needles.draft(size, Place::Drawn, (words, essay), random),
            Kind::Chain => chains::draft(size, length, measure, random)?,
            Kind::CommonWords => common::draft(size, length, words, random),
            Kind::CodedWords => coded::draft(size, length.saturating_sub(task.answer_tokens), random),
            Kind::OneParagraph | Kind::SeveralPassages => {
                let (questions, index) = self.question(task, number).expect("the task has questions");
                questions::draft(size, &questions.questions[index], questions, random)
            }
        })
    }

    fn made(&self, task: &Task, place: (usize, usize), size: usize, measure: &Measure<'_>) -> Result<Sample> {
        let Draft { lead, runs, query, begun, references } = self.draft(task, place, size, measure)?;
        let own = if task.has_documents() { None } else { Some(TEXT_CHUNK_TOKENS) };
        Ok(Sample {
            lead,
            chunks: chunks(&runs, self.chunk_tokens.or(own), measure)?,
            pages: Vec::new(),
            query,
            begun,
            uses_template: true,
            scoring: Scoring::new(task.metric(), references),
            answer_tokens: task.answer_tokens,
            id: None,
        })
    }
}

/// A task at a length, as contexts of any size are made of it.
struct AtLength<'a> {
    ruler: &'a Ruler,
    task: &'a Task,
    length: usize,
    measure: &'a Measure<'a>,
}

impl BySize for AtLength<'_> {
    fn bounds(&self, number: usize) -> (usize, usize) {
        self.ruler.bounds(self.task, number)
    }

    fn made(&self, number: usize, size: usize) -> Result<Sample> {
        self.ruler.made(self.task, (self.length, number), size, self.measure)
    }
}

impl Suite for Ruler {
    fn made_of(&self) -> Vec<String> {
        let mut lines = vec!["RULER's tasks, made here from the seed".to_owned()];
        for (what, label) in
            [("essays", &self.essay.label), ("qa_1", &self.one_paragraph.label), ("qa_2", &self.several_passages.label)]
        {
            if !label.is_empty() {
                lines.push(format!("{what}: {label}"));
            }
        }
        lines
    }

    fn cells(&self) -> Vec<Cell> {
        let at = |&length: &usize| self.tasks.iter().map(move |task| Cell::at(task.name, length));
        self.lengths.iter().flat_map(at).collect()
    }

    fn most_samples(&self, cell: &Cell) -> Option<usize> {
        let questions = self.questions(Task::find(&cell.task)?)?;
        Some(questions.questions.len())
    }

    fn sample(&self, cell: &Cell, number: usize, measure: &Measure<'_>) -> Result<Sample> {
        let task = Task::find(&cell.task).expect("cells are made of tasks");
        let length = cell.length.expect("cells have lengths");
        self.sizes.fitted(cell, number, measure, &AtLength { ruler: self, task, length, measure })
    }
}
