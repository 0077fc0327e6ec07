//! Source of the bytes of a chunk's file: a disk or memory. It does not interpret them.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;

use bytes::Bytes;

/// The bytes of a chunk's file.
#[derive(Debug)]
pub enum Source {
    /// On a disk.
    File(File),
    /// In memory.
    Memory(Bytes),
}

impl Source {
    /// Number of bytes.
    pub fn bytes(&self) -> io::Result<u64> {
        match self {
            Source::File(file) => Ok(file.metadata()?.len()),
            Source::Memory(bytes) => Ok(bytes.len() as u64),
        }
    }

    /// Reads from a place on, as many as the buffer takes.
    pub fn read_exact_at(&self, buffer: &mut [u8], place: u64) -> io::Result<()> {
        let bytes = match self {
            Source::File(file) => return file.read_exact_at(buffer, place),
            Source::Memory(bytes) => bytes,
        };
        let rest = usize::try_from(place).ok().and_then(|place| bytes.get(place..));
        let part = rest.and_then(|rest| rest.get(..buffer.len())).ok_or(ErrorKind::UnexpectedEof)?;
        buffer.copy_from_slice(part);
        Ok(())
    }
}
