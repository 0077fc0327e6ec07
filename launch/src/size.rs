//! Sizes of memory and messages with their units, such as `256MiB`.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

/// Bytes of a value that is sent: sizes are whole numbers of them.
pub const VALUE_BYTES: u64 = 4;

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

/// Bytes with a unit and one decimal, such as `1.5 GiB`.
pub fn bytes(count: u64) -> String {
    for (unit, unit_bytes) in [("TiB", 1u64 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)] {
        if count >= unit_bytes {
            return format!("{:.1} {unit}", count as f64 / unit_bytes as f64);
        }
    }
    format!("{count} B")
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn bytes_have_units() {
        let table = [(0, "0 B"), (1023, "1023 B"), (1 << 10, "1.0 KiB"), (3 << 29, "1.5 GiB"), (5 << 40, "5.0 TiB")];
        for (number, text) in table {
            assert_eq!(bytes(number), text);
        }
    }
}
