//! PNG files of drawn pictures: of benchmarks and of tasks.

use image::codecs::png::PngEncoder;
use image::{ExtendedColorType, ImageEncoder};

use crate::pixels::Pixels;

/// A PNG file with these pixels.
///
/// # Panics
/// If the pixels are fewer or more than width and height say: only a bug can cause that.
pub fn png(pixels: &Pixels) -> Vec<u8> {
    let mut file = Vec::new();
    let Pixels { width, height, rgb } = pixels;
    let written = PngEncoder::new(&mut file).write_image(rgb, *width, *height, ExtendedColorType::Rgb8);
    written.expect("a file in memory can be written");
    file
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Limits, decode};

    #[test]
    fn a_file_has_the_pixels_that_were_written() {
        let pixels = Pixels { width: 5, height: 3, rgb: (0..45).map(|number| number * 5).collect() };
        assert_eq!(decode(&png(&pixels), Some("image/png"), &Limits::default()).expect("a picture"), pixels);
    }
}
