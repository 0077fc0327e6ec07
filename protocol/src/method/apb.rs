//! APB without training: blocks behind an anchor that pass the keys on which the query's attention falls most; then the query, which
//! sees everything.

use super::{Choice, Claim, Descriptor, InvalidOption, Method, Passing, Wishes, star};

pub(super) static DESCRIPTOR: Descriptor = Descriptor {
    name: "apb",
    summary: "blocks after a short anchor; each passes the keys that the query attends to most on to later blocks",
    source: "APB (Huang et al. 2025), the query's attention in place of trained heads",
    claim: Claim::Approximate { exact_where: "where blocks pass all their keys", exact_with: Some(":passing=1000000") },
    in_chunks: false,
    cost: "N/W + a + M rows a rank, of which each sees its block, a rows of anchor and p rows of each block before; then M rows as in star",
    ratio: None,
    takes: &[Choice::BlockTokens, Choice::AnchorTokens, Choice::PassingTokens],
    default_of: &[],
    samples: &["apb", "apb:block=8:anchor=3:passing=2"],
    make,
};

fn make(wishes: &Wishes) -> Result<Method, InvalidOption> {
    let block_tokens = star::block_tokens(wishes)?;
    Ok(Method::Apb { block_tokens, passing: wishes.passing })
}

impl Passing {
    /// Rows of the anchor in front of blocks of so many rows: a quarter of them unless asked otherwise (the authors' 4096 of 16384).
    pub fn anchor_rows(&self, block_rows: usize) -> usize {
        self.anchor_tokens.unwrap_or(block_rows / 4)
    }

    /// Rows that a block of so many rows passes on at most: an eighth of them unless asked otherwise.
    pub fn passed_rows(&self, block_rows: usize) -> usize {
        self.passing_tokens.unwrap_or(block_rows / 8)
    }
}
