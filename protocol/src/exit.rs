//! Exit codes of the command and of ranks: the kind of failure as a number for scripts.
//! Codes are those of sysexits.h where it has one of the same meaning.

/// Invalid options, or a request that cannot be carried out.
pub const USAGE: u8 = 64;
/// Damaged data: weights, or a file whose content is not of its kind.
pub const INTEGRITY: u8 = 65;
/// A rank is lost.
pub const RANK_LOST: u8 = 69;
/// A bug in this program.
pub const BUG: u8 = 70;
/// Insufficient memory on a host or a device.
pub const OUT_OF_MEMORY: u8 = 71;
/// A file cannot be written.
pub const DISK: u8 = 74;
/// A deadline has passed: a rank is silent or stuck, or the start took too long.
pub const DEADLINE: u8 = 75;
/// Ranks run different versions.
pub const VERSION_SKEW: u8 = 76;
/// Unsuitable machine or settings.
pub const CONFIGURATION: u8 = 78;
