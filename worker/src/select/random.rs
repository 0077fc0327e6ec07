//! Rows at random: the control that every other selector must beat. Exact where every row is selected.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use super::selector::{Candidates, Need, Selector};
use crate::error::Result;

/// Uniform scores from a seed; the same on every rank and in every world.
pub struct Random {
    /// The seed, as the report names it.
    pub seed: u64,
}

impl Selector for Random {
    fn next(&mut self, candidates: &Candidates, _: &[f32]) -> Result<Need> {
        let mut random = ChaCha8Rng::seed_from_u64(self.seed);
        let draw = |_| (random.next_u32() >> 8) as f32 / (1 << 24) as f32; // 24 bits: every value is an exact f32
        Ok(Need::Scores((0..candidates.context).map(draw).collect()))
    }
}
