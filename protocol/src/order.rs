//! The orders of the coordinator to the ranks: one at a time, which rank 0 broadcasts and every rank carries out. Every order
//! but [`Order::Tick`] and [`Order::Stop`] ends with one gather to rank 0, which becomes an [`Event`](crate::Event).

use std::sync::Arc;

use crate::Plan;

/// One thing that all ranks do together.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub enum Order {
    /// Nothing to do. Rank 0 sends it every second by itself, so that a dead or stuck rank is noticed when nothing is asked.
    Tick,
    /// Fill the cache of a request, draw its first token, and keep it as a sequence if more tokens are to follow.
    Prefill(#[serde(with = "by_value")] Arc<Plan>),
    /// Prefill a plan's chunks ahead of use and leave them in the chunk cache. The plan's query is not read.
    Chunks(#[serde(with = "by_value")] Arc<Plan>),
    /// Draw the next token of each of these sequences, named by their requests. Ranks that own none of them take part too: what
    /// they say to each other follows from the list.
    Decode(Vec<u64>),
    /// Let go of these sequences. One that is unknown or gone is passed over.
    Release(Vec<u64>),
    /// End.
    Stop,
}

/// A shared plan is written as the plan that it is.
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
