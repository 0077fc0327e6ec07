//! The interface of strategies: the trait that each implements, and the result of a prefill.

use tributary_protocol::{KeptRows, Plan, Sharpest};

use super::output::Output;
use crate::context::Context;
use crate::error::Result;
use crate::kv::KvCache;
use crate::placement::Placement;

/// A prompt with a filled cache.
pub struct Prefilled {
    /// The rank that holds the prompt's last row: the plan's owner.
    pub owner: usize,
    /// The rows that the last pass returned.
    pub output: Output,
    /// The keys and values that this rank keeps.
    pub cache: KvCache,
    /// Whether the owner holds everything that decoding needs.
    pub alone: bool,
    /// Positions of the rows.
    pub placement: Placement,
    /// The rows that were recomputed.
    pub selection: Selection,
}

/// The recomputed rows, and the scores of the choice. Empty for exact methods.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Selection {
    /// Chunk numbers in the order of the layout.
    pub order: Vec<u32>,
    /// The recomputed rows, ascending.
    pub rows: Vec<u32>,
    /// Rows that were computed before the selection for measurements, as
    /// [`Outcome::measured`](tributary_protocol::Outcome::measured).
    pub measured: Vec<u32>,
    /// Number of rows that each free probe measured.
    pub rounds: Vec<usize>,
    /// The largest net readings of free probes.
    pub sharpest: Sharpest,
    /// Number of rows that could have been selected.
    pub candidates: usize,
    /// One score a context row, if the method has them.
    pub scores: Option<Vec<f32>>,
    /// The context rows that each KV head of each layer holds after prefill, if chunks were
    /// compressed and the numbers are requested.
    pub held: Option<KeptRows>,
}

/// A way to fill the cache. All ranks call it with the same plan and make the same collective
/// calls.
pub trait Strategy {
    /// Runs the prefill up to the prompt's last row.
    ///
    /// # Errors
    /// Returns an error if a kernel or the communicator fails, or if numbers are not finite. The
    /// group cannot go on after one.
    fn prefill(&mut self, cx: &mut Context<'_>, plan: &Plan) -> Result<Prefilled>;
}

/// The selection of an exact method.
pub(super) fn nothing_selected(plan: &Plan) -> Selection {
    Selection { order: plan.prompt_order(), ..Selection::default() }
}
