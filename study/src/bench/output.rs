//! A study's folder: report.json after every round, so that an interrupted study can resume;
//! everything else at its end.

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::schema::{SCHEMA, Study};
use crate::{charts, csv, page};
use tributary_system::file::write_whole;

use super::provenance::{NO_PROFILE, now};

const REPORT: &str = "report.json";
const PAGE: &str = "report.html";
const POINTS: &str = "points.csv";
const SAMPLES: &str = "samples.csv";
const CHARTS: &str = "charts";

/// Folder of a study, and its earlier measurements.
pub struct Output {
    /// The folder.
    pub folder: PathBuf,
    /// The study to resume.
    pub earlier: Option<Study>,
}

impl Output {
    /// Looks at the folder and writes nothing.
    ///
    /// # Errors
    /// Returns an error if the folder has a study and the options do not say what to do with it, if
    /// it has none to resume, or if the path is a file.
    pub fn open(folder: Option<&Path>, resume: bool, force: bool) -> Result<Self> {
        let folder = match folder {
            Some(folder) => folder.to_owned(),
            None => now("tributary-bench-%Y%m%d-%H%M%S")?.into(),
        };
        let shown = folder.display();
        if folder.exists() && !folder.is_dir() {
            return Err(Error::usage(format!("--out {shown}: it is a file; it must be a folder, new or old")));
        }
        if resume {
            let earlier = Some(read(&folder)?);
            return Ok(Self { folder, earlier });
        }
        if folder.join(REPORT).exists() && !force {
            return Err(Error::usage(format!(
                "--out {shown}: it has a {REPORT}; go on with it by --resume, or overwrite it by --force"
            )));
        }
        Ok(Self { folder, earlier: None })
    }

    /// Makes the folder. Files of another study are removed, its report last, so that old and new
    /// files never mix.
    ///
    /// # Errors
    /// Returns an error if an operation of the operating system fails.
    pub fn create(&self) -> Result<()> {
        if self.earlier.is_none() && self.folder.join(REPORT).exists() {
            self.clear().map_err(Error::file("cannot remove the old study in", &self.folder))?;
        }
        fs::create_dir_all(self.folder.join(CHARTS)).map_err(Error::file("cannot make", &self.folder))
    }

    /// Removes the files of a study, and no others.
    fn clear(&self) -> std::io::Result<()> {
        let is_chart = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "svg");
        let charts = fs::read_dir(self.folder.join(CHARTS)).into_iter().flatten().filter_map(std::result::Result::ok);
        let charts = charts.map(|entry| entry.path()).filter(is_chart);
        for path in charts.chain([PAGE, POINTS, SAMPLES, REPORT].map(|name| self.folder.join(name))) {
            match fs::remove_file(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Writes report.json.
    ///
    /// # Errors
    /// Returns an error if an operation of the operating system fails.
    pub fn save(&self, study: &Study) -> Result<()> {
        self.whole(REPORT, &format!("{}\n", serde_json::to_string_pretty(study)?))
    }

    /// Writes everything.
    ///
    /// # Errors
    /// Returns an error if an operation of the operating system fails, or if a table or page cannot
    /// be made, which only a bug can cause.
    pub fn finish(&self, study: &Study) -> Result<()> {
        self.save(study)?;
        self.whole(POINTS, &csv::points(study)?)?;
        self.whole(SAMPLES, &csv::samples(study)?)?;
        for chart in charts(study) {
            self.whole(&format!("{CHARTS}/{}.svg", chart.name), &chart.alone())?;
        }
        self.whole(PAGE, &page::html(study)?)
    }

    fn whole(&self, name: &str, text: &str) -> Result<()> {
        let path = self.folder.join(name);
        write_whole(&path, text.as_bytes()).map_err(Error::file("cannot write", &path))
    }
}

/// Reads a study's report.
///
/// # Errors
/// Returns an error if there is none, or if it is not of this schema.
pub fn read(folder: &Path) -> Result<Study> {
    let path = folder.join(REPORT);
    let shown = path.display();
    let text = fs::read_to_string(&path).map_err(|error| {
        Error::usage(format!("--resume: {shown}: {error}; name the folder of an interrupted study"))
    })?;
    let value: serde_json::Value =
        serde_json::from_str(&text).map_err(|error| Error::usage(format!("--resume: {shown}: {error}")))?;
    match value["schema"].as_str() {
        Some(SCHEMA) => {}
        other => {
            return Err(Error::usage(format!(
                "--resume: {shown}: schema {}, not {SCHEMA}",
                other.unwrap_or("unknown")
            )));
        }
    }
    serde_json::from_value(value).map_err(|error| Error::usage(format!("--resume: {shown}: {error}")))
}

/// Whether a study can resume as another: the same design, points and program.
///
/// # Errors
/// Returns the first difference.
pub fn same(earlier: &Study, study: &Study) -> Result<()> {
    let refuse = |what: &str, was: &str, is: &str| {
        Err(Error::usage(format!(
            "--resume: {what} was {was} and is {is}; use what it was, or begin anew with another --out"
        )))
    };
    let (was, is) = (serde_json::to_value(&earlier.design)?, serde_json::to_value(&study.design)?);
    let differs = is.as_object().and_then(|fields| fields.iter().find(|(name, value)| was[name.as_str()] != **value));
    if let Some((name, value)) = differs {
        return refuse(name, &was[name.as_str()].to_string(), &value.to_string());
    }
    let facts = |study: &Study| {
        let provenance = &study.provenance;
        [
            ("the program", provenance.build.clone()),
            ("the model's hash", provenance.model_hash.clone()),
            ("the host", provenance.host.clone()),
            ("the processor", provenance.cpu.clone()),
            ("the number of cores", provenance.cores.to_string()),
            ("the instruction set", provenance.instruction_set.clone()),
            ("the backend", provenance.backend.clone()),
        ]
    };
    for ((what, was), (_, is)) in facts(earlier).into_iter().zip(facts(study)) {
        if was != is {
            return refuse(what, &was, &is);
        }
    }
    // Without a profile the study keeps its predictions.
    let (was, is) = (&earlier.provenance.profile, &study.provenance.profile);
    if is != NO_PROFILE && was != is {
        return refuse("the profile", was, is);
    }
    let ids = |study: &Study| study.points.iter().map(|point| point.id.clone()).collect::<Vec<_>>();
    let (was, is) = (ids(earlier), ids(study));
    match was.iter().zip(&is).find(|(was, is)| was != is) {
        Some((was, is)) => refuse("a point", was, is),
        None if was.len() != is.len() => refuse("the number of points", &was.len().to_string(), &is.len().to_string()),
        None => Ok(()),
    }
}
