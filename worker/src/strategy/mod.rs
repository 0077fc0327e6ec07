//! Strategies: ways to fill the cache of a long prompt. Every rank runs the same one on its own
//! shard.

mod agree;
pub mod ahead;
#[cfg(test)]
mod ahead_tests;
mod all_gather;
mod anchors;
#[cfg(test)]
mod around_tests;
mod arrivals;
mod auxiliary;
#[cfg(test)]
mod auxiliary_tests;
mod blocks;
mod candidates;
pub mod chunks;
mod drift;
#[cfg(test)]
mod drift_tests;
mod evidence;
mod full;
pub mod going_on;
mod interface;
mod oracle;
#[cfg(test)]
mod oracle_tests;
#[cfg(test)]
mod order_tests;
pub mod output;
mod parallel;
mod pass_q;
pub mod prefix;
mod recompute;
mod ring;
mod selective;
#[cfg(test)]
mod selector_tests;
mod shard;
mod stock;
#[cfg(test)]
mod tests;
mod trace;
pub mod vision;

use tributary_methods::{LayerSet, ModelFacts};
use tributary_model::{Config, Windows};
use tributary_protocol::{PlannedMethod, Prefill};

pub use self::interface::{Prefilled, Selection, Strategy};
use crate::error::{Error, Result};

/// The strategy of a method.
///
/// # Errors
/// Returns [`Error::Bug`] for a method without a selector that selects rows of the context.
pub fn build(method: &PlannedMethod) -> Result<Box<dyn Strategy>> {
    Ok(match method.prefill {
        Prefill::Whole { .. } => Box::new(full::Full),
        Prefill::Ring => Box::new(ring::Ring),
        Prefill::Gathered { heads_per_gather } => Box::new(all_gather::AllGather { heads_per_gather }),
        Prefill::Queries => Box::new(pass_q::PassQ),
        Prefill::Anchored { .. } => Box::new(blocks::Blocks),
        Prefill::Chunks(_) | Prefill::Selected(_) => {
            let selector = method.selector().ok_or(Error::Bug("a method without a selector selects rows"))?;
            Box::new(selective::Selective { selector })
        }
    })
}

/// What methods read of a model.
fn facts(config: &Config) -> ModelFacts {
    let windowed = config.windows.as_ref().map_or(LayerSet::EMPTY, Windows::layers);
    ModelFacts { layers: config.layers, kv_heads: config.kv_heads, windowed }
}

/// Checks a method's parameters against a model.
///
/// # Errors
/// Returns [`Error::Plan`] if the method cannot run with them.
pub fn check(method: &PlannedMethod, config: &Config) -> Result<()> {
    if !method.is_consistent(facts(config)) {
        return Err(Error::Plan(format!("{} does not prefill like {:?}", method.name(), method.prefill)));
    }
    if let Some(layers) = method.evidence().map(|evidence| evidence.layers.of(config.layers))
        && (layers.is_empty() || layers.end > config.layers)
    {
        let what = format!("score layers {layers:?} are no range of the model's {} layers", config.layers);
        return Err(Error::Plan(what));
    }
    if let Some(drift) = method.drift().filter(|drift| drift.layers == 0 || drift.layers >= config.layers) {
        let what = format!("drift in {} layers after the first of {}", drift.layers, config.layers);
        return Err(Error::Plan(what));
    }
    if let Some(sparse) = method.sparse().filter(|sparse| sparse.blocks == 0 || !(0.0..=1.0).contains(&sparse.theta)) {
        return Err(Error::Plan(format!("{} blocks of every document, theta {}", sparse.blocks, sparse.theta)));
    }
    let anchored = method.evidence().filter(|evidence| evidence.anchors.is_some());
    if let Some((layers, anchors)) = anchored.and_then(|evidence| Some((evidence.layers, evidence.anchors?)))
        && (layers.of(config.layers).len() != 1 || !(anchors.chunks > 0.0 && anchors.chunks <= 1.0))
    {
        return Err(Error::Plan(format!("a share of {} chunks, by their anchors in {layers:?}", anchors.chunks)));
    }
    let longest = method.excerpt().map(|excerpt| excerpt.longest);
    if longest == Some(0) || longest.is_some() != method.method.reads_sentences() {
        return Err(Error::Plan(format!("{} with sentences of at most {longest:?} rows", method.name())));
    }
    let above_0 = |number: f32| number > 0.0 && number.is_finite();
    if let Some(ape) = method.parallel().filter(|ape| !above_0(ape.temperature) || !above_0(ape.scale)) {
        return Err(Error::Plan(format!("temperature {} and scale {} of contexts", ape.temperature, ape.scale)));
    }
    match method.prefill {
        Prefill::Gathered { heads_per_gather: Some(0) } => Err(Error::Plan("0 heads a gather".to_owned())),
        Prefill::Anchored { block_rows: Some(0), .. } => Err(Error::Plan("blocks of 0 rows".to_owned())),
        _ => Ok(()),
    }
}
