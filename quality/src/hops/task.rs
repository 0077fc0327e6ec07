//! The tasks: question, surrounding text, and order of the documents.

use super::world::Kind;

/// A task of the suite.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Task {
    /// Its name.
    pub name: &'static str,
    /// Question of the task.
    pub(super) question: Question,
    /// Order of the documents.
    pub(super) order: Order,
    /// Share of the sentences that are facts, before those that do not fit.
    pub(super) density: f64,
    /// Kinds of three quarters of those.
    pub(super) kinds: &'static [Kind],
    /// Kinds of the others.
    pub(super) other_kinds: &'static [Kind],
}

/// Question of a task, with the number of needed facts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Question {
    /// A code.
    Code,
    /// Several codes.
    Codes(usize),
    /// Things that a person likes, in the order in which they are said.
    Likes(usize),
    /// The city of the house in which a person is a guest.
    House,
    /// The colour of a variable at the end of this number of assignments.
    Chain(usize),
}

impl Question {
    /// Number of facts that the answer needs, each in a separate document.
    pub fn facts(self) -> usize {
        match self {
            Question::Code => 1,
            Question::House => 2,
            Question::Codes(count) | Question::Likes(count) | Question::Chain(count) => count,
        }
    }
}

/// Order of the documents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// In the order of writing: definitions come before their references.
    AsWritten,
    /// In the order of writing, except for the facts of the answer: their definitions come last.
    ChainReversed,
    /// All reversed.
    Reversed,
    /// In a random order.
    Shuffled,
}

const OTHERS: &[Kind] = &[Kind::Code, Kind::House, Kind::Stay, Kind::Let, Kind::Reference, Kind::Like];
const HOUSES: &[Kind] = &[Kind::House, Kind::Stay, Kind::Stay];
const CHAINS: &[Kind] = &[Kind::Let, Kind::Reference, Kind::Reference];

/// Every task, in the order of tables.
pub const TASKS: [Task; 17] = [
    Task { density: 0.0, ..task("single", Question::Code, Order::AsWritten, &[Kind::Code]) },
    task("multikey", Question::Code, Order::AsWritten, &[Kind::Code]),
    task("multiquery", Question::Codes(3), Order::AsWritten, &[Kind::Code]),
    task("multivalue", Question::Likes(3), Order::AsWritten, &[Kind::Like]),
    task("multivalue2", Question::Likes(2), Order::AsWritten, &[Kind::Like]),
    task("multivalue4", Question::Likes(4), Order::AsWritten, &[Kind::Like]),
    task("hop2", Question::House, Order::AsWritten, HOUSES),
    task("hop2_back", Question::House, Order::ChainReversed, HOUSES),
    task("hop2_shuf", Question::House, Order::Shuffled, HOUSES),
    task("vt2", Question::Chain(2), Order::AsWritten, CHAINS),
    task("vt3", Question::Chain(3), Order::AsWritten, CHAINS),
    Task {
        density: 0.2,
        other_kinds: &[Kind::Code, Kind::House, Kind::Stay, Kind::Like],
        ..task("vt3s", Question::Chain(3), Order::AsWritten, &[Kind::Code, Kind::House, Kind::Like])
    },
    task("vt3_back", Question::Chain(3), Order::ChainReversed, CHAINS),
    task("vt3_rev", Question::Chain(3), Order::Reversed, CHAINS),
    task("vt3_shuf", Question::Chain(3), Order::Shuffled, CHAINS),
    task("vt4", Question::Chain(4), Order::AsWritten, CHAINS),
    task("vt4_rev", Question::Chain(4), Order::Reversed, CHAINS),
];

/// A task with as many distractors as most have.
const fn task(name: &'static str, question: Question, order: Order, kinds: &'static [Kind]) -> Task {
    Task { name, question, order, density: 0.6, kinds, other_kinds: OTHERS }
}

impl Task {
    /// The task of a name.
    pub fn find(name: &str) -> Option<&'static Task> {
        TASKS.iter().find(|task| task.name == name)
    }

    /// Whether its answer needs a reference from one document to another (true), or the order of
    /// documents without references (false); absent where it needs neither.
    pub fn refers(&self) -> Option<bool> {
        match self.question {
            Question::House | Question::Chain(_) => Some(true),
            Question::Likes(_) => Some(false),
            Question::Code | Question::Codes(_) => None,
        }
    }

    /// The number of documents that it needs.
    pub fn least_documents(&self) -> usize {
        self.question.facts()
    }
}
