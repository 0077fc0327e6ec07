//! The form that most files of `/proc` have: a line a field, with a colon between the field's name
//! and its value (proc(5)).

/// The value of the first field of that name, without the space around it.
pub fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let mut fields = text.lines().filter_map(|line| line.split_once(':'));
    fields.find(|(field, _)| field.trim_end() == name).map(|(_, value)| value.trim())
}

/// The bytes of a field such as `MemTotal: 24000 kB`, whose unit is 1024 bytes.
pub fn field_bytes(text: &str, name: &str) -> Option<u64> {
    let kilobytes: u64 = field(text, name)?.strip_suffix("kB")?.trim().parse().ok()?;
    kilobytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_their_whole_names() {
        let text = "MemTotal:       24000 kB\nMemFree: 1 kB\nmodel name\t: A CPU: 2 GHz \nmodel name\t: B\nHuge: 7\n";
        assert_eq!(field(text, "model name"), Some("A CPU: 2 GHz"));
        assert_eq!(field(text, "model"), None);
        assert_eq!(field_bytes(text, "MemTotal"), Some(24_000 * 1024));
        assert_eq!(field_bytes(text, "MemAvailable"), None);
        assert_eq!(field_bytes(text, "Huge"), None, "no unit");
    }
}
