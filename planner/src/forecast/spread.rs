//! Relative uncertainty of each rate of a profile.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Relative uncertainty of predictions from a profile that was not measured on the machine in use.
pub const UNMEASURED: f64 = 0.2;

/// Relative uncertainty of a prediction with correct rates, from effects that counting leaves out:
/// caches, waiting for each other, and sizes between the measured ones.
/// Half of an interval that holds nine tenths of the measured times in studies (`docs/studies.md`).
pub const LEFT_OUT: f64 = 0.15;

/// Relative uncertainty of each rate: half the width of its interval, as a share of the rate.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Spread {
    /// All rates of ranks at once: the pace of a machine that is shared with others, or that heats
    /// up.
    pub pace: f64,
    /// Products with weights.
    pub gemm: f64,
    /// Attention of many rows.
    pub attention: f64,
    /// Attention of a few rows to many keys, and reading memory.
    pub memory: f64,
    /// Links between ranks: latency and rate.
    pub link: f64,
    /// Stores.
    pub store: f64,
    /// Everything, with correct rates.
    #[serde(default)]
    pub left_out: f64,
}

impl Spread {
    /// The same for all: of profiles that were not measured on the machine in use.
    pub fn unmeasured() -> Self {
        let each = UNMEASURED;
        Self { pace: each, gemm: each, attention: each, memory: each, link: each, store: each, left_out: 0.0 }
    }

    /// Minimum relative uncertainty of any prediction.
    pub fn whole(&self) -> f64 {
        self.pace.hypot(self.left_out)
    }

    /// Each with its name.
    pub fn named(&self) -> [(&'static str, f64); 7] {
        [
            ("pace", self.pace),
            ("gemm", self.gemm),
            ("attention", self.attention),
            ("memory", self.memory),
            ("link", self.link),
            ("store", self.store),
            ("left_out", self.left_out),
        ]
    }
}
