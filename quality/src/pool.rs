//! Answers of several evaluations as one: parts of a study that ran side by side, and such as were
//! interrupted before they wrote a report. Counted are the requests that every method answered.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use tributary_charts::table::{Layout, cells, table};

use crate::answers::{Answer, read};
use crate::design::labelled;
use crate::error::{Error, Result};
use crate::pooled::pooled_scores;
use crate::render::{differences, interval, pooled};
use crate::statistics;

/// What may differ between parts of one evaluation.
const MAY_DIFFER: [&str; 2] = ["host", "cores"];

/// The reference, and what it is compared with to tell whether a task can show a difference.
const ENDS: [&str; 2] = ["full", "none"];

/// A user's wish.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Wanted {
    /// Methods as they were asked for, beside `full`; all where none is named.
    pub methods: Vec<String>,
    /// Counts only tasks where the score of `full` is at least this much above that of `none`.
    pub least_gap: Option<f64>,
    /// Seed of the intervals.
    pub seed: u64,
}

/// A method and the share of the context that it recomputes.
type Arm = (String, Option<f64>);

/// The answers to a request, by method.
type Answered = Vec<(Arm, Answer)>;

/// Tables of the answers in these folders: scores and divergence by task, and methods beside each
/// other on all requests.
///
/// # Errors
/// Returns an error if a folder is no evaluation, if two are not of the same design, if two
/// prompts of a request differ, if a method has answered nothing, if a gap is asked for without
/// answers of `none`, and if no request is left.
pub fn pool(folders: &[PathBuf], wanted: &Wanted) -> Result<String> {
    same_design(folders)?;
    let (mut arms, mut requests) = (Vec::new(), BTreeMap::new());
    for folder in folders {
        for answer in read(&folder.join("answers.jsonl"))?.0 {
            let arm = (answer.method.clone(), answer.ratio);
            let is_wanted = |name: &String| *name == answer.method || *name == labelled(&answer.method, answer.ratio);
            if !wanted.methods.is_empty() && answer.method != ENDS[0] && !wanted.methods.iter().any(is_wanted) {
                continue;
            }
            if !arms.contains(&arm) {
                arms.push(arm.clone());
            }
            let of_request: &mut Answered =
                requests.entry((answer.cell.to_string(), answer.sample)).or_insert_with(Vec::new);
            if let Some((_, other)) = of_request.first()
                && other.prompt_hash != answer.prompt_hash
            {
                let (cell, sample) = (&answer.cell, answer.sample);
                return Err(Error::usage(format!(
                    "{}: request {sample} of {cell} has another prompt",
                    folder.display()
                )));
            }
            of_request.retain(|(own, _)| *own != arm);
            of_request.push((arm, answer));
        }
    }
    let unknown =
        |name: &&String| !arms.iter().any(|(method, ratio)| *name == method || **name == labelled(method, *ratio));
    if let Some(name) = wanted.methods.iter().find(unknown) {
        return Err(Error::usage(format!("--methods {name}: it has answered nothing in these folders")));
    }
    if !arms.iter().any(|(method, _)| method == ENDS[0]) {
        return Err(Error::usage("no answer of full, with which methods are compared, in these folders".to_owned()));
    }
    if wanted.least_gap.is_some() && !arms.iter().any(|(method, _)| method == ENDS[1]) {
        return Err(Error::usage("--least-gap: it needs answers of none, also among --methods".to_owned()));
    }
    // Full first, then as they were asked for, else by name.
    arms.sort_by_key(|(method, ratio)| {
        let label = labelled(method, *ratio);
        let asked = wanted.methods.iter().position(|name| name == method || *name == label);
        (method != ENDS[0], asked, label)
    });
    let asked = requests.len();
    requests.retain(|_, answers| answers.len() == arms.len());
    let answered = requests.len();
    let left_out = without_gap(&mut requests, wanted.least_gap);
    if requests.is_empty() {
        return Err(Error::usage("no request has answers of all methods".to_owned()));
    }
    let mut text = format!("# {answered} requests with answers of all {} methods, of {asked}\n", arms.len());
    if let Some(gap) = wanted.least_gap {
        let names = if left_out.is_empty() { "none".to_owned() } else { left_out.join(", ") };
        text += &format!("# tasks where full is less than {gap} above none, not counted: {names}\n");
    }
    Ok(text + &tables(&requests, &arms, wanted.seed))
}

/// Checks that the folders are parts of one evaluation.
fn same_design(folders: &[PathBuf]) -> Result<()> {
    let mut first: Option<(&Path, Map<String, Value>)> = None;
    for folder in folders {
        let path = folder.join("design.json");
        let bytes = fs::read(&path).map_err(|error| Error::usage(format!("{}: {error}", path.display())))?;
        let design: Map<String, Value> =
            serde_json::from_slice(&bytes).map_err(|error| Error::usage(format!("{}: {error}", path.display())))?;
        let Some((other, expected)) = &first else {
            first = Some((folder, design));
            continue;
        };
        let differs = |key: &&String| !MAY_DIFFER.contains(&key.as_str()) && design.get(*key) != expected.get(*key);
        if let Some(key) = design.keys().chain(expected.keys()).find(differs) {
            let of = |design: &Map<String, Value>| design.get(key).cloned().unwrap_or_default();
            let (own, theirs) = (of(&design), of(expected));
            let (shown, other) = (folder.display(), other.display());
            return Err(Error::usage(format!("{shown}: `{key}` is {own}, and {theirs} in {other}")));
        }
    }
    Ok(())
}

/// Removes the requests of tasks where full prefill hardly beats stale chunks; gives their names.
fn without_gap(requests: &mut BTreeMap<(String, usize), Answered>, least: Option<f64>) -> Vec<String> {
    let Some(least) = least else { return Vec::new() };
    let mut sums: BTreeMap<String, (f64, f64)> = BTreeMap::new();
    for ((task, _), answers) in requests.iter() {
        let of = |name: &str| {
            answers.iter().filter(|((method, _), _)| method == name).map(|(_, own)| own.score).sum::<f64>()
        };
        let sum = sums.entry(task.clone()).or_default();
        *sum = (sum.0 + of(ENDS[0]) - of(ENDS[1]), sum.1 + 1.0);
    }
    let small: Vec<String> =
        sums.into_iter().filter(|(_, (gap, count))| gap / count < least).map(|(task, _)| task).collect();
    requests.retain(|(task, _), _| !small.contains(task));
    small
}

fn tables(requests: &BTreeMap<(String, usize), Answered>, arms: &[Arm], seed: u64) -> String {
    let mut tasks: Vec<&String> = requests.keys().map(|(task, _)| task).collect();
    tasks.dedup();
    let answers = |task: Option<&String>, arm: &Arm| -> Vec<&Answer> {
        let own = requests.iter().filter(|((name, _), _)| task.is_none_or(|task| task == name));
        own.flat_map(|(_, answers)| answers.iter().filter(|(own, _)| own == arm).map(|(_, answer)| answer)).collect()
    };
    let scores = |task, arm| -> Vec<f64> { answers(task, arm).iter().map(|answer| answer.score).collect() };
    let nats = |task, arm: &Arm| {
        let all: Vec<f64> = answers(task, arm).iter().filter_map(|own| own.reply()?.kl_nats).collect();
        statistics::mean(&all, seed)
    };
    let mut rows = vec![cells(["task", "requests", "method", "score", "KL"])];
    for task in tasks.iter().map(|task| Some(*task)).chain([None]) {
        for (index, arm) in arms.iter().enumerate() {
            let own = scores(task, arm);
            let head = if index == 0 {
                (task.map_or("all", String::as_str), own.len().to_string())
            } else {
                ("", String::new())
            };
            let score = statistics::score(&own, seed).map_or_else(|| "-".to_owned(), |mean| interval(&mean));
            let nats = nats(task, arm).map_or_else(|| "-".to_owned(), |mean| interval(&mean));
            rows.push(vec![head.0.to_owned(), head.1, labelled(&arm.0, arm.1), score, nats]);
        }
    }
    let mut text = table(&rows, Layout { left: &[0, 2], commented_rows: Some(1) });
    text += "# KL: of full prefill's first token from the method's, over the whole vocabulary, mean [nats]\n";
    let all: Vec<Vec<f64>> = arms.iter().map(|arm| scores(None, arm)).collect();
    text += &pooled_scores(arms, &all, seed).as_ref().map_or_else(String::new, pooled);
    text + &divergences(requests, arms, seed)
}

/// The divergences of each pair of methods, of the requests where all but full prefill have one.
fn divergences(requests: &BTreeMap<(String, usize), Answered>, arms: &[Arm], seed: u64) -> String {
    let of_request = |answers: &Answered| -> Option<Vec<f64>> {
        let of = |arm: &Arm| {
            let (_, answer) = answers.iter().find(|(own, _)| own == arm)?;
            if arm.0 == ENDS[0] { Some(0.0) } else { answer.reply()?.kl_nats }
        };
        arms.iter().map(of).collect()
    };
    let rows: Vec<Vec<f64>> = requests.values().filter_map(of_request).collect();
    let all: Vec<Vec<f64>> = (0..arms.len()).map(|arm| rows.iter().map(|row| row[arm]).collect()).collect();
    let Some(pooled) = pooled_scores(arms, &all, seed) else { return String::new() };
    let (count, pairs) = (pooled.requests, differences(&pooled.differences));
    format!(
        "\n# {count} requests: difference of mean KL for each pair of methods, in the same way; lower is nearer to full prefill\n{pairs}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answers::{AnswerFile, Outcome, Reply};
    use crate::kit;
    use crate::suite::Cell;

    /// A folder with the answers of a task: score and divergence of each method by request.
    fn part(root: &Path, name: &str, task: &str, answers: &[(&str, Option<f64>, &[f64])]) -> PathBuf {
        let folder = root.join(name);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("design.json"), r#"{"model_hash": "m", "host": "a", "dtype": "bf16"}"#).unwrap();
        let mut file = AnswerFile::open(&folder.join("answers.jsonl")).unwrap();
        for (method, ratio, scores) in answers {
            for (sample, &score) in scores.iter().enumerate() {
                let reply = Reply { kl_nats: (*method != "full").then_some(0.5), ..kit::reply() };
                file.add(&Answer {
                    cell: Cell::of(task),
                    sample,
                    id: None,
                    method: (*method).to_owned(),
                    ratio: *ratio,
                    prompt_hash: format!("{task} {sample}"),
                    references: Vec::new(),
                    score,
                    outcome: Outcome::Answered(Box::new(reply)),
                })
                .unwrap();
            }
        }
        folder
    }

    #[test]
    fn requests_that_all_have_answered_count() {
        let root = tempfile::tempdir().unwrap();
        let one = part(
            root.path(),
            "one",
            "vt",
            &[("none", None, &[0.0, 0.0, 1.0]), ("full", None, &[1.0, 1.0, 1.0]), ("relay", Some(0.15), &[1.0, 0.0])],
        );
        let two = part(
            root.path(),
            "two",
            "qa",
            &[("full", None, &[0.5, 0.5]), ("none", None, &[0.5, 0.5]), ("relay", Some(0.15), &[0.5, 0.5])],
        );
        let folders = [one, two];
        let text = pool(&folders, &Wanted::default()).unwrap();
        assert!(text.starts_with("# 4 requests with answers of all 3 methods, of 5\n"), "{text}");
        let row = |text: &str, has: &[&str]| {
            text.lines().find(|line| has.iter().all(|word| line.contains(word))).map(str::to_owned).unwrap_or_default()
        };
        assert!(row(&text, &["vt", "full"]).contains("1.000"), "{text}");
        assert!(text.contains("relay at 0.15"), "{text}");
        // Every answer but full prefill's has the same divergence.
        let (_, nats) = text.split_once("# 4 requests: difference of mean KL").expect("pairs");
        assert!(row(nats, &["relay at 0.15", "none"]).contains("0.000 [0.000 to 0.000]"), "{text}");
        // Full has 3.0, relay 2.0 of the four requests: two thirds.
        assert!(text.contains("0.667"), "{text}");
        let gap = pool(&folders, &Wanted { least_gap: Some(0.1), ..Wanted::default() }).unwrap();
        assert!(gap.contains("not counted: qa\n") && gap.contains("all 2 requests pooled"), "{gap}");
        let some = Wanted { methods: vec!["none".to_owned()], ..Wanted::default() };
        let text = pool(&folders, &some).unwrap();
        assert!(text.starts_with("# 5 requests with answers of all 2 methods, of 5\n"), "{text}");
        let unknown = Wanted { methods: vec!["epic".to_owned()], ..Wanted::default() };
        let error = pool(&folders, &unknown).unwrap_err().to_string();
        assert!(error.contains("--methods epic: it has answered nothing"), "{error}");
        let without = Wanted { methods: vec!["relay".to_owned()], least_gap: Some(0.1), seed: 0 };
        let error = pool(&folders, &without).unwrap_err().to_string();
        assert!(error.contains("--least-gap: it needs answers of none"), "{error}");
    }

    #[test]
    fn parts_of_other_evaluations_are_refused() {
        let root = tempfile::tempdir().unwrap();
        let one = part(root.path(), "one", "vt", &[("full", None, &[1.0])]);
        let two = part(root.path(), "two", "qa", &[("full", None, &[1.0])]);
        fs::write(two.join("design.json"), r#"{"model_hash": "m", "host": "b", "dtype": "f32"}"#).unwrap();
        let error = pool(&[one.clone(), two], &Wanted::default()).unwrap_err().to_string();
        assert!(error.contains(r#"`dtype` is "f32", and "bf16" in"#), "{error}");
        let other = part(root.path(), "three", "vt", &[("none", None, &[1.0])]);
        let line = fs::read_to_string(other.join("answers.jsonl")).unwrap();
        fs::write(other.join("answers.jsonl"), line.replace("vt 0", "another")).unwrap();
        let error = pool(&[one, other], &Wanted::default()).unwrap_err().to_string();
        assert!(error.contains("request 0 of vt has another prompt"), "{error}");
        let nothing = pool(&[root.path().to_owned()], &Wanted::default()).unwrap_err().to_string();
        assert!(nothing.contains("design.json"), "{nothing}");
    }
}
