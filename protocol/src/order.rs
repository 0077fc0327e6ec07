//! Orders of the coordinator to the ranks: one at a time, broadcast by rank 0 and carried out by
//! every rank. Every order but [`Order::Tick`], [`Order::Resume`] and [`Order::Stop`] ends with one
//! gather to rank 0, which becomes an [`Event`](crate::Event).

use std::sync::Arc;

use crate::{HandOver, Plan};

/// A step that all ranks take together.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub enum Order {
    /// No work. Rank 0 sends it every second on its own, so that a dead or stuck rank is noticed
    /// while the group is idle.
    Tick,
    /// Fill the cache of a request and draw its first token. Keep it as a sequence if more tokens
    /// follow.
    Prefill(#[serde(with = "by_value")] Arc<Plan>),
    /// Prefill a plan's chunks ahead of use and leave them in the chunk cache. The plan's query is
    /// not read.
    Chunks(#[serde(with = "by_value")] Arc<Plan>),
    /// Draw the next token of each of these sequences, named by their requests. Ranks that own none
    /// of them take part too: the messages follow from the list.
    Decode(Vec<u64>),
    /// Gather these rows of a sequence on rank 0, for another program.
    HandOver(HandOver),
    /// Release these sequences. Unknown or ended ones are skipped.
    Release(Vec<u64>),
    /// Go on with the prefill that has halted at a control point. It is an order only there, where
    /// [`Order::Tick`], [`Order::Decode`], [`Order::HandOver`] and [`Order::Release`] are the
    /// others.
    Resume,
    /// Stop the ranks.
    Stop,
}

/// Serializes a shared plan as the plan itself.
mod by_value {
    use std::sync::Arc;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use crate::Plan;

    pub fn serialize<S: Serializer>(plan: &Arc<Plan>, serializer: S) -> Result<S::Ok, S::Error> {
        Plan::serialize(plan, serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<Plan>, D::Error> {
        Plan::deserialize(deserializer).map(Arc::new)
    }
}
