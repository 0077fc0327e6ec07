//! The assumed profile of an unmeasured machine, from the facts known to the planner. It is enough
//! to tell which of two plans is faster if they are far apart.

use super::curve::Curve;
use super::profile::{Link, Profile, RankRates};
use crate::machine::{Machine, MemoryOf};

/// Bytes a second that a rank reads from its memory: a lower bound for one core of a host, and for
/// any GPU with tensor cores.
const HOST_MEMORY_BYTES_PER_S: f64 = 5e9;
const DEVICE_MEMORY_BYTES_PER_S: f64 = 1e12;

/// Seconds of a group of messages without payload.
const LATENCY_S: f64 = 20e-6;

impl Profile {
    /// Assumed rates of a machine.
    pub fn assumed(machine: &Machine) -> Self {
        let (memory_bytes_per_s, layer_s) = match machine.memory {
            MemoryOf::Host => (HOST_MEMORY_BYTES_PER_S, 0.0),
            MemoryOf::Device => (DEVICE_MEMORY_BYTES_PER_S, LATENCY_S),
        };
        let link = Link { latency_s: LATENCY_S, bytes_per_s: machine.link_bytes_per_s, by_bytes: Curve::default() };
        Self {
            name: "assumed".to_owned(),
            description: "minimum rates of any such machine".to_owned(),
            measured_here: false,
            projected: false,
            ranks: usize::MAX,
            ranks_per_host: usize::MAX,
            transfers_overlap: true,
            rank: RankRates {
                gemm_flops_per_s: machine.flops_per_s,
                gemm_by_rows: Curve::default(),
                attention_flops_per_s: machine.flops_per_s,
                attention_by_keys: Curve::default(),
                probe_flops_per_s: machine.flops_per_s,
                memory_bytes_per_s,
                elementwise_bytes_per_s: None,
                merge_bytes_per_s: None,
                memory_bytes: machine.available_bytes.unwrap_or(u64::MAX),
                memory_of: machine.memory,
                layer_s,
                request_s: 0.0,
            },
            alone: None,
            inside: link,
            between: None,
            store: None,
            under_load: None,
            spread: None,
            sources: std::collections::BTreeMap::new(),
        }
    }
}
