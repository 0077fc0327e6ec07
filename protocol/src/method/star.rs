//! Star attention: blocks behind an anchor, and a query that sees them all.

use super::{Choice, Claim, Descriptor, InvalidOption, Method, Wishes};

pub(super) static DESCRIPTOR: Descriptor = Descriptor {
    name: "star",
    summary: "blocks of the sequence, each computed with the first one before it; the query then sees all of them",
    source: "Star Attention (Acharya et al. 2024)",
    claim: Claim::Approximate { exact_where: "for one block or two", exact_with: Some(":block=1000000") },
    in_chunks: false,
    cost: "up to 2N/W rows a rank, of which each sees its block and the first one; then M rows, whose queries and partial outputs travel",
    ratio: None,
    takes: &[Choice::BlockTokens],
    default_of: &[],
    samples: &["star", "star:block=20"],
    make,
};

fn make(wishes: &Wishes) -> Result<Method, InvalidOption> {
    Ok(Method::Star { block_tokens: block_tokens(wishes)? })
}

/// Rows of each block, where the user says them.
pub(super) fn block_tokens(wishes: &Wishes) -> Result<Option<usize>, InvalidOption> {
    match wishes.block_tokens {
        Some(0) => Err(InvalidOption {
            option: "--block-tokens",
            found: "0".to_owned(),
            wanted: "must be 1 or more".to_owned(),
        }),
        block_tokens => Ok(block_tokens),
    }
}
