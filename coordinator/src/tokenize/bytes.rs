//! The bytes that a token stands for by itself: a part of a character has some, and no text.

use tokenizers::Tokenizer;

/// Representation of bytes in a vocabulary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Writing {
    /// Every character of a token stands for a byte (GPT-2).
    Letters,
    /// Tokens are text with `\u{2581}` for a space, and `<0x0A>` for a byte (SentencePiece).
    Hexadecimal,
    /// Tokens are words: their bytes depend on their neighbours.
    Words,
}

/// Representation of bytes in a tokenizer's vocabulary, by its decoder.
pub(super) fn writing(tokenizer: &Tokenizer) -> Writing {
    let decoder = tokenizer.get_decoder().and_then(|decoder| serde_json::to_string(decoder).ok()).unwrap_or_default();
    if decoder.contains("\"ByteLevel\"") {
        Writing::Letters
    } else if decoder.contains("\"ByteFallback\"") {
        Writing::Hexadecimal
    } else {
        Writing::Words
    }
}

/// The bytes of a token in this representation.
pub(super) fn of_token(token: &str, writing: Writing) -> Option<Vec<u8>> {
    match writing {
        Writing::Letters => token.chars().map(of_letter).collect(),
        Writing::Hexadecimal => {
            let byte = token.strip_prefix("<0x").and_then(|token| token.strip_suffix('>'));
            let byte = byte.filter(|digits| digits.len() == 2).and_then(|digits| u8::from_str_radix(digits, 16).ok());
            Some(byte.map_or_else(|| token.replace('\u{2581}', " ").into_bytes(), |byte| vec![byte]))
        }
        Writing::Words => None,
    }
}

/// The byte that a character stands for: itself if it is printable, else one of the characters from
/// U+0100 on, in the order of the bytes.
fn of_letter(letter: char) -> Option<u8> {
    let is_itself = |byte: u8| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    let code = u32::from(letter);
    if let Ok(byte) = u8::try_from(code) {
        return is_itself(byte).then_some(byte);
    }
    let place = usize::try_from(code.checked_sub(256)?).ok()?;
    (0..=255).filter(|&byte| !is_itself(byte)).nth(place)
}
