//! Lists of lengths as text, and the numbers of tokens that a forecast takes.

use std::str::FromStr;

use tributary_system::token_count;

/// The most lengths in a list.
const LENGTH_LIMIT: usize = 32;

/// Maximum number of tokens: beyond every model.
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
    match token_count::parse(text).map_err(|error| error.to_string())? {
        count if count <= TOKEN_LIMIT => Ok(count),
        _ => Err(format!("`{text}`: at most {} tokens", token_count::short(TOKEN_LIMIT))),
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
        assert_eq!("17m".parse::<Lengths>(), Err("`17m`: at most 16m tokens".to_owned()));
        assert_eq!((tokens_or_none("0"), tokens("0")), (Ok(0), Err("`0`: at least 1 token".to_owned())));
    }
}
