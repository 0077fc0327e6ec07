//! The kit of tests of pictures: the recorded models of `tests/golden` with their pictures and
//! prompts, and a pass in which every row sees those before it.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use serde_json::Value;
use tributary_kernels::{Kernels, Keys, Partial, Positions, join};

use crate::error::Result;
use crate::vision_config::VisionConfig;
use crate::{Attention, Config, Grid, LayerAttention, LoadFormat, Model, Pictures, Progress, Qkv, load};

/// The recorded models: Qwen3-VL with newer names of tensors and a nested config, Qwen2.5-VL with
/// older ones and a flat one.
pub const RECORDED: [&str; 2] = ["qwen3vl-tiny", "qwen25vl-tiny"];

/// The pictures of every recorded model.
pub const PICTURES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

/// The folder of a recorded model.
pub fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden").join(name)
}

/// A file of a recorded model: `NAME.safetensors`.
pub fn recorded(model: &str, file: &str) -> HashMap<String, Tensor> {
    let path = folder(model).join(format!("{file}.safetensors"));
    candle_core::safetensors::load(path, &Device::Cpu).expect("a recorded file")
}

/// The config of a recorded model as JSON.
pub fn json(model: &str, file: &str) -> Value {
    let text = std::fs::read_to_string(folder(model).join(file)).expect("a recorded file");
    serde_json::from_str(&text).expect("JSON")
}

/// A recorded model.
pub fn model(name: &str) -> Arc<dyn Model> {
    load(&folder(name), LoadFormat::Safetensors, DType::F32, &Device::Cpu).expect("a recorded model")
}

/// The tower's config of a recorded model.
pub fn vision(name: &str) -> VisionConfig {
    Config::read(&folder(name)).expect("a config").vision.expect("a tower")
}

/// Whole numbers of a recorded file.
pub fn integers(tensor: &Tensor) -> Vec<u32> {
    let numbers: Vec<i64> = tensor.flatten_all().and_then(|all| all.to_vec1()).expect("i64");
    numbers.into_iter().map(|number| u32::try_from(number).expect("a small number")).collect()
}

/// The largest difference, in units of the largest expected number.
pub fn error(found: &Tensor, expected: &Tensor) -> f64 {
    assert_eq!(found.dims(), expected.dims());
    let wide =
        |x: &Tensor| -> Vec<f64> { x.to_dtype(DType::F64).and_then(|x| x.flatten_all()?.to_vec1()).expect("numbers") };
    let (found, expected) = (wide(found), wide(expected));
    let largest = expected.iter().map(|x| x.abs()).fold(0.0, f64::max);
    assert!(found.iter().all(|x| x.is_finite()) && largest > 0.0, "numbers that can be compared");
    found.iter().zip(&expected).map(|(one, other)| (one - other).abs()).fold(0.0, f64::max) / largest
}

/// Pictures of a recorded model, from their resized pixels.
pub fn pictures(model: &str, names: &[&str]) -> Pictures {
    let (config, images) = (vision(model), recorded(model, "images"));
    let (mut patches, mut grids) = (Vec::new(), Vec::new());
    for name in names {
        let grid = integers(&images[&format!("{name}.grid_thw")]);
        grids.push(Grid { rows: grid[1], columns: grid[2] });
        patches.push(patch_rows(&images[&format!("{name}.resized")], &config));
    }
    Pictures { patches: Tensor::cat(&patches, 0).expect("patches"), grids }
}

/// The rows of patches of resized pixels `[rows, columns, 3]` in bytes.
fn patch_rows(pixels: &Tensor, config: &VisionConfig) -> Tensor {
    let (height, width, _) = pixels.dims3().expect("pixels");
    let bytes: Vec<u8> = pixels.flatten_all().and_then(|all| all.to_vec1()).expect("bytes");
    let VisionConfig { patch, merge, frames, .. } = *config;
    let mut numbers = Vec::with_capacity(2 * bytes.len());
    let (rows, columns) = (height / patch, width / patch);
    let tokens = (0..rows / merge).flat_map(|row| (0..columns / merge).map(move |column| (row, column)));
    for (row, column) in tokens.flat_map(|(row, column)| {
        (0..merge * merge).map(move |index| (row * merge + index / merge, column * merge + index % merge))
    }) {
        for channel in 0..3 {
            let (mean, std) = (config.preprocessing.mean[channel], config.preprocessing.std[channel]);
            for _ in 0..frames {
                for place in 0..patch * patch {
                    let (y, x) = (row * patch + place / patch, column * patch + place % patch);
                    let byte = f64::from(bytes[(y * width + x) * 3 + channel]);
                    numbers.push(((byte - 255.0 * mean) / (255.0 * std)) as f32);
                }
            }
        }
    }
    Tensor::from_vec(numbers, (rows * columns, config.patch_numbers()), &Device::Cpu).expect("rows")
}

/// Every row sees those before it and itself.
pub struct Causal {
    /// The attention of each layer.
    pub layers: Arc<[LayerAttention]>,
    /// Where the rows stand.
    pub at: Positions,
    /// The record of steps.
    pub progress: Progress,
}

impl Attention for Causal {
    type Error = crate::Error;

    fn attend(&mut self, layer: usize, qkv: Qkv) -> Result<Partial> {
        let keys = [Keys { k: qkv.k, v: qkv.v, at: self.at.clone() }];
        self.layers[layer].attend(Kernels::Auto, &qkv.q, &self.at, &keys)
    }

    fn progress(&self) -> &Progress {
        &self.progress
    }
}

/// One tensor of several, one below the other.
pub fn below(parts: &[Tensor]) -> Tensor {
    join(&parts.iter().collect::<Vec<_>>(), 0).expect("parts of one width")
}
