//! Lists of lengths as they are written, with binary units.

use std::str::FromStr;

/// The most lengths in a list.
const LENGTH_LIMIT: usize = 32;

/// The most tokens that a number may stand for: beyond every model.
const TOKEN_LIMIT: usize = 1 << 24;

/// Context lengths: `8k..1m` (doubling) or `8k,12k,32000`; k is 1024, m its square.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lengths(pub Vec<usize>);

impl FromStr for Lengths {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some((first, last)) = text.split_once("..") else {
            let lengths: Vec<usize> = text.split(',').map(tokens).collect::<Result<_, _>>()?;
            return match lengths.len() {
                count if count > LENGTH_LIMIT => Err(format!("{count} lengths; at most {LENGTH_LIMIT}")),
                _ => Ok(Self(lengths)),
            };
        };
        let (first, last) = (tokens(first)?, tokens(last)?);
        if last < first {
            return Err(format!("`{text}` ends before it begins"));
        }
        let doubled = std::iter::successors(Some(first), |length| length.checked_mul(2));
        Ok(Self(doubled.take_while(|&length| length <= last).collect()))
    }
}

/// A number of tokens, at least 1: `8192`, `8k` or `1m`.
pub fn tokens(text: &str) -> Result<usize, String> {
    match tokens_or_none(text)? {
        0 => Err(format!("`{text}`: at least 1 token")),
        count => Ok(count),
    }
}

/// A number of tokens, which may be 0.
pub fn tokens_or_none(text: &str) -> Result<usize, String> {
    let lower = text.trim().to_ascii_lowercase();
    let (digits, unit) = match lower.strip_suffix('k') {
        Some(digits) => (digits, 1 << 10),
        None => lower.strip_suffix('m').map_or((lower.as_str(), 1), |digits| (digits, 1 << 20)),
    };
    let count = digits.parse::<usize>().ok().and_then(|count| count.checked_mul(unit));
    match count {
        Some(count) if count <= TOKEN_LIMIT => Ok(count),
        Some(_) => Err(format!("`{text}`: at most {} tokens", short(TOKEN_LIMIT))),
        None => Err(format!("`{text}` is no number of tokens, such as 8192, 8k or 1m")),
    }
}

/// Length of a context in as few characters as are exact.
pub fn short(tokens: usize) -> String {
    match tokens {
        tokens if tokens >= 1 << 20 && tokens % (1 << 20) == 0 => format!("{}m", tokens >> 20),
        tokens if tokens >= 1 << 10 && tokens % (1 << 10) == 0 => format!("{}k", tokens >> 10),
        _ => tokens.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lengths(text: &str) -> Vec<usize> {
        text.parse::<Lengths>().unwrap().0
    }

    #[test]
    fn lists_and_ranges_are_read() {
        assert_eq!(lengths("8k"), [8192]);
        assert_eq!(lengths("8k,12000,1M"), [8192, 12_000, 1 << 20]);
        assert_eq!(lengths("8k..64k"), [8192, 16_384, 32_768, 65_536]);
        assert_eq!(lengths("3k..10k"), [3072, 6144]);
        assert_eq!(lengths("8k..1m").len(), 8);
        for wrong in ["", "k", "0", "8k..", "8k..4k", "8q", "-1", "99999999m", "1.5k"] {
            assert!(wrong.parse::<Lengths>().is_err(), "{wrong}");
        }
        for (tokens, text) in [(8192, "8k"), (1 << 20, "1m"), (3 << 19, "1536k"), (1000, "1000")] {
            assert_eq!(short(tokens), text);
            assert_eq!(lengths(text), [tokens]);
        }
    }
}
