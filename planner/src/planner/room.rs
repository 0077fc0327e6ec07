//! Memory of a group: the part of running sequences, and the total.

use tributary_protocol::Plan;

use super::Planner;
use crate::cost::{memory, running_bytes, token_bytes};
use crate::machine::{GroupShape, MemoryOf};
use crate::reservation::{Reservation, Room};

impl Planner {
    /// Memory that a request takes on each of `world` ranks during decoding.
    pub fn reservation(&self, plan: &Plan, world: usize) -> Reservation {
        let mut bytes = running_bytes(plan, world, &self.model);
        if plan.max_tokens <= 1 {
            return Reservation::new(bytes, plan.owner, 0, 0);
        }
        let (tokens, most) = (token_bytes(plan, &self.model), plan.max_tokens);
        bytes[plan.owner] -= tokens.of(most);
        Reservation::new(bytes, plan.owner, tokens, most)
    }

    /// The memory that a request takes on each rank at most while it is prefilled, the rotary
    /// tables that it makes included.
    pub fn peak(&self, plan: &Plan, group: GroupShape) -> Reservation {
        let machine = self.machine(group);
        let mut bytes = memory::peak_bytes(plan, group.world, &self.model, machine.memory);
        let tables = memory::all_rotary_bytes(plan, &self.model, &machine);
        // Ranks that are threads share a copy.
        bytes.iter_mut().for_each(|bytes| *bytes += tables.div_ceil(machine.ranks_here.max(1) as u64));
        Reservation::new(bytes, plan.owner, 0, 0)
    }

    /// The memory that sequences of a group share with cached chunks. Chunk caches count as full:
    /// chunks that later prefills leave in them must not take memory that answers may need.
    pub fn room(&self, group: GroupShape) -> Room {
        let machine = self.machine(group);
        let beside = self.auxiliary_bytes + self.draft_model_bytes;
        let beside = if machine.memory == MemoryOf::Host { beside } else { 0 };
        let weights = memory::weights_bytes(&self.model, &machine).saturating_add(beside);
        let mut cached_bytes = self.cached_bytes(group);
        cached_bytes.iter_mut().zip(self.full_caches(group)).for_each(|(bytes, full)| *bytes = full.max(*bytes));
        Room {
            bytes: machine.available_bytes.map(|bytes| bytes.saturating_sub(weights)),
            ranks_here: machine.ranks_here,
            cached_bytes,
        }
    }
}
