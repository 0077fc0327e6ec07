//! A picture as a model reads it, and the name of its content.

use std::fmt;
use std::sync::Arc;

use blake3::Hasher;

use crate::decode::{decode, guarded};
use crate::error::Result;
use crate::kind::Kind;
use crate::limits::Limits;
use crate::pixels::Pixels;
use crate::resize::resized;
use crate::rules::Rules;

/// Changes with the fields that are hashed.
const DOMAIN: &str = "tributary image 1";

/// A picture that is resized for a model. Clones share the pixels.
#[derive(Clone, PartialEq, Eq)]
pub struct Picture {
    /// Rows of merged places.
    pub rows: u32,
    /// Columns of merged places; rows times columns is the number of its tokens.
    pub columns: u32,
    /// Pixels a row.
    pub width: u32,
    /// Rows of pixels.
    pub height: u32,
    /// `[height, width, 3]`: red, green and blue.
    pub rgb: Arc<[u8]>,
    /// BLAKE3 of rows, columns and pixels. Files of several kinds with the same resized pixels are
    /// one picture.
    pub hash: [u8; 32],
}

impl Picture {
    /// Reads a file: checks it, decodes it, and resizes it by a model's rules. `declared` is the
    /// media type of the request, if it has one. With a `secret` the hash is keyed, as keys of
    /// chunks are: without the secret it cannot be computed from the pixels.
    ///
    /// # Errors
    /// Returns an error if the file is beyond a limit, is of another kind than declared, cannot be
    /// decoded, or has a shape that no model reads.
    pub fn read(
        file: &[u8],
        declared: Option<&str>,
        rules: &Rules,
        limits: &Limits,
        secret: Option<&[u8; 32]>,
    ) -> Result<Self> {
        let pixels = decode(file, declared, limits)?;
        guarded(Kind::of(file)?, || Self::of(pixels, rules, secret))
    }

    /// A decoded picture, resized by a model's rules.
    ///
    /// # Errors
    /// Returns an error if one side is more than [`MAX_ASPECT`](crate::MAX_ASPECT) times the other.
    pub fn of(pixels: Pixels, rules: &Rules, secret: Option<&[u8; 32]>) -> Result<Self> {
        let (width, height) = rules.fitted(pixels.width, pixels.height)?;
        let (rows, columns) = (height / rules.factor(), width / rules.factor());
        let rgb: Arc<[u8]> = resized(pixels, width, height).rgb.into();
        let hash = hash(rows, columns, &rgb, secret);
        Ok(Self { rows, columns, width, height, rgb, hash })
    }

    /// Tokens of the picture, one a merged place.
    pub fn tokens(&self) -> usize {
        self.rows as usize * self.columns as usize
    }
}

impl fmt::Debug for Picture {
    /// Without the pixels.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hash = self.hash.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        f.debug_struct("Picture")
            .field("rows", &self.rows)
            .field("columns", &self.columns)
            .field("hash", &hash)
            .finish_non_exhaustive()
    }
}

/// The name of a resized picture's content: a hash of its grid (u32, little-endian) and pixels. A
/// model's patches, mean and deviation are in the model's own identity.
fn hash(rows: u32, columns: u32, rgb: &[u8], secret: Option<&[u8; 32]>) -> [u8; 32] {
    let mut hasher = match secret {
        None => Hasher::new_derive_key(DOMAIN),
        Some(secret) => {
            let mut hasher = Hasher::new_keyed(secret);
            hasher.update(DOMAIN.as_bytes());
            hasher
        }
    };
    hasher.update(&rows.to_le_bytes()).update(&columns.to_le_bytes()).update(rgb);
    *hasher.finalize().as_bytes()
}
