//! APB without training: blocks after an anchor pass on the keys that receive most of the query's
//! attention; then the query sees everything.

use crate::method::{Claim, InvalidOption, Method};
use crate::model_facts::ModelFacts;
use crate::option::{Kind, MethodOption, Options, Usual};
use crate::options::BLOCK;
use crate::prefill::Prefill;
use crate::terms::Passing;

static ANCHOR: MethodOption = MethodOption {
    key: "anchor",
    value: "N",
    kind: Kind::Count(0..=usize::MAX),
    usual: Usual::Computed("a quarter of a block"),
    help: "Rows of the anchor before every block",
};

static PASSING: MethodOption = MethodOption {
    key: "passing",
    value: "N",
    kind: Kind::Count(0..=usize::MAX),
    usual: Usual::Computed("an eighth of a block"),
    help: "Rows that each block passes on in a layer",
};

/// The declaration.
pub static APB: Method = Method {
    name: "apb",
    summary: "blocks after a short anchor; each passes the keys that the query attends to most on to later blocks",
    source: "APB (Huang et al. 2025), the query's attention in place of trained heads",
    claim: Claim::Approximate { exact_where: "where blocks pass all their keys", exact_with: Some(":passing=1000000") },
    cost: "N/W + a + M rows a rank, of which each sees its block, a rows of anchor and p rows of each block before; then M rows as in star",
    ratio: None,
    options: &[&BLOCK, &ANCHOR, &PASSING],
    requires: None,
    default_of: &[],
    samples: &["apb", "apb:block=8:anchor=3:passing=2"],
    prefill,
    selector: None,
};

fn prefill(options: &mut Options, _: ModelFacts) -> Result<Prefill, InvalidOption> {
    let passing = Passing { anchor_tokens: options.get(&ANCHOR), passing_tokens: options.get(&PASSING) };
    Ok(Prefill::Anchored { block_rows: options.get(&BLOCK), passing: Some(passing) })
}

impl Passing {
    /// Rows of the anchor before blocks of `block_rows` rows: a quarter of them by default (the
    /// authors' 4096 of 16384).
    pub fn anchor_rows(&self, block_rows: usize) -> usize {
        self.anchor_tokens.unwrap_or(block_rows / 4)
    }

    /// Maximum number of rows that a block of `block_rows` rows passes on: an eighth of them by
    /// default.
    pub fn passed_rows(&self, block_rows: usize) -> usize {
        self.passing_tokens.unwrap_or(block_rows / 8)
    }
}
