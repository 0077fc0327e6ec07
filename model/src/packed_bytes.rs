//! The memory of packed weights, from what files and configs say of them.

use std::path::Path;

use candle_core::{DType, Device};
use safetensors::Dtype;
use tributary_kernels::Packing;

use crate::gguf::Stored;
use crate::weights::Weights;
use crate::{Config, Error, LoadFormat, Result};

/// Bytes of a folder's weights in memory on a CPU, plain ones in `dtype`; `None` if none are
/// packed.
///
/// # Errors
/// Returns an error if a weight file is missing or damaged.
pub fn packed_bytes(folder: &Path, config: &Config, format: LoadFormat, dtype: DType) -> Result<Option<u64>> {
    let plain = dtype.size_in_bytes() as u64;
    let blocks = |numbers: u64, packing: Packing| numbers / packing.numbers() as u64 * packing.bytes() as u64;
    if matches!(format, LoadFormat::Dummy { .. }) {
        return Ok(config.quantisation.map(|form| {
            let all = config.parameters() as u64;
            let outer = (config.vocab * config.hidden * if config.tied_embeddings { 1 } else { 2 }) as u64;
            let outer_packed = form.of_dummy("model.embed_tokens.weight", config.hidden).is_some();
            let packed = if outer_packed { all } else { all - outer };
            blocks(packed, form.packing()) + (all - packed) * plain
        }));
    }
    let weights = || Weights::open(folder, dtype, &Device::Cpu);
    if let Some(places) = weights_of_gguf(folder)? {
        let one = |(stored, numbers, bytes): &(Stored, u64, u64)| match stored {
            Stored::Plain(_) => numbers * plain,
            Stored::Packed(_) => *bytes,
        };
        let is_packed = places.iter().any(|(stored, ..)| matches!(stored, Stored::Packed(_)));
        return Ok(is_packed.then(|| places.iter().map(one).sum()));
    }
    if config.quantisation.is_none() {
        return Ok(None);
    }
    let mut sum = 0;
    weights()?.each_stored(|name, dtype, numbers| {
        let is_scale =
            ["scale", "scales", "qzeros", "zero_point", "g_idx", "weight_shape"].iter().any(|end| name.ends_with(end));
        sum += match dtype {
            _ if is_scale || name.ends_with("_inv") => 0, // in the blocks
            Dtype::F8_E4M3 => blocks(numbers, Packing::Fp8),
            Dtype::I8 => blocks(numbers, Packing::Int8),
            Dtype::I32 | Dtype::U32 => blocks(8 * numbers, Packing::Int4),
            _ => numbers * plain,
        };
    });
    Ok(Some(sum))
}

/// How each tensor of a folder's GGUF file is stored, its numbers and bytes.
fn weights_of_gguf(folder: &Path) -> Result<Option<Vec<(Stored, u64, u64)>>> {
    let Some(path) = crate::weights::gguf_file(folder) else { return Ok(None) };
    let file = crate::gguf::Gguf::open(&path)?;
    let one = |place: &crate::gguf::Place| {
        let numbers: usize = place.shape.iter().product();
        (place.stored, numbers as u64, place.bytes() as u64)
    };
    Ok::<_, Error>(Some(file.tensors.values().map(one).collect()))
}
