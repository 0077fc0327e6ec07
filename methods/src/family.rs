//! Families of methods: what a report colours and groups them by. They follow from what a method does, never from its name.

use crate::prefill::{Prefill, Selection};

/// What methods have in common that spend their work in the same way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// The answer is full prefill's but for rounding.
    Exact,
    /// Blocks see an anchor and what others pass on, not each other.
    Blocks,
    /// Chunks are taken as they were prefilled; no row is recomputed.
    Reuse,
    /// Rows are recomputed by where they stand in their chunks.
    Position,
    /// Rows are recomputed by what the query attends to.
    Query,
    /// Rows are recomputed by how far they drift from what is cached.
    Drift,
    /// Rows are recomputed by what another model reads.
    Auxiliary,
    /// Rows are recomputed by chance, or by what only a full prefill knows: what others are measured against.
    Control,
}

impl Family {
    /// All of them; the place of one is its colour in charts.
    pub const ALL: [Family; 8] = [
        Family::Exact,
        Family::Reuse,
        Family::Query,
        Family::Blocks,
        Family::Position,
        Family::Control,
        Family::Drift,
        Family::Auxiliary,
    ];

    /// The name in files.
    pub fn name(self) -> &'static str {
        match self {
            Family::Exact => "exact",
            Family::Blocks => "blocks",
            Family::Reuse => "reuse",
            Family::Position => "position",
            Family::Query => "query",
            Family::Drift => "drift",
            Family::Auxiliary => "auxiliary",
            Family::Control => "control",
        }
    }

    /// The family of that name.
    pub fn find(name: &str) -> Option<Family> {
        Self::ALL.into_iter().find(|family| family.name() == name)
    }

    /// What a legend says.
    pub fn title(self) -> &'static str {
        match self {
            Family::Exact => "exact",
            Family::Blocks => "blocks behind anchors",
            Family::Reuse => "chunks as they are",
            Family::Position => "rows by position",
            Family::Query => "rows by the query",
            Family::Drift => "rows by drift",
            Family::Auxiliary => "rows by another model",
            Family::Control => "controls: chance, oracle",
        }
    }

    /// The family of what prefills like this.
    pub(crate) fn of(is_exact: bool, prefill: Prefill) -> Family {
        match prefill {
            _ if is_exact => Family::Exact,
            Prefill::Anchored { .. } => Family::Blocks,
            Prefill::Whole | Prefill::Ring | Prefill::Gathered { .. } | Prefill::Queries => Family::Exact,
            Prefill::Chunks(selection) => match selection {
                Selection::Nothing | Selection::Parallel(_) => Family::Reuse,
                Selection::Leading { .. } => Family::Position,
                Selection::Random => Family::Control,
                Selection::Evidence(evidence) if evidence.oracle => Family::Control,
                Selection::Evidence(_) => Family::Query,
                Selection::Auxiliary => Family::Auxiliary,
                Selection::Drift(_) => Family::Drift,
            },
        }
    }
}
