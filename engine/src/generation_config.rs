//! Recommended sampling of a model's answers: `generation_config.json` of its folder.

use std::io::ErrorKind;
use std::path::Path;

use serde::Deserialize;
use tributary_protocol::Sampling;

use crate::error::{Error, Result};

/// Defaults of sampling, as far as the model's folder names them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize)]
pub struct SamplingDefaults {
    /// As [`Sampling::temperature`].
    pub temperature: Option<f32>,
    /// As [`Sampling::top_p`].
    pub top_p: Option<f32>,
    /// As [`Sampling::top_k`].
    pub top_k: Option<u32>,
    /// As [`Sampling::min_p`].
    pub min_p: Option<f32>,
    /// As [`Sampling::repetition_penalty`].
    pub repetition_penalty: Option<f32>,
}

impl SamplingDefaults {
    /// Reads them from a model folder; none where it has no such file.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read or has impossible values.
    pub fn read(folder: &Path) -> Result<Self> {
        let path = folder.join("generation_config.json");
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            // A model in one file has none either.
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                return Ok(Self::default());
            }
            Err(error) => return Err(Error::usage(format!("{}: {error}", path.display()))),
        };
        let read: Self = serde_json::from_str(text.trim_start_matches('\u{feff}'))
            .map_err(|error| Error::usage(format!("{}: {error}", path.display())))?;
        let share = |number: f32| (0.0..=1.0).contains(&number);
        type Check = (&'static str, Option<f32>, fn(f32) -> bool);
        let checks: [Check; 4] = [
            ("temperature", read.temperature, |number| number.is_finite() && number >= 0.0),
            ("top_p", read.top_p, share),
            ("min_p", read.min_p, share),
            ("repetition_penalty", read.repetition_penalty, |number| number.is_finite() && number > 0.0),
        ];
        match checks.iter().find(|(_, number, is_right)| number.is_some_and(|number| !is_right(number))) {
            Some((name, number, _)) => {
                let number = number.unwrap_or_default();
                Err(Error::usage(format!("{}: `{name}` {number} cannot be", path.display())))
            }
            None => Ok(read),
        }
    }

    /// Fills unset settings with these.
    pub fn apply(&self, sampling: &mut Sampling) {
        let Self { temperature, top_p, top_k, min_p, repetition_penalty } = *self;
        sampling.temperature = temperature.unwrap_or(sampling.temperature);
        sampling.top_p = top_p.unwrap_or(sampling.top_p);
        sampling.top_k = top_k.unwrap_or(sampling.top_k);
        sampling.min_p = min_p.unwrap_or(sampling.min_p);
        sampling.repetition_penalty = repetition_penalty.unwrap_or(sampling.repetition_penalty);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_folder_names_is_taken_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(SamplingDefaults::read(folder.path()).unwrap(), SamplingDefaults::default());
        let path = folder.path().join("generation_config.json");
        std::fs::write(
            &path,
            r#"{"do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "eos_token_id": [1]}"#,
        )
        .unwrap();
        let mut sampling = Sampling::default();
        SamplingDefaults::read(folder.path()).unwrap().apply(&mut sampling);
        assert_eq!(sampling, Sampling { temperature: 0.6, top_k: 20, top_p: 0.95, ..Sampling::default() });
        for (text, wanted) in [
            ("{", "generation_config.json"),
            (r#"{"temperature": -1}"#, "`temperature` -1"),
            (r#"{"top_p": 1.5}"#, "`top_p` 1.5"),
            (r#"{"repetition_penalty": 0}"#, "`repetition_penalty` 0"),
        ] {
            std::fs::write(&path, text).unwrap();
            let error = SamplingDefaults::read(folder.path()).unwrap_err();
            assert!(error.to_string().contains(wanted) && error.exit_code() == 64, "{text}: {error}");
        }
    }
}
