//! How long a plan takes before it runs: what it comes to ([`cost`](crate::cost)) over the rates of a machine that a profile
//! describes. It knows plans and nothing of how they are made: the planner asks it which of two is faster.

mod assumed;
mod curve;
mod interval;
mod longest_step;
pub mod overhead;
mod profile;
mod reading;
mod spread;
#[cfg(test)]
mod tests;
mod time;

pub use curve::Curve;
pub use interval::Interval;
pub use longest_step::LongStep;
pub use profile::{Link, Profile, RankRates, StoreRates};
pub use spread::{LEFT_OUT, Spread, UNMEASURED};
pub use time::{Counted, PhaseSeconds, Predicted, ttft};

/// Exchanges whose times differ by no more than this share are level; `replicate` is taken.
pub const TIE: f64 = 0.02;
