//! A rank's last sign of life, for those who only look.

use std::time::Duration;

/// Whether a rank is in its group, and how long ago it gave a sign of life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pulse {
    /// Whether the rank is in a group that lives, and its process is not silent.
    pub is_up: bool,
    /// Time since its process was heard, or since its thread last got on; 0 for a thread that waits
    /// for others, and for the process that asks.
    pub age: Duration,
}
