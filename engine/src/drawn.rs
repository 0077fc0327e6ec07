//! Pictures of drawn noise: how many and of what size, for measurements and predictions.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use tributary_coordinator::{Detail, PICTURES, PictureFile};
use tributary_pictures::{Encoded, Limits, Rules, noise};
use tributary_planner::VisionShape;
use tributary_protocol::SplitMix64;

use crate::error::{Error, Result};

/// Pictures of one size, in pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Drawn {
    /// Number of pictures.
    pub count: usize,
    /// Width of each.
    pub width: u32,
    /// Height of each.
    pub height: u32,
}

impl Drawn {
    /// Lines and columns of the places of each picture for a tower.
    ///
    /// # Errors
    /// Returns an error if one side is too many times the other, or if the tower's limits are
    /// impossible.
    pub fn grid(&self, tower: &VisionShape) -> Result<(u32, u32)> {
        let sides = [tower.patch, tower.merge].map(|side| u32::try_from(side).unwrap_or(u32::MAX));
        let rules = Rules::new(sides[0], sides[1], tower.least_pixels, tower.most_pixels);
        let places = rules.and_then(|rules| rules.places(self.width, self.height));
        places.map_err(|cause| Error::usage(format!("--images {self}: {cause}")))
    }

    /// The files of these pictures, drawn from a seed.
    ///
    /// # Errors
    /// Returns an error if a file would be beyond a limit.
    pub fn files(&self, seed: u64) -> Result<Vec<Arc<PictureFile>>> {
        let file = |number: usize| {
            let mut random = SplitMix64::new(seed ^ (number as u64 + 1).wrapping_mul(0xd134_2543_de82_ef95));
            let file = noise(self.width, self.height, &Limits::default(), || random.draw());
            let file = file.map_err(|cause| Error::usage(format!("--images {self}: {cause}")))?;
            let encoded = Encoded { declared: None, file };
            Ok(Arc::new(PictureFile::new(format!("drawn picture {}", number + 1), encoded, Detail::Full)?))
        };
        (0..self.count).map(file).collect()
    }
}

impl fmt::Display for Drawn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}x{}", self.count, self.width, self.height)
    }
}

impl FromStr for Drawn {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is not COUNTxWIDTHxHEIGHT, such as 20x1024x1024");
        let numbers: Vec<u32> = text.split('x').map(str::parse).collect::<Result<_, _>>().map_err(|_| wrong())?;
        let [count, width, height] = numbers[..] else { return Err(wrong()) };
        let count = count as usize;
        if !(1..=PICTURES).contains(&count) {
            return Err(format!("{count} pictures; a request has 1 to {PICTURES}"));
        }
        Limits::default().check_size(width, height).map_err(|cause| cause.to_string())?;
        Ok(Self { count, width, height })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_refused_with_both_numbers() {
        let drawn: Drawn = "20x1024x768".parse().expect("a size");
        assert_eq!((drawn, drawn.to_string().as_str()), (Drawn { count: 20, width: 1024, height: 768 }, "20x1024x768"));
        for (text, wanted) in [
            ("20x1024", "is not COUNTxWIDTHxHEIGHT"),
            ("20x1024x", "is not COUNTxWIDTHxHEIGHT"),
            ("-1x2x2", "is not COUNTxWIDTHxHEIGHT"),
            ("0x64x64", "0 pictures; a request has 1 to 256"),
            ("257x64x64", "257 pictures; a request has 1 to 256"),
            ("1x0x64", "0 x 64 pixels, a side has 1 to 32768"),
            ("1x20000x20000", "400000000 pixels, at most 67108864"),
        ] {
            let error = text.parse::<Drawn>().expect_err(text);
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }

    #[test]
    fn grids_are_those_of_published_models() {
        let of = |text: &str, name: &str| {
            let shape = tributary_planner::ModelShape::named(name).and_then(|shape| shape.vision).expect("a tower");
            text.parse::<Drawn>().expect(text).grid(&shape)
        };
        assert_eq!(of("1x1024x1024", "qwen3-vl-8b").expect("a grid"), (32, 32));
        assert_eq!(of("1x1654x2339", "qwen3-vl-8b").expect("a page"), (73, 52));
        assert_eq!(of("1x1024x1024", "qwen2.5-vl-7b").expect("a grid"), (37, 37));
        let error = of("1x3000x10", "qwen3-vl-8b").expect_err("narrow").to_string();
        assert!(error.starts_with("--images 1x3000x10: ") && error.contains("200 times"), "{error}");
    }

    #[test]
    fn each_picture_of_a_seed_is_another() {
        let drawn: Drawn = "3x40x20".parse().expect("a size");
        let [one, again, other] = [7, 7, 8].map(|seed| drawn.files(seed).expect("files"));
        assert!(one == again && one != other);
        assert_ne!(one[0], one[1]);
    }
}
