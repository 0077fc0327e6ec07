//! The metrics in the text format OpenMetrics 1.0: descriptions name counters without `_total`, and
//! an end mark follows.

/// The form of that text.
pub const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Prometheus' text in that form.
pub fn openmetrics(text: &str) -> String {
    let mut counters: Vec<&str> = Vec::new();
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("# TYPE ").and_then(|rest| rest.strip_suffix(" counter")) {
            counters.push(name);
        }
    }
    let mut out = String::with_capacity(text.len() + 16);
    for line in text.lines().filter(|line| !line.is_empty()) {
        let described = ["# HELP ", "# TYPE "].into_iter().find_map(|start| Some((start, line.strip_prefix(start)?)));
        match described.and_then(|(start, rest)| Some((start, rest.split_once(' ')?))) {
            Some((start, (name, rest))) if counters.contains(&name) => {
                let family = name.strip_suffix("_total").unwrap_or(name);
                out += &format!("{start}{family} {rest}\n");
            }
            _ => {
                out += line;
                out.push('\n');
            }
        }
    }
    out + "# EOF\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_families_and_the_end_is_told() {
        let text = "# HELP a_total Of a.\n# TYPE a_total counter\na_total{b=\"c d\"} 1\n\n# HELP g Of g.\n# TYPE g gauge\ng 2\n";
        let wanted =
            "# HELP a Of a.\n# TYPE a counter\na_total{b=\"c d\"} 1\n# HELP g Of g.\n# TYPE g gauge\ng 2\n# EOF\n";
        assert_eq!(openmetrics(text), wanted);
    }
}
