//! Sequence parallelism by gathering every layer's keys and values.

use super::{Choice, Claim, Command, Descriptor, InvalidOption, Method, Wishes};

pub(super) static DESCRIPTOR: Descriptor = Descriptor {
    name: "all-gather",
    summary: "contiguous parts of the sequence; each layer's keys and values are gathered on every rank",
    source: "common practice; one head at a time it is the baseline of published comparisons",
    claim: Claim::Exact,
    in_chunks: false,
    cost: "N/W rows a rank, N²/(2W) pairs in the mean and up to twice as many; each layer (N − N/W) rows of keys and values come to it",
    ratio: None,
    takes: &[Choice::HeadsPerGather],
    default_of: &[Command::Bench, Command::Plan],
    samples: &["all-gather", "all-gather:heads=1"],
    make,
};

fn make(wishes: &Wishes) -> Result<Method, InvalidOption> {
    let (heads_per_gather, kv_heads) = (wishes.heads_per_gather, wishes.kv_heads);
    match heads_per_gather {
        Some(heads) if heads == 0 || heads > kv_heads => Err(InvalidOption {
            option: "--heads-per-gather",
            found: heads.to_string(),
            wanted: format!("must be from 1 to the model's {kv_heads} KV heads"),
        }),
        _ => Ok(Method::AllGather { heads_per_gather }),
    }
}
