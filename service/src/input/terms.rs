//! The terms under which a service reads bodies.

use tributary_coordinator::PictureRules;
use tributary_planner::RequestSettings;

use crate::limits::ClientLimits;

/// A service's terms for reading bodies.
#[derive(Debug, Clone)]
pub struct Terms<'a> {
    /// The model's name.
    pub model: &'a str,
    /// Default settings of requests.
    pub settings: &'a RequestSettings,
    /// Limits of clients' requests.
    pub limits: &'a ClientLimits,
    /// Whether fields that are not known pass.
    pub ignores_unknown: bool,
    /// Default maximum of tokens in an answer, if the service sets one.
    pub default_tokens: Option<usize>,
    /// Positions that the model has.
    pub max_positions: usize,
    /// The model's rules for pictures, if it reads some.
    pub pictures: Option<&'a PictureRules>,
    /// Token ids that the model has: those below.
    pub vocabulary: usize,
}
