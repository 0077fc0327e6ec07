//! What was asked for: a suite with its tasks and their shape, how many samples, and the methods that answer them.

use schemars::JsonSchema;
use serde::Serialize;
use tributary_engine::RunConfig;

use crate::error::{Error, Result};
use crate::hops::{LEAST_DOCUMENT_TOKENS, Shape, TASKS, Task};

/// The suites that there are.
pub const SUITES: [&str; 1] = ["hops"];

/// The most samples of a task, and documents of a sample, and tokens of a document.
const MOST: usize = 1_000_000;

/// What is evaluated.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Design {
    /// The suite.
    pub suite: String,
    /// Its tasks, in the order asked for.
    pub tasks: Vec<String>,
    /// Requests of each task.
    pub samples: usize,
    /// Seed of the requests, of the order of methods, and of the intervals.
    pub seed: u64,
    /// Documents of a request.
    pub documents: usize,
    /// Tokens of each document, at most.
    pub document_tokens: usize,
    /// Number of ranks.
    pub world: usize,
    /// Threads of each rank.
    pub threads: usize,
}

/// A method with a ratio, as it answers requests.
#[derive(Debug, Clone, PartialEq)]
pub struct Arm {
    /// The method and its options, as asked for.
    pub method: String,
    /// The share of the context that it recomputes; absent where it has none.
    pub ratio: Option<f64>,
    /// How it runs.
    pub run_config: RunConfig,
}

impl Arm {
    /// A method as it was asked for, and how it runs.
    pub fn new(method: String, run_config: RunConfig) -> Self {
        let settings = &run_config.settings;
        let ratio = settings.method.ratio.map(|own| settings.ratio.unwrap_or(own));
        Self { method, ratio, run_config }
    }

    /// The method with its ratio, for a reader.
    pub fn label(&self) -> String {
        self.ratio.map_or_else(|| self.method.clone(), |ratio| format!("{} at {ratio}", self.method))
    }

    /// Whether it equals full prefill but for rounding.
    pub fn is_exact(&self) -> bool {
        self.run_config.settings.method.is_exact()
    }
}

impl Design {
    /// Checks what was asked for. Tasks that are named twice count once; all where none is named.
    ///
    /// # Errors
    /// An unknown suite or task, with those that are known; a number that cannot be.
    pub fn checked(mut self) -> Result<Self> {
        if !SUITES.contains(&self.suite.as_str()) {
            return Err(Error::usage(format!("--suite {}: unknown; known are {}", self.suite, SUITES.join(", "))));
        }
        if self.tasks.is_empty() {
            self.tasks = TASKS.map(|task| task.name.to_owned()).to_vec();
        }
        let mut tasks: Vec<String> = Vec::new();
        for name in std::mem::take(&mut self.tasks) {
            if Task::find(&name).is_none() {
                let known = TASKS.map(|task| task.name).join(", ");
                return Err(Error::usage(format!("--tasks {name}: unknown; {} has {known}", self.suite)));
            }
            if !tasks.contains(&name) {
                tasks.push(name);
            }
        }
        self.tasks = tasks;
        let least = self.tasks().map(Task::least_documents).max().unwrap_or(1);
        let numbers = [
            ("--samples", self.samples, 1),
            ("--documents", self.documents, least),
            ("--document-tokens", self.document_tokens, LEAST_DOCUMENT_TOKENS),
            ("--threads", self.threads, 1),
        ];
        for (option, number, least) in numbers {
            if number < least {
                return Err(Error::usage(format!("{option} {number}: must be at least {least}")));
            }
            if number > MOST {
                return Err(Error::usage(format!("{option} {number}: at most {MOST}")));
            }
        }
        Ok(self)
    }

    /// The tasks.
    pub fn tasks(&self) -> impl Iterator<Item = &'static Task> {
        self.tasks.iter().filter_map(|name| Task::find(name))
    }

    /// The shape of each request.
    pub fn shape(&self) -> Shape {
        Shape { documents: self.documents, document_tokens: self.document_tokens }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn design(suite: &str, tasks: &[&str]) -> Design {
        Design {
            suite: suite.to_owned(),
            tasks: tasks.iter().map(|task| (*task).to_owned()).collect(),
            samples: 2,
            seed: 0,
            documents: 8,
            document_tokens: 64,
            world: 1,
            threads: 1,
        }
    }

    #[test]
    fn tasks_are_those_asked_for_or_all() {
        assert_eq!(design("hops", &[]).checked().unwrap().tasks.len(), 17);
        assert_eq!(design("hops", &["vt3", "single", "vt3"]).checked().unwrap().tasks, ["vt3", "single"]);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let said = |design: Design| design.checked().unwrap_err().to_string();
        assert_eq!(said(design("ruler", &[])), "--suite ruler: unknown; known are hops");
        assert!(said(design("hops", &["vt9"])).starts_with("--tasks vt9: unknown; hops has single, multikey"));
        let few = Design { documents: 3, ..design("hops", &["vt4"]) };
        assert_eq!(said(few), "--documents 3: must be at least 4");
        assert!(said(Design { samples: 0, ..design("hops", &[]) }).starts_with("--samples 0"));
        assert!(said(Design { document_tokens: 9, ..design("hops", &[]) }).starts_with("--document-tokens 9"));
        assert!(said(Design { samples: 2_000_000, ..design("hops", &[]) }).ends_with("at most 1000000"));
    }
}
