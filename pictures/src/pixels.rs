//! A decoded picture: RGB bytes without transparency.

use std::fmt;

use image::DynamicImage;

/// A picture's pixels.
#[derive(Clone, PartialEq, Eq)]
pub struct Pixels {
    /// Pixels a row.
    pub width: u32,
    /// Rows.
    pub height: u32,
    /// `[height, width, 3]`: red, green and blue.
    pub rgb: Vec<u8>,
}

impl Pixels {
    /// Of a decoded picture of any colour type. Samples of 16 bits are scaled to 8, greys become
    /// three equal channels, and what is transparent lies on white.
    pub(crate) fn of(image: DynamicImage) -> Self {
        let (width, height) = (image.width(), image.height());
        let rgb = if image.color().has_alpha() {
            on_white(image.into_rgba8().into_raw())
        } else {
            image.into_rgb8().into_raw()
        };
        Self { width, height, rgb }
    }
}

impl fmt::Debug for Pixels {
    /// Without the bytes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pixels").field("width", &self.width).field("height", &self.height).finish_non_exhaustive()
    }
}

/// `[pixels, 4]` red, green, blue and opacity to `[pixels, 3]` on white, in the same memory.
fn on_white(mut rgba: Vec<u8>) -> Vec<u8> {
    let pixels = rgba.len() / 4;
    for pixel in 0..pixels {
        let opacity = rgba[4 * pixel + 3];
        for channel in 0..3 {
            let sample = rgba[4 * pixel + channel];
            rgba[3 * pixel + channel] = if opacity == u8::MAX { sample } else { sample_on_white(sample, opacity) };
        }
    }
    rgba.truncate(3 * pixels);
    rgba
}

/// A sample on white, in f32 and rounded as transformers' processors do.
fn sample_on_white(sample: u8, opacity: u8) -> u8 {
    let opacity = f32::from(opacity) / 255.0;
    ((f32::from(sample) / 255.0 * opacity + (1.0 - opacity)) * 255.999).floor() as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opaque_samples_stay_and_transparent_ones_are_white() {
        for sample in 0..=u8::MAX {
            assert_eq!(sample_on_white(sample, u8::MAX), sample, "opaque {sample}");
            assert_eq!(sample_on_white(sample, 0), u8::MAX, "transparent {sample}");
        }
        assert_eq!(on_white(vec![1, 2, 3, 255, 4, 5, 6, 0, 0, 128, 255, 128]), [1, 2, 3, 255, 255, 255, 127, 192, 255]);
    }

    #[test]
    fn samples_of_16_bits_are_scaled() {
        let grey = image::ImageBuffer::from_raw(3, 1, vec![0_u16, 32768, 65535]).expect("three samples");
        assert_eq!(Pixels::of(DynamicImage::ImageLuma16(grey)).rgb, [0, 0, 0, 128, 128, 128, 255, 255, 255]);
    }
}
