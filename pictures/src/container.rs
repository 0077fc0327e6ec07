//! Checks of files that their decoders do not make. The JPEG decoder fills missing parts with
//! grey, and the WebP decoder reserves memory by the sizes that parts of a file state.

use crate::error::{Error, Result};
use crate::kind::Kind;

/// Bytes of a WebP file's own header: `RIFF`, its length, `WEBP`.
const RIFF_HEADER: usize = 12;

/// Width and height that a PNG file states in its first chunk.
pub fn png_size(file: &[u8]) -> Option<(u32, u32)> {
    let number = |at: usize| Some(u32::from_be_bytes(*file.get(at..)?.first_chunk()?));
    Some((number(16)?, number(20)?))
}

/// Checks that a JPEG file has the mark of its end outside of every segment: a thumbnail in a
/// segment has a mark of its own.
///
/// # Errors
/// Returns an error if the file ends before that mark.
pub fn check_jpeg_end(file: &[u8]) -> Result<()> {
    let early = |what, wanted: usize| Error::Truncated {
        kind: Kind::Jpeg,
        what,
        wanted: wanted as u64,
        bytes: file.len() as u64,
    };
    let mut at = 2;
    loop {
        // A marker is 0xff and a byte that is neither 0 nor 0xff; the decoder skips other bytes.
        let found = file.get(at..).and_then(|rest| rest.windows(2).position(is_marker));
        at += found.ok_or_else(|| early("its scans", file.len() + 2))?;
        match file[at + 1] {
            0xd9 => return Ok(()),
            0x01 | 0xd0..=0xd8 => at += 2,
            _ => {
                let length = file.get(at + 2..).and_then(|rest| rest.first_chunk());
                let length = length.ok_or_else(|| early("a segment", at + 4))?;
                at += 2 + usize::from(u16::from_be_bytes(*length));
                if at > file.len() {
                    return Err(early("a segment", at));
                }
            }
        }
    }
}

fn is_marker(pair: &[u8]) -> bool {
    pair[0] == 0xff && !matches!(pair[1], 0 | 0xff)
}

/// Checks that every part of a WebP file lies within it, and that its frame has the size that its
/// header states.
///
/// # Errors
/// Returns an error if the file ends within a part, or if a frame has another size.
pub fn check_webp(file: &[u8]) -> Result<()> {
    let mut canvas = None;
    let mut at = RIFF_HEADER;
    while let Some((name, length)) = chunk(file, at) {
        let (start, end) = (at + 8, at as u64 + 8 + u64::from(length));
        if end > file.len() as u64 {
            let (kind, what, bytes) = (Kind::Webp, "a chunk", file.len() as u64);
            return Err(Error::Truncated { kind, what, wanted: end, bytes });
        }
        // The end lies within the file, and so fits.
        let body = &file[start..end as usize];
        match &name {
            b"VP8X" => canvas = canvas.or(canvas_size(body)),
            b"VP8 " | b"VP8L" => {
                check_frame(canvas, if &name == b"VP8 " { lossy_size(body) } else { lossless_size(body) })?
            }
            _ => {}
        }
        // Parts are filled up to an even length.
        at = (end + (end & 1)) as usize;
    }
    Ok(())
}

/// Name and length of the chunk at a place.
fn chunk(file: &[u8], at: usize) -> Option<([u8; 4], u32)> {
    let head: &[u8; 8] = file.get(at..)?.first_chunk()?;
    let [a, b, c, d, length @ ..] = *head;
    Some(([a, b, c, d], u32::from_le_bytes(length)))
}

fn check_frame(canvas: Option<(u32, u32)>, frame: Option<(u32, u32)>) -> Result<()> {
    match (canvas, frame) {
        (Some((canvas_width, canvas_height)), Some((width, height)))
            if (canvas_width, canvas_height) != (width, height) =>
        {
            Err(Error::Frame { canvas_width, canvas_height, width, height })
        }
        _ => Ok(()),
    }
}

/// Of an extended file's header: 4 bytes of flags, then width − 1 and height − 1 in 3 bytes each.
fn canvas_size(body: &[u8]) -> Option<(u32, u32)> {
    let &[_, _, _, _, a, b, c, d, e, f] = body.first_chunk()?;
    Some((1 + u32::from_le_bytes([a, b, c, 0]), 1 + u32::from_le_bytes([d, e, f, 0])))
}

/// Of a lossy frame: 6 bytes, then 14 bits of width and of height, each with 2 bits of scale.
fn lossy_size(body: &[u8]) -> Option<(u32, u32)> {
    let &[_, _, _, _, _, _, a, b, c, d] = body.first_chunk()?;
    let side = |bytes| u32::from(u16::from_le_bytes(bytes) & 0x3fff);
    Some((side([a, b]), side([c, d])))
}

/// Of a lossless frame: 1 byte, then 14 bits of width − 1 and of height − 1.
fn lossless_size(body: &[u8]) -> Option<(u32, u32)> {
    let &[_, rest @ ..] = body.first_chunk::<5>()?;
    let bits = u32::from_le_bytes(rest);
    Some((1 + (bits & 0x3fff), 1 + (bits >> 14 & 0x3fff)))
}
