//! A suite of the user's own: a file of rows, each with its context, question, references and
//! metric.

use std::path::Path;

use serde::Deserialize;

use crate::cut::{Run, TEXT_CHUNK_TOKENS, chunks, document, sentences};
use crate::design::{Asked, chosen};
use crate::error::{Error, Result};
use crate::score::Metric;
use crate::suite::{Cell, Measure, Sample, Scoring, Suite};

/// A row. One of documents, chunks and context is there.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    #[serde(default)]
    documents: Option<Vec<String>>,
    #[serde(default)]
    chunks: Option<Vec<String>>,
    #[serde(default)]
    context: Option<String>,
    question: String,
    references: Vec<String>,
    metric: String,
    max_tokens: usize,
    #[serde(default)]
    task: Option<String>,
    #[serde(default)]
    id: Option<serde_json::Value>,
    #[serde(default)]
    lead: String,
    #[serde(default)]
    answer_begins: String,
    #[serde(default)]
    classes: Vec<String>,
    #[serde(default)]
    first_line: bool,
}

/// Form of a context.
#[derive(Clone)]
enum Context {
    /// Runs, cut where they are too long.
    Runs(Vec<Run>),
    /// Chunks, taken unchanged.
    Chunks(Vec<String>),
    /// One text.
    Text(Vec<Run>),
}

/// A row that is checked.
struct Checked {
    task: String,
    row: Row,
    context: Context,
    metric: Metric,
}

/// The rows of a file.
struct Own {
    file: String,
    tasks: Vec<String>,
    rows: Vec<Checked>,
    chunk_tokens: Option<usize>,
}

/// Whether a suite's name is that of a file of rows.
pub fn is_file(suite: &str) -> bool {
    suite.ends_with(".jsonl")
}

/// The suite as it was asked for.
///
/// # Errors
/// Returns an error if the file cannot be read or has no rows, if a task is unknown, or if a row
/// lacks something, with its line and field.
pub fn open(asked: &Asked) -> Result<Box<dyn Suite>> {
    let file = asked.suite.clone();
    let text = std::fs::read_to_string(&file).map_err(|error| Error::usage(format!("--suite {file}: {error}")))?;
    let own = Path::new(&file).file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let read = |(index, line): (usize, &str)| {
        check(line, &own).map_err(|cause| Error::usage(format!("{file}, line {}: {cause}", index + 1)))
    };
    let rows: Vec<Checked> = lines.map(read).collect::<Result<_>>()?;
    let mut known: Vec<String> = Vec::new();
    for row in &rows {
        if !known.contains(&row.task) {
            known.push(row.task.clone());
        }
    }
    if rows.is_empty() {
        return Err(Error::usage(format!("--suite {file}: it has no rows")));
    }
    let tasks = chosen(&file, &asked.tasks, &known)?;
    Ok(Box::new(Own { file, tasks, rows, chunk_tokens: asked.chunk_tokens.first().copied() }))
}

/// A row, or the error in it.
fn check(line: &str, own_task: &str) -> std::result::Result<Checked, String> {
    let row: Row = serde_json::from_str(line).map_err(|error| error.to_string().replace('\n', " "))?;
    let is_empty = |texts: &[String]| texts.iter().position(|text| text.trim().is_empty());
    let full = |name: &str, texts: &[String]| match (texts.is_empty(), is_empty(texts)) {
        (true, _) => Err(format!("`{name}`: there must be one at least")),
        (_, Some(index)) => Err(format!("`{name}`: number {} is empty", index + 1)),
        _ => Ok(()),
    };
    let context = match (&row.documents, &row.chunks, &row.context) {
        (Some(documents), None, None) => {
            full("documents", documents)?;
            Context::Runs(documents.iter().flat_map(|text| document(text)).collect())
        }
        (None, Some(chunks), None) => {
            full("chunks", chunks)?;
            Context::Chunks(chunks.clone())
        }
        (None, None, Some(context)) => {
            full("context", std::slice::from_ref(context))?;
            Context::Text(sentences(context).into_iter().map(Run::new).collect())
        }
        (None, None, None) => return Err("missing field `documents`, `chunks` or `context`".to_owned()),
        _ => return Err("one of `documents`, `chunks` and `context`, not several".to_owned()),
    };
    full("question", std::slice::from_ref(&row.question))?;
    full("references", &row.references)?;
    let metric = Metric::by_name(&row.metric).ok_or_else(|| {
        let known = Metric::ALL.map(Metric::name).join(", ");
        format!("`metric`: {} is none of {known}", row.metric)
    })?;
    if metric == Metric::Classification && row.classes.is_empty() {
        return Err("`classes`: a classification needs all that there are".to_owned());
    }
    if row.max_tokens == 0 {
        return Err("`max_tokens`: must be at least 1".to_owned());
    }
    let task = row.task.clone().unwrap_or_else(|| own_task.to_owned());
    Ok(Checked { task, row, context, metric })
}

impl Own {
    fn of<'a>(&'a self, cell: &'a Cell) -> impl Iterator<Item = &'a Checked> {
        self.rows.iter().filter(|row| row.task == cell.task)
    }
}

impl Suite for Own {
    fn made_of(&self) -> Vec<String> {
        vec![format!("rows of {}", self.file)]
    }

    fn cells(&self) -> Vec<Cell> {
        self.tasks.iter().map(|task| Cell::of(task)).collect()
    }

    fn most_samples(&self, cell: &Cell) -> Option<usize> {
        Some(self.of(cell).count())
    }

    fn sample(&self, cell: &Cell, number: usize, measure: &Measure<'_>) -> Result<Sample> {
        let Checked { row, context, metric, .. } = self.of(cell).nth(number).expect("a row of this number");
        let chunks = match context {
            Context::Runs(runs) => chunks(runs, self.chunk_tokens, measure)?,
            Context::Text(runs) => chunks(runs, self.chunk_tokens.or(Some(TEXT_CHUNK_TOKENS)), measure)?,
            Context::Chunks(chunks) => chunks.clone(),
        };
        let name = |id: &serde_json::Value| id.as_str().map_or_else(|| id.to_string(), str::to_owned);
        Ok(Sample {
            lead: row.lead.clone(),
            chunks,
            pages: Vec::new(),
            query: row.question.clone(),
            begun: row.answer_begins.clone(),
            uses_template: true,
            scoring: Scoring {
                classes: row.classes.clone(),
                first_line: row.first_line,
                ..Scoring::new(*metric, row.references.clone())
            },
            answer_tokens: row.max_tokens,
            id: row.id.as_ref().map(name),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::count_words;

    const REST: &str = "\"question\": \"Who?\", \"references\": [\"me\"], \"metric\": \"qa_f1\", \"max_tokens\": 4";

    /// Opens a file of these rows.
    fn opened(rows: &[&str], chunk_tokens: Option<usize>, tasks: &[&str]) -> Result<Box<dyn Suite>> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("mine.jsonl");
        std::fs::write(&file, rows.join("\n")).unwrap();
        let tasks = tasks.iter().map(|task| (*task).to_owned()).collect();
        open(&Asked {
            suite: file.display().to_string(),
            tasks,
            chunk_tokens: chunk_tokens.into_iter().collect(),
            ..Asked::default()
        })
    }

    #[test]
    fn rows_are_requests() {
        let rows = [
            format!("{{\"documents\": [\"A b. C d.\", \"E f.\"], \"id\": 7, {REST}}}"),
            format!("{{\"chunks\": [\"A b c\", \"d e f\"], \"task\": \"other\", \"lead\": \"L\", {REST}}}"),
            format!("{{\"context\": \"A b. C d. E f.\", \"answer_begins\": \" It is\", {REST}}}"),
        ];
        let suite = opened(&rows.each_ref().map(String::as_str), Some(2), &[]).unwrap();
        let measure = Measure::new(&count_words);
        let of = |task: &str, number| suite.sample(&Cell::of(task), number, &measure).unwrap();
        assert_eq!(suite.cells(), [Cell::of("mine"), Cell::of("other")]);
        assert_eq!(suite.most_samples(&Cell::of("mine")), Some(2));
        assert_eq!(
            (of("mine", 0).chunks, of("mine", 0).id.as_deref()),
            (["A b.", " C d.", "E f."].map(str::to_owned).to_vec(), Some("7"))
        );
        assert_eq!(
            (of("other", 0).chunks, of("other", 0).lead.as_str()),
            (["A b c", "d e f"].map(str::to_owned).to_vec(), "L")
        );
        assert_eq!(
            (of("mine", 1).chunks.len(), of("mine", 1).begun.as_str(), of("mine", 1).answer_tokens),
            (3, " It is", 4)
        );
        assert_eq!(of("mine", 0).scoring.score("it is me"), 0.5);
        let one = opened(&[&rows[0]], None, &[]).unwrap();
        assert_eq!(one.sample(&Cell::of("mine"), 0, &measure).unwrap().chunks, ["A b. C d.", "E f."]);
        assert_eq!(opened(&[&rows[0], &rows[1]], None, &["other"]).unwrap().cells(), [Cell::of("other")]);
    }

    #[test]
    fn what_a_row_lacks_is_said_with_its_line() {
        let good = format!("{{\"context\": \"A.\", {REST}}}");
        let said = |row: &str| opened(&[&good, "", row], None, &[]).err().expect("refused").to_string();
        let without =
            |field: &str| REST.split(", ").filter(|part| !part.contains(field)).collect::<Vec<_>>().join(", ");
        for field in ["question", "references", "metric", "max_tokens"] {
            let text = said(&format!("{{\"context\": \"A.\", {}}}", without(field)));
            assert!(text.contains(&format!("mine.jsonl, line 3: missing field `{field}`")), "{text}");
        }
        assert!(said(&format!("{{{REST}}}")).contains("line 3: missing field `documents`, `chunks` or `context`"));
        assert!(said(&format!("{{\"chunks\": [], {REST}}}")).contains("`chunks`: there must be one"));
        assert!(said(&format!("{{\"documents\": [\"a\", \" \"], {REST}}}")).contains("`documents`: number 2 is empty"));
        assert!(said(&format!("{{\"context\": \"A.\", \"chunks\": [\"a\"], {REST}}}")).contains("not several"));
        assert!(said(&good.replace("qa_f1", "bleu")).contains("`metric`: bleu is none of qa_f1, rouge_l"));
        assert!(said(&good.replace("qa_f1", "classification")).contains("`classes`"));
        assert!(said(&good.replace(": 4", ": 0")).contains("`max_tokens`"));
        assert!(said(&good.replace("context", "contexts")).contains("unknown field `contexts`"));
        assert!(opened(&[], None, &[]).err().unwrap().to_string().contains("it has no rows"));
        assert!(opened(&[&good], None, &["x"]).err().unwrap().to_string().contains("--tasks x: unknown"));
        let missing = Asked { suite: "/nowhere/a.jsonl".to_owned(), ..Asked::default() };
        assert!(open(&missing).err().unwrap().to_string().starts_with("--suite /nowhere/a.jsonl: No such file"));
    }
}
