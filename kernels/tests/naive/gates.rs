//! The gates of feed-forward layers, by their definitions in f64.

use tributary_kernels::Gate;

/// The limit of gpt-oss, and one that many numbers meet.
pub const GATES: [Gate; 4] =
    [Gate::Silu, Gate::GeluTanh, Gate::ClampedSilu { limit: 7.0 }, Gate::ClampedSilu { limit: 0.5 }];

/// The activation of two numbers, by its definition.
pub fn gated_by_hand(gate: f64, up: f64, by: Gate) -> f64 {
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    match by {
        Gate::Silu => gate * sigmoid(gate) * up,
        Gate::GeluTanh => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (gate + 0.044715 * gate.powi(3));
            0.5 * gate * (1.0 + inner.tanh()) * up
        }
        Gate::ClampedSilu { limit } => {
            let limit = f64::from(limit);
            let (gate, up) = (gate.min(limit), up.clamp(-limit, limit));
            (up + 1.0) * gate * sigmoid(1.702 * gate)
        }
    }
}
