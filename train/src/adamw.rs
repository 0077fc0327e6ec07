//! AdamW (Loshchilov and Hutter 2019, algorithm 2), in f64, with its state in the open: a
//! checkpoint holds it.

/// Decay of the mean of gradients.
const BETA_1: f64 = 0.9;
/// Decay of the mean of their squares.
const BETA_2: f64 = 0.999;
/// Keeps quotients finite.
const EPSILON: f64 = 1e-8;

/// The values that are learned, with the optimizer's means.
#[derive(Debug, Clone, PartialEq)]
pub struct AdamW {
    /// The values; the model reads them rounded.
    pub values: Vec<f64>,
    /// The decaying mean of each gradient.
    pub first: Vec<f64>,
    /// The decaying mean of its square.
    pub second: Vec<f64>,
    /// Steps taken.
    pub steps: u64,
}

impl AdamW {
    /// Before the first step.
    pub fn new(values: Vec<f64>) -> Self {
        let zeros = vec![0.0; values.len()];
        Self { first: zeros.clone(), second: zeros, values, steps: 0 }
    }

    /// A step: m ← β₁m + (1−β₁)g, v ← β₂v + (1−β₂)g², x ← x − lr·(m̂/(√v̂ + ε) + decay·x), m̂ and
    /// v̂ corrected for their beginning at 0.
    pub fn step(&mut self, gradients: &[f64], learning_rate: f64, decay: f64) {
        assert_eq!(gradients.len(), self.values.len(), "a gradient for each value");
        self.steps += 1;
        let steps = i32::try_from(self.steps).unwrap_or(i32::MAX);
        let (correct_1, correct_2) = (1.0 - BETA_1.powi(steps), 1.0 - BETA_2.powi(steps));
        for (index, &gradient) in gradients.iter().enumerate() {
            let (first, second, value) = (&mut self.first[index], &mut self.second[index], &mut self.values[index]);
            *first = BETA_1 * *first + (1.0 - BETA_1) * gradient;
            *second = BETA_2 * *second + (1.0 - BETA_2) * gradient * gradient;
            let pull = (*first / correct_1) / ((*second / correct_2).sqrt() + EPSILON);
            *value -= learning_rate * (pull + decay * *value);
        }
    }
}
