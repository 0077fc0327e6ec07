//! Several suites as one: their tasks have the suite's name before them.

use tributary_coordinator::Tokenizer;

use crate::error::Result;
use crate::suite::{Cell, Measure, Sample, Suite};

/// Suites by their names.
pub struct Joined(pub Vec<(String, Box<dyn Suite>)>);

impl Joined {
    /// The suite of a task, and the task's name there.
    fn find<'a>(&self, task: &'a str) -> (&dyn Suite, &'a str) {
        let (suite, own) = task.split_once('/').expect("tasks are named after their suites");
        let found = self.0.iter().find(|(name, _)| name == suite).expect("tasks are named after these suites");
        (found.1.as_ref(), own)
    }

    /// The suite of a cell, and the cell in that suite.
    fn of(&self, cell: &Cell) -> (&dyn Suite, Cell) {
        let (suite, task) = self.find(&cell.task);
        (suite, Cell { task: task.to_owned(), ..cell.clone() })
    }
}

impl Suite for Joined {
    fn made_of(&self) -> Vec<String> {
        let of = |(name, suite): &(String, Box<dyn Suite>)| {
            suite.made_of().into_iter().map(|line| format!("{name}: {line}")).collect::<Vec<_>>()
        };
        self.0.iter().flat_map(of).collect()
    }

    fn cells(&self) -> Vec<Cell> {
        let of = |(name, suite): &(String, Box<dyn Suite>)| {
            let cells = suite.cells().into_iter();
            cells.map(|cell| Cell { task: format!("{name}/{}", cell.task), ..cell }).collect::<Vec<_>>()
        };
        self.0.iter().flat_map(of).collect()
    }

    fn most_samples(&self, cell: &Cell) -> Option<usize> {
        let (suite, cell) = self.of(cell);
        suite.most_samples(&cell)
    }

    fn cuts_contexts(&self) -> bool {
        self.0.iter().any(|(_, suite)| suite.cuts_contexts())
    }

    fn refers(&self, task: &str) -> Option<bool> {
        let (suite, task) = self.find(task);
        suite.refers(task)
    }

    fn check(&self, model: &str, tokenizer: &Tokenizer) -> Result<()> {
        self.0.iter().try_for_each(|(_, suite)| suite.check(model, tokenizer))
    }

    fn sample(&self, cell: &Cell, number: usize, measure: &Measure<'_>) -> Result<Sample> {
        let (suite, cell) = self.of(cell);
        suite.sample(&cell, number, measure)
    }
}
