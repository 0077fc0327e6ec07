//! Numbers of bytes as people write and read them, such as `256MiB`.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

use crate::error::Error;

/// Bytes of a KiB.
pub const KIB: u64 = 1 << 10;
/// Bytes of a MiB.
pub const MIB: u64 = 1 << 20;
/// Bytes of a GiB.
pub const GIB: u64 = 1 << 30;
/// Bytes of a TiB.
pub const TIB: u64 = 1 << 40;

/// The binary units, the largest first.
const BINARY: [(&str, u64); 4] = [("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)];

/// The units of other kinds that are read.
const OTHERS: [(&str, u64); 5] =
    [("B", 1), ("kB", 1_000), ("MB", 1_000_000), ("GB", 1_000_000_000), ("TB", 1_000_000_000_000)];

/// A number of bytes. It is printed exactly, in the largest binary unit that divides it; in JSON it
/// is the number.
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
        match BINARY.iter().find(|(_, bytes)| self.0 > 0 && self.0.is_multiple_of(*bytes)) {
            Some((unit, bytes)) => write!(f, "{} {unit}", self.0 / bytes),
            None => write!(f, "{} B", self.0),
        }
    }
}

impl FromStr for Size {
    type Err = Error;

    /// Reads a whole number and a unit, with or without space between them; a number alone means
    /// bytes.
    fn from_str(text: &str) -> Result<Self, Error> {
        let trimmed = text.trim();
        let digits = trimmed.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = trimmed.split_at(digits);
        let unit = if unit.is_empty() { "B" } else { unit.trim_start() };
        let factor = OTHERS.iter().chain(BINARY.iter().rev()).find(|(name, _)| *name == unit).map(|(_, bytes)| *bytes);
        let bytes = factor.and_then(|factor| number.parse::<u64>().ok()?.checked_mul(factor));
        bytes.map(Self).ok_or_else(|| Error::Size { text: text.to_owned(), units: units() })
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.0)
    }
}

/// Bytes for a reader, with one decimal of the largest binary unit that they reach, such as
/// `1.5 GiB`.
pub fn rounded(bytes: u64) -> String {
    match BINARY.iter().find(|(_, unit_bytes)| bytes >= *unit_bytes) {
        Some((unit, unit_bytes)) => format!("{:.1} {unit}", bytes as f64 / *unit_bytes as f64),
        None => format!("{bytes} B"),
    }
}

/// The units of sizes, for a message.
fn units() -> String {
    let names: Vec<&str> = OTHERS.iter().chain(BINARY.iter().rev()).map(|(name, _)| *name).collect();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_written() {
        let table = [
            ("1MiB", MIB, "1 MiB"),
            ("256MiB", 256 * MIB, "256 MiB"),
            ("2 GiB", 2 * GIB, "2 GiB"),
            ("3TiB", 3 * TIB, "3 TiB"),
            ("1536KiB", 1536 * KIB, "1536 KiB"),
            ("1GB", 1_000_000_000, "1000000000 B"),
            ("4", 4, "4 B"),
            ("13B", 13, "13 B"),
            ("0", 0, "0 B"),
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
            let error = text.parse::<Size>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("`{text}` is not a size such as 256MiB; units are B, kB, ")), "{error}");
        }
    }

    #[test]
    fn rounded_bytes_have_units() {
        let table = [(0, "0 B"), (1023, "1023 B"), (KIB, "1.0 KiB"), (3 << 29, "1.5 GiB"), (5 * TIB, "5.0 TiB")];
        for (number, text) in table {
            assert_eq!(rounded(number), text);
        }
    }
}
