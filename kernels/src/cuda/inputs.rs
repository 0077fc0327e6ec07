//! Tensors as launches take them: contiguous, held, and not more blocks than a launch can name.

use std::sync::Arc;

use candle_core::{CudaDevice, Tensor};

use super::call::Input;
use super::rope::tables as rope_tables;
use super::rope_tables::DeviceTables;
use super::rows::contiguous;
use super::sight::MAX_BLOCKS;
use crate::error::{Error, Result};
use crate::{Keys, Rope};

/// The tensors of blocks as a launch takes them: contiguous, keys and values in turn, and not more
/// than it can name.
pub(super) fn joined(keys: &[Keys]) -> Result<Vec<Tensor>> {
    let part = |pick: fn(&Keys) -> &Tensor| -> Result<Vec<Tensor>> {
        let mut all = keys.iter().map(|block| contiguous(pick(block))).collect::<Result<Vec<_>>>()?;
        if all.len() > MAX_BLOCKS {
            let rest = all.split_off(MAX_BLOCKS - 1);
            all.push(crate::join(&rest.iter().collect::<Vec<_>>(), 0)?);
        }
        Ok(all)
    };
    let (k, v) = (part(|block| &block.k)?, part(|block| &block.v)?);
    Ok(k.into_iter().zip(v).flat_map(|(k, v)| [k, v]).collect())
}

/// These tensors, held for a launch.
pub(super) fn inputs(tensors: &[Tensor]) -> Result<Vec<Input<'_>>> {
    tensors.iter().map(input).collect()
}

/// This tensor, held for a launch.
pub(super) fn input(tensor: &Tensor) -> Result<Input<'_>> {
    let elsewhere = || Error::NoDevice("a tensor of a launch is elsewhere".to_owned());
    Input::new(tensor).ok_or_else(elsewhere)
}

/// A rotary embedding's tables on a device.
pub(super) fn tables(rope: Option<&Rope>, device: &CudaDevice) -> Result<Option<Arc<DeviceTables>>> {
    rope.map(|rope| rope_tables(rope, device)).transpose()
}
