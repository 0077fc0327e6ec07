//! Limits of a picture's file, compared with what its header states before memory is reserved.

use crate::error::{Error, Result};

/// Memory of a decoder beside 4 bytes a pixel.
const DECODER_BYTES: u64 = 64 << 20;

/// Most that a picture's file may be and state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of the file.
    pub encoded_bytes: usize,
    /// Pixels, width times height.
    pub pixels: u64,
    /// Pixels of one side.
    pub side: u32,
}

impl Default for Limits {
    /// 20 MiB a file, 64 Mi pixels, 32768 pixels a side.
    fn default() -> Self {
        Self { encoded_bytes: 20 << 20, pixels: 64 << 20, side: 32768 }
    }
}

impl Limits {
    /// Bytes that the samples of a decoded picture may take: 4 a pixel of the limit, and 64 MiB.
    /// Pictures with 16 bits a sample reach it before the limit of pixels.
    pub fn memory_bytes(&self) -> u64 {
        self.pixels.saturating_mul(4).saturating_add(DECODER_BYTES)
    }

    /// Checks the length of a file.
    ///
    /// # Errors
    /// Returns an error if the file is too long.
    pub fn check_encoded(&self, bytes: usize) -> Result<()> {
        if bytes > self.encoded_bytes {
            return Err(Error::EncodedBytes { bytes, most: self.encoded_bytes });
        }
        Ok(())
    }

    /// Checks the size that a header states, in pixels.
    ///
    /// # Errors
    /// Returns an error if a side is 0 or too long, or if there are too many pixels.
    pub fn check_size(&self, width: u32, height: u32) -> Result<()> {
        let allowed = 1..=self.side;
        if !allowed.contains(&width) || !allowed.contains(&height) {
            return Err(Error::Side { width, height, most: self.side });
        }
        let pixels = u64::from(width) * u64::from(height);
        if pixels > self.pixels {
            return Err(Error::Pixels { width, height, pixels, most: self.pixels });
        }
        Ok(())
    }

    /// Checks the bytes of a decoded picture's samples.
    ///
    /// # Errors
    /// Returns an error if there are too many.
    pub fn check_memory(&self, bytes: u64) -> Result<()> {
        let most = self.memory_bytes();
        if bytes > most {
            return Err(Error::Memory { bytes, most });
        }
        Ok(())
    }

    /// The same limits as the decoders know them.
    pub(crate) fn of_decoders(&self) -> image::Limits {
        let mut limits = image::Limits::no_limits();
        limits.max_image_width = Some(self.side);
        limits.max_image_height = Some(self.side);
        limits.max_alloc = Some(self.memory_bytes());
        limits
    }
}
