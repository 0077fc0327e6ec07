//! Measurements of a model by which trace tells a dependence from chance: a file beside its config.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tributary_protocol::TraceHeads;

use crate::calibration_file;
use crate::error::Result;

/// Name and version of the file's format.
const SCHEMA: &str = "tributary.trace/1";

/// The file's name in a model folder.
const FILE: &str = "trace.json";

/// α of trace for one model, and its data: net readings between documents, each the largest of its
/// request.
/// For requests without a reference, the readings are of documents after the one that reads them:
/// only those could move documents.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TraceCalibration {
    /// Name and version of this format.
    pub schema: String,
    /// Minimum net reading at which one row depends on another.
    pub alpha: f32,
    /// The heads whose attention was read.
    #[serde(default, with = "named")]
    pub heads: TraceHeads,
    /// The suite of the requests.
    pub suite: String,
    /// Seed of the requests.
    pub seed: u64,
    /// The readings of requests in which a document refers to another, ascending.
    pub referring: Vec<f32>,
    /// The readings of requests in which none does, ascending.
    pub apart: Vec<f32>,
}

impl TraceCalibration {
    /// α between the readings of requests that refer and those of requests that do not: the middle
    /// between the former's 5 % quantile and the latter's 95 % quantile. `None` if those overlap,
    /// since no α would separate them.
    pub fn new(
        suite: &str,
        seed: u64,
        heads: TraceHeads,
        mut referring: Vec<f32>,
        mut apart: Vec<f32>,
    ) -> Option<Self> {
        referring.sort_by(f32::total_cmp);
        apart.sort_by(f32::total_cmp);
        let low = *referring.get(referring.len() / 20)?;
        let high = *apart.get((apart.len() - apart.len() / 20).checked_sub(1)?)?;
        let alpha = (low + high) / 2.0;
        let made = Self { schema: SCHEMA.to_owned(), alpha, heads, suite: suite.to_owned(), seed, referring, apart };
        (low > high && high >= 0.0).then_some(made)
    }

    /// The path of the file of a model.
    pub fn path(folder: &Path) -> PathBuf {
        folder.join(FILE)
    }

    /// The calibration in a model folder; `None` without a file.
    ///
    /// # Errors
    /// Returns an error for a file that cannot be read, or that [`write`](Self::write) has not
    /// written.
    pub fn from_folder(folder: &Path) -> Result<Option<Self>> {
        let path = Self::path(folder);
        let Some(found) = calibration_file::read::<Self>(&path, (SCHEMA, |found| &found.schema))? else {
            return Ok(None);
        };
        if !(found.alpha > 0.0 && found.alpha <= 1.0) {
            let cause = format!("alpha is {}; it must be above 0 and at most 1", found.alpha);
            return Err(calibration_file::wrong(&path, cause));
        }
        Ok(Some(found))
    }

    /// Writes the file, whole or not at all.
    ///
    /// # Errors
    /// Returns an error if the system fails to write it.
    pub fn write(&self, folder: &Path) -> std::io::Result<()> {
        calibration_file::write(&Self::path(folder), self)
    }
}

/// Heads by their name in requests.
mod named {
    use serde::{Deserialize, Deserializer, Serializer};
    use tributary_protocol::TraceHeads;

    pub fn serialize<S: Serializer>(heads: &TraceHeads, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(heads)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<TraceHeads, D::Error> {
        String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    #[test]
    fn alpha_lies_between_what_refers_and_what_does_not() {
        let referring: Vec<f32> = (0..40).rev().map(|i| 0.4 + 0.01 * i as f32).collect();
        let made = TraceCalibration::new("hops", 3, TraceHeads::Mean, referring.clone(), vec![0.1, 0.06, 0.12])
            .expect("they lie apart");
        let odd: Vec<f32> = [0.9].into_iter().chain((0..19).map(|i| 0.12 - 0.001 * i as f32)).collect();
        let with_an_odd_one =
            TraceCalibration::new("hops", 3, TraceHeads::Mean, referring, odd).expect("one of twenty is chance");
        assert!((with_an_odd_one.alpha - made.alpha).abs() < 1e-6, "{}", with_an_odd_one.alpha);
        assert!((made.alpha - (0.42 + 0.12) / 2.0).abs() < 1e-6, "{}", made.alpha);
        assert_eq!(
            TraceCalibration::new("hops", 3, TraceHeads::Mean, vec![0.2; 40], vec![0.2]),
            None,
            "no α tells them from each other"
        );
        assert_eq!(TraceCalibration::new("hops", 3, TraceHeads::Mean, Vec::new(), vec![0.2]), None);
        assert_eq!(TraceCalibration::new("hops", 3, TraceHeads::Mean, vec![0.2], Vec::new()), None);
    }

    #[test]
    fn a_file_comes_back_and_a_damaged_one_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let read = || TraceCalibration::from_folder(folder.path());
        assert_eq!(read().expect("no file"), None);
        let made =
            TraceCalibration::new("hops", 3, TraceHeads::Mean, vec![0.5, 0.4], vec![0.1, 0.2]).expect("they lie apart");
        made.write(folder.path()).expect("written");
        assert_eq!(read().expect("a file"), Some(made.clone()));
        let write = |text: String| std::fs::write(TraceCalibration::path(folder.path()), text).expect("written");
        let text = serde_json::to_string(&made).expect("JSON");
        for damaged in [
            "{".to_owned(),
            text.replace("trace/1", "trace/2"),
            text.replace("\"alpha\":0.3", "\"alpha\":0.0"),
            text.replace("\"seed\"", "\"weed\""),
            text.replace("mean", "sharpest:2"),
        ] {
            assert_ne!(damaged, text, "the damage is none");
            write(damaged.clone());
            assert!(matches!(read(), Err(Error::Json { .. })), "{damaged}");
        }
    }
}
