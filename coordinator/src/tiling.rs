//! Cutting of pictures into tiles, each a chunk of its own.

use std::fmt;
use std::str::FromStr;

use tributary_protocol::tile::{MOST_TILES, TileOrder};

use crate::Error;
use crate::error::setting;

/// Number of tiles along each side of a picture, 1 to [`MOST_TILES`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageTiles(u8);

impl Default for ImageTiles {
    /// Pictures stay whole.
    fn default() -> Self {
        Self(1)
    }
}

impl ImageTiles {
    /// A number of tiles, if pictures can be cut into as many.
    pub fn new(count: u8) -> Option<Self> {
        (1..=MOST_TILES).contains(&count).then_some(Self(count))
    }

    /// The number.
    pub fn count(self) -> u8 {
        self.0
    }
}

impl FromStr for ImageTiles {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let refused = || setting("--image-tiles", text, format!("must be a number from 1 to {MOST_TILES}"));
        text.parse().ok().and_then(Self::new).ok_or_else(refused)
    }
}

impl fmt::Display for ImageTiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// The tiles that pictures are cut into.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tiling {
    /// Number of tiles along each side.
    pub tiles: ImageTiles,
    /// Causal order of a picture's rows.
    pub order: TileOrder,
}

impl Tiling {
    /// Whether pictures stay whole.
    pub fn is_whole(self) -> bool {
        self.tiles.count() == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_are_cut_into_1_to_8_parts_along_each_side() {
        for count in 1..=8 {
            let tiles: ImageTiles = count.to_string().parse().expect("a number of tiles");
            let tiling = Tiling { tiles, ..Tiling::default() };
            assert_eq!((tiles.count(), tiling.is_whole()), (count, count == 1));
        }
        assert_eq!("1".parse::<ImageTiles>().expect("whole"), ImageTiles::default());
        for text in ["0", "9", "257", "-1", "2x2", ""] {
            let error = text.parse::<ImageTiles>().expect_err("refused");
            assert_eq!(error.to_string(), format!("--image-tiles {text}: must be a number from 1 to 8"));
            assert_eq!(error.exit_code(), 64);
        }
    }
}
