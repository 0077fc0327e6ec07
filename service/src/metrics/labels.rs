//! The values that labels can have. All of them are known before the first request, so that label
//! sets can start at 0; histograms outside this service's setup begin with their first observation.

use tributary_engine::{Occupation, Stage};
use tributary_protocol::{Collective, Phase, StoreError, StoreOperation, Tier, exit};

/// The values of a label.
#[derive(Debug, Clone, Copy)]
pub enum Values {
    /// The numbers of the ranks.
    Ranks,
    /// These.
    Words(&'static [&'static str]),
    /// Those that a function names.
    Named(fn() -> Vec<&'static str>),
    /// Known only when the value is set, once and for all.
    Given,
}

/// The methods' names.
pub const METHODS: Values = Values::Named(|| tributary_protocol::METHODS.iter().map(|method| method.name).collect());

/// The ways to evict.
pub const EVICTIONS: Values =
    Values::Named(|| tributary_protocol::EVICTIONS.iter().map(|eviction| eviction.name).collect());

/// Fate of a prompt's keys and values once the first token is drawn.
pub const FATES: &[&str] = &["kept", "freed"];

/// The phases until the first token.
pub const PHASES: Values = Values::Named(|| Phase::TO_FIRST_TOKEN.iter().map(|phase| phase.name()).collect());

/// The phases that ranks have: all but the coordinator's own, eviction, and decoding.
pub const RANK_PHASES: Values = Values::Named(|| {
    let of_ranks = |phase: &Phase| !matches!(phase, Phase::Tokenize | Phase::Queue);
    let phases = Phase::TO_FIRST_TOKEN.into_iter().filter(of_ranks).chain([Phase::Evict, Phase::Decode]);
    phases.map(Phase::name).collect()
});

/// The kinds of collectives.
pub const COLLECTIVES: Values = Values::Named(|| Collective::ALL.into_iter().map(Collective::name).collect());

/// States of the process.
pub const STATES: &[&str] = &["starting", "serving", "draining", "failed"];

/// Kinds of errors, as clients see them.
pub const ERROR_TYPES: &[&str] = &["invalid_request_error", "rate_limit_error", "server_error"];

/// Outcome of a request that was handed in.
pub const OUTCOMES: &[&str] = &["answered", "failed", "cancelled"];

/// Stage of a request when it was dropped.
pub const STAGES: &[&str] = &[Stage::Queue.name(), Stage::Prefill.name(), Stage::Decode.name(), Stage::Slow.name()];

/// What a group of ranks does.
pub const OCCUPATIONS: Values = Values::Named(|| Occupation::ALL.into_iter().map(Occupation::name).collect());

/// Share of a request's context in the chunk cache, by the words of reports.
pub const CACHE: &[&str] = &["cold", "partial", "warm"];

/// Claim of a method: its answers equal those of a full prefill, or not.
pub const CLAIMS: &[&str] = &["exact", "selective"];

/// The word for it.
pub fn claim(is_exact: bool) -> &'static str {
    CLAIMS[usize::from(!is_exact)]
}

/// Sources of a prompt's tokens.
pub const SOURCES: &[&str] = &["computed", "cached", "recomputed", "earlier_turn"];

/// Sources of a picture's features.
pub const FEATURE_SOURCES: &[&str] = &["computed", "cached"];

/// Tiers that keep chunks.
pub const TIERS: Values = Values::Named(|| Tier::ALL.into_iter().map(Tier::name).collect());

/// Tiers beyond the ranks' memory.
pub const STORE_TIERS: Values =
    Values::Named(|| Tier::ALL.into_iter().filter(|tier| *tier != Tier::Memory).map(Tier::name).collect());

/// Operations on chunks there.
pub const STORE_OPERATIONS: Values =
    Values::Named(|| StoreOperation::ALL.into_iter().map(StoreOperation::name).collect());

/// Why a chunk there was of no use, or was not written.
pub const STORE_ERRORS: Values = Values::Named(|| StoreError::ALL.into_iter().map(StoreError::name).collect());

/// Outcome of a chunk lookup. In memory a chunk is neither corrupt nor another model's.
pub const LOOKUPS: &[&str] = &["hit", "miss", "corrupt", "incompatible"];

/// Pools of a rank's memory: of a GPU the first three, of a CPU the last.
pub const POOLS: &[&str] = &["tensors", "reserved", "messages", "process"];

/// The ways that bytes go.
pub const DIRECTIONS: &[&str] = &["sent", "received"];

/// Data that can be damaged while the ranks run, and the kind of damage. Earlier damage ends the
/// start.
pub const INTEGRITY: (&[&str], &[&str]) = (&["message"], &["corrupt"]);

/// Reasons for the end of a group of ranks, by their exit codes.
pub const FAILURES: &[&str] = &["rank_lost", "deadline", "out_of_memory", "bug", "other"];

/// The word of [`FAILURES`] for an exit code.
pub fn failure(exit_code: u8) -> &'static str {
    match exit_code {
        exit::RANK_LOST => "rank_lost",
        exit::DEADLINE => "deadline",
        exit::OUT_OF_MEMORY => "out_of_memory",
        exit::BUG => "bug",
        _ => "other",
    }
}

/// The process's setup: histograms for anything else begin with their first observation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Setup {
    /// The method of requests that name none; where it is absent any may come.
    pub method: Option<&'static str>,
    /// Default eviction of requests.
    pub eviction: Option<&'static str>,
    /// Whether the chunk caches have a store.
    pub has_store: bool,
}

impl Setup {
    /// Whether a histogram starts with this value of a label.
    pub fn starts(&self, label: &str, value: &str) -> bool {
        let Some(method) = self.method else { return true };
        match label {
            "method" => value == method,
            "eviction" => Some(value) == self.eviction,
            "operation" => self.has_store,
            _ => true,
        }
    }
}

impl Values {
    /// All of them in a group of `world` ranks; none where they are not known beforehand.
    pub fn all(&self, world: usize) -> Vec<String> {
        match self {
            Values::Ranks => (0..world).map(|rank| rank.to_string()).collect(),
            Values::Words(words) => words.iter().map(|&word| word.to_owned()).collect(),
            Values::Named(names) => names().into_iter().map(str::to_owned).collect(),
            Values::Given => Vec::new(),
        }
    }
}
