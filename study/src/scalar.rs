//! Values of a study's options: lengths such as `8k`, states of the chunk cache, ratios.

use std::str::FromStr;

use tributary_system::token_count;

use crate::schema::Cache;

/// A number of tokens, at least 1: `4096`, `8k` (8192) or `1m`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tokens(pub usize);

impl FromStr for Tokens {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match token_count::parse(text).map_err(|error| error.to_string())? {
            0 => Err(format!("`{text}`: at least 1 token")),
            count => Ok(Self(count)),
        }
    }
}

/// A state of the chunk cache: `cold`, `warm`, `disk`, `disk-dropped`, or the share of chunks that
/// is in it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CacheState(pub Cache);

impl FromStr for CacheState {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "`{text}` is no state of the cache: cold, warm, disk, disk-dropped, or a share of chunks between 0 and 1"
            )
        };
        match text.trim() {
            "cold" => return Ok(Self(Cache::Cold)),
            "warm" => return Ok(Self(Cache::Warm)),
            "disk" => return Ok(Self(Cache::Disk)),
            "disk-dropped" => return Ok(Self(Cache::DiskDropped)),
            _ => {}
        }
        match text.trim().parse::<f64>().map_err(|_| wrong())? {
            0.0 => Ok(Self(Cache::Cold)),
            1.0 => Ok(Self(Cache::Warm)),
            share if share > 0.0 && share < 1.0 => Ok(Self(Cache::Partial(share))),
            _ => Err(wrong()),
        }
    }
}

/// A share from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ratio(pub f64);

impl FromStr for Ratio {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let share = text.trim().parse().ok().filter(|share| (0.0..=1.0).contains(share));
        share.map(Self).ok_or_else(|| format!("`{text}` is no ratio: a number from 0 to 1"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_read() {
        for (text, tokens) in [("4096", 4096), ("8k", 8192), ("1M", 1 << 20), (" 2K ", 2048)] {
            assert_eq!(text.parse(), Ok(Tokens(tokens)), "{text}");
        }
        for text in ["", "0", "k", "-1", "1.5k", "8kb", "99999999999999999999", "99999999999999999m"] {
            assert!(text.parse::<Tokens>().is_err(), "{text}");
        }
    }

    #[test]
    fn states_of_the_cache_are_read() {
        let table = [("cold", Cache::Cold), ("0", Cache::Cold), ("0.5", Cache::Partial(0.5)), ("1", Cache::Warm)];
        for (text, cache) in table.into_iter().chain([("warm", Cache::Warm)]) {
            assert_eq!(text.parse(), Ok(CacheState(cache)), "{text}");
        }
        for text in ["", "hot", "-0.1", "1.1", "NaN"] {
            assert!(text.parse::<CacheState>().is_err(), "{text}");
        }
    }

    #[test]
    fn ratios_are_shares() {
        assert_eq!("0.15".parse(), Ok(Ratio(0.15)));
        for text in ["1.01", "-0.1", "NaN", "x"] {
            assert!(text.parse::<Ratio>().is_err(), "{text}");
        }
    }
}
