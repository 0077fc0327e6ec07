//! Reasons of an object store's failures: words, a fixed list, for metrics. No text of the store's
//! is among them.

/// Reasons of an object store's failures. A chunk that does not come is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reason {
    /// The store has no such chunk.
    Missing,
    /// An answer took longer than it may.
    Timeout,
    /// There was no connection, or it broke.
    Unreachable,
    /// The store does not let these credentials do it.
    Denied,
    /// The store has no such bucket.
    NoBucket,
    /// The store answered that it failed, or answered with something strange.
    Server,
    /// The chunk has more bytes than are wanted, or than can be sent.
    TooLarge,
    /// As much waits already as may wait.
    Full,
    /// The store has failed several times in a row and is not asked for a while, or it has been
    /// closed at this end.
    Down,
}

impl Reason {
    /// All of them.
    pub const ALL: [Reason; 9] = [
        Reason::Missing,
        Reason::Timeout,
        Reason::Unreachable,
        Reason::Denied,
        Reason::NoBucket,
        Reason::Server,
        Reason::TooLarge,
        Reason::Full,
        Reason::Down,
    ];

    /// The word for it in metrics.
    pub fn word(self) -> &'static str {
        match self {
            Reason::Missing => "missing",
            Reason::Timeout => "timeout",
            Reason::Unreachable => "unreachable",
            Reason::Denied => "denied",
            Reason::NoBucket => "no-bucket",
            Reason::Server => "server",
            Reason::TooLarge => "too-large",
            Reason::Full => "full",
            Reason::Down => "down",
        }
    }

    /// Whether another attempt may end otherwise: the store was not there, or not well. Other
    /// reasons are a store's answers.
    pub(crate) fn may_pass(self) -> bool {
        matches!(self, Reason::Timeout | Reason::Unreachable | Reason::Server)
    }
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.word())
    }
}
