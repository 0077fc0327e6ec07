//! What a request will cost, before it runs: bytes, FLOPs, memory and time to first token of every method on a machine that a
//! profile describes. Pure functions of plan, world, model and machine.

pub mod bytes;
mod crossover;
mod groups;
mod homes;
pub mod memory;
pub mod overhead;
mod profile;
mod running;
mod scenario;
mod selected;
mod sight;
#[cfg(test)]
mod tests;
mod time;
mod work;

pub use crossover::{Crossover, crossover};
pub use groups::groups;
pub use profile::{Link, Profile, RankRates};
pub use running::running_bytes;
pub use scenario::{Forecast, Scenario};
pub use selected::Selected;
pub use time::{PhaseSeconds, Predicted, ttft};
pub use work::{PhaseWork, RankWork, Work, work, work_of};
