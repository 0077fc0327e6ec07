//! Recognises the kind of a file by its first bytes. Names of files and declared types decide
//! nothing.

use crate::error::{Error, Result, quoted};
use crate::kind::Kind;

/// Bytes that an error shows of a file that is no picture.
const SHOWN_BYTES: usize = 8;

impl Kind {
    /// The kind of a file.
    ///
    /// # Errors
    /// Returns an error if the file is empty, of a kind that is known and not read (GIF, SVG, TIFF,
    /// BMP, AVIF and others), or no picture.
    pub fn of(file: &[u8]) -> Result<Self> {
        match file {
            [] => Err(Error::Empty),
            [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => Ok(Self::Png),
            [0xff, 0xd8, 0xff, ..] => Ok(Self::Jpeg),
            [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Ok(Self::Webp),
            other => Err(match unread(other) {
                Some(kind) => Error::Refused { kind },
                None => {
                    let first = &other[..other.len().min(SHOWN_BYTES)];
                    Error::NoPicture { begins: first.escape_ascii().to_string() }
                }
            }),
        }
    }

    /// Checks the media type that a request declares, if it declares one. Upper case and
    /// `image/jpg` are allowed.
    ///
    /// # Errors
    /// Returns an error if the declared type is another one.
    pub fn check_declared(self, declared: Option<&str>) -> Result<()> {
        let Some(declared) = declared.filter(|declared| !declared.is_empty()) else { return Ok(()) };
        let other_name = if self == Self::Jpeg { "image/jpg" } else { self.media_type() };
        if [self.media_type(), other_name].iter().any(|name| declared.eq_ignore_ascii_case(name)) {
            return Ok(());
        }
        Err(Error::Declared { declared: quoted(declared), found: self })
    }
}

/// The name of a kind that is known and not read.
fn unread(file: &[u8]) -> Option<&'static str> {
    Some(match file {
        [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => "GIF",
        [b'B', b'M', ..] => "BMP",
        [b'I', b'I', 42 | 43, 0, ..] | [b'M', b'M', 0, 42 | 43, ..] => "TIFF",
        [_, _, _, _, b'f', b't', b'y', b'p', brand @ ..] => match brand {
            [b'a', b'v', b'i', b'f' | b's', ..] => "AVIF",
            [b'h', b'e', ..] | [b'm', b'i', b'f', b'1', ..] | [b'm', b's', b'f', b'1', ..] => "HEIF",
            _ => "video",
        },
        [0, 0, 1, 0, ..] => "ICO",
        [0xff, 0x0a, ..] | [0, 0, 0, 12, b'J', b'X', b'L', b' ', ..] => "JPEG XL",
        [0, 0, 0, 12, b'j', b'P', b' ', b' ', ..] => "JPEG 2000",
        [b'%', b'P', b'D', b'F', ..] => "PDF",
        text if is_svg(text) => "SVG",
        _ => return None,
    })
}

/// Whether a text begins as an SVG picture does: with its tag, its document type, or an XML
/// declaration.
fn is_svg(text: &[u8]) -> bool {
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text).trim_ascii_start();
    [&b"<svg"[..], b"<?xml", b"<!doctype svg"]
        .iter()
        .any(|tag| text.get(..tag.len()).is_some_and(|begins| begins.eq_ignore_ascii_case(tag)))
}
