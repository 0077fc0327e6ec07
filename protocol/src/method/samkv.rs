//! SAM-KV: of every document some rows are kept and the others dropped; what is kept is recomputed and mixed with what was cached of it.

use super::{
    Choice, Claim, Descriptor, Evidence, InvalidOption, Layers, Layout, Method, Prefill, SamKv, Selection, Wishes,
    prophetkv,
};

pub(super) static DESCRIPTOR: Descriptor = Descriptor {
    name: "samkv",
    summary: "head, tail and best blocks of every document, mixed with cached keys and values; the rest is dropped",
    source: "SAM-KV (Cao et al. 2025)",
    claim: Claim::Approximate {
        exact_where: "where nothing is dropped, at theta 1",
        exact_with: Some(":blocks=1000000:theta=1"),
    },
    in_chunks: true,
    cost: "chunks, M rows up to the last scored layer, then the kept rows of every document and M rows; the rest is seen by nobody",
    ratio: None,
    takes: &[Choice::SamKvVariant, Choice::SamKvBlocks, Choice::SamKvTheta],
    default_of: &[],
    samples: &["samkv", "samkv:variant=small", "samkv:variant=small:blocks=1:theta=0.5"],
    make,
};

fn make(wishes: &Wishes) -> Result<Method, InvalidOption> {
    let SamKv { blocks, theta, .. } = wishes.samkv;
    let invalid = |option, found: String, wanted: &str| Err(InvalidOption { option, found, wanted: wanted.to_owned() });
    if blocks == 0 {
        return invalid("--samkv-blocks", blocks.to_string(), "must be at least 1");
    }
    if !(0.0..=1.0).contains(&theta) {
        return invalid("--samkv-theta", theta.to_string(), "must be from 0 to 1");
    }
    Ok(Method::SamKv { parameters: wishes.samkv, layers: scored(wishes.layers) })
}

/// The layers from depth 28/32 on: 28..32 of 32, 3..4 of 4.
fn scored(layers: usize) -> (usize, usize) {
    (28 * layers / 32, layers)
}

pub(super) fn prefill(parameters: SamKv, (from, to): (usize, usize)) -> Prefill {
    let layers = Layers::Some(from, to);
    let evidence = Evidence { layers, sparse: Some(parameters), ..prophetkv::evidence(Layout::Global) };
    Prefill::Chunks(Selection::Evidence(evidence))
}
