//! Suggestions for mistyped names.

/// The nearest name, as part of a message.
pub fn nearest<'a>(found: &str, names: impl Iterator<Item = &'a str>) -> String {
    let near = names.map(|name| (strsim::osa_distance(found, name), name)).min();
    near.filter(|(distance, _)| *distance <= 2).map_or_else(String::new, |(_, name)| format!(" (`{name}`?)"))
}
