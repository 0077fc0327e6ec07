//! Families of methods, by which reports colour and group them. They follow from a method's data,
//! never from its name.

use crate::prefill::{Prefill, Selection};

/// A group of methods that spend their work in the same way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// The answer equals full prefill's up to rounding.
    Exact,
    /// Blocks see an anchor and rows that others pass on, not each other.
    Blocks,
    /// Chunks are taken as they were prefilled; no row is recomputed.
    Reuse,
    /// Rows are recomputed by their place in their chunks.
    Position,
    /// Rows are recomputed by the query's attention.
    Query,
    /// Rows are recomputed by their drift from the cache.
    Drift,
    /// Rows are recomputed by another model's readings.
    Auxiliary,
    /// Rows are recomputed at random, or by knowledge of a full prefill: baselines for the others.
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

    /// Text of a legend.
    pub fn title(self) -> &'static str {
        match self {
            Family::Exact => "exact",
            Family::Blocks => "blocks after anchors",
            Family::Reuse => "chunks as they are",
            Family::Position => "rows by position",
            Family::Query => "rows by the query",
            Family::Drift => "rows by drift",
            Family::Auxiliary => "rows by another model",
            Family::Control => "controls: chance, oracle",
        }
    }

    /// The family of methods that prefill this way.
    pub(crate) fn of(is_exact: bool, prefill: Prefill) -> Family {
        match prefill {
            _ if is_exact => Family::Exact,
            Prefill::Anchored { .. } => Family::Blocks,
            Prefill::Whole { .. } | Prefill::Ring | Prefill::Gathered { .. } | Prefill::Queries => Family::Exact,
            Prefill::Chunks(selection) | Prefill::Selected(selection) => match selection {
                Selection::Nothing | Selection::Parallel(_) => Family::Reuse,
                Selection::Leading { .. } => Family::Position,
                Selection::Random => Family::Control,
                Selection::Evidence(evidence) if evidence.oracle => Family::Control,
                Selection::Evidence(_) => Family::Query,
                Selection::Auxiliary(_) => Family::Auxiliary,
                Selection::Drift(_) => Family::Drift,
            },
        }
    }
}
