//! A model's rules for pictures, and the size that they give a picture.

use crate::error::{Error, Result};

/// The longer side has at most this many times the pixels of the shorter one.
pub const MAX_ASPECT: u32 = 200;

/// Most merged places of a picture that is asked for with little detail.
const LOW_PLACES: u64 = 256;

/// The largest pixel limit of a model's rules: 16 times that of published ones.
const MOST_PIXELS: u64 = 1 << 28;

/// Rules that a model's preprocessor gives: sides are multiples of patch times merge, and the
/// product of the sides lies between two limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    patch: u32,
    merge: u32,
    least_pixels: u64,
    most_pixels: u64,
}

impl Rules {
    /// Rules with patches of `patch` x `patch` pixels, of which `merge` x `merge` make one merged
    /// place (a token), and with limits of a picture's pixels.
    ///
    /// # Errors
    /// Returns an error if a number is 0 or beyond reason, if the limits are swapped, or if the
    /// upper one has no room for one merged place.
    pub fn new(patch: u32, merge: u32, least_pixels: u64, most_pixels: u64) -> Result<Self> {
        let refused = |what: String| Err(Error::Rules { what });
        if !(1..=1024).contains(&patch) || !(1..=16).contains(&merge) {
            return refused(format!(
                "patches have {patch} pixels a side (1 to 1024) and merge {merge} a side (1 to 16)"
            ));
        }
        let place = u64::from(patch * merge).pow(2);
        if !(place..=MOST_PIXELS).contains(&most_pixels) {
            return refused(format!("at most {most_pixels} pixels, where {place} to {MOST_PIXELS} are possible"));
        }
        if least_pixels > most_pixels {
            return refused(format!("at least {least_pixels} pixels and at most {most_pixels}"));
        }
        Ok(Self { patch, merge, least_pixels, most_pixels })
    }

    /// The same rules for a picture that is asked for with little detail (`detail: low`): at most
    /// 256 merged places. A picture that is enlarged has at least 64 places or the model's own
    /// lower limit, whichever is less.
    #[must_use]
    pub fn low(self) -> Self {
        let place = u64::from(self.factor()).pow(2);
        let most_pixels = self.most_pixels.min(LOW_PLACES * place);
        // A lower limit near the upper one could be rounded beyond it.
        let least_pixels = self.least_pixels.min(LOW_PLACES / 4 * place).min(most_pixels);
        Self { most_pixels, least_pixels, ..self }
    }

    /// Pixels of a patch's side.
    pub fn patch(&self) -> u32 {
        self.patch
    }

    /// Patches of a merged place's side.
    pub fn merge(&self) -> u32 {
        self.merge
    }

    /// Pixels of a merged place's side.
    pub fn factor(&self) -> u32 {
        self.patch * self.merge
    }

    /// Width and height that a picture of `width` x `height` pixels is resized to: multiples of
    /// [`factor`](Self::factor). Halves are rounded to even, in f64, as the models' own processors
    /// do.
    ///
    /// # Errors
    /// Returns an error if a side is 0, or if one is more than [`MAX_ASPECT`] times the other.
    pub fn fitted(&self, width: u32, height: u32) -> Result<(u32, u32)> {
        let (shorter, longer) = (width.min(height), width.max(height));
        if u64::from(longer) > u64::from(MAX_ASPECT) * u64::from(shorter) || shorter == 0 {
            return Err(Error::Aspect { width, height, most: MAX_ASPECT });
        }
        let factor = f64::from(self.factor());
        let area = f64::from(width) * f64::from(height);
        let rounded = |side: u32| (f64::from(side) / factor).round_ties_even() * factor;
        let (least, most) = (self.least_pixels as f64, self.most_pixels as f64);
        let both = |side: &dyn Fn(f64) -> f64| (side(f64::from(width)), side(f64::from(height)));
        // A narrow side may be rounded to 0 here; the area is then below any lower limit but 0.
        let (mut w, mut h) = (rounded(width), rounded(height));
        if w * h > most {
            let shrink = (area / most).sqrt();
            (w, h) = both(&|side| ((side / shrink / factor).floor() * factor).max(factor));
        } else if w * h < least {
            let grow = (least / area).sqrt();
            (w, h) = both(&|side| (side * grow / factor).ceil() * factor);
        }
        Ok((w.max(factor) as u32, h.max(factor) as u32))
    }

    /// Rows and columns of merged places of a picture of `width` x `height` pixels; their product
    /// is the number of its tokens.
    ///
    /// # Errors
    /// Returns an error if a side is 0, or if one is more than [`MAX_ASPECT`] times the other.
    pub fn places(&self, width: u32, height: u32) -> Result<(u32, u32)> {
        let (width, height) = self.fitted(width, height)?;
        Ok((height / self.factor(), width / self.factor()))
    }
}
