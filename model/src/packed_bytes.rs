//! The memory of packed weights, from what files and configs say of them.

use std::path::Path;

use candle_core::{DType, Device};
use safetensors::Dtype;
use tributary_kernels::{Packed, Packing};

use crate::gguf::Stored;
use crate::quantised::Quantisation;
use crate::weights::Weights;
use crate::{Config, LoadFormat, Result};

/// Ends of names of tensors whose numbers are in blocks, or in no memory.
const IN_BLOCKS: [&str; 7] = ["scale", "scales", "scale_inv", "qzeros", "zero_point", "g_idx", "weight_shape"];

/// Bytes of a folder's weights in memory, plain ones in `dtype`, and on a GPU of the room to unpack
/// them; `None` if none are packed. Ranks that share a GPU take that room once each, which is not
/// counted.
///
/// # Errors
/// Returns an error if a weight file is missing or damaged.
pub fn packed_bytes(
    folder: &Path,
    config: &Config,
    format: LoadFormat,
    dtype: DType,
    on_gpu: bool,
) -> Result<Option<u64>> {
    let room = if on_gpu { unpacked_numbers(config) * dtype.size_in_bytes() as u64 } else { 0 };
    Ok(stored_bytes(folder, config, format, dtype)?.map(|stored| stored + room))
}

/// Numbers that a GPU has unpacked at a time: a piece of a matrix, or a matrix of each expert of a
/// layer.
fn unpacked_numbers(config: &Config) -> u64 {
    let Config { vocab, hidden, intermediate, heads, head_dim, .. } = *config;
    let piece = |outputs: usize, inputs: usize| Packed::unpacked_rows([outputs, inputs]) * inputs;
    let dense = piece(vocab.max(intermediate).max(heads * head_dim), hidden).max(piece(hidden, intermediate));
    let of_experts = config.experts.as_ref().map_or(0, |experts| experts.sizes.matrix_numbers(hidden));
    dense.max(of_experts) as u64
}

/// The weights themselves.
fn stored_bytes(folder: &Path, config: &Config, format: LoadFormat, dtype: DType) -> Result<Option<u64>> {
    let plain = dtype.size_in_bytes() as u64;
    let blocks = |numbers: u64, packing: Packing| numbers / packing.numbers() as u64 * packing.bytes() as u64;
    if matches!(format, LoadFormat::Dummy { .. }) {
        return Ok(config.quantisation.map(|form| {
            let all = config.parameters() as u64;
            let outer = (config.vocab * config.hidden * if config.tied_embeddings { 1 } else { 2 }) as u64;
            let outer_packed = form.of_dummy("model.embed_tokens.weight", config.hidden).is_some();
            let packed = match &config.experts {
                Some(experts) if form.is_of_experts() => experts.sizes.routed_numbers(config.hidden) as u64,
                _ if outer_packed => all,
                _ => all - outer,
            };
            let of_experts = config.experts.as_ref().map_or(config.hidden, |experts| experts.sizes.width);
            let inputs = [config.hidden, config.intermediate, config.heads * config.head_dim, of_experts];
            let narrowest =
                inputs.map(|inputs| form.packing(inputs)).into_iter().min_by_key(|packing| packing.numbers());
            blocks(packed, narrowest.expect("four of them")) + (all - packed) * plain
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
    // A config need not state that experts are in MXFP4.
    if config.quantisation.is_none() && !config.sinks {
        return Ok(None);
    }
    let stays_packed = config.quantisation.is_none_or(Quantisation::stays_packed);
    let (mut sum, mut is_packed) = (0, config.quantisation.is_some());
    Weights::open(folder, dtype, &Device::Cpu)?.each_stored(|name, dtype, shape| {
        let numbers = shape.iter().product::<usize>() as u64;
        let of = |of_a_word: usize, packing: Packing| {
            let numbers = numbers * of_a_word as u64;
            let wide = |form: Quantisation| form.of_codes(packing, form.stored_inputs(shape, of_a_word));
            let packing = config.quantisation.map_or(packing, wide);
            if stays_packed { blocks(numbers, packing) } else { numbers * plain }
        };
        sum += match dtype {
            _ if IN_BLOCKS.iter().any(|end| name.ends_with(end)) => 0,
            Dtype::U8 if name.ends_with("_blocks") => {
                is_packed = true;
                blocks(2 * numbers, Packing::Mxfp4)
            }
            Dtype::F8_E4M3 => of(1, Packing::Fp8),
            Dtype::I8 => of(1, Packing::Int8),
            Dtype::I32 | Dtype::U32 => of(8, Packing::Int4),
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
        (packed_bytes(&folder, &config, LoadFormat::Safetensors, DType::F32, false).unwrap(), plain)
    }

    #[test]
    fn a_gpu_has_room_to_unpack_a_piece_or_a_matrix_of_every_expert() {
        let folder = |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden").join(name);
        let more = |name: &str| {
            let (folder, config) = (folder(name), Config::read(&folder(name)).unwrap());
            let of = |on_gpu| packed_bytes(&folder, &config, LoadFormat::Safetensors, DType::BF16, on_gpu).unwrap();
            (of(true).unwrap() - of(false).unwrap(), config)
        };
        let (room, config) = more("packed/fp8-tensor");
        let widest = config.vocab.max(config.intermediate);
        assert_eq!(room, 2 * (widest * config.hidden) as u64, "one matrix at a time");
        let (room, config) = more("gpt-oss-mxfp4");
        let sizes = config.experts.unwrap().sizes;
        let experts = sizes.count * sizes.width * config.hidden;
        assert_eq!(room, 2 * experts.max(config.vocab * config.hidden) as u64, "all experts of a layer");
        let large = Config::read(Path::new("../examples/models/gpt-oss-20b")).unwrap();
        assert_eq!(unpacked_numbers(&large), 32 * 2880 * 2880);
        let dense = Config::read(Path::new("../examples/models/llama-3.1-8b")).unwrap();
        assert!((1 << 25..(1 << 25) + 64 * 14336).contains(&unpacked_numbers(&dense)), "a piece of the output");
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
        // Random weights are packed where the config says that those of its files are.
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/gpt-oss-mxfp4");
        let (config, format) = (Config::read(&folder).unwrap(), LoadFormat::Dummy { seed: 0 });
        let drawn = packed_bytes(&folder, &config, format, DType::F32, false).unwrap().unwrap();
        let of_files = bytes("gpt-oss-mxfp4").0.unwrap();
        assert!(drawn.abs_diff(of_files) < of_files / 10, "{drawn} bytes drawn, {of_files} in files");
    }
}
