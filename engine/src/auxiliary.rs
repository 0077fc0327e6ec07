//! The models beside the main one: one that reads (`--aux-model`), one that writes
//! (`--draft-model`). The planner's facts of each, and their weights on the host of rank 0.

use std::sync::Arc;

use candle_core::Device;
use tributary_coordinator::{AuxiliaryReader, DRAFT_OPTION, Readers, Tokenizer};
use tributary_model::{Config, Model};
use tributary_worker::Models;

use crate::error::{Error, Result};
use crate::model::ModelFolder;
use crate::tokenizer_trial;

/// Bytes of a tokenizer's file at most.
const TOKENIZER_BYTES: u64 = 256 << 20;

/// An auxiliary model, as a rank has it.
#[derive(Clone)]
pub struct AuxiliaryModel {
    name: String,
    config: Config,
    /// On rank 0, and on ranks that share its process.
    weights: Option<Arc<dyn Model>>,
}

/// The models that read and write beside that of `main`, where there are any.
///
/// # Errors
/// Fails as [`reader`] and [`writer`] do.
pub(crate) fn readers(main: &ModelFolder) -> Result<Readers> {
    Ok(Readers { auxiliary: reader(main)?.map(Arc::new), draft_model: writer(main)?.map(Arc::new) })
}

/// The planner's facts of the model that reads for that of `main`, if there is one.
///
/// # Errors
/// Returns an error if a tokenizer cannot be read.
fn reader(main: &ModelFolder) -> Result<Option<AuxiliaryReader>> {
    let Some(folder) = &main.auxiliary else { return Ok(None) };
    let tokenizer =
        if has_tokenizer_of(folder, main) { None } else { Some(tokenizer_trial::tokenizer(&folder.path, None)?) };
    Ok(Some(beside(folder, tokenizer)))
}

/// The planner's facts of the model that writes ahead of that of `main`, if there is one.
///
/// # Errors
/// Returns an error if its tokenizer differs from the main model's.
fn writer(main: &ModelFolder) -> Result<Option<AuxiliaryReader>> {
    let Some(folder) = &main.draft_model else { return Ok(None) };
    if !has_tokenizer_of(folder, main) {
        let (own, its) = (name(folder), name(main));
        return Err(Error::usage(format!(
            "{DRAFT_OPTION} {own}: its tokenizer.json is not that of {its}; a draft model must write the model's own tokens"
        )));
    }
    Ok(Some(beside(folder, None)))
}

/// Whether both have the same tokenizer. Where both have none, as with dummy weights, there are
/// only ids.
fn has_tokenizer_of(folder: &ModelFolder, main: &ModelFolder) -> bool {
    let read = |folder| tributary_system::file::regular_bytes(&tokenizer_file(folder), TOKENIZER_BYTES);
    let hash = |folder| read(folder).ok().map(|bytes| blake3::hash(&bytes));
    hash(folder) == hash(main)
}

fn tokenizer_file(folder: &ModelFolder) -> std::path::PathBuf {
    folder.path.join("tokenizer.json")
}

fn beside(folder: &ModelFolder, tokenizer: Option<Tokenizer>) -> AuxiliaryReader {
    AuxiliaryReader { name: name(folder), shape: folder.shape(), bos: folder.config.bos, tokenizer }
}

fn name(folder: &ModelFolder) -> String {
    folder.given.display().to_string()
}

impl AuxiliaryModel {
    /// A model that is loaded, under the name by which plans list it.
    pub fn new(name: impl Into<String>, weights: Arc<dyn Model>) -> Self {
        Self { name: name.into(), config: weights.config().clone(), weights: Some(weights) }
    }

    /// The models beside that of `main`; `weights` says whether this process runs them.
    ///
    /// # Errors
    /// Returns an error if weights are missing, damaged or of the wrong shape.
    pub(crate) fn all(main: &ModelFolder, weights: bool) -> Result<Vec<Self>> {
        let load = |folder: &ModelFolder| {
            let weights = weights.then(|| folder.load_on(&Device::Cpu)).transpose()?;
            Ok(Self { name: name(folder), config: folder.config.clone(), weights })
        };
        main.auxiliary.iter().chain(&main.draft_model).map(|folder| load(folder)).collect()
    }

    /// The models of a rank with this one.
    pub(crate) fn added<'a>(&'a self, models: Models<'a>) -> Models<'a> {
        match &self.weights {
            Some(weights) => models.with(&self.name, &**weights),
            None => models.with_elsewhere(&self.name, &self.config),
        }
    }
}
