//! Number of GPUs for a load: for every profile, length and method the smallest deployment whose
//! time to first token under load is within a bound, the content of its memory, and its first
//! limits. Everything is predicted; decoding is not included.

mod breaks;
mod chart;
mod demand;
pub mod duration;
mod group;
#[cfg(test)]
mod kit;
mod page;
mod queue;
mod render;
mod report;
mod search;

use rayon::prelude::*;
use tributary_planner::ModelShape;
use tributary_planner::forecast::Profile;
use tributary_planner::outlook::Scenario;

use self::breaks::{Edge, edges};
use self::demand::Case;
use self::group::Group;
use self::search::{Choice, Known, Miss, Search};
use crate::error::Result;

pub use self::demand::Demand;
pub use self::page::{File, write};
pub use self::render::render;
pub use self::report::Report;

/// Question of a sizing.
#[derive(Debug, Clone, PartialEq)]
pub struct Question {
    /// The model, as asked for.
    pub model: String,
    /// Its shape.
    pub shape: ModelShape,
    /// The machines, each of which may be had more than once.
    pub profiles: Vec<Profile>,
    /// Context lengths in tokens.
    pub lengths: Vec<usize>,
    /// The methods with their hit rates; their worlds are passed over.
    pub scenarios: Vec<Scenario>,
    /// Demand on the deployment.
    pub demand: Demand,
}

impl Question {
    fn case(&self, profile: usize, scenario: usize) -> Case<'_> {
        Case {
            scenario: &self.scenarios[scenario],
            shape: &self.shape,
            profile: &self.profiles[profile],
            demand: self.demand,
        }
    }
}

/// One method at one length on one machine.
struct Cell {
    tokens: usize,
    profile: usize,
    scenario: usize,
    is_exact: bool,
    found: std::result::Result<Choice, Miss>,
    /// The groups that were looked at.
    known: Known,
}

/// The fewest GPUs at one length.
struct Best {
    /// The cell's number.
    cell: usize,
    /// First limits.
    edges: Vec<Edge>,
}

/// Answer of a sizing.
pub struct Answer {
    /// Question.
    pub question: Question,
    /// Per length and profile, one entry a method.
    cells: Vec<Cell>,
    /// Per length, the smallest deployment, followed by the smallest exact one where that is
    /// another.
    best: Vec<Best>,
}

impl Answer {
    /// Looks for the smallest deployments.
    ///
    /// # Errors
    /// Fails as [`Scenario::forecast`] does.
    pub fn new(question: Question) -> Result<Self> {
        let (profiles, scenarios) = (question.profiles.len(), question.scenarios.len());
        let of = |index: usize| {
            let (tokens, rest) = (question.lengths[index / (profiles * scenarios)], index % (profiles * scenarios));
            cell(&question, tokens, rest / scenarios, rest % scenarios)
        };
        let count = question.lengths.len() * profiles * scenarios;
        let cells = (0..count).into_par_iter().with_max_len(1).map(of).collect::<Result<Vec<_>>>()?;
        let best = question.lengths.par_iter().with_max_len(1).map(|&tokens| best(&question, &cells, tokens));
        let best = best.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect();
        Ok(Self { question, cells, best })
    }

    /// Notes for a reader of the numbers.
    fn notes(&self) -> Vec<String> {
        let Question { profiles, shape, lengths, demand, .. } = &self.question;
        let labels: Vec<String> = profiles.iter().map(Profile::label).collect();
        let mut notes = vec![
            format!(
                "every number is predicted from counted work and the profiles {}; none was measured",
                labels.join(", ")
            ),
            "a group computes one prefill after the other; requests come at random and are divided at random among groups; the mean \
             under load is exact for that, the 95th percentile within 4 %; decoding is left out"
                .to_owned(),
        ];
        let shares: Vec<String> =
            profiles.iter().map(|profile| format!("{:.0}", 100.0 * profile.spread().whole())).collect();
        notes.push(format!("a time may be off by {} % at the least: keep as much in reserve", shares.join(", ")));
        let longest = lengths.iter().copied().filter(|&tokens| tokens > shape.max_positions).max();
        if let Some(longest) = longest {
            let limit = shape.max_positions;
            notes.push(format!("the model was made for {limit} positions; up to {longest} tokens are asked for"));
        }
        let met = || self.cells.iter().filter_map(|cell| cell.found.as_ref().ok()).map(|choice| &choice.group);
        if met().any(|group| group.reads_store) {
            notes.push(
                "where a group holds fewer documents than are kept, warm chunks are timed as read from the profile's store".to_owned(),
            );
        }
        let is_short = |group: &Group| group.held_documents.is_some_and(|held| held < demand.documents);
        if met().any(|group| is_short(group) && !group.reads_store) {
            notes.push(
                "where a group holds fewer documents than are kept, warm chunks are timed as if it held them: reading them costs more \
                 (a profile with [store] counts it)"
                    .to_owned(),
            );
        }
        let reused = self.question.scenarios.iter().filter(|scenario| scenario.settings.method.reuses_prefix());
        let reused: Vec<&str> = reused.map(|scenario| scenario.method.as_str()).collect();
        if !reused.is_empty() && self.hit_rate() > 0.0 {
            notes.push(format!(
                "{}: timed cold; documents that are drawn anew for each request seldom begin a prompt in the same order",
                reused.join(", ")
            ));
        }
        notes
    }

    /// Bytes of a document's keys and values.
    fn document_bytes(&self) -> u64 {
        self.question.demand.document_bytes(&self.question.shape)
    }

    /// The share of warm chunks that was asked for.
    fn hit_rate(&self) -> f64 {
        self.question.scenarios.iter().map(|scenario| scenario.hit_rate).fold(0.0, f64::max)
    }

    fn profile(&self, cell: &Cell) -> &Profile {
        &self.question.profiles[cell.profile]
    }

    fn scenario(&self, cell: &Cell) -> &Scenario {
        &self.question.scenarios[cell.scenario]
    }

    fn method(&self, cell: &Cell) -> String {
        self.scenario(cell).method.clone()
    }
}

fn cell(question: &Question, tokens: usize, profile: usize, scenario: usize) -> Result<Cell> {
    let mut search = Search::new(question.case(profile, scenario), tokens);
    let found = search.smallest()?;
    let is_exact = question.scenarios[scenario].settings.method.is_exact();
    Ok(Cell { tokens, profile, scenario, is_exact, found, known: search.known() })
}

/// The smallest deployment at a length, and the smallest exact one where that is another.
fn best(question: &Question, cells: &[Cell], tokens: usize) -> Result<Vec<Best>> {
    let smallest = |exact_only: bool| {
        let here = cells.iter().enumerate().filter(|(_, cell)| cell.tokens == tokens && (cell.is_exact || !exact_only));
        let met = here.filter_map(|(index, cell)| Some((index, cell.found.as_ref().ok()?)));
        met.reduce(|best, next| if next.1.is_better_than(best.1) { next } else { best })
    };
    let of_all = smallest(false);
    let exact = smallest(true).filter(|(index, _)| Some(*index) != of_all.map(|(index, _)| index));
    let with_edges = |(index, choice): (usize, &Choice)| {
        let cell = &cells[index];
        let edges = edges(&question.case(cell.profile, cell.scenario), tokens, choice)?;
        Ok(Best { cell: index, edges })
    };
    of_all.into_iter().chain(exact).map(with_edges).collect()
}
