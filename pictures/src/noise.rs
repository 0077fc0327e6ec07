//! Files of drawn noise, for measurements.

use crate::error::Result;
use crate::limits::Limits;
use crate::pixels::Pixels;
use crate::png::png;

/// Side of the squares of one colour, in pixels: a file of single noisy pixels would be as long as
/// its pixels.
const SQUARE: usize = 4;

/// A PNG file of `width` x `height` pixels in squares of drawn colours. `draw` gives the next 64
/// random bits.
///
/// # Errors
/// Returns an error if the size or the file is beyond a limit.
pub fn noise(width: u32, height: u32, limits: &Limits, mut draw: impl FnMut() -> u64) -> Result<Vec<u8>> {
    limits.check_size(width, height)?;
    let (across, down) = (width as usize, height as usize);
    let mut rgb = Vec::with_capacity(across * down * 3);
    while rgb.len() < across * down * 3 {
        let colours: Vec<u64> = (0..across.div_ceil(SQUARE)).map(|_| draw()).collect();
        let line: Vec<u8> = (0..across).flat_map(|x| rgb_of(colours[x / SQUARE])).collect();
        let lines = SQUARE.min(down - rgb.len() / line.len());
        (0..lines).for_each(|_| rgb.extend_from_slice(&line));
    }
    let file = png(&Pixels { width, height, rgb });
    limits.check_encoded(file.len())?;
    Ok(file)
}

fn rgb_of(bits: u64) -> [u8; 3] {
    let [r, g, b, ..] = bits.to_le_bytes();
    [r, g, b]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::decode;

    #[test]
    fn noise_is_a_picture_of_its_size_and_follows_from_its_bits() {
        let drawn = |from: u64| {
            let mut state = from;
            let draw = || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                state >> 24
            };
            noise(90, 50, &Limits::default(), draw).expect("a file")
        };
        let pixels = decode(&drawn(1), Some("image/png"), &Limits::default()).expect("a picture");
        assert_eq!((pixels.width, pixels.height, pixels.rgb.len()), (90, 50, 90 * 50 * 3));
        let colours: std::collections::BTreeSet<&[u8]> = pixels.rgb.chunks(3).collect();
        assert!(colours.len() > 100, "{} colours", colours.len());
        assert_eq!(drawn(1), drawn(1));
        assert_ne!(drawn(1), drawn(2));
        let error = noise(40_000, 2, &Limits::default(), || 0).expect_err("a side").to_string();
        assert!(error.contains("40000 x 2"), "{error}");
    }
}
