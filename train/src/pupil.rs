//! The student, as the training loop sees it: numbers that take a gradient, a loss, and files to
//! write at the end.

use std::path::Path;

use candle_core::{Tensor, Var};
use tributary_model::{Adapter, AdapterConfig, AdapterFolder, AdapterKind, Config, Model, Progress};

use crate::error::Result;
use crate::sample::Sample;

/// A student.
pub trait Pupil {
    /// Its name on the command line.
    fn name(&self) -> &'static str;

    /// Identity: a training can resume with the same student only.
    fn identity(&self) -> serde_json::Value;

    /// Name of its loss, for a chart.
    fn loss_name(&self) -> &'static str;

    /// The tensors that are learned, always in the same order.
    fn parameters(&self) -> Vec<Var>;

    /// The loss of the sample of a number, a scalar from which gradients flow to
    /// [`parameters`](Self::parameters).
    ///
    /// # Errors
    /// Returns an error if the model fails.
    fn loss(&self, model: &dyn Model, sample: (usize, &Sample), progress: &Progress) -> Result<Tensor>;

    /// Agreement of its selection with its teacher's on a numbered sample, from 0 to 1, if it
    /// learns to select.
    ///
    /// # Errors
    /// Returns an error if the model fails.
    fn agreement(&self, _: &dyn Model, _: (usize, &Sample), _: &Progress) -> Result<Option<f64>> {
        Ok(None)
    }

    /// Writes the result into an existing folder, each file whole.
    ///
    /// # Errors
    /// Returns an error if the disk or a candle operation fails.
    fn write(&self, folder: &Path, made: &Made<'_>) -> Result<()>;
}

/// Record of a training, kept beside the numbers.
#[derive(Debug)]
pub struct Made<'a> {
    /// The hash of the model's config and weights.
    pub base_model: [u8; 32],
    /// The model's sizes.
    pub model: &'a Config,
    /// Result of the training.
    pub training: &'a serde_json::Value,
}

/// Writes an adapter.
///
/// # Errors
/// Returns an error if the disk or a candle operation fails.
pub fn write_adapter(kind: AdapterKind, adapter: &Adapter, folder: &Path, made: &Made<'_>) -> Result<()> {
    let config = AdapterConfig::new(kind, made.base_model, made.model, made.training.clone());
    Ok(AdapterFolder::write(folder, &config, adapter)?)
}
