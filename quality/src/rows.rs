//! Answers that were made elsewhere: a file of lines, each a JSON object with a metric, an answer
//! and its references.

use std::fmt;

use serde::Deserialize;

use crate::score::Metric;

/// Error in a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadLine {
    /// Its number, from 1.
    pub line: usize,
    /// Cause, with the field.
    pub cause: String,
}

impl fmt::Display for BadLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.cause)
    }
}

impl std::error::Error for BadLine {}

/// An answer and how it is scored.
#[derive(Debug, Clone, PartialEq)]
pub struct Scored {
    metric: Metric,
    prediction: String,
    references: Vec<String>,
    classes: Vec<String>,
}

#[derive(Deserialize)]
struct Line {
    metric: String,
    prediction: String,
    references: Vec<String>,
    #[serde(default)]
    classes: Vec<String>,
}

impl Scored {
    /// The answer of a line.
    ///
    /// # Errors
    /// Returns an error if the line is no JSON object, if a field is missing or has the wrong type,
    /// if the metric is unknown, or if a classification has no classes.
    pub fn parse(line: usize, text: &str) -> Result<Self, BadLine> {
        let bad = |cause: String| BadLine { line, cause };
        let Line { metric: name, prediction, references, classes } =
            serde_json::from_str(text).map_err(|error| bad(error.to_string().replace('\n', " ")))?;
        let metric = Metric::by_name(&name).ok_or_else(|| {
            let known = Metric::ALL.map(Metric::name).join(", ");
            bad(format!("`metric`: {name} is none of {known}"))
        })?;
        if references.is_empty() {
            return Err(bad("`references`: there must be one at least".to_owned()));
        }
        if metric == Metric::Classification && classes.is_empty() {
            return Err(bad("`classes`: a classification needs all that there are".to_owned()));
        }
        Ok(Self { metric, prediction, references, classes })
    }

    /// Its score, from 0 to 1.
    pub fn score(&self) -> f64 {
        self.metric.score(&self.prediction, &self.references, &self.classes)
    }
}

/// The scores of a file, one a line; lines of nothing but space are left out.
///
/// # Errors
/// Returns the first bad line.
pub fn scores(text: &str) -> Result<Vec<f64>, BadLine> {
    let lines = text.lines().enumerate().filter(|(_, text)| !text.trim().is_empty());
    lines.map(|(index, text)| Ok(Scored::parse(index + 1, text)?.score())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_has_the_score_of_the_reference_that_suits_it_best() {
        let text = "{\"metric\": \"qa_f1\", \"prediction\": \"Paris\", \"references\": [\"London\", \"paris\"]}\n\n\
             {\"metric\": \"classification\", \"prediction\": \"a food\", \"references\": [\"food\"], \"classes\": [\"food\", \"a\"]}\n";
        assert_eq!(scores(text), Ok(vec![1.0, 0.5]));
    }

    #[test]
    fn what_is_wrong_is_said_with_line_and_field() {
        let of = |line: &str| scores(&format!("\n{line}")).unwrap_err().to_string();
        assert!(of("{\"metric\": \"qa_f1\", \"references\": []}").starts_with("line 2: missing field `prediction`"));
        let unknown = of("{\"metric\": \"bleu\", \"prediction\": \"\", \"references\": [\"\"]}");
        assert!(unknown.contains("bleu") && unknown.contains("rouge_l"), "{unknown}");
        assert!(of("{\"metric\": \"count\", \"prediction\": \"\", \"references\": []}").contains("`references`"));
        let without = "{\"metric\": \"classification\", \"prediction\": \"\", \"references\": [\"\"]}";
        assert!(of(without).contains("`classes`"));
        assert!(of("nothing").starts_with("line 2: "));
    }
}
