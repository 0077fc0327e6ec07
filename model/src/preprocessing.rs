//! From pixels to numbers: `preprocessor_config.json` of a model folder, or the same object
//! in `processor_config.json` of newer writers.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::families::Towers;

/// The largest number of pixels that a limit may have.
const PIXEL_LIMIT: u64 = 1 << 40;

/// Bicubic interpolation, by its number in Pillow.
const BICUBIC: u64 = 3;

/// From pixels to numbers. A value v of a channel counts as `(v − 255·mean) / (255·std)`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Preprocessing {
    /// Mean of each channel, red first, from 0 to 1.
    pub mean: [f64; 3],
    /// Spread of each channel, above 0.
    pub std: [f64; 3],
    /// Smallest number of pixels that a picture is enlarged to.
    pub least_pixels: u64,
    /// Largest number of pixels that a picture is reduced to.
    pub most_pixels: u64,
}

/// The sizes of a config.json that the file must agree with.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    /// Side of a patch, in pixels.
    pub patch: usize,
    /// Side of the block of patches that makes a token.
    pub merge: usize,
    /// Frames of a patch.
    pub frames: usize,
}

impl Preprocessing {
    /// That of a family's published models, for folders without such a file.
    pub(super) fn published(family: Towers) -> Self {
        match family {
            Towers::Qwen3 => Self { mean: [0.5; 3], std: [0.5; 3], least_pixels: 65536, most_pixels: 16_777_216 },
            Towers::Qwen25 => Self {
                mean: [0.48145466, 0.4578275, 0.40821073],
                std: [0.26862954, 0.26130258, 0.27577711],
                least_pixels: 3136,
                most_pixels: 12_845_056,
            },
        }
    }

    /// That of an image processor's object; `published` gives the fields that it leaves out.
    ///
    /// # Errors
    /// Returns the field that is impossible, not supported, or contradicts another.
    pub(super) fn of(value: &Value, published: Self, sizes: Sizes) -> Result<Self, String> {
        check(value, sizes)?;
        let channels = |name: &str, published: [f64; 3], least: f64| match &value[name] {
            Value::Null => Ok(published),
            stated => {
                let numbers: Option<Vec<f64>> =
                    stated.as_array().map(|all| all.iter().filter_map(Value::as_f64).collect());
                let numbers = numbers.and_then(|numbers| <[f64; 3]>::try_from(numbers).ok());
                let numbers = numbers.filter(|all| all.iter().all(|number| (least..=1e3).contains(number)));
                numbers.ok_or_else(|| format!("{name} {stated}: must be three numbers from {least} on"))
            }
        };
        let limit = |flat: &str, of_size: &str, published: u64| {
            let (one, other) = (&value[flat], &value["size"][of_size]);
            if !one.is_null() && !other.is_null() && one != other {
                return Err(format!("{flat} {one} and size.{of_size} {other} contradict each other"));
            }
            match if one.is_null() { other } else { one } {
                Value::Null => Ok(published),
                stated => {
                    let pixels = stated.as_u64().filter(|pixels| (1..=PIXEL_LIMIT).contains(pixels));
                    pixels.ok_or_else(|| format!("{flat} {stated}: must be a number of pixels"))
                }
            }
        };
        let found = Self {
            mean: channels("image_mean", published.mean, 0.0)?,
            std: channels("image_std", published.std, 1e-6)?,
            least_pixels: limit("min_pixels", "shortest_edge", published.least_pixels)?,
            most_pixels: limit("max_pixels", "longest_edge", published.most_pixels)?,
        };
        match found.least_pixels <= found.most_pixels {
            true => Ok(found),
            false => Err(format!("min_pixels {} is above max_pixels {}", found.least_pixels, found.most_pixels)),
        }
    }
}

/// Rejects preprocessing that is not supported, and other sizes than those of config.json.
fn check(value: &Value, sizes: Sizes) -> Result<(), String> {
    if !value.is_object() {
        return Err("must be an object".to_owned());
    }
    let kind = value["image_processor_type"].as_str().unwrap_or("Qwen2VLImageProcessor");
    let stem = kind.strip_suffix("Fast").unwrap_or(kind);
    if !["Qwen2VLImageProcessor", "Qwen2_5_VLImageProcessor", "Qwen3VLImageProcessor"].contains(&stem) {
        let kind: String = kind.chars().filter(|letter| !letter.is_control()).take(80).collect();
        return Err(format!("image_processor_type `{kind}` is not supported; Qwen2VLImageProcessorFast is"));
    }
    let Sizes { patch, merge, frames } = sizes;
    for (name, size) in [("patch_size", patch), ("merge_size", merge), ("temporal_patch_size", frames)] {
        let stated = &value[name];
        if !stated.is_null() && stated.as_u64() != Some(size as u64) {
            return Err(format!("{name} {stated} and {size} in config.json contradict each other"));
        }
    }
    for name in ["do_resize", "do_rescale", "do_normalize", "do_convert_rgb"] {
        if value[name] == false {
            return Err(format!("{name} false is not supported"));
        }
    }
    let rescale = &value["rescale_factor"];
    if !rescale.is_null() && rescale.as_f64().is_none_or(|factor| (factor * 255.0 - 1.0).abs() > 1e-6) {
        return Err(format!("rescale_factor {rescale} is not supported; 1/255 is"));
    }
    let resample = &value["resample"];
    if !resample.is_null() && resample.as_u64() != Some(BICUBIC) {
        return Err(format!("resample {resample} is not supported; {BICUBIC}, bicubic, is"));
    }
    Ok(())
}

/// The files of a model folder that may state the preprocessing, with the field that holds it.
pub(super) fn files(folder: &Path) -> [(PathBuf, Option<&'static str>); 2] {
    [(folder.join("preprocessor_config.json"), None), (folder.join("processor_config.json"), Some("image_processor"))]
}
