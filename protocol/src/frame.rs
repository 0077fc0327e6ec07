//! Framing, for bytes that leave a process: a fixed header, then a message.
//!
//! | bytes | content (little endian) |
//! | --- | --- |
//! | 0..4 | magic, `TRIB` |
//! | 4..8 | protocol version |
//! | 8..12 | length of the message in bytes |
//! | 12..16 | CRC-32 of bytes 0..12 and of the message |

use crate::message::{self, Error, Result, within_limit};

/// Bytes before the message.
pub const HEADER_BYTES: usize = 16;

/// Version of the protocol. Readers refuse every other version.
pub const PROTOCOL_VERSION: u32 = 27;

const MAGIC: [u8; 4] = *b"TRIB";

/// Writes a message as one frame.
///
/// # Errors
/// Returns an error in the cases of [`encode`](crate::encode).
pub fn encode_frame<T: serde::Serialize>(message: &T) -> Result<Vec<u8>> {
    let mut frame = vec![0; HEADER_BYTES];
    message::append(message, &mut frame)?;
    let length = u32::try_from(frame.len() - HEADER_BYTES).expect("the limit fits 32 bits");
    frame[0..4].copy_from_slice(&MAGIC);
    frame[4..8].copy_from_slice(&PROTOCOL_VERSION.to_le_bytes());
    frame[8..12].copy_from_slice(&length.to_le_bytes());
    let checksum = checksum(&[&frame[..12], &frame[HEADER_BYTES..]]);
    frame[12..16].copy_from_slice(&checksum.to_le_bytes());
    Ok(frame)
}

/// Reads one whole frame.
///
/// # Errors
/// Returns [`Error::Message`] unless the input is exactly one undamaged frame of this version and
/// type.
pub fn decode_frame<T: serde::de::DeserializeOwned>(frame: &[u8]) -> Result<T> {
    let Some((header, message)) = frame.split_first_chunk::<HEADER_BYTES>() else {
        return Err(Error::Message(format!("{} bytes, a header has {HEADER_BYTES}", frame.len())));
    };
    if header[0..4] != MAGIC {
        return Err(Error::Message("does not start with a frame's magic bytes".into()));
    }
    let version = word(header, 4);
    if version != PROTOCOL_VERSION {
        return Err(Error::Message(format!("protocol version {version}, this side speaks {PROTOCOL_VERSION}")));
    }
    let announced = word(header, 8) as usize;
    within_limit(announced)?;
    if message.len() != announced {
        return Err(Error::Message(format!("{} bytes after the header, it announces {announced}", message.len())));
    }
    if checksum(&[&header[..12], message]) != word(header, 12) {
        return Err(Error::Message("wrong checksum".into()));
    }
    message::decode(message)
}

/// CRC-32 of the parts' bytes, one part after the other.
pub fn checksum(parts: &[&[u8]]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    parts.iter().for_each(|part| hasher.update(part));
    hasher.finalize()
}

fn word(header: &[u8; HEADER_BYTES], at: usize) -> u32 {
    u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
}
