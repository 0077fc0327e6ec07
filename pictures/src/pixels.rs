//! A decoded picture: RGB bytes without transparency.

use std::fmt;

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

impl fmt::Debug for Pixels {
    /// Without the bytes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pixels").field("width", &self.width).field("height", &self.height).finish_non_exhaustive()
    }
}

/// `[pixels, 3]` red, green and blue of `[pixels, channels]` bytes, where 1 channel is grey, 2 are
/// grey and opacity, and 4 are colour and opacity. Transparent pixels lie on white. The library's
/// own conversions would link 2.5 MB of colour management.
pub(crate) fn rgb(samples: Vec<u8>, channels: usize) -> Vec<u8> {
    assert!((1..=4).contains(&channels), "{channels} channels");
    let opaque = if matches!(channels, 2 | 4) { on_white(samples, channels - 1) } else { samples };
    if channels > 2 {
        return opaque;
    }
    let mut rgb = Vec::with_capacity(3 * opaque.len());
    opaque.iter().for_each(|grey| rgb.extend([*grey; 3]));
    rgb
}

/// Bytes of 16-bit samples, rounded, in the same memory. The samples are in the machine's order of
/// bytes.
pub(crate) fn narrowed(mut samples: Vec<u8>) -> Vec<u8> {
    let count = samples.len() / 2;
    for index in 0..count {
        let sample = u32::from(u16::from_ne_bytes([samples[2 * index], samples[2 * index + 1]]));
        samples[index] = ((sample * 255 + 32767) / 65535) as u8;
    }
    samples.truncate(count);
    samples
}

/// `[pixels, colours + 1]`, the last one opacity, to `[pixels, colours]` on white, in the same
/// memory.
fn on_white(mut samples: Vec<u8>, colours: usize) -> Vec<u8> {
    let pixels = samples.len() / (colours + 1);
    for pixel in 0..pixels {
        let from = pixel * (colours + 1);
        let opacity = samples[from + colours];
        for colour in 0..colours {
            let sample = samples[from + colour];
            samples[pixel * colours + colour] =
                if opacity == u8::MAX { sample } else { sample_on_white(sample, opacity) };
        }
    }
    samples.truncate(pixels * colours);
    samples
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
    }

    #[test]
    fn every_number_of_channels_becomes_three() {
        assert_eq!(rgb(vec![1, 2], 1), [1, 1, 1, 2, 2, 2]);
        assert_eq!(rgb(vec![7, 255, 7, 0, 128, 128], 2), [7, 7, 7, 255, 255, 255, 192, 192, 192]);
        assert_eq!(rgb(vec![1, 2, 3, 4, 5, 6], 3), [1, 2, 3, 4, 5, 6]);
        let four = vec![1, 2, 3, 255, 4, 5, 6, 0, 0, 128, 255, 128];
        assert_eq!(rgb(four, 4), [1, 2, 3, 255, 255, 255, 127, 192, 255]);
    }

    #[test]
    fn samples_of_16_bits_are_rounded() {
        let samples = (0..=u16::MAX).flat_map(u16::to_ne_bytes).collect();
        let wanted = (0..=u16::MAX).map(|sample| (f64::from(sample) / 257.0).round() as u8);
        assert!(narrowed(samples).into_iter().eq(wanted));
    }
}
