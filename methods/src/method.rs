//! The declaration of a method. Planner, forecasts, command line, reports and ranks read it; none
//! of them matches on a method or compares its name.

use std::fmt;

use crate::model_facts::ModelFacts;
use crate::option::{MethodOption, Options};
use crate::options::COMMON;
use crate::prefill::{Prefill, Selection};
use crate::selector::Selector;

/// A way to fill the cache of a long prompt: what holds for all its options.
pub struct Method {
    /// Name on the command line and in reports.
    pub name: &'static str,
    /// Its work in one line.
    pub summary: &'static str,
    /// The paper or project that it comes from.
    pub source: &'static str,
    /// The claim about its answer.
    pub claim: Claim,
    /// Work until the first token, and messages besides the exchange of a recompute. Counted in
    /// rows that run through the model and pairs of a row and a key that it sees, in the letters of
    /// [`COST_LETTERS`].
    pub cost: &'static str,
    /// Share of the context that it recomputes by default; absent where it recomputes nothing.
    pub ratio: Option<f64>,
    /// Options that it takes besides those of every method, in the order in which specs print them.
    pub options: &'static [&'static MethodOption],
    /// A folder that it requires.
    pub requires: Option<Requirement>,
    /// Commands that run it where the user names no method. Comparisons run all methods.
    pub default_of: &'static [Command],
    /// Specs for tests of facts that hold for all methods: the bare name first, then one for each
    /// option that changes the shape of the computation.
    pub samples: &'static [&'static str],
    /// Resolves options and model to the data of its prefill. Adds defaults that follow from the
    /// model to the options, or tells which option is invalid.
    pub prefill: fn(&mut Options, ModelFacts) -> Result<Prefill, InvalidOption>,
    /// Makes its selector, if it selects rows of the context.
    pub selector: Option<fn(Selection) -> Box<dyn Selector>>,
}

/// Letters of [`Method::cost`]. "Chunks" are T/W rows and T·c/(2W) pairs a rank where they are
/// cold, and nothing where they are warm.
pub const COST_LETTERS: &str = "N rows of the prompt, T of the context, M of the query, c of a chunk; n = ratio · T rows are recomputed; W ranks; \
     D layers in which drift is measured";

/// The claim about a method's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    /// It equals a full prefill up to rounding.
    Exact,
    /// It differs from a full prefill, except in one setting.
    Approximate {
        /// That setting.
        exact_where: &'static str,
        /// Options that make any of its specs exact for every prompt; absent if that depends on the
        /// prompt.
        exact_with: Option<&'static str>,
    },
}

/// A folder that a method requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Requirement {
    /// A small model that reads the context for it.
    AuxiliaryModel,
    /// An adapter with trained rows around chunks.
    Adapter,
}

impl Requirement {
    /// The option of the command line that names the folder.
    pub fn flag(self) -> &'static str {
        match self {
            Requirement::AuxiliaryModel => "--aux-model",
            Requirement::Adapter => "--adapter",
        }
    }
}

/// A command that runs methods by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// Run of one request.
    Prefill,
    /// A study of times.
    Bench,
    /// A forecast.
    Plan,
}

/// An option with a value that the model or the request does not allow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidOption {
    /// The option as a spec writes it, `KEY=VALUE`, or the method's name.
    pub found: String,
    /// The values that would be right.
    pub wanted: String,
}

impl InvalidOption {
    /// An option whose value does not fit.
    pub fn new(option: &MethodOption, value: &impl fmt::Display, wanted: impl Into<String>) -> Self {
        Self { found: format!("{}={value}", option.key), wanted: wanted.into() }
    }
}

impl Method {
    /// Every option that it takes, in the order in which specs print them.
    pub fn all_options(&self) -> impl Iterator<Item = &'static MethodOption> {
        self.options.iter().chain(&COMMON).copied()
    }

    /// Whether it takes an option.
    pub fn takes(&self, option: &MethodOption) -> bool {
        self.all_options().any(|other| other == option)
    }

    /// Whether it requires this folder.
    pub fn needs(&self, requirement: Requirement) -> bool {
        self.requires == Some(requirement)
    }

    /// Whether the result equals a full prefill up to rounding.
    pub fn is_exact(&self) -> bool {
        self.claim == Claim::Exact
    }

    /// Whether it reuses the longest cached prefix of a prompt.
    pub fn reuses_prefix(&self) -> bool {
        matches!(self.usual_prefill(), Ok(Prefill::Whole { reuses_prefix: true, .. }))
    }

    /// Data of its prefill with its defaults, for a model that allows all of them.
    fn usual_prefill(&self) -> Result<Prefill, InvalidOption> {
        (self.prefill)(&mut Options::default(), ModelFacts::new(1 << 16, 1))
    }

    /// Whether it takes rows from the chunk cache, and keeps some there.
    pub fn reuses(&self) -> bool {
        self.in_chunks() || self.reuses_prefix()
    }

    /// Whether it prefills chunk by chunk. Chunks do not see each other then, so they can be kept
    /// for later requests.
    pub fn in_chunks(&self) -> bool {
        matches!(self.usual_prefill(), Ok(Prefill::Chunks(_)))
    }

    /// Whether it selects rows of the context, which ranks compute together.
    pub fn selects(&self) -> bool {
        self.selector.is_some()
    }
}

/// As its name: a plan's method is told in many messages.
impl fmt::Debug for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// No two methods have the same name.
impl PartialEq for Method {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Method {}
