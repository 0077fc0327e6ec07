//! Rows at random: the control that every other selector must beat. Exact where every row is
//! selected.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use crate::method::{Claim, Method};
use crate::options::{KEEP_PER_CHUNK, PACKETS, RATIO};
use crate::prefill::{Prefill, Selection};
use crate::selector::{Candidates, Need};

/// The declaration.
pub static RANDOM: Method = Method {
    name: "random",
    summary: "rows drawn at random",
    source: "the control",
    claim: Claim::Approximate { exact_where: "at ratio 1", exact_with: Some(":ratio=1") },
    cost: "chunks, then n + M rows",
    ratio: Some(0.15),
    options: &[&RATIO, &PACKETS, &KEEP_PER_CHUNK],
    requires: None,
    default_of: &[],
    samples: &["random"],
    prefill: |_, _| Ok(Prefill::Chunks(Selection::Random)),
    selector: Some(|_| Box::new(uniform)),
};

/// Uniform scores from the request's seed; the same on every rank and in every world.
fn uniform(candidates: &Candidates, _: &[f32]) -> Need {
    let mut random = ChaCha8Rng::seed_from_u64(candidates.seed);
    // 24 bits: every value is an exact f32.
    let draw = |_| (random.next_u32() >> 8) as f32 / (1 << 24) as f32;
    Need::Scores((0..candidates.context).map(draw).collect())
}
