//! Settings of a training: its length, its learning rate, the order of samples.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Settings that determine the numbers of a training.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// Number of passes over all samples.
    pub epochs: u64,
    /// Samples whose gradients make one step; the last step of an epoch may have fewer.
    pub batch: usize,
    /// The largest learning rate.
    pub learning_rate: f64,
    /// Share of the steps in which the learning rate rises to it, in a line; then it falls to 0, in
    /// a line.
    pub warmup: f64,
    /// The largest norm of a step's gradient: a longer one is shortened to it.
    pub clip: f64,
    /// AdamW's weight decay.
    pub decay: f64,
    /// The seed of the first values and of the order of samples.
    pub seed: u64,
}

impl Settings {
    /// Checks the user's values.
    ///
    /// # Errors
    /// Returns [`Error::Usage`] with the option's name.
    pub fn check(&self) -> Result<()> {
        let refused = |what: String| Err(Error::Usage(what));
        let positive = |value: f64| value.is_finite() && value > 0.0;
        match self {
            Self { batch: 0, .. } => refused("--batch 0: must be at least 1".to_owned()),
            Self { learning_rate: rate, .. } if !positive(*rate) => refused(format!("--lr {rate}: must be above 0")),
            Self { clip, .. } if !positive(*clip) => refused(format!("--clip {clip}: must be above 0")),
            Self { warmup, .. } if !(0.0..1.0).contains(warmup) => {
                refused(format!("--warmup {warmup}: a share of the steps, from 0 to below 1"))
            }
            Self { decay, .. } if !(decay.is_finite() && *decay >= 0.0) => {
                refused(format!("--weight-decay {decay}: must be at least 0"))
            }
            _ => Ok(()),
        }
    }

    /// Steps of an epoch over `samples` samples.
    pub fn steps_per_epoch(&self, samples: usize) -> u64 {
        samples.div_ceil(self.batch) as u64
    }

    /// Steps of all epochs.
    pub fn steps(&self, samples: usize) -> u64 {
        self.epochs * self.steps_per_epoch(samples)
    }

    /// Learning rate of step `step`, from 0, of `steps` steps.
    pub fn rate(&self, step: u64, steps: u64) -> f64 {
        let rising = (self.warmup * steps as f64).ceil();
        let (step, steps) = (step as f64, steps as f64);
        let share = if step < rising { (step + 1.0) / rising } else { (steps - step) / (steps - rising).max(1.0) };
        self.learning_rate * share.min(1.0)
    }

    /// The numbers of the samples of a step, from 0: each epoch sees all of them once, in an order
    /// that follows from the seed and the epoch.
    pub fn samples_of(&self, step: u64, samples: usize) -> Vec<usize> {
        let per_epoch = self.steps_per_epoch(samples).max(1);
        let (epoch, place) = (step / per_epoch, (step % per_epoch) as usize);
        let mut random = ChaCha8Rng::seed_from_u64(self.seed ^ (epoch + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut order: Vec<usize> = (0..samples).collect();
        for last in (1..samples).rev() {
            order.swap(last, (random.next_u64() % (last as u64 + 1)) as usize);
        }
        order.into_iter().skip(place * self.batch).take(self.batch).collect()
    }
}
