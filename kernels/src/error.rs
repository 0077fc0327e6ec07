//! The failures of a kernel: shapes that do not fit, and errors of candle.

/// Result of a kernel.
pub type Result<T> = std::result::Result<T, Error>;

/// A kernel's refusal.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Two inputs do not fit each other.
    #[error("{op}: {what}: expected {expected}, found {found}")]
    Shape {
        /// The operation.
        op: &'static str,
        /// Which input.
        what: &'static str,
        /// The value that would be right.
        expected: String,
        /// The value that came.
        found: String,
    },
    /// A scaling of rotary frequencies that this crate does not know or cannot use.
    #[error("rope scaling: {0}")]
    RopeScaling(String),
    /// This build has no CUDA.
    #[error("this program was built without CUDA: build with `--features cuda`")]
    NotBuilt,
    /// There is no GPU that this program can use.
    #[error("no CUDA device: {0}")]
    NoDevice(String),
    /// The tensor library failed.
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
}

impl Error {
    /// Exit code of this failure: 78 configuration, 71 out of memory, 70 a bug.
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::NotBuilt | Error::NoDevice(_) => 78,
            Error::Candle(error) if crate::cuda::is_out_of_memory(error) => 71,
            Error::Shape { .. } | Error::RopeScaling(_) | Error::Candle(_) => 70,
        }
    }
}

/// Checks one dimension and names it.
pub(crate) fn expect(op: &'static str, what: &'static str, expected: usize, found: usize) -> Result<()> {
    if expected == found {
        return Ok(());
    }
    Err(Error::Shape { op, what, expected: expected.to_string(), found: found.to_string() })
}
