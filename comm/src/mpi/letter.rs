//! A letter from one rank to another: a head, and for calls a body in pieces after it.

use tributary_protocol::{Word, checksum, encode_frame};

use super::body::Body;
use crate::Result;
use crate::group::call::Call;
use crate::group::liveness::Activity;

/// The longest head; a longer one is damaged.
pub const HEAD_LIMIT_BYTES: usize = 1 << 20;

/// The most of a text that goes in one letter, so that it needs no room at the receiver to leave.
const TEXT_LIMIT_BYTES: usize = 1500;

/// MPI's tags. Between two ranks messages stay in order, for all tags; urgent ones among
/// themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A part of a call: a [`Head`].
    Call = 1,
    /// A piece of the last call's body.
    Piece = 2,
    /// The group is dead: cause and exit code.
    Abort = 3,
    /// The sender has left in peace.
    Farewell = 4,
    /// A sign of life: the sender's activity.
    Beat = 5,
    /// The sender has come to a control point: its number.
    Point = 6,
    /// The word of a control point, from rank 0: its number and the word.
    Word = 7,
}

const KINDS: [Kind; 7] = [Kind::Call, Kind::Piece, Kind::Abort, Kind::Farewell, Kind::Beat, Kind::Point, Kind::Word];

impl Kind {
    /// Whether it overtakes calls.
    pub fn is_urgent(self) -> bool {
        matches!(self, Kind::Abort | Kind::Beat | Kind::Point | Kind::Word)
    }

    pub fn from_tag(tag: i32) -> Option<Self> {
        KINDS.into_iter().find(|kind| *kind as i32 == tag)
    }
}

/// The head that goes before a call's body.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Head {
    pub sequence: u64,
    pub call: Call,
    pub body_bytes: u64,
    /// CRC-32 of a body that is a message; the head is framed, so that it guards the body too. None
    /// for tensors.
    pub body_checksum: Option<u32>,
}

/// A message to be sent.
pub struct Letter {
    pub to: usize,
    pub kind: Kind,
    pub head: Vec<u8>,
    pub body: Body,
}

impl Letter {
    /// A part of a call.
    pub fn call(to: usize, sequence: u64, call: Call, body: Body) -> Result<Self> {
        let body_checksum = body.message().map(|message| checksum(&[message]));
        let head = Head { sequence, call, body_bytes: body.bytes() as u64, body_checksum };
        Ok(Self { to, kind: Kind::Call, head: encode_frame(&head)?, body })
    }

    /// The group's end.
    pub fn abort(to: usize, cause: &str, exit_code: u8) -> Self {
        let head = encode_frame(&(short(cause), exit_code)).expect("a short text fits a frame");
        Self { to, kind: Kind::Abort, head, body: Body::None }
    }

    /// A sign of life.
    pub fn beat(to: usize, activity: &Activity) -> Self {
        let head = encode_frame(activity).expect("a list of ranks fits a frame");
        Self { to, kind: Kind::Beat, head, body: Body::None }
    }

    /// This rank has come to a control point.
    pub fn point(to: usize, number: u64) -> Self {
        let head = encode_frame(&number).expect("a number fits a frame");
        Self { to, kind: Kind::Point, head, body: Body::None }
    }

    /// The word of a control point.
    pub fn word(to: usize, number: u64, word: Word) -> Self {
        let head = encode_frame(&(number, word)).expect("a number and a word fit a frame");
        Self { to, kind: Kind::Word, head, body: Body::None }
    }

    /// A letter that says all by its kind.
    pub fn bare(to: usize, kind: Kind) -> Self {
        Self { to, kind, head: vec![0], body: Body::None }
    }
}

fn short(text: &str) -> String {
    let mut end = text.len().min(TEXT_LIMIT_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cut_at_characters() {
        assert_eq!(short("short"), "short");
        assert_eq!(short(&"é".repeat(1000)).len(), TEXT_LIMIT_BYTES);
        assert_eq!(short(&format!("a{}", "é".repeat(1000))).len(), TEXT_LIMIT_BYTES - 1);
    }

    #[test]
    fn kinds_are_known_by_their_tags() {
        for kind in KINDS {
            assert_eq!(Kind::from_tag(kind as i32), Some(kind));
        }
        assert_eq!(Kind::from_tag(0), None);
    }
}
