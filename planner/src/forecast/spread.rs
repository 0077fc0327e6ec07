//! How sure a profile is of its rates: what each may be off by.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What predictions of a profile may be off by that was not measured where it is used.
pub const UNMEASURED: f64 = 0.2;

/// What a prediction may be off by although the rates are right: what counting leaves out, such as caches, waiting for each other, and
/// sizes between those that were measured. Half of an interval that holds nine tenths of what was measured in studies (`docs/studies.md`).
pub const LEFT_OUT: f64 = 0.15;

/// What each rate may be off by, as a share of it: half the width of its interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Spread {
    /// All rates of ranks at once: the pace of a machine that others use too, or that heats up.
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
    /// Everything, although the rates are right.
    #[serde(default)]
    pub left_out: f64,
}

impl Spread {
    /// The same for all: of profiles that were not measured where they are used.
    pub fn unmeasured() -> Self {
        let each = UNMEASURED;
        Self { pace: each, gemm: each, attention: each, memory: each, link: each, store: each, left_out: 0.0 }
    }

    /// What a prediction may be off by at the least, whatever it is made of.
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
