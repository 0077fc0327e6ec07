//! The text of an answer as its client gets it: whole characters, cut at a stop text, with
//! log-probabilities where they were asked for.

use std::ops::Range;

use tributary_coordinator::harmony::Headers;
use tributary_engine::{Client, Result, TextStream};
use tributary_protocol::{DrawnToken, Logprobs};

use crate::delivery::Delivery;
use crate::stops::Stops;

/// A part of an answer.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Piece {
    /// Its text.
    pub text: String,
    /// The model's reasoning in it, where that comes apart.
    pub reasoning: String,
    /// Its tokens with their log-probabilities; empty where the request does not ask for them.
    pub tokens: Vec<LikelyToken>,
}

/// A token of an answer, and how likely it was.
#[derive(Debug, Clone, PartialEq)]
pub struct LikelyToken {
    /// The token.
    pub token: TokenText,
    /// Natural logarithm of its probability; none for the first token of a prompt.
    pub logprob: Option<f32>,
    /// The likeliest tokens in its place, and their log-probabilities.
    pub top: Vec<(TokenText, f32)>,
    /// Characters of the answer before it.
    pub offset: usize,
}

impl Piece {
    /// Puts another part after this one.
    pub fn append(&mut self, next: Piece) {
        self.text += &next.text;
        self.reasoning += &next.reasoning;
        self.tokens.extend(next.tokens);
    }
}

/// A token's text, and its own bytes: those of an answer's tokens join to its text.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TokenText {
    /// The text; a part of a character is the replacement character.
    pub text: String,
    /// The bytes.
    pub bytes: Vec<u8>,
}

/// The text of an answer so far.
pub struct Spoken {
    /// Tokens that end it.
    ends: Vec<u32>,
    stream: TextStream,
    /// Reader of its messages' headers, where it has some.
    headers: Option<Headers>,
    stops: Stops,
    /// Tokens whose text has not been given out, or not all of it, and the bytes of the text that
    /// are theirs.
    held: Vec<(Range<usize>, LikelyToken)>,
    /// Bytes and characters of text that have come, and bytes that have been given out.
    come: usize,
    characters: usize,
    given: usize,
    /// Tokens that have been taken, the one that ends the answer among them.
    pub tokens: usize,
    /// Whether a stop text has ended it.
    pub is_stopped: bool,
}

impl Spoken {
    /// An answer with this delivery, after a prompt's last tokens. It begins after `characters`
    /// characters, those of a prompt that it repeats.
    pub fn new(client: &Client, after: &[u32], delivery: &Delivery, characters: usize) -> Self {
        let stops = Stops::new(delivery.stops.clone(), delivery.keeps_stop);
        let (stream, held, ends) = (client.text_stream(after), Vec::new(), delivery.ends.clone());
        let headers = None;
        Self { ends, stream, headers, stops, held, come: 0, characters, given: 0, tokens: 0, is_stopped: false }
    }

    /// The same without the headers of messages.
    pub fn without(self, headers: Option<Headers>) -> Self {
        Self { headers, ..self }
    }

    /// Takes a token; gives the text that can go out. No text follows a stop text.
    ///
    /// # Errors
    /// Returns an error if the tokenizer fails.
    pub fn push(&mut self, drawn: &DrawnToken) -> Result<Option<Piece>> {
        if self.is_stopped {
            return Ok(None);
        }
        self.tokens += 1;
        if self.ends.contains(&drawn.token) {
            return Ok(None);
        }
        let likely = drawn.logprobs.as_ref().map(|logprobs| self.likely(drawn.token, logprobs)).transpose()?;
        let text = self.completed(drawn.token)?;
        let span = self.come..self.come + text.len();
        (self.come, self.characters) = (span.end, self.characters + text.chars().count());
        self.held.extend(likely.map(|likely| (span, likely)));
        let (text, stopped) = self.stops.push(&text);
        Ok(self.give(text, stopped))
    }

    /// The rest, when the last token has come.
    pub fn rest(&mut self) -> Option<Piece> {
        if self.is_stopped {
            return None;
        }
        let mut rest = self.stream.rest();
        if let Some(headers) = &mut self.headers {
            rest = headers.text(&rest) + &headers.rest();
        }
        let (mut text, stopped) = self.stops.push(&rest);
        if !stopped {
            text += &self.stops.rest();
            // A part of a character that never was completed has its text here.
            self.held.iter_mut().for_each(|(span, _)| *span = 0..0);
        }
        self.give(text, stopped)
    }

    /// The text that a token completes, without headers.
    fn completed(&mut self, token: u32) -> Result<String> {
        let Some(headers) = &mut self.headers else { return self.stream.push(token) };
        if !headers.is_mark(token) {
            return Ok(headers.text(&self.stream.push(token)?));
        }
        // An incomplete character belongs to the text before the mark.
        let text = headers.text(&self.stream.rest());
        headers.take(token);
        Ok(text)
    }

    fn give(&mut self, text: String, stopped: bool) -> Option<Piece> {
        self.is_stopped = stopped;
        self.given += text.len();
        // A token with a part before the stop text belongs to the answer.
        let belongs = |span: &Range<usize>| span.end <= self.given || (stopped && span.start < self.given);
        let given = self.held.iter().take_while(|(span, _)| belongs(span)).count();
        let tokens: Vec<LikelyToken> = self.held.drain(..given).map(|(_, token)| token).collect();
        if stopped {
            self.held.clear();
        }
        (!text.is_empty() || !tokens.is_empty()).then_some(Piece { text, reasoning: String::new(), tokens })
    }

    fn likely(&self, token: u32, logprobs: &Logprobs) -> Result<LikelyToken> {
        let top = logprobs.top.iter().map(|&(id, logprob)| Ok((self.text_of(id)?, logprob)));
        let (token, offset) = (self.text_of(token)?, self.characters);
        Ok(LikelyToken { token, logprob: Some(logprobs.drawn), top: top.collect::<Result<_>>()?, offset })
    }

    fn text_of(&self, token: u32) -> Result<TokenText> {
        match self.stream.bytes_of(token) {
            Some(bytes) => Ok(TokenText { text: String::from_utf8_lossy(&bytes).into_owned(), bytes }),
            None => {
                let text = self.stream.would_bring(token)?;
                Ok(TokenText { bytes: text.clone().into_bytes(), text })
            }
        }
    }
}
