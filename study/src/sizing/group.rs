//! One group of ranks: the time of a request on it, the contents of its memory, and the number of
//! such groups for a load.

use schemars::JsonSchema;
use serde::Serialize;
use tributary_planner::RequestSettings;
use tributary_planner::outlook::{Forecast, Scenario};

use super::demand::{Case, Demand};
use super::queue;
use crate::error::Result;
use crate::forecast::exchange;

/// Memory of a group's fullest rank, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct RankMemory {
    /// Bytes that the rank has.
    pub has_bytes: u64,
    /// The model's weights.
    pub weight_bytes: u64,
    /// The request at its worst moment, its warm chunks, workspaces and lists.
    pub request_bytes: u64,
    /// The driver's context and buffers for messages.
    pub overhead_bytes: u64,
    /// Free bytes; 0 where the rank needs more than it has.
    pub left_bytes: u64,
}

impl RankMemory {
    /// Bytes that the rank needs.
    pub fn needed_bytes(&self) -> u64 {
        self.weight_bytes + self.request_bytes + self.overhead_bytes
    }
}

/// A group of ranks as it answers requests of one kind.
#[derive(Debug, Clone, PartialEq)]
pub struct Group {
    /// Number of ranks.
    pub world: usize,
    /// Exchange during recompute, where the method has one.
    pub exchange: Option<&'static str>,
    /// Seconds to the first token of a request on an idle group.
    pub ttft_s: f64,
    /// Memory of the fullest rank.
    pub memory: RankMemory,
    /// Whether every rank has the memory that it needs.
    pub fits: bool,
    /// Number of documents whose keys and values the ranks hold together, besides a request; none
    /// for a method that has no use for them.
    pub held_documents: Option<usize>,
    /// Whether warm chunks are assumed to come from the store, since the ranks do not hold all
    /// documents.
    pub reads_store: bool,
}

impl Group {
    /// Least number of groups like this that meet the demand; none where it is too slow or too
    /// small.
    pub fn groups(&self, demand: &Demand) -> Option<usize> {
        if !self.fits {
            return None;
        }
        queue::groups(self.ttft_s, demand.slo_s, demand.rate_per_s)
    }
}

impl Case<'_> {
    /// The group of `world` ranks, for contexts of `tokens` tokens, a share of `hit_rate` of them
    /// warm.
    ///
    /// # Errors
    /// Fails as [`Scenario::forecast`] does.
    pub fn group(&self, world: usize, tokens: usize, hit_rate: f64) -> Result<Group> {
        let settings = RequestSettings { world, ..self.scenario.settings.clone() };
        // Documents that are drawn anew for each request seldom begin a prompt in the same order.
        let hit_rate = if settings.method.reuses_prefix() { 0.0 } else { hit_rate };
        let scenario =
            Scenario { settings, chunk_tokens: Some(self.demand.document_tokens), hit_rate, ..self.scenario.clone() };
        let forecast = scenario.forecast(tokens, self.shape, self.profile)?;
        let held_documents = self.held_documents(&forecast, world);
        let spills = held_documents.is_some_and(|held| held < self.demand.documents) && hit_rate > 0.0;
        let group = Group {
            world,
            exchange: exchange(&forecast),
            ttft_s: forecast.predicted.ttft_s,
            memory: self.memory(&forecast),
            fits: forecast.fits,
            held_documents,
            reads_store: spills && self.profile.store.is_some(),
        };
        if !group.reads_store {
            return Ok(group);
        }
        let settings = RequestSettings { from_store: true, ..scenario.settings.clone() };
        let read = Scenario { settings, ..scenario }.forecast(tokens, self.shape, self.profile)?;
        Ok(Group { ttft_s: read.predicted.ttft_s, exchange: exchange(&read), ..group })
    }

    fn memory(&self, forecast: &Forecast) -> RankMemory {
        let (has_bytes, needed_bytes) = (self.profile.rank.memory_bytes, forecast.most_memory_bytes());
        let (weight_bytes, overhead_bytes) = (self.shape.weight_bytes, forecast.overhead.bytes());
        RankMemory {
            has_bytes,
            weight_bytes,
            request_bytes: needed_bytes.saturating_sub(weight_bytes + overhead_bytes),
            overhead_bytes,
            left_bytes: has_bytes.saturating_sub(needed_bytes),
        }
    }

    /// The memory besides a request has room for documents, as has the room of the request's own
    /// warm chunks.
    fn held_documents(&self, forecast: &Forecast, world: usize) -> Option<usize> {
        let plan = &forecast.plan;
        if !plan.method.in_chunks() {
            return None;
        }
        let warm = plan.warm_counts(world).into_iter().map(|rows| rows as u64 * self.shape.kv_bytes());
        let (has_bytes, document_bytes) =
            (self.profile.rank.memory_bytes, self.demand.document_bytes(self.shape).max(1));
        let held = |(&needed_bytes, warm_bytes): (&u64, u64)| match has_bytes.checked_sub(needed_bytes) {
            Some(left_bytes) => ((left_bytes + warm_bytes) / document_bytes) as usize,
            None => 0,
        };
        Some(forecast.rank_memory_bytes.iter().zip(warm).map(held).sum())
    }
}

#[cfg(test)]
mod tests {
    use tributary_planner::forecast::{Profile, StoreRates};

    use super::*;
    use crate::sizing::kit::{H100X8, LLAMA, demand, scenario};

    #[test]
    fn documents_that_are_not_held_come_from_the_store_where_there_is_one() {
        let scenario = scenario("infoflow", 0.8);
        let group = |profile: &Profile, documents: usize| {
            let demand = Demand { documents, ..demand(1.0) };
            Case { scenario: &scenario, shape: &LLAMA, profile, demand }.group(2, 65_536, 0.8).unwrap()
        };
        let mut profile = H100X8.clone();
        let alone = group(&profile, 1);
        let held = alone.held_documents.unwrap();
        // Two ranks of 80 GB with 16 GB of weights, and 268 MB a document.
        assert!((200..2 * 64_000 / 268).contains(&held), "{held} documents");
        assert_eq!(alone.memory.needed_bytes() + alone.memory.left_bytes, profile.rank.memory_bytes);
        assert_eq!(group(&profile, held + 1), alone, "without a store nothing changes");
        profile.store = Some(StoreRates { cached_bytes_per_s: 5e9, bytes_per_s: 2e9 });
        assert_eq!(group(&profile, held), alone);
        let more = group(&profile, held + 1);
        assert!(more.reads_store && more.ttft_s > alone.ttft_s, "{more:?} {alone:?}");
    }
}
