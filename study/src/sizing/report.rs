//! Result as an object for programs: times in milliseconds, memory in bytes.

use schemars::JsonSchema;
use serde::Serialize;
use tributary_planner::forecast::Profile;

use super::breaks::{Broken, Changing, Edge};
use super::group::RankMemory;
use super::queue::{mean_s, p95_s, utilisation};
use super::search::Choice;
use super::{Answer, Best, Cell};

/// Name and version of sizing as JSON (`docs/schemas/sizing.v1.json`). A field that goes, or means
/// something else, makes another version.
pub const SCHEMA: &str = "tributary.sizing/1";

/// Everything that was found.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Report {
    /// Name and version of this schema.
    #[schemars(extend("const" = SCHEMA))]
    pub schema: &'static str,
    /// Always true: no number here was measured.
    pub predicted: bool,
    /// Notes for a reader of the numbers.
    pub notes: Vec<String>,
    /// The model, as asked for.
    pub model: String,
    /// The time within which 95 % of the requests shall have their first token.
    pub slo_ttft_ms: f64,
    /// Requests a second, of all groups together.
    pub requests_per_second: f64,
    /// Share of the chunks that come from the chunk cache, for methods that have a use for it.
    pub hit_rate: f64,
    /// Tokens of a document, each of which is a chunk.
    pub document_tokens: usize,
    /// Documents that shall be kept.
    pub documents: usize,
    /// Bytes of one document's keys and values.
    pub document_bytes: u64,
    /// The machines.
    pub profiles: Vec<Profile>,
    /// One entry a length, profile and method.
    pub points: Vec<SizingRow>,
    /// Per length the smallest deployment, and the smallest exact one where that is another; none
    /// where no deployment meets the demand.
    pub smallest: Vec<SmallestRow>,
}

/// The smallest deployment of one method at one length on one machine.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct SizingRow {
    /// Context tokens.
    pub context_tokens: usize,
    /// The profile's name.
    pub profile: String,
    /// The method with its options.
    pub method: String,
    /// Whether the method equals a full prefill but for rounding.
    pub exact: bool,
    /// Share of the chunks that come from the chunk cache.
    pub hit_rate: f64,
    /// The deployment; absent where none meets the demand.
    pub deployment: Option<DeploymentRow>,
    /// Why there is none; absent where there is one.
    pub refusal: Option<String>,
}

/// Groups of ranks that together meet the demand.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct DeploymentRow {
    /// Number of ranks of all groups; each is a GPU where the profile is of GPUs.
    pub gpus: usize,
    /// Number of groups, among which requests are divided at random.
    pub groups: usize,
    /// Number of ranks of each group.
    pub world: usize,
    /// Exchange during recompute; absent for exact methods and one rank.
    pub exchange: Option<&'static str>,
    /// Time to first token of a request on an idle group.
    pub ttft_ms: f64,
    /// Share of the time in which each group computes.
    pub utilisation: f64,
    /// Mean of the time to first token under load.
    pub mean_ttft_ms: f64,
    /// Its 95th percentile.
    pub p95_ttft_ms: f64,
    /// Memory of the fullest rank of a group.
    pub rank_memory: RankMemory,
    /// Place of the documents' keys and values; absent for methods that have no use for them.
    pub documents: Option<DocumentsRow>,
}

/// Place of the documents' keys and values.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct DocumentsRow {
    /// Number of documents for which the ranks of a group have memory besides a request.
    pub held: usize,
    /// Bytes of those that shall be kept and are, in each group.
    pub held_bytes: u64,
    /// Documents that shall be kept and are not: they belong into a host's memory or on its disk.
    pub left_over: usize,
    /// Their bytes, once for all groups that share a store.
    pub left_over_bytes: u64,
    /// Whether warm chunks were timed as coming from the profile's store.
    pub reads_store: bool,
}

/// A deployment, and its first limits.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct SmallestRow {
    /// Number of the entry in `points`, from 0.
    pub point: usize,
    /// Whether it is the smallest exact one, listed after a smaller approximate one.
    pub exact_alternative: bool,
    /// Limit of each number, the nearest edge first.
    pub breaks: Vec<BreakRow>,
}

/// Limit of one number while the others stay constant.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct BreakRow {
    /// The number.
    pub changing: Changing,
    /// Today's value.
    pub today: f64,
    /// The last value that was looked at with which everything holds.
    pub holds: f64,
    /// The first one with which something does not; absent where everything holds as far as was
    /// looked.
    pub breaks: Option<f64>,
    /// Condition that fails there.
    pub broken: Option<Broken>,
    /// Share of the time in which each group computes at the last value that holds.
    pub utilisation: f64,
}

impl Answer {
    /// The whole for programs.
    pub fn report(&self) -> Report {
        let demand = self.question.demand;
        Report {
            schema: SCHEMA,
            predicted: true,
            notes: self.notes(),
            model: self.question.model.clone(),
            slo_ttft_ms: 1e3 * demand.slo_s,
            requests_per_second: demand.rate_per_s,
            hit_rate: self.hit_rate(),
            document_tokens: demand.document_tokens,
            documents: demand.documents,
            document_bytes: self.document_bytes(),
            profiles: self.question.profiles.clone(),
            points: self.cells.iter().map(|cell| self.point(cell)).collect(),
            smallest: self.best.iter().map(|best| self.smallest(best)).collect(),
        }
    }

    fn point(&self, cell: &Cell) -> SizingRow {
        SizingRow {
            context_tokens: cell.tokens,
            profile: self.profile(cell).name.clone(),
            method: self.method(cell),
            exact: cell.is_exact,
            hit_rate: self.scenario(cell).hit_rate,
            deployment: cell.found.as_ref().ok().map(|choice| self.deployment(choice)),
            refusal: cell.found.as_ref().err().map(|miss| miss.why(self.question.demand.slo_s)),
        }
    }

    fn deployment(&self, choice: &Choice) -> DeploymentRow {
        let (group, rate_per_s) = (&choice.group, self.question.demand.rate_per_s / choice.groups as f64);
        DeploymentRow {
            gpus: choice.gpus(),
            groups: choice.groups,
            world: group.world,
            exchange: group.exchange,
            ttft_ms: 1e3 * group.ttft_s,
            utilisation: utilisation(group.ttft_s, rate_per_s),
            mean_ttft_ms: 1e3 * mean_s(group.ttft_s, rate_per_s),
            p95_ttft_ms: 1e3 * p95_s(group.ttft_s, rate_per_s),
            rank_memory: group.memory,
            documents: group.held_documents.map(|held| self.documents(held, group.reads_store)),
        }
    }

    fn documents(&self, held: usize, reads_store: bool) -> DocumentsRow {
        let (kept, bytes) = (self.question.demand.documents, self.document_bytes());
        let left_over = kept.saturating_sub(held);
        DocumentsRow {
            held,
            held_bytes: held.min(kept) as u64 * bytes,
            left_over,
            left_over_bytes: left_over as u64 * bytes,
            reads_store,
        }
    }

    fn smallest(&self, best: &Best) -> SmallestRow {
        let is_first = |other: &Best| self.cells[other.cell].tokens == self.cells[best.cell].tokens;
        let first = self.best.iter().find(|other| is_first(other)).map(|first| first.cell);
        let edge = |edge: &Edge| BreakRow {
            changing: edge.changing,
            today: edge.today,
            holds: edge.holds,
            breaks: edge.breaks.map(|(value, _)| value),
            broken: edge.breaks.map(|(_, broken)| broken),
            utilisation: edge.utilisation,
        };
        SmallestRow {
            point: best.cell,
            exact_alternative: first != Some(best.cell),
            breaks: best.edges.iter().map(edge).collect(),
        }
    }
}
