//! Hypothetical requests: their times, and the length from which one method is faster than another.
//! It makes plans of its own to compare methods, so it stands above [`plan`](crate::plan()); the
//! time of a plan is a [`forecast`](crate::forecast), which stands below.

mod auxiliary;
mod crossover;
mod learned;
mod model_parallel;
mod scenario;

#[cfg(test)]
pub(crate) use auxiliary::auxiliary;
pub use crossover::{Crossing, Crossover, LEVEL, crossover};
pub use learned::{Kind, Learned, Pace};
pub use model_parallel::Cut;
pub use scenario::{Counts, Forecast, PictureGrids, Scenario};
