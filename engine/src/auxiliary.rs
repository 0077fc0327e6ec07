//! The model beside the main one (`--aux-model`): what the planner must know of it, and its weights on the host of rank 0.

use std::sync::Arc;

use candle_core::Device;
use tributary_coordinator::{AuxiliaryReader, ModelShape, Tokenizer};
use tributary_worker::{Config, Model, Models};

use crate::config::Dtype;
use crate::error::Result;
use crate::model::{ModelFolder, shape_of};

/// The model beside the main one, as a rank has it.
#[derive(Clone)]
pub struct AuxiliaryModel {
    name: String,
    config: Config,
    /// On rank 0, and on ranks that share its process.
    weights: Option<Arc<dyn Model>>,
}

/// What the planner must know of the model beside that of `main`, if there is one.
///
/// # Errors
/// A tokenizer that cannot be read.
pub(crate) fn reader(main: &ModelFolder) -> Result<Option<AuxiliaryReader>> {
    let Some(folder) = &main.auxiliary else { return Ok(None) };
    let file = |folder: &ModelFolder| folder.path.join("tokenizer.json");
    // Where both have none, as with dummy weights, ids are all there is.
    let hash = |folder: &ModelFolder| std::fs::read(file(folder)).ok().map(|bytes| blake3::hash(&bytes));
    let is_same = hash(main) == hash(folder);
    let tokenizer = if is_same { None } else { Some(Tokenizer::from_file(&file(folder), None)?) };
    let config = &folder.config;
    let max_positions = config.sliding_window.map_or(config.max_positions, |window| window.min(config.max_positions));
    let shape = ModelShape { max_positions, ..shape_of(config, Dtype::F32.tensor().size_in_bytes()) };
    Ok(Some(AuxiliaryReader { name: name(folder), shape, bos: config.bos, tokenizer }))
}

fn name(folder: &ModelFolder) -> String {
    folder.path.display().to_string()
}

impl AuxiliaryModel {
    /// A model that is loaded, under the name by which plans list it.
    pub fn new(name: impl Into<String>, weights: Arc<dyn Model>) -> Self {
        Self { name: name.into(), config: weights.config().clone(), weights: Some(weights) }
    }

    /// The model beside that of `main`, if there is one; `weights` says whether this process runs it.
    ///
    /// # Errors
    /// Damaged, missing or misshapen weights.
    pub(crate) fn load(main: &ModelFolder, weights: bool) -> Result<Option<Self>> {
        let Some(folder) = &main.auxiliary else { return Ok(None) };
        let weights = weights.then(|| folder.load_on(&Device::Cpu)).transpose()?;
        Ok(Some(Self { name: name(folder), config: folder.config.clone(), weights }))
    }

    /// The models of a rank with this one.
    pub(crate) fn added<'a>(&'a self, models: Models<'a>) -> Models<'a> {
        match &self.weights {
            Some(weights) => models.with(&self.name, &**weights),
            None => models.with_elsewhere(&self.name, &self.config),
        }
    }
}
