//! Trace (ours): rows that depend on each other are followed from one to the next wherever their chunks stand, and chunks are put in the
//! order in which they depend on each other. Its formulas stand in `worker/src/select/trace`.

use super::{Choice, Claim, Descriptor, Evidence, Layout, Method, Prefill, Selection, prophetkv};

/// The first free probe measures the budget's part with this divisor, and no later one more.
const FIRST_DIVISOR: usize = 3;

pub(super) static DESCRIPTOR: Descriptor = Descriptor {
    name: "trace",
    summary: "what the query attends to and what that depends on, whatever the order of chunks; they are put in order of dependence",
    source: "ours",
    claim: Claim::Approximate { exact_where: "at ratio 1, where no chunk moves" },
    ratio: Some(0.15),
    takes: &[Choice::Ratio],
    default_of: &[],
    make: |_| Ok(Method::Trace(Trace::default())),
};

/// The parameters by which dependences are followed.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Trace {
    /// α: a row depends on a row of another chunk where its reading of that row, less the reading the other way, is this much or more.
    pub alpha: f32,
    /// g: the share of the largest relevance that a row must have to count.
    pub share: f32,
    /// γ: the share of its relevance that a row hands on to those it depends on. At most 1.
    pub decay: f32,
    /// Free probes at most, the first included.
    pub rounds: usize,
}

impl Default for Trace {
    fn default() -> Self {
        Self { alpha: 0.18, share: 0.4, decay: 0.9, rounds: 4 }
    }
}

impl Trace {
    /// Rows that the first free probe measures, and each later one at most.
    pub fn rows_of_round(budget: usize) -> usize {
        budget / FIRST_DIVISOR
    }

    /// Rows that all free probes together measure at most.
    pub fn rows_of_all(budget: usize) -> usize {
        budget / 2
    }
}

pub(super) fn prefill(trace: Trace) -> Prefill {
    let evidence = Evidence { trace: Some(trace), ..prophetkv::evidence(Layout::Global) };
    Prefill::Chunks(Selection::Evidence(evidence))
}
