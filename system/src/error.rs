//! Errors of numbers in text.

/// Result of reading a number.
pub type Result<T> = std::result::Result<T, Error>;

/// A text that is not the number that it should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// It is no number of bytes.
    #[error("`{text}` is not a size such as 256MiB; units are {units}")]
    Size {
        /// Text of the number.
        text: String,
        /// The units that a size may have.
        units: String,
    },
    /// It is no number of tokens.
    #[error("`{text}` is no number of tokens, such as 4096, 8k or 1m")]
    TokenCount {
        /// Text of the number.
        text: String,
    },
}
