//! Predicted time of a plan: its counted [`cost`](crate::cost) over the rates of a machine that a
//! profile describes. It takes finished plans: the planner asks it which of two is faster.

mod arithmetic;
mod assumed;
mod curve;
mod interval;
mod longest_step;
pub mod overhead;
mod profile;
mod reading;
mod spread;
mod step;
#[cfg(test)]
mod tests;
mod time;

pub use curve::Curve;
pub use interval::Interval;
pub use longest_step::LongStep;
pub use profile::{Link, Profile, RankRates, StoreRates, UnderLoad};
pub use spread::{LEFT_OUT, Spread, UNMEASURED};
pub use step::{Running, step_s};
pub use time::{Counted, PhaseSeconds, Predicted, ttft};

/// Exchanges whose times differ by no more than this share are tied; `replicate` is taken.
pub const TIE: f64 = 0.02;
