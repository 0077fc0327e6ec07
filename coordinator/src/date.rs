//! Moments as text: local time for chat templates that ask for today's date, as Hugging Face's do;
//! UTC for reports.

use chrono::format::{Item, StrftimeItems};
use chrono::{DateTime, Local, Utc};

use crate::error::{Error, Result};

/// Writes a moment, given in seconds after the beginning of 1970, by a `strftime` format.
///
/// # Errors
/// Returns [`Error::Date`] for an unknown mark, or a moment beyond every calendar.
pub fn format(format: &str, unix_s: u64) -> Result<String> {
    written(format, unix_s, |moment, marks| moment.format_with_items(marks.iter()).to_string())
}

/// The same in this machine's own time zone.
///
/// # Errors
/// As [`format()`].
pub fn local(format: &str, unix_s: u64) -> Result<String> {
    written(format, unix_s, |moment, marks| moment.with_timezone(&Local).format_with_items(marks.iter()).to_string())
}

fn written(format: &str, unix_s: u64, write: impl Fn(DateTime<Utc>, &[Item<'_>]) -> String) -> Result<String> {
    let failed = |cause: &'static str| Error::Date { format: format.to_owned(), cause };
    let marks = StrftimeItems::new(format).parse().map_err(|_| failed("it has a mark that strftime does not know"))?;
    let moment = i64::try_from(unix_s).ok().and_then(|seconds| DateTime::from_timestamp(seconds, 0));
    let moment = moment.ok_or_else(|| failed("the clock is beyond the calendar"))?;
    Ok(write(moment, &marks))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_written() {
        let cases = [
            (0, "%Y-%m-%d %H:%M:%S %A", "1970-01-01 00:00:00 Thursday"),
            (951_782_399, "%d %b %Y %H:%M:%S %a", "28 Feb 2000 23:59:59 Mon"),
            (951_782_400, "%e %B %y", "29 February 00"),
            (1_735_689_599, "%d %b %Y, %A", "31 Dec 2024, Tuesday"),
            (1_735_689_599, "%-d %B, %j, %I %p", "31 December, 366, 11 PM"),
            (4_107_542_400, "%Y-%m-%d", "2100-03-01"),
            (951_868_800, "%e/%-m", " 1/3"),
            (0, "100%% – %F", "100% – 1970-01-01"),
        ];
        for (unix_s, pattern, wanted) in cases {
            assert_eq!(format(pattern, unix_s).unwrap(), wanted, "{unix_s}");
        }
    }

    #[test]
    fn local_time_is_that_of_the_machine() {
        let moment = DateTime::from_timestamp(1_735_689_599, 0).unwrap().with_timezone(&Local);
        assert_eq!(local("%F %H:%M:%S %z", 1_735_689_599).unwrap(), moment.format("%F %H:%M:%S %z").to_string());
    }

    #[test]
    fn what_is_no_date_is_refused() {
        for (unix_s, pattern) in [(0, "on %!"), (0, "%"), (u64::MAX, "%Y")] {
            let error = format(pattern, unix_s).unwrap_err().to_string();
            assert!(error.starts_with(&format!("the date `{pattern}`: ")), "{error}");
        }
    }
}
