//! What is learned, as the loop sees it: numbers that take a gradient, a loss, and what is left of it all in the end.

use std::path::Path;

use candle_core::{Tensor, Var};
use tributary_worker::{Adapter, AdapterConfig, AdapterFolder, AdapterKind, Config, Model, Progress};

use crate::error::Result;
use crate::sample::Sample;

/// What is learned.
pub trait Pupil {
    /// Its name on the command line.
    fn name(&self) -> &'static str;

    /// What tells it from another: a training goes on with this one alone.
    fn identity(&self) -> serde_json::Value;

    /// What its loss is, in words, for a chart.
    fn loss_name(&self) -> &'static str;

    /// The tensors that are learned, always in the same order.
    fn parameters(&self) -> Vec<Var>;

    /// The loss of the sample of a number, a scalar from which gradients flow to [`parameters`](Self::parameters).
    ///
    /// # Errors
    /// The model's.
    fn loss(&self, model: &dyn Model, sample: (usize, &Sample), progress: &Progress) -> Result<Tensor>;

    /// How far it chooses what its teacher would choose of the sample of a number, from 0 to 1, where choosing is what it learns.
    ///
    /// # Errors
    /// The model's.
    fn agreement(&self, _: &dyn Model, _: (usize, &Sample), _: &Progress) -> Result<Option<f64>> {
        Ok(None)
    }

    /// Writes what was learned into a folder that is there, each file whole.
    ///
    /// # Errors
    /// The disk's, the tensor library's.
    fn write(&self, folder: &Path, made: &Made<'_>) -> Result<()>;
}

/// How something was learned: what stands beside the numbers.
#[derive(Debug)]
pub struct Made<'a> {
    /// The hash of the model's config and weights.
    pub base_model: [u8; 32],
    /// The model's sizes.
    pub model: &'a Config,
    /// What the training came to.
    pub training: &'a serde_json::Value,
}

/// Writes an adapter.
///
/// # Errors
/// The disk's, the tensor library's.
pub fn write_adapter(kind: AdapterKind, adapter: &Adapter, folder: &Path, made: &Made<'_>) -> Result<()> {
    let config = AdapterConfig::new(kind, made.base_model, made.model, made.training.clone());
    Ok(AdapterFolder::write(folder, &config, adapter)?)
}
