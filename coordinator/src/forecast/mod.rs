//! How long a request will take before it runs: what a plan comes to ([`cost`](crate::cost)) over the rates of a machine that a
//! profile describes. It makes plans of its own to compare methods, so it stands above [`plan`](crate::plan()), which knows
//! costs alone.

mod crossover;
pub mod overhead;
mod profile;
mod reading;
mod scenario;
#[cfg(test)]
mod tests;
mod time;

pub use crossover::{Crossover, crossover};
pub use profile::{Link, Profile, RankRates, StoreRates};
pub use scenario::{Forecast, Scenario};
pub use time::{PhaseSeconds, Predicted, ttft};
