//! Resizing as the models' own processors do it: antialiased bicubic, across first and then down,
//! rounded to bytes after each pass.
//!
//! The library that resizes would choose the order of the passes by their cost. It is therefore
//! asked for one pass at a time: results then equal torchvision's bit for bit, and differ by tens
//! of levels otherwise.

use fast_image_resize::images::Image;
use fast_image_resize::{FilterType, PixelType, ResizeAlg, ResizeOptions, Resizer};

use crate::pixels::Pixels;

/// A picture resized to `width` x `height` pixels, both at least 1. A side that stays is not
/// touched.
pub fn resized(pixels: Pixels, width: u32, height: u32) -> Pixels {
    let old_height = pixels.height;
    let across = pass(pixels, width, old_height);
    pass(across, width, height)
}

/// One pass, along the one side that changes.
fn pass(pixels: Pixels, width: u32, height: u32) -> Pixels {
    if (pixels.width, pixels.height) == (width, height) {
        return pixels;
    }
    let source = Image::from_vec_u8(pixels.width, pixels.height, pixels.rgb, PixelType::U8x3)
        .expect("three bytes a pixel, as decoded");
    let mut target = Image::new(width, height, PixelType::U8x3);
    let options = ResizeOptions::new().resize_alg(ResizeAlg::Convolution(FilterType::CatmullRom)).use_alpha(false);
    Resizer::new().resize(&source, &mut target, &options).expect("both pictures have three bytes a pixel");
    Pixels { width, height, rgb: target.into_vec() }
}
