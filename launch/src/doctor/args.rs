//! The options of `doctor`, and sizes with their units.

use std::fmt;
use std::str::FromStr;

use clap::Args;
use serde::{Serialize, Serializer};

/// What is examined, and what is demanded.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Examination")]
pub struct DoctorArgs {
    /// Bus bandwidth that the largest all-gather must reach; below it the exit code is 78 [default: no demand]
    #[arg(long, value_name = "GB/s", value_parser = gigabytes_per_s)]
    pub min_busbw: Option<f64>,
    /// Sizes of the measured all-gathers: bytes that every rank has in the end
    #[arg(long, value_name = "SIZE,..", value_delimiter = ',', default_value = "1MiB,256MiB")]
    pub sizes: Vec<Size>,
    /// Measured runs a size, after two that do not count
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000), default_value_t = 5)]
    pub repeat: u32,
    /// Leave out the checks of the collectives' results
    #[arg(long)]
    pub skip_checks: bool,
    /// Print JSON, every sample included
    #[arg(long)]
    pub json: bool,
}

/// Bytes of a value that is sent: sizes are whole numbers of them.
pub(super) const VALUE_BYTES: u64 = 4;

/// The units a size may have, and their bytes.
const UNITS: [(&str, u64); 7] = [
    ("B", 1),
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
];

/// A number of bytes, a multiple of 4 and at least 4.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(u64);

impl Size {
    /// The bytes.
    pub fn bytes(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (unit, bytes) in [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)] {
            if self.0.is_multiple_of(bytes) {
                return write!(f, "{} {unit}", self.0 / bytes);
            }
        }
        write!(f, "{} B", self.0)
    }
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let trimmed = text.trim();
        let digits = trimmed.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = trimmed.split_at(digits);
        let unit = unit.trim_start();
        let factor = match UNITS.iter().find(|(name, _)| *name == unit) {
            Some((_, factor)) => *factor,
            None if unit.is_empty() => 1,
            None => return Err(wrong(text)),
        };
        let number: u64 = number.parse().map_err(|_| wrong(text))?;
        let bytes = number.checked_mul(factor).ok_or_else(|| wrong(text))?;
        if bytes == 0 || !bytes.is_multiple_of(VALUE_BYTES) {
            return Err(format!("`{text}` is not a multiple of {VALUE_BYTES} bytes above zero"));
        }
        Ok(Self(bytes))
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.0)
    }
}

fn wrong(text: &str) -> String {
    let units: Vec<&str> = UNITS.iter().map(|(name, _)| *name).collect();
    format!("`{text}` is not a size such as 256MiB; units are {}", units.join(", "))
}

/// A bandwidth that can be demanded.
fn gigabytes_per_s(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| number.is_finite() && *number > 0.0);
    number.ok_or_else(|| format!("`{text}` is not a number above zero, such as 40"))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        doctor: DoctorArgs,
    }

    fn parse(arguments: &[&str]) -> Result<DoctorArgs, clap::Error> {
        Cli::try_parse_from([&["doctor"], arguments].concat()).map(|cli| cli.doctor)
    }

    #[test]
    fn sizes_are_read_and_written() {
        let table = [
            ("1MiB", 1 << 20, "1 MiB"),
            ("256MiB", 256 << 20, "256 MiB"),
            ("2 GiB", 2 << 30, "2 GiB"),
            ("1536KiB", 1536 << 10, "1536 KiB"),
            ("1GB", 1_000_000_000, "1000000000 B"),
            ("4", 4, "4 B"),
            ("12B", 12, "12 B"),
        ];
        for (text, bytes, shown) in table {
            let size: Size = text.parse().unwrap();
            assert_eq!(size.bytes(), bytes, "{text}");
            assert_eq!(size.to_string(), shown, "{text}");
            assert_eq!(shown.parse(), Ok(size), "{text}: its own text is read again");
        }
    }

    #[test]
    fn sizes_that_cannot_be_are_refused() {
        for text in ["", "MiB", "1M", "1mib", "-4", "1.5MiB", "many", "99999999999999999999", "99999999999999GiB"] {
            let error = text.parse::<Size>().unwrap_err();
            assert!(error.contains("units are B, kB"), "{text}: {error}");
        }
        for text in ["0", "0MiB", "1", "6B"] {
            let error = text.parse::<Size>().unwrap_err();
            assert!(error.contains("multiple of 4"), "{text}: {error}");
        }
    }

    #[test]
    fn options_have_defaults_and_limits() {
        let args = parse(&[]).unwrap();
        assert_eq!(args.sizes, ["1MiB", "256MiB"].map(|text| text.parse().unwrap()));
        assert_eq!((args.min_busbw, args.repeat, args.skip_checks, args.json), (None, 5, false, false));
        let args = parse(&["--sizes", "4,8KiB", "--min-busbw", "0.5", "--repeat", "9"]).unwrap();
        assert_eq!(args.sizes, ["4B", "8KiB"].map(|text| text.parse().unwrap()));
        assert_eq!((args.min_busbw, args.repeat), (Some(0.5), 9));
        let refused =
            [["--sizes", ""], ["--sizes", "1MiB,"], ["--min-busbw", "0"], ["--min-busbw", "inf"], ["--repeat", "0"]];
        for arguments in refused {
            assert!(parse(&arguments).is_err(), "{arguments:?}");
        }
    }
}
