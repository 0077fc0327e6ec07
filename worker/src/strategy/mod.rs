//! Strategies: ways to fill the cache of a long prompt. Every rank runs the same one on its own shard.

mod agree;
pub mod ahead;
#[cfg(test)]
mod ahead_tests;
mod all_gather;
#[cfg(test)]
mod around_tests;
mod arrivals;
mod auxiliary;
#[cfg(test)]
mod auxiliary_tests;
mod blocks;
pub mod chunks;
mod drift;
#[cfg(test)]
mod drift_tests;
mod evidence;
mod full;
mod oracle;
#[cfg(test)]
mod oracle_tests;
#[cfg(test)]
mod order_tests;
pub mod output;
mod parallel;
mod pass_q;
mod recompute;
mod ring;
mod selective;
mod shard;
mod stock;
#[cfg(test)]
mod tests;
mod trace;

use tributary_protocol::{KeptRows, Method, Plan, Prefill, Sharpest};

use crate::context::Context;
use crate::error::{Error, Result};
use crate::kv::KvCache;
use crate::model::Config;
use crate::placement::Placement;
use crate::select;

use self::output::Output;

/// A prompt whose cache is filled.
pub struct Prefilled {
    /// The rank that holds the prompt's last row: the plan's owner.
    pub owner: usize,
    /// The rows that the last pass gave back.
    pub output: Output,
    /// The keys and values that this rank keeps.
    pub cache: KvCache,
    /// Whether the owner holds everything that decoding needs.
    pub alone: bool,
    /// Where the rows stand.
    pub placement: Placement,
    /// The rows that were recomputed.
    pub selection: Selection,
}

/// The rows that were recomputed, and the scores behind the choice. Empty for exact methods.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Selection {
    /// Chunk numbers in the order of the layout.
    pub order: Vec<u32>,
    /// The recomputed rows, ascending.
    pub rows: Vec<u32>,
    /// The rows that were computed before to measure something, as [`Outcome::measured`](tributary_protocol::Outcome::measured).
    pub measured: Vec<u32>,
    /// How many of them each free probe measured.
    pub rounds: Vec<usize>,
    /// The largest sharp readings of free probes.
    pub sharpest: Sharpest,
    /// How many rows could have been.
    pub candidates: usize,
    /// One score a context row, where the method has them.
    pub scores: Option<Vec<f32>>,
    /// The context rows that each KV head of each layer holds as they were prefilled, where chunks were compressed and it was asked for.
    pub held: Option<KeptRows>,
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
///
/// # Errors
/// [`Error::Bug`] for a method without a selector that prefills chunk by chunk.
pub fn build(method: &Method) -> Result<Box<dyn Strategy>> {
    Ok(match method.prefill() {
        Prefill::Whole => Box::new(full::Full),
        Prefill::Ring => Box::new(ring::Ring),
        Prefill::Gathered { heads_per_gather } => Box::new(all_gather::AllGather { heads_per_gather }),
        Prefill::Queries => Box::new(pass_q::PassQ),
        Prefill::Anchored { .. } => Box::new(blocks::Blocks),
        Prefill::Chunks(_) => Box::new(selective::Selective { selector: select::build(method)? }),
    })
}

/// Checks a method's parameters against a model.
///
/// # Errors
/// [`Error::Plan`].
pub fn check(method: &Method, config: &Config) -> Result<()> {
    if let Some(layers) = method.evidence().map(|evidence| evidence.layers.of(config.layers))
        && (layers.is_empty() || layers.end > config.layers)
    {
        let what = format!("score layers {layers:?} are no range of the model's {} layers", config.layers);
        return Err(Error::Plan(what));
    }
    if let Some(drift) = method.drift().filter(|drift| drift.layers == 0 || drift.layers >= config.layers) {
        let what = format!("drift in {} layers behind the first of {}", drift.layers, config.layers);
        return Err(Error::Plan(what));
    }
    if let Some(sparse) = method.sparse().filter(|sparse| sparse.blocks == 0 || !(0.0..=1.0).contains(&sparse.theta)) {
        return Err(Error::Plan(format!("{} blocks of every document, theta {}", sparse.blocks, sparse.theta)));
    }
    let above_0 = |number: f32| number > 0.0 && number.is_finite();
    if let Some(ape) = method.parallel().filter(|ape| !above_0(ape.temperature) || !above_0(ape.scale)) {
        return Err(Error::Plan(format!("temperature {} and scale {} of contexts", ape.temperature, ape.scale)));
    }
    match method.prefill() {
        Prefill::Gathered { heads_per_gather: Some(0) } => Err(Error::Plan("0 heads a gather".to_owned())),
        Prefill::Anchored { block_rows: Some(0), .. } => Err(Error::Plan("blocks of 0 rows".to_owned())),
        _ => Ok(()),
    }
}

/// The selection of an exact method.
fn nothing_selected(plan: &Plan) -> Selection {
    Selection { order: plan.request_order(), ..Selection::default() }
}
