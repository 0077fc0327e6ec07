//! Framing: a fixed header, then a message in bincode.
//!
//! | bytes | content (little endian) |
//! | --- | --- |
//! | 0..4 | magic, `TRIB` |
//! | 4..8 | protocol version |
//! | 8..12 | length of the message in bytes |
//! | 12..16 | CRC-32 of bytes 0..12 and of the message |
//!
//! The length is checked before anything is allocated, and bincode gets the same limit, so that no input makes a reader
//! allocate more than a few times [`FRAME_LIMIT_BYTES`]. Integers have a fixed width: what they take on the wire is what
//! they take in memory.

use bincode::config::{Configuration, Fixint, Limit, LittleEndian};

/// Bytes that are no message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A frame of bytes is not a message, or a message is too long for a frame.
    #[error("message: {0}")]
    Frame(String),
}

/// Result of writing or reading a message.
pub type Result<T> = std::result::Result<T, Error>;

/// The longest message, header not counted.
pub const FRAME_LIMIT_BYTES: usize = 16 << 20;

/// Bytes before the message.
pub const HEADER_BYTES: usize = 16;

/// Readers refuse every other version.
pub const PROTOCOL_VERSION: u32 = 5;

const MAGIC: [u8; 4] = *b"TRIB";

const CONFIG: Configuration<LittleEndian, Fixint, Limit<FRAME_LIMIT_BYTES>> =
    bincode::config::standard().with_fixed_int_encoding().with_limit::<FRAME_LIMIT_BYTES>();

/// What a header says about the message behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Length of the message in bytes, at most [`FRAME_LIMIT_BYTES`].
    pub payload_bytes: usize,
    /// CRC-32 of the header's first 12 bytes and of the message.
    pub checksum: u32,
}

/// Writes a message as one frame.
///
/// # Errors
/// [`Error::Frame`] if the message is longer than [`FRAME_LIMIT_BYTES`].
pub fn encode<T: serde::Serialize>(message: &T) -> Result<Vec<u8>> {
    let mut frame = vec![0; HEADER_BYTES];
    let payload_bytes = bincode::serde::encode_into_std_write(message, &mut frame, CONFIG)
        .map_err(|error| Error::Frame(error.to_string()))?;
    if payload_bytes > FRAME_LIMIT_BYTES {
        return Err(too_long(payload_bytes));
    }
    let length = u32::try_from(payload_bytes).expect("the limit fits 32 bits");
    frame[0..4].copy_from_slice(&MAGIC);
    frame[4..8].copy_from_slice(&PROTOCOL_VERSION.to_le_bytes());
    frame[8..12].copy_from_slice(&length.to_le_bytes());
    let checksum = checksum(&frame[..12], &frame[HEADER_BYTES..]);
    frame[12..16].copy_from_slice(&checksum.to_le_bytes());
    Ok(frame)
}

/// Reads the header of a frame; for readers of a stream, which must know how much to read.
///
/// # Errors
/// [`Error::Frame`] if it is no header, of another version, or announces too long a message.
pub fn decode_header(header: &[u8; HEADER_BYTES]) -> Result<Header> {
    if header[0..4] != MAGIC {
        return Err(Error::Frame("does not start with a frame's magic bytes".into()));
    }
    let version = word(header, 4);
    if version != PROTOCOL_VERSION {
        return Err(Error::Frame(format!("protocol version {version}, this side speaks {PROTOCOL_VERSION}")));
    }
    let payload_bytes = word(header, 8) as usize;
    if payload_bytes > FRAME_LIMIT_BYTES {
        return Err(too_long(payload_bytes));
    }
    Ok(Header { payload_bytes, checksum: word(header, 12) })
}

/// Reads one whole frame.
///
/// # Errors
/// [`Error::Frame`] if anything but exactly one undamaged frame of this type is there.
pub fn decode<T: serde::de::DeserializeOwned>(frame: &[u8]) -> Result<T> {
    let Some((head, payload)) = frame.split_first_chunk::<HEADER_BYTES>() else {
        return Err(Error::Frame(format!("{} bytes, a header has {HEADER_BYTES}", frame.len())));
    };
    let header = decode_header(head)?;
    if payload.len() != header.payload_bytes {
        return Err(Error::Frame(format!(
            "{} bytes behind the header, it announces {}",
            payload.len(),
            header.payload_bytes
        )));
    }
    if checksum(&head[..12], payload) != header.checksum {
        return Err(Error::Frame("wrong checksum".into()));
    }
    let (message, read_bytes) =
        bincode::serde::decode_from_slice(payload, CONFIG).map_err(|error| Error::Frame(error.to_string()))?;
    if read_bytes != payload.len() {
        return Err(Error::Frame(format!("{} bytes left behind the message", payload.len() - read_bytes)));
    }
    Ok(message)
}

fn checksum(head: &[u8], payload: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(head);
    hasher.update(payload);
    hasher.finalize()
}

fn too_long(payload_bytes: usize) -> Error {
    Error::Frame(format!("{payload_bytes} bytes, the limit is {FRAME_LIMIT_BYTES}"))
}

fn word(header: &[u8; HEADER_BYTES], at: usize) -> u32 {
    u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
}
