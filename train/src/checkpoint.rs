//! A checkpoint: one file, there whole or not at all, from which a training resumes bit for bit.

use std::collections::HashMap;
use std::path::Path;

use candle_core::{Device, Tensor};
use serde::{Deserialize, Serialize};
use tributary_system::file::write_whole;

use crate::adamw::AdamW;
use crate::error::{Error, Result};
use crate::record::StepRow;

/// The file's name.
pub const FILE: &str = "checkpoint.safetensors";

/// Name of the state beside the numbers.
const STATE: &str = "state";

/// State beside the numbers. The order of samples follows from the seed and the step, so no other
/// random state is needed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// Which training it is: settings, model, samples.
    pub training: String,
    /// Steps taken.
    pub steps: u64,
    /// Result of each step.
    pub rows: Vec<StepRow>,
}

/// The file's bytes.
///
/// # Errors
/// Returns an error if a candle operation fails.
pub fn bytes(optimizer: &AdamW, state: &State) -> Result<Vec<u8>> {
    let tensor = |values: &[f64]| Tensor::from_slice(values, values.len(), &Device::Cpu);
    let tensors = [
        ("values", tensor(&optimizer.values)?),
        ("first", tensor(&optimizer.first)?),
        ("second", tensor(&optimizer.second)?),
    ];
    let said = serde_json::to_string(state).expect("a state is JSON");
    let said = HashMap::from([(STATE.to_owned(), said)]);
    let tensors = tensors.iter().map(|(name, tensor)| (*name, tensor));
    Ok(safetensors::serialize(tensors, Some(said)).map_err(candle_core::Error::from)?)
}

/// Writes a checkpoint into a folder; the one before stays until this one is whole.
///
/// # Errors
/// Returns [`Error::Write`] if the disk is full.
pub fn write(folder: &Path, optimizer: &AdamW, state: &State) -> Result<()> {
    let path = folder.join(FILE);
    write_whole(&path, &bytes(optimizer, state)?).map_err(|cause| Error::Write { path, cause })
}

/// A checkpoint from the bytes of its file.
///
/// # Errors
/// Returns [`Error::Checkpoint`] if the files are no checkpoint, have other numbers or are of
/// another training.
pub fn read(folder: &Path, bytes: &[u8], training: &str, values: usize) -> Result<(AdamW, State)> {
    let path = folder.join(FILE);
    let bad = |what: String| Error::Checkpoint { path: path.clone(), what };
    let (_, header) = safetensors::SafeTensors::read_metadata(bytes).map_err(|error| bad(error.to_string()))?;
    let said = header.metadata().as_ref().and_then(|said| said.get(STATE));
    let state = said.ok_or_else(|| bad("it is no checkpoint of a training".to_owned()))?;
    let state: State = serde_json::from_str(state).map_err(|error| bad(error.to_string()))?;
    if state.training != training {
        let what = "it is of another training: --resume wants the same model, samples and options";
        return Err(Error::Usage(format!("{}: {what}", path.display())));
    }
    let tensors = safetensors::SafeTensors::deserialize(bytes).map_err(|error| bad(error.to_string()))?;
    let list = |name: &str| {
        let view = tensors.tensor(name).map_err(|error| bad(error.to_string()))?;
        let list: Vec<f64> = crate::sums::floats(view.data()).collect();
        match list.len() == values {
            true => Ok(list),
            false => Err(bad(format!("`{name}` has {} numbers; {values} are learned", list.len()))),
        }
    };
    let (values, first, second) = (list("values")?, list("first")?, list("second")?);
    Ok((AdamW { values, first, second, steps: state.steps }, state))
}
