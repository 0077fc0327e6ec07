//! The memory of packed weights, from what files and configs say of them.

use std::path::Path;

use candle_core::{DType, Device};
use safetensors::Dtype;
use tributary_kernels::Packing;

use crate::gguf::Stored;
use crate::quantised::Quantisation;
use crate::weights::Weights;
use crate::{Config, LoadFormat, Result};

/// Ends of names of tensors whose numbers are in blocks, or in no memory.
const IN_BLOCKS: [&str; 7] = ["scale", "scales", "scale_inv", "qzeros", "zero_point", "g_idx", "weight_shape"];

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
    if let Some(places) = weights_of_gguf(folder)? {
        let one = |(stored, numbers, bytes): &(Stored, u64, u64)| match stored {
            Stored::Plain(_) => numbers * plain,
            Stored::Packed(_) => *bytes,
        };
        let is_packed = places.iter().any(|(stored, ..)| matches!(stored, Stored::Packed(_)));
        return Ok(is_packed.then(|| places.iter().map(one).sum()));
    }
    // Experts in MXFP4 need no form.
    if config.quantisation.is_none() && !config.sinks {
        return Ok(None);
    }
    let stays_packed = config.quantisation.is_none_or(Quantisation::stays_packed);
    let of = |numbers: u64, packing: Packing| if stays_packed { blocks(numbers, packing) } else { numbers * plain };
    let (mut sum, mut is_packed) = (0, config.quantisation.is_some());
    Weights::open(folder, dtype, &Device::Cpu)?.each_stored(|name, dtype, numbers| {
        sum += match dtype {
            _ if IN_BLOCKS.iter().any(|end| name.ends_with(end)) => 0,
            Dtype::U8 if name.ends_with("_blocks") => {
                is_packed = true;
                blocks(2 * numbers, Packing::Mxfp4)
            }
            Dtype::F8_E4M3 => of(numbers, Packing::Fp8),
            Dtype::I8 => of(numbers, Packing::Int8),
            Dtype::I32 | Dtype::U32 => of(8 * numbers, Packing::Int4),
            _ => numbers * plain,
        };
    });
    Ok(is_packed.then_some(sum))
}

/// How each tensor of a folder's GGUF file is stored, its numbers and bytes.
fn weights_of_gguf(folder: &Path) -> Result<Option<Vec<(Stored, u64, u64)>>> {
    let Some(path) = crate::weights::gguf_file(folder) else { return Ok(None) };
    let file = crate::gguf::Gguf::open(&path)?;
    let one = |place: &crate::gguf::Place| {
        let numbers: usize = place.shape.iter().product();
        (place.stored, numbers as u64, place.bytes() as u64)
    };
    Ok(Some(file.tensors.values().map(one).collect()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test may panic

    use super::*;

    fn bytes(name: &str) -> (Option<u64>, u64) {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden").join(name);
        let config = Config::read(&folder).unwrap();
        let plain = 4 * config.parameters() as u64;
        (packed_bytes(&folder, &config, LoadFormat::Safetensors, DType::F32).unwrap(), plain)
    }

    #[test]
    fn what_stays_packed_is_counted_so_and_what_is_unpacked_is_not() {
        for name in ["packed/gptq", "packed/awq", "packed/fp8-tensor", "gpt-oss-mxfp4"] {
            let (found, plain) = bytes(name);
            assert!(found.unwrap() < 7 * plain / 10, "{name}: {found:?} of {plain}");
        }
        for name in ["packed/gptq-order", "packed/compressed-int4-odd"] {
            let (found, plain) = bytes(name);
            assert!(found.unwrap() > 95 * plain / 100, "{name}: {found:?} of {plain}");
        }
        assert_eq!(bytes("qwen3").0, None);
    }
}
