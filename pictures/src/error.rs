//! Errors of pictures. Each is one line with the numbers, and quotes at most a few characters of a
//! request.

use crate::kind::Kind;

/// Result of reading a picture.
pub type Result<T> = std::result::Result<T, Error>;

/// The longest quotation from a request, in characters.
const QUOTED_CHARACTERS: usize = 40;

/// Reason why a picture is refused. All but [`Rules`](Self::Rules) are faults of the request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The address of a picture is no `data:` URL.
    #[error("pictures are not fetched: send a data: URL")]
    NotFetched,
    /// A `data:` URL without the parts that it needs.
    #[error("a picture's data: URL begins `data:image/png;base64,`, this one `{begins}`")]
    DataUrl {
        /// Its first characters.
        begins: String,
    },
    /// A character outside of base64's alphabet. Spaces, line ends and percent signs are outside.
    #[error("the picture's base64 has the byte 0x{byte:02x} at place {place}; its letters are A-Z, a-z, 0-9, + and /")]
    Base64Letter {
        /// The byte.
        byte: u8,
        /// Its place in the text behind the comma, from 0.
        place: usize,
    },
    /// A text whose end is not that of base64.
    #[error("the picture's base64 of {letters} letters does not end as base64 does: 4 letters a group, filled with =")]
    Base64End {
        /// Letters behind the comma.
        letters: usize,
    },
    /// The file has no bytes.
    #[error("the picture has 0 bytes")]
    Empty,
    /// The file is too long.
    #[error("the picture's file has {bytes} bytes, at most {most} are read")]
    EncodedBytes {
        /// Bytes of the file.
        bytes: usize,
        /// Limit.
        most: usize,
    },
    /// The file is of no kind that is known here.
    #[error("the file is no PNG, JPEG or WebP picture: it begins `{begins}`")]
    NoPicture {
        /// Its first bytes.
        begins: String,
    },
    /// The file is of a kind that is not read.
    #[error("{kind} is not read: send PNG, JPEG or WebP")]
    Refused {
        /// Name of the kind.
        kind: &'static str,
    },
    /// The declared type is not the file's.
    #[error("the picture is declared as `{declared}`, but its bytes are {found}")]
    Declared {
        /// Media type of the request.
        declared: String,
        /// Kind of the file.
        found: Kind,
    },
    /// The picture has several frames.
    #[error("the {kind} picture is an animation: send one frame")]
    Animated {
        /// Kind of the file.
        kind: Kind,
    },
    /// A side is too long, or is 0.
    #[error("the picture has {width} x {height} pixels, a side has 1 to {most}")]
    Side {
        /// Width of its header.
        width: u32,
        /// Height of its header.
        height: u32,
        /// Limit of a side.
        most: u32,
    },
    /// The picture has too many pixels.
    #[error("the picture has {width} x {height} = {pixels} pixels, at most {most} are read")]
    Pixels {
        /// Width of its header.
        width: u32,
        /// Height of its header.
        height: u32,
        /// Their product.
        pixels: u64,
        /// Limit.
        most: u64,
    },
    /// The decoded picture would take too much memory, as large 16-bit ones do.
    #[error("the picture takes {bytes} bytes when decoded, at most {most} are given")]
    Memory {
        /// Bytes of its samples.
        bytes: u64,
        /// Limit.
        most: u64,
    },
    /// The picture is too narrow for the model.
    #[error("the picture has {width} x {height} pixels: one side is more than {most} times the other")]
    Aspect {
        /// Width.
        width: u32,
        /// Height.
        height: u32,
        /// Largest quotient of the sides.
        most: u32,
    },
    /// The file ends early.
    #[error("the {kind} picture ends early: of {what} at least {wanted} bytes are stated, {bytes} are there")]
    Truncated {
        /// Kind of the file.
        kind: Kind,
        /// Part of the file that is not whole.
        what: &'static str,
        /// Bytes up to the end that the part states.
        wanted: u64,
        /// Bytes of the file.
        bytes: u64,
    },
    /// Parts of the file contradict each other.
    #[error("the WebP picture states {canvas_width} x {canvas_height} pixels, its frame {width} x {height}")]
    Frame {
        /// Width in the file's header.
        canvas_width: u32,
        /// Height in the file's header.
        canvas_height: u32,
        /// Width of the frame.
        width: u32,
        /// Height of the frame.
        height: u32,
    },
    /// The decoder refuses the file.
    #[error("the {kind} picture cannot be decoded: {what}")]
    Decoder {
        /// Kind of the file.
        kind: Kind,
        /// Message of the decoder.
        what: String,
    },
    /// The decoder panicked.
    #[error("the {kind} picture cannot be decoded: the decoder failed with `{what}`")]
    Panic {
        /// Kind of the file.
        kind: Kind,
        /// Message of the panic.
        what: String,
    },
    /// The model's rules contradict themselves.
    #[error("the model's rules for pictures do not hold: {what}")]
    Rules {
        /// The rule, with its numbers.
        what: String,
    },
}

/// The first characters of a request's text, in one line.
pub(crate) fn quoted(text: &str) -> String {
    let mut characters = text.chars().flat_map(char::escape_debug);
    let mut shown: String = characters.by_ref().take(QUOTED_CHARACTERS).collect();
    if characters.next().is_some() {
        shown.push_str("..");
    }
    shown
}
