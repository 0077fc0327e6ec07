//! Strategies: ways to fill the cache of a long prompt. Every rank runs the same one on its own shard.

mod all_gather;
pub mod chunks;
mod evidence;
mod full;
#[cfg(test)]
mod order_tests;
mod recompute;
mod ring;
mod selective;
mod shard;
#[cfg(test)]
mod tests;

use tributary_protocol::{Method, Plan};

use crate::context::Context;
use crate::error::Result;
use crate::kv::KvCache;
use crate::model::{Config, Rows};
use crate::placement::Placement;
use crate::select;

/// A prompt whose cache is filled.
pub struct Prefilled {
    /// The rank that holds the prompt's last row.
    pub owner: usize,
    /// On the owner: the last row after the last layer, `[1, hidden]`.
    pub last: Option<Rows>,
    /// What this rank keeps.
    pub cache: KvCache,
    /// Whether the owner holds everything that decoding needs.
    pub alone: bool,
    /// Where the rows stand.
    pub placement: Placement,
    /// What was recomputed.
    pub selection: Selection,
}

/// What was recomputed and why. Empty for exact methods.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Selection {
    /// Chunk numbers in the order of the layout.
    pub order: Vec<u32>,
    /// The recomputed rows, ascending.
    pub rows: Vec<u32>,
    /// The rows whose own attention was measured first, ascending.
    pub measured: Vec<u32>,
    /// How many rows could have been.
    pub candidates: usize,
    /// One score a context row, where the method has them.
    pub scores: Option<Vec<f32>>,
}

/// A way to fill the cache. All ranks call it with the same plan and make the same collective calls.
pub trait Strategy {
    /// Runs the prefill up to the prompt's last row.
    ///
    /// # Errors
    /// Kernels', communicator's, numbers that are not finite. The group cannot go on after one.
    fn prefill(&mut self, cx: &mut Context<'_>, plan: &Plan) -> Result<Prefilled>;
}

/// The strategy of a method.
pub fn build(method: &Method, config: &Config) -> Box<dyn Strategy> {
    match (method, select::build(method, config)) {
        (Method::Ring, _) => Box::new(ring::Ring),
        (Method::AllGather { heads_per_gather }, _) => {
            Box::new(all_gather::AllGather { heads_per_gather: *heads_per_gather })
        }
        (_, Some(selector)) => Box::new(selective::Selective { selector }),
        (_, None) => Box::new(full::Full),
    }
}

/// Chunk numbers in the request's own order.
fn request_order(plan: &Plan) -> Vec<u32> {
    (0..plan.chunks.len() as u32).collect()
}

/// The selection of an exact method.
fn nothing_selected(plan: &Plan) -> Selection {
    Selection { order: request_order(plan), ..Selection::default() }
}
