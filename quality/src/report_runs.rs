//! Runs on the report part: each belongs to a study file that is committed in a clean git tree, and
//! leaves a line in a file beside it, which only grows.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tributary_coordinator::date;

use crate::design::Arm;
use crate::error::{Error, Result};
use crate::evaluation::Evaluation;

/// The file beside the study file.
const FILE: &str = "report-runs.jsonl";

/// A committed study file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Study {
    /// Its path in the repository.
    pub path: String,
    /// Hash of its content.
    pub hash: String,
    /// The last commit that changed it.
    pub commit: String,
    /// The commit of the whole tree, which has no changes.
    pub head: String,
    /// Where its runs are listed.
    #[serde(skip)]
    file: PathBuf,
}

/// A run on the report part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReportRun {
    /// Its begin, in UTC.
    pub began: String,
    /// Path of the study file in its repository.
    pub study: String,
    /// Hash of the study file.
    pub study_hash: String,
    /// The last commit that changed the study file.
    pub study_commit: String,
    /// The commit of the tree.
    pub head: String,
    /// Hash of the program.
    pub build: String,
    /// Hash of the model.
    pub model_hash: String,
    /// Tasks.
    pub tasks: Vec<String>,
    /// Requests of each task, at most.
    pub samples: usize,
    /// Methods with their ratios.
    pub methods: Vec<String>,
    /// Answers that an earlier run of the same evaluation left.
    pub answers_before: usize,
}

/// The study of a run on the report part, and the runs before it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ReportRuns {
    /// The study.
    pub study: Study,
    /// Every earlier run that is listed beside the study, oldest first.
    pub earlier: Vec<ReportRun>,
}

impl Study {
    /// A study file as it is committed.
    ///
    /// # Errors
    /// Returns an error if the file is in no repository or not committed, if the tree has changes,
    /// or if the list of runs has lost lines.
    pub fn committed(path: &Path) -> Result<Self> {
        let shown = path.display();
        let refused = |what: String| Error::usage(format!("--split report: {what}"));
        let content = std::fs::read(path).map_err(|error| refused(format!("{shown}: {error}")))?;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let prefix = git(folder, &["rev-parse", "--show-prefix"])?
            .ok_or_else(|| refused(format!("{shown}: it is in no git repository")))?;
        let prefix = prefix.trim_end();
        let commit = git(folder, &["log", "-1", "--format=%H", "--", &name])?.unwrap_or_default().trim().to_owned();
        if commit.is_empty() {
            return Err(refused(format!("{shown}: it is not committed")));
        }
        let list = format!("{prefix}{FILE}");
        let changes = git(folder, &["status", "--porcelain", "--untracked-files=no"])?.unwrap_or_default();
        // Its own list may have lines that are not committed yet.
        if let Some(change) = changes.lines().find(|line| line.get(3..) != Some(&list)) {
            return Err(refused(format!("the git tree has changes, such as {}: commit them first", change.trim())));
        }
        let file = folder.join(FILE);
        let before = git(folder, &["show", &format!("HEAD:{list}")])?.unwrap_or_default();
        if !read(&file)?.starts_with(&before) {
            return Err(refused(format!("{}: it has lost lines that are committed: restore them", file.display())));
        }
        let head = git(folder, &["rev-parse", "HEAD"])?.unwrap_or_default().trim().to_owned();
        let hash = blake3::hash(&content).to_hex().to_string();
        Ok(Self { path: format!("{prefix}{name}"), hash, commit, head, file })
    }

    /// Lists a run that begins, with the hashes of program and model, and gives those before it.
    ///
    /// # Errors
    /// Returns an error if the list cannot be read or written.
    pub fn begin(
        self,
        evaluation: &Evaluation,
        (build, model_hash): (&str, &str),
        answers_before: usize,
    ) -> Result<ReportRuns> {
        let shown = self.file.display().to_string();
        let text = read(&self.file)?;
        let bad = |(index, error): (usize, serde_json::Error)| {
            Error::usage(format!("--split report: {shown}, line {}: {error}", index + 1))
        };
        let line = |(index, line): (usize, &str)| serde_json::from_str(line).map_err(|error| bad((index, error)));
        let earlier = text.lines().enumerate().map(line).collect::<Result<_>>()?;
        let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let run = ReportRun {
            began: date::format("%Y-%m-%dT%H:%M:%SZ", since_1970.as_secs())?,
            study: self.path.clone(),
            study_hash: self.hash.clone(),
            study_commit: self.commit.clone(),
            head: self.head.clone(),
            build: build.to_owned(),
            model_hash: model_hash.to_owned(),
            tasks: evaluation.design.tasks.clone(),
            samples: evaluation.design.samples,
            methods: evaluation.arms.iter().map(Arm::label).collect(),
            answers_before,
        };
        let mut line = serde_json::to_vec(&run)?;
        line.push(b'\n');
        let open = std::fs::OpenOptions::new().create(true).append(true).open(&self.file);
        let written = open.and_then(|mut file| file.write_all(&line).and_then(|()| file.sync_all()));
        written.map_err(Error::file("cannot write", &self.file))?;
        Ok(ReportRuns { study: self, earlier })
    }
}

/// The list of runs; empty where there is none.
fn read(file: &Path) -> Result<String> {
    match std::fs::read_to_string(file) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(String::new()),
        other => other.map_err(Error::file("cannot read", file)),
    }
}

/// What git says in a folder; nothing where it refuses.
fn git(folder: &Path, arguments: &[&str]) -> Result<Option<String>> {
    let output = Command::new("git").arg("-C").arg(folder).args(arguments).output();
    let output = output.map_err(|error| Error::usage(format!("--split report: git: {error}")))?;
    Ok(output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit;

    /// A repository with a study that is committed.
    fn repository() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("studies/real.toml");
        std::fs::create_dir(folder.path().join("studies")).unwrap();
        std::fs::write(&path, "samples = 3\n").unwrap();
        std::fs::write(folder.path().join("other"), "x\n").unwrap();
        run(folder.path(), &["init", "-q"]);
        commit(folder.path());
        (folder, path)
    }

    fn run(folder: &Path, arguments: &[&str]) {
        let who = ["-c", "user.name=Test", "-c", "user.email=test@example.org"];
        assert!(git(folder, &[&who[..], arguments].concat()).unwrap().is_some(), "git {arguments:?}");
    }

    fn commit(folder: &Path) {
        run(folder, &["add", "-A"]);
        run(folder, &["commit", "-q", "-m", "All"]);
    }

    fn said(path: &Path) -> String {
        Study::committed(path).unwrap_err().to_string()
    }

    #[test]
    fn every_run_is_listed_and_the_next_one_knows_it() {
        let (folder, path) = repository();
        let evaluation = kit::evaluation(vec![kit::arm("full", None), kit::arm("relay", Some(0.15))], 2);
        let begin = |before| Study::committed(&path).unwrap().begin(&evaluation, ("build", "model"), before).unwrap();
        let first = begin(0);
        assert_eq!((first.earlier.len(), first.study.path.as_str()), (0, "studies/real.toml"));
        assert_eq!((first.study.commit.len(), first.study.hash.len()), (40, 64));
        let second = begin(1);
        assert_eq!((second.earlier.len(), second.earlier[0].samples), (1, 2));
        assert_eq!(second.earlier[0].methods, ["full", "relay at 0.15"]);
        assert_eq!(second.earlier[0].study_hash, first.study.hash);
        commit(folder.path());
        assert_eq!(begin(2).earlier.iter().map(|run| run.answers_before).collect::<Vec<_>>(), [0, 1]);
        let list = folder.path().join("studies").join(FILE);
        let text = std::fs::read_to_string(&list).unwrap();
        std::fs::write(&list, text.lines().skip(1).map(|line| format!("{line}\n")).collect::<String>()).unwrap();
        assert!(said(&path).contains("it has lost lines that are committed"), "{}", said(&path));
        std::fs::write(&list, format!("{text}nothing\n")).unwrap();
        let error = Study::committed(&path).unwrap().begin(&evaluation, ("build", "model"), 0).unwrap_err().to_string();
        assert!(error.contains("line 4: "), "{error}");
    }

    #[test]
    fn a_tree_with_changes_and_a_study_that_is_not_committed_are_refused() {
        let (folder, path) = repository();
        std::fs::write(folder.path().join("other"), "y\n").unwrap();
        assert!(
            said(&path).contains("the git tree has changes, such as M other: commit them first"),
            "{}",
            said(&path)
        );
        run(folder.path(), &["checkout", "-q", "other"]);
        std::fs::write(folder.path().join("untracked"), "y\n").unwrap();
        assert!(Study::committed(&path).is_ok());
        std::fs::write(&path, "samples = 4\n").unwrap();
        assert!(said(&path).contains("such as M studies/real.toml"), "{}", said(&path));
        let new = folder.path().join("new.toml");
        std::fs::write(&new, "samples = 1\n").unwrap();
        assert!(said(&new).contains("new.toml: it is not committed"), "{}", said(&new));
        let outside = tempfile::tempdir().unwrap();
        let alone = outside.path().join("alone.toml");
        std::fs::write(&alone, "").unwrap();
        assert!(said(&alone).contains("it is in no git repository"), "{}", said(&alone));
        assert!(said(&outside.path().join("none.toml")).contains("No such file"));
    }
}
