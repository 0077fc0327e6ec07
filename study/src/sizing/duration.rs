//! Durations as people write them: `1s`, `800ms`, `2m`.

/// Units by their names, with their seconds. A name precedes others that are its ending.
const UNITS: [(&str, f64); 3] = [("ms", 1e-3), ("s", 1.0), ("m", 60.0)];

/// The longest duration: a day.
const LONGEST_S: f64 = 86_400.0;

/// Reads a duration above nothing, in seconds.
///
/// # Errors
/// Returns one line if the text is no duration, or one that is longer than anybody would wait.
pub fn seconds(text: &str) -> Result<f64, String> {
    let wrong = || format!("`{text}` is no duration above 0 and up to a day, such as 1s, 800ms or 2m");
    let unit = UNITS.iter().find_map(|(name, unit_s)| Some((text.trim().strip_suffix(name)?, unit_s)));
    let (number, unit_s) = unit.ok_or_else(wrong)?;
    let is_plain = number.trim_end().bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let value = number.trim_end().parse::<f64>().ok().filter(|_| is_plain).ok_or_else(wrong)?;
    Some(value * unit_s).filter(|&seconds| seconds > 0.0 && seconds <= LONGEST_S).ok_or_else(wrong)
}

/// The most requests a second that are asked about.
const HIGHEST_RATE: f64 = 1e6;

/// Reads a number of requests a second.
///
/// # Errors
/// Returns one line if the text is no number above 0, or one that is larger than any deployment
/// has.
pub fn rate(text: &str) -> Result<f64, String> {
    let found = text.trim().parse::<f64>().ok().filter(|&rate| rate > 0.0 && rate <= HIGHEST_RATE);
    found.ok_or_else(|| format!("`{text}` is no number of requests a second above 0 and up to a million"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read() {
        let table =
            [("1s", 1.0), ("800ms", 0.8), (" 1.5 s", 1.5), ("2m", 120.0), ("0.5ms", 0.0005), ("86400s", LONGEST_S)];
        for (text, wanted) in table {
            assert_eq!(seconds(text), Ok(wanted), "{text}");
        }
        for wrong in ["", "1", "s", "0s", "-1s", "1h", "1e3s", "NaNs", "infs", "1..s", "86401s", "1 s s"] {
            let error = seconds(wrong).unwrap_err();
            assert!(error.starts_with(&format!("`{wrong}` is no duration")), "{error}");
        }
    }

    #[test]
    fn rates_are_read() {
        assert_eq!([rate("4"), rate("0.25"), rate("1e6")], [Ok(4.0), Ok(0.25), Ok(1e6)]);
        for wrong in ["", "0", "-1", "NaN", "inf", "four", "2e6"] {
            assert!(rate(wrong).is_err(), "{wrong}");
        }
    }
}
