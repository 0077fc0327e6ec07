//! Numbers that a training begins with.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// Normally distributed numbers from a seed.
pub struct Normal(ChaCha8Rng);

impl Normal {
    /// From a seed.
    pub fn new(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }

    /// The next `count` numbers of mean 0 and standard deviation `spread`, by the method of Box and
    /// Muller from uniform ones of ChaCha.
    pub fn take(&mut self, spread: f64, count: usize) -> Vec<f64> {
        let mut uniform = || (f64::from(self.0.next_u32()) + 0.5) / 4_294_967_296.0;
        let draw = |_| {
            let (radius, turn) = ((-2.0 * uniform().ln()).sqrt(), uniform());
            spread * radius * (2.0 * std::f64::consts::PI * turn).cos()
        };
        (0..count).map(draw).collect()
    }
}
