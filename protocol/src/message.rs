//! Messages as bytes: bincode through serde, without framing.
//!
//! Ranks of one process exchange these bytes as they are. Bytes that leave a process are guarded by
//! a frame ([`encode_frame`](crate::encode_frame)) or by a checksum inside one.
//!
//! The length is checked before any allocation, and bincode has the same limit. No input makes a
//! reader allocate more than a few times [`MESSAGE_LIMIT_BYTES`].
//! Integers have a fixed width: they take as many bytes on the wire as in memory.

use bincode::config::{Configuration, Fixint, Limit, LittleEndian};

/// Failure to write or read a message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Bytes are not a message, or a message is too long.
    #[error("message: {0}")]
    Message(String),
}

/// Result of writing or reading a message.
pub type Result<T> = std::result::Result<T, Error>;

/// The longest message.
pub const MESSAGE_LIMIT_BYTES: usize = 16 << 20;

const CONFIG: Configuration<LittleEndian, Fixint, Limit<MESSAGE_LIMIT_BYTES>> =
    bincode::config::standard().with_fixed_int_encoding().with_limit::<MESSAGE_LIMIT_BYTES>();

/// Writes a message.
///
/// # Errors
/// Returns [`Error::Message`] if it is longer than [`MESSAGE_LIMIT_BYTES`].
pub fn encode<T: serde::Serialize>(message: &T) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    append(message, &mut bytes)?;
    Ok(bytes)
}

/// Appends a message to `bytes`.
pub(crate) fn append<T: serde::Serialize>(message: &T, bytes: &mut Vec<u8>) -> Result<()> {
    let length = bincode::serde::encode_into_std_write(message, bytes, CONFIG)
        .map_err(|error| Error::Message(error.to_string()))?;
    within_limit(length)
}

/// Reads a message.
///
/// # Errors
/// Returns [`Error::Message`] unless the input is exactly one message of this type.
pub fn decode<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    within_limit(bytes.len())?;
    let (message, read_bytes) =
        bincode::serde::decode_from_slice(bytes, CONFIG).map_err(|error| Error::Message(error.to_string()))?;
    if read_bytes != bytes.len() {
        return Err(Error::Message(format!("{} bytes left after the message", bytes.len() - read_bytes)));
    }
    Ok(message)
}

/// Checks that a message may have `bytes` bytes.
///
/// # Errors
/// Returns [`Error::Message`] with both numbers if it is too long.
pub fn within_limit(bytes: usize) -> Result<()> {
    if bytes > MESSAGE_LIMIT_BYTES {
        return Err(Error::Message(format!("{bytes} bytes, the limit is {MESSAGE_LIMIT_BYTES}")));
    }
    Ok(())
}
