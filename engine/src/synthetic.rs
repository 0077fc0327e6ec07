//! Requests of random tokens, by their shape.

use std::fmt;
use std::str::FromStr;

/// The shape of a request of random tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Synthetic {
    /// Number of chunks.
    pub chunks: usize,
    /// Tokens of each.
    pub chunk_tokens: usize,
    /// Tokens of the query.
    pub query_tokens: usize,
}

impl Synthetic {
    /// Tokens of context and query.
    pub fn tokens(&self) -> usize {
        self.chunks.saturating_mul(self.chunk_tokens).saturating_add(self.query_tokens)
    }
}

impl fmt::Display for Synthetic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}+{}", self.chunks, self.chunk_tokens, self.query_tokens)
    }
}

impl FromStr for Synthetic {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is not CHUNKSxTOKENS[+QUERY], such as 16x512+32");
        let (context, query) = text.split_once('+').unwrap_or((text, "32"));
        let (chunks, tokens) = context.split_once('x').ok_or_else(wrong)?;
        let number = |text: &str| text.parse().ok().filter(|&number: &usize| number > 0).ok_or_else(wrong);
        Ok(Self { chunks: number(chunks)?, chunk_tokens: number(tokens)?, query_tokens: number(query)? })
    }
}
