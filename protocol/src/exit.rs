//! Exit codes of the command, and of ranks that end: the kind of failure as a number that scripts can act on. They are those of
//! sysexits.h where it has one that means the same.

/// Options or a request that the program cannot carry out.
pub const USAGE: u8 = 64;
/// Damaged data: weights, or a file whose content is not of its kind.
pub const INTEGRITY: u8 = 65;
/// A rank is gone.
pub const RANK_LOST: u8 = 69;
/// A bug of this program.
pub const BUG: u8 = 70;
/// Memory of a host or a device does not suffice.
pub const OUT_OF_MEMORY: u8 = 71;
/// A file cannot be written.
pub const DISK: u8 = 74;
/// A deadline has passed: a rank is silent or stuck, or the start took too long.
pub const DEADLINE: u8 = 75;
/// Ranks run different versions.
pub const VERSION_SKEW: u8 = 76;
/// The machine or its settings do not fit.
pub const CONFIGURATION: u8 = 78;
