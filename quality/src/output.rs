//! The folder of an evaluation: answers.jsonl from the first answer on, with design.json beside it,
//! so that an interrupted one can resume; report.json, points.csv, answers.csv and quality.html at
//! its end.

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde_json::{Value, json};
use tributary_coordinator::{Environment, date};
use tributary_system::file::write_whole;

use crate::answers::{self, Answer, Answers};
use crate::design::Design;
use crate::error::{Error, Result};
use crate::evaluation::Evaluation;
use crate::report::{Origin, Report};
use crate::tables;

const ANSWERS: &str = "answers.jsonl";
const DESIGN: &str = "design.json";
const REPORT: &str = "report.json";
const POINTS: &str = "points.csv";
const TABLE: &str = "answers.csv";
const PAGE: &str = "quality.html";

/// Folder of an evaluation, and its earlier answers.
pub struct Output {
    /// The folder.
    pub folder: PathBuf,
    /// The evaluation to resume.
    pub earlier: Option<Earlier>,
}

/// An evaluation that was interrupted.
pub struct Earlier {
    /// Its answers, in the order in which they came.
    pub answers: Vec<Answer>,
    /// Design of the earlier evaluation.
    design: Value,
    /// Bytes of its answers that are whole lines.
    whole_bytes: u64,
}

impl Output {
    /// Looks at the folder and writes nothing.
    ///
    /// # Errors
    /// Returns an error if the folder has an evaluation and the options do not say what to do with
    /// it, if it has none to resume, or if the path is a file.
    pub fn open(folder: Option<&Path>, resume: bool, force: bool) -> Result<Self> {
        let folder = folder.map_or_else(folder_of_now, |folder| Ok(folder.to_owned()))?;
        let shown = folder.display();
        if folder.exists() && !folder.is_dir() {
            return Err(Error::usage(format!("--out {shown}: it is a file; it must be a folder, new or old")));
        }
        if resume {
            let path = folder.join(DESIGN);
            let shown = path.display();
            let text = fs::read_to_string(&path).map_err(|error| {
                Error::usage(format!("--resume: {shown}: {error}; name the folder of an interrupted evaluation"))
            })?;
            let design =
                serde_json::from_str(&text).map_err(|error| Error::usage(format!("--resume: {shown}: {error}")))?;
            let (answers, whole_bytes) = answers::read(&folder.join(ANSWERS))?;
            return Ok(Self { folder, earlier: Some(Earlier { answers, design, whole_bytes }) });
        }
        if let Some(name) = [ANSWERS, REPORT].into_iter().find(|name| folder.join(name).exists() && !force) {
            return Err(Error::usage(format!(
                "--out {shown}: it has {name}; go on with it by --resume, or overwrite it by --force"
            )));
        }
        Ok(Self { folder, earlier: None })
    }

    /// The file of answers.
    pub fn answers(&self) -> PathBuf {
        self.folder.join(ANSWERS)
    }

    /// Checks that existing answers belong to this evaluation; makes the folder, or cuts off a
    /// partial answer of a stopped process. Files of another evaluation are removed. Gives the
    /// number of answers that count and need not be asked for again.
    ///
    /// # Errors
    /// Returns the first difference, or an error if an operation of the operating system fails.
    pub fn begin(&self, evaluation: &Evaluation, origin: &Origin, environment: &Environment) -> Result<usize> {
        let design = identity(&evaluation.design, origin, environment);
        let Some(earlier) = &self.earlier else {
            fs::create_dir_all(&self.folder).map_err(Error::file("cannot make", &self.folder))?;
            for path in [PAGE, TABLE, POINTS, REPORT, ANSWERS, DESIGN].map(|name| self.folder.join(name)) {
                match fs::remove_file(&path) {
                    Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                        return Err(Error::file("cannot remove", &path)(error));
                    }
                    _ => {}
                }
            }
            self.whole(DESIGN, &format!("{}\n", serde_json::to_string_pretty(&design)?))?;
            return Ok(0);
        };
        let there = earlier.check(evaluation, &design)?;
        let path = self.answers();
        let file = OpenOptions::new().write(true).open(&path).and_then(|file| file.set_len(earlier.whole_bytes));
        file.map_err(Error::file("cannot write", &path))?;
        Ok(there)
    }

    /// Writes report.json, both tables and the page.
    ///
    /// # Errors
    /// Returns an error if an operation of the operating system fails.
    pub fn finish(&self, evaluation: &Evaluation, answers: &Answers, report: &Report, page: &str) -> Result<()> {
        self.whole(PAGE, page)?;
        self.whole(REPORT, &format!("{}\n", serde_json::to_string_pretty(report)?))?;
        self.whole(TABLE, &tables::answers(evaluation, answers)?)?;
        self.whole(POINTS, &tables::points(&report.points)?)
    }

    fn whole(&self, name: &str, text: &str) -> Result<()> {
        let path = self.folder.join(name);
        write_whole(&path, text.as_bytes()).map_err(Error::file("cannot write", &path))
    }
}

impl Earlier {
    /// Number of its answers that belong to this evaluation, which may have more or fewer samples,
    /// tasks and methods than before.
    fn check(&self, evaluation: &Evaluation, design: &Value) -> Result<usize> {
        let fields = design.as_object().into_iter().flatten();
        for (name, is) in fields {
            let was = &self.design[name];
            if was != is {
                return Err(Error::usage(format!(
                    "--resume: {name} was {was} and is {is}; use what it was, or begin anew with another --out"
                )));
            }
        }
        let mut known = answers::Answers::default();
        self.answers.iter().for_each(|answer| known.add(answer.clone()));
        let mut there = 0;
        for request in &evaluation.requests {
            let found = evaluation.arms.iter().filter_map(|arm| known.get(&request.cell, request.number, arm));
            for answer in found {
                if answer.prompt_hash != request.prompt_hash {
                    return Err(Error::usage(format!(
                        "--resume: {} {} was another request; begin anew with another --out",
                        request.cell, request.number
                    )));
                }
                there += usize::from(answer.reply().is_some());
            }
        }
        Ok(there)
    }
}

/// Identity of an evaluation, which must not change when it resumes.
fn identity(design: &Design, origin: &Origin, environment: &Environment) -> Value {
    // The numbers of adapters: the place of their folders does not matter.
    let number = |name: &String| name.rsplit_once(" (").map_or(name.clone(), |(_, number)| number.to_owned());
    let adapters: Vec<String> = environment.adapters.iter().map(number).collect();
    json!({
        "suite": design.suite,
        "seed": design.seed,
        "documents": design.documents,
        "document_tokens": design.document_tokens,
        "chunk_tokens": design.chunk_tokens,
        "split": design.split_salt.as_ref().map(|salt| format!("{} with salt {salt}", design.split.name())),
        "warm": design.warm.then_some(true),
        "world": design.world,
        "threads": design.threads,
        "template": environment.template,
        "load_format": environment.load_format,
        "device": environment.device,
        "dtype": environment.dtype,
        "kv_dtype": environment.kv_dtype,
        "kernels": environment.kernels,
        "backend": environment.backend,
        "model_hash": origin.model_hash,
        "calibrations": origin.calibrations,
        "build": origin.build,
        "host": origin.host,
        "cores": origin.cores,
        // Fields that most evaluations lack are null, as are fields that the files of earlier
        // builds lack.
        "prefix": (environment.prefix != "bos").then_some(&environment.prefix),
        "chunk_prefix": (environment.chunk_prefix != "system").then_some(&environment.chunk_prefix),
        "image_tiles": environment.image_tiles,
        "tile_order": environment.tile_order,
        "auxiliary_hash": environment.auxiliary_hash,
        "draft_hash": environment.draft_hash,
        "adapters": (!adapters.is_empty()).then_some(adapters),
    })
}

fn folder_of_now() -> Result<PathBuf> {
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Ok(date::format("tributary-quality-%Y%m%d-%H%M%S", since_1970.as_secs())?.into())
}
