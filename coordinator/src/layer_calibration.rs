//! Layers whose attention selects rows best in a model, method by method: a file beside its config.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::calibration_file;
use crate::error::Result;

/// Name and version of the file's format.
const SCHEMA: &str = "tributary.layers/1";

/// The file's name in a model folder.
const FILE: &str = "layers.json";

/// Calibrated layers of a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerCalibration {
    /// Name and version of this format.
    pub schema: String,
    /// The methods that have been calibrated, by name.
    pub methods: BTreeMap<String, CalibratedLayers>,
}

/// A method's layers, and the measurement that showed them to be better than its usual ones.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CalibratedLayers {
    /// The first layer.
    pub first: usize,
    /// The layer after the last one.
    pub end: usize,
    /// The method with its options, as it was calibrated.
    pub method: String,
    /// The suite of the requests.
    pub suite: String,
    /// Seed of the requests.
    pub seed: u64,
    /// Their number.
    pub requests: usize,
    /// Mean score with these layers.
    pub score: f64,
    /// Mean score with the method's usual layers.
    pub usual_score: f64,
    /// p of the difference (two-sided, paired bootstrap), after Holm for all layers that were
    /// tried.
    pub holm_p: f64,
}

impl Default for LayerCalibration {
    fn default() -> Self {
        Self { schema: SCHEMA.to_owned(), methods: BTreeMap::new() }
    }
}

impl LayerCalibration {
    /// The path of the file of a model.
    pub fn path(folder: &Path) -> PathBuf {
        folder.join(FILE)
    }

    /// The calibration in the folder of a model of `layers` layers; none of any method without a
    /// file.
    ///
    /// # Errors
    /// Returns an error for a file that cannot be read, that [`write`](Self::write) has not
    /// written, or that names layers which the model does not have.
    pub fn from_folder(folder: &Path, layers: usize) -> Result<Self> {
        let path = Self::path(folder);
        let found = calibration_file::read::<Self>(&path, (SCHEMA, |found| &found.schema))?.unwrap_or_default();
        let is_wrong = |(_, own): &(&String, &CalibratedLayers)| own.first >= own.end || own.end > layers;
        match found.methods.iter().find(is_wrong) {
            None => Ok(found),
            Some((method, CalibratedLayers { first, end, .. })) => {
                let cause = format!("{method}: layers {first}..{end}, and the model has {layers}");
                Err(calibration_file::wrong(&path, cause))
            }
        }
    }

    /// Each method with its layers.
    pub fn layers(self) -> impl Iterator<Item = (String, Range<usize>)> {
        self.methods.into_iter().map(|(method, own)| (method, own.first..own.end))
    }

    /// Writes the file, whole or not at all.
    ///
    /// # Errors
    /// Returns an error if the system fails to write it.
    pub fn write(&self, folder: &Path) -> std::io::Result<()> {
        calibration_file::write(&Self::path(folder), self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    #[test]
    fn a_file_comes_back_and_layers_that_are_not_there_are_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let read = |layers| LayerCalibration::from_folder(folder.path(), layers);
        assert_eq!(read(5).expect("no file"), LayerCalibration::default());
        let own = CalibratedLayers {
            first: 1,
            end: 4,
            method: "infoflow:score=mass".to_owned(),
            suite: "hops".to_owned(),
            seed: 3,
            requests: 60,
            score: 0.7,
            usual_score: 0.5,
            holm_p: 0.01,
        };
        let made =
            LayerCalibration { methods: [("infoflow".to_owned(), own)].into_iter().collect(), ..Default::default() };
        made.write(folder.path()).expect("written");
        assert_eq!(read(4).expect("a file"), made);
        assert_eq!(made.clone().layers().collect::<Vec<_>>(), [("infoflow".to_owned(), 1..4)]);
        let cause = read(3).expect_err("four layers of three").to_string();
        assert!(cause.contains("infoflow: layers 1..4, and the model has 3"), "{cause}");
        let text = serde_json::to_string(&made).expect("JSON");
        for damaged in
            [text.replace("\"first\":1", "\"first\":4"), text.replace("layers/1", "layers/2"), "{".to_owned()]
        {
            assert_ne!(damaged, text, "the damage is none");
            std::fs::write(LayerCalibration::path(folder.path()), &damaged).expect("written");
            assert!(matches!(read(5), Err(Error::Json { .. })), "{damaged}");
        }
    }
}
