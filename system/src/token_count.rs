//! Numbers of tokens as people write and read them: `4096`, `8k` (8192) or `1m` (1048576), in
//! either case of the letter.

use crate::error::{Error, Result};

/// Tokens of a unit, the largest first.
const UNITS: [(char, usize); 2] = [('m', 1 << 20), ('k', 1 << 10)];

/// Reads a number of tokens.
///
/// # Errors
/// Returns an error if the text is no such number, or one that is too large.
pub fn parse(text: &str) -> Result<usize> {
    let lower = text.trim().to_ascii_lowercase();
    let with_unit = UNITS.iter().find_map(|&(unit, tokens)| Some((lower.strip_suffix(unit)?, tokens)));
    let (digits, unit_tokens) = with_unit.unwrap_or((&lower, 1));
    let count = digits.parse::<usize>().ok().and_then(|count| count.checked_mul(unit_tokens));
    count.ok_or_else(|| Error::TokenCount { text: text.to_owned() })
}

/// A number of tokens in as few characters as are exact.
pub fn short(tokens: usize) -> String {
    match UNITS.iter().find(|(_, unit_tokens)| tokens > 0 && tokens.is_multiple_of(*unit_tokens)) {
        Some((unit, unit_tokens)) => format!("{}{unit}", tokens / unit_tokens),
        None => tokens.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_tokens_are_read_and_written() {
        let table = [(0, "0"), (512, "512"), (8192, "8k"), (1 << 20, "1m"), (3 << 19, "1536k"), (1000, "1000")];
        for (tokens, text) in table {
            assert_eq!(short(tokens), text);
            assert_eq!(parse(text), Ok(tokens));
        }
        assert_eq!([" 2K ", "1M"].map(parse), [Ok(2048), Ok(1 << 20)]);
        for wrong in ["", "k", "-1", "1.5k", "8kb", "99999999999999999999", "99999999999999999m"] {
            let error = parse(wrong).unwrap_err().to_string();
            assert_eq!(error, format!("`{wrong}` is no number of tokens, such as 4096, 8k or 1m"));
        }
    }
}
