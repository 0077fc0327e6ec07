//! Resizing as the models' own processors do it: antialiased bicubic, across first and then down,
//! rounded to bytes after each pass.
//!
//! The library that resizes would choose the order of the passes by their cost. It is therefore
//! asked for one pass at a time: results then equal torchvision's bit for bit, and differ by tens
//! of levels otherwise.

use fast_image_resize::images::{TypedImage, TypedImageRef};
use fast_image_resize::pixels::U8x3;
use fast_image_resize::{FilterType, ResizeAlg, ResizeOptions, Resizer};

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
    let mut rgb = vec![0; width as usize * height as usize * 3];
    let source = TypedImageRef::<U8x3>::from_buffer(pixels.width, pixels.height, &pixels.rgb);
    let source = source.expect("three bytes a pixel, as decoded");
    let mut target = TypedImage::<U8x3>::from_buffer(width, height, &mut rgb).expect("three bytes a pixel");
    let options = ResizeOptions::new().resize_alg(ResizeAlg::Convolution(FilterType::CatmullRom)).use_alpha(false);
    // One type of pixels only: the call that knows none links the code of all.
    Resizer::new().resize_typed(&source, &mut target, &options).expect("the whole of a picture is resized");
    Pixels { width, height, rgb }
}
