//! Choices of what a request does with the sequences of earlier turns of its conversation.

use std::fmt;
use std::str::FromStr;

use tributary_protocol::Plan;

use crate::Error;
use crate::error::setting;

/// What a request of a conversation does with the sequences of earlier ones.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Conversation {
    /// Nothing; its own is not kept.
    #[default]
    Off,
    /// It goes on from one of an exact method. Another method selects anew in each turn.
    Recompute,
    /// It goes on from one, and keeps the selection of the first turn.
    Reuse,
}

impl Conversation {
    const ALL: [Self; 3] = [Self::Reuse, Self::Recompute, Self::Off];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Recompute => "recompute",
            Self::Reuse => "reuse",
        }
    }
}

impl fmt::Display for Conversation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Conversation {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let named = Self::ALL.into_iter().find(|this| this.name() == text);
        named.ok_or_else(|| setting("--conversation", text, "must be reuse, recompute or off"))
    }
}

impl Conversation {
    /// Whether the sequence of a request may stay for later ones, and be gone on from. What an
    /// eviction leaves may not.
    pub(super) fn takes(self, plan: &Plan) -> bool {
        let is_whole = plan.evict.is_none() && plan.look_ahead.is_none();
        // Later requests are compared with its tokens, which say nothing of pixels.
        is_whole
            && !plan.has_pictures()
            && match self {
                Self::Off => false,
                Self::Recompute => plan.is_exact(),
                Self::Reuse => true,
            }
    }
}
