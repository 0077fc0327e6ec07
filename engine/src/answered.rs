//! Result of one request.

use tributary_coordinator::{Answer, Prepared, Report};
use tributary_planner::Planned;

/// An answered request.
pub struct Answered {
    /// The request as token ids.
    pub prepared: Prepared,
    /// Its plan.
    pub planned: Planned,
    /// Answer.
    pub answer: Answer,
    /// Everything that is known about it.
    pub report: Report,
}
