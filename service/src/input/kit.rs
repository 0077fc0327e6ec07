//! Shared parts of the tests of bodies.

use tributary_planner::RequestSettings;

use super::Terms;
use crate::limits::ClientLimits;

/// Reads by the terms of a service with its defaults.
pub fn with_terms<T>(read: impl FnOnce(&Terms<'_>) -> T) -> T {
    let (settings, limits) = (RequestSettings::default(), ClientLimits::default());
    read(&Terms {
        model: "demo",
        settings: &settings,
        limits: &limits,
        ignores_unknown: false,
        default_tokens: None,
        max_positions: 8192,
        vocabulary: 400,
    })
}
