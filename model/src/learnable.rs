//! A decoder whose own weights are learned, on the host. Each weight is a variable under its name
//! in a model folder. The decoder reads the variables themselves, so a change to one takes effect
//! at once.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor, Var};
use tributary_system::file::write_whole;

use super::weights::Weights;
use super::{Config, Decoder, Model};
use crate::error::{Error, Result};

/// A decoder with its variables.
pub struct Learnable {
    model: Arc<dyn Model>,
    weights: BTreeMap<String, Var>,
}

impl Learnable {
    /// With the weights of a folder, in `dtype`.
    ///
    /// # Errors
    /// Returns an error if weights are missing, damaged or misshapen.
    pub fn read(config: Config, folder: &Path, dtype: DType) -> Result<Self> {
        Self::of(config, Weights::open(folder, dtype, &Device::Cpu)?)
    }

    /// With weights drawn from a seed: those of the load format `dummy`.
    ///
    /// # Errors
    /// Returns an error if a candle operation fails.
    pub fn drawn(config: Config, seed: u64, dtype: DType) -> Result<Self> {
        Self::of(config, Weights::dummy(seed, dtype, &Device::Cpu))
    }

    fn of(config: Config, weights: Weights) -> Result<Self> {
        if weights.may_be_packed() || config.quantisation.is_some() {
            return Err(Error::Input("packed weights are not trained: training takes plain ones".to_owned()));
        }
        if config.vision.is_some() {
            return Err(Error::Input(format!("{}: a model that reads pictures is not trained", config.architecture)));
        }
        let weights = weights.into_variables();
        let model = Arc::new(Decoder::new(config, &weights)?);
        Ok(Self { model, weights: weights.into_learned() })
    }

    /// The decoder, whose gradients flow into the variables.
    pub fn model(&self) -> &dyn Model {
        &*self.model
    }

    /// The variables, by their names.
    pub fn weights(&self) -> &BTreeMap<String, Var> {
        &self.weights
    }

    /// Writes `model.safetensors` into a folder, in f32, atomically.
    ///
    /// # Errors
    /// Returns [`Error::Write`] if the file cannot be written. Returns an error if a candle
    /// operation fails.
    pub fn write(&self, folder: &Path) -> Result<()> {
        let path = folder.join("model.safetensors");
        let in_f32 = |(name, var): (&String, &Var)| Ok((name.clone(), var.as_tensor().to_dtype(DType::F32)?));
        let tensors: Vec<(String, Tensor)> = self.weights.iter().map(in_f32).collect::<Result<_>>()?;
        let form = HashMap::from([("format".to_owned(), "pt".to_owned())]);
        let bytes = safetensors::serialize(tensors, Some(form)).map_err(candle_core::Error::from)?;
        write_whole(&path, &bytes).map_err(|cause| Error::Write { path, cause })
    }
}
