//! From a file to its pixels: kind, limits, header, samples, orientation, transparency.

use std::any::Any;
use std::io::Cursor;
use std::panic::{AssertUnwindSafe, catch_unwind};

use image::codecs::jpeg::JpegDecoder;
use image::codecs::png::PngDecoder;
use image::codecs::webp::WebPDecoder;
use image::imageops::{flip_horizontal_in_place, flip_vertical_in_place, rotate90, rotate180_in_place, rotate270};
use image::metadata::Orientation;
use image::{ImageDecoder, ImageError, RgbImage};

use crate::container::{check_jpeg_end, check_webp, png_size};
use crate::error::{Error, Result, quoted};
use crate::kind::Kind;
use crate::limits::Limits;
use crate::pixels::{Pixels, narrowed, rgb};

/// Facts about a file that are known before its pixels are decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Kind of the file.
    pub kind: Kind,
    /// Pixels a row, after the file's orientation is applied.
    pub width: u32,
    /// Rows of pixels, after the file's orientation is applied.
    pub height: u32,
    /// Most bytes that decoding takes beside the file itself, for a caller that decodes several at
    /// once. It is an upper estimate: a PNG file takes about half of it.
    pub peak_bytes: u64,
}

impl Header {
    /// Reads a file's header. `declared` is the media type of the request, if it has one.
    ///
    /// # Errors
    /// Returns an error if the file is beyond a limit, of a kind that is not read or was not
    /// declared, an animation, incomplete, or damaged in its header.
    pub fn read(file: &[u8], declared: Option<&str>, limits: &Limits) -> Result<Self> {
        let kind = checked_kind(file, declared, limits)?;
        guarded(kind, || {
            let (decoder, orientation) = open(file, kind, limits)?;
            let (width, height) = decoder.dimensions();
            let pixels = u64::from(width) * u64::from(height);
            let samples = decoder.total_bytes();
            let working = match kind {
                // The copy that a conversion or a rotation makes.
                Kind::Png => samples.max(4 * pixels),
                // A copy of the file, and coefficients of 16 bits of up to four components.
                Kind::Jpeg => 8 * pixels + file.len() as u64,
                // Planes of colour and opacity.
                Kind::Webp => 8 * pixels,
            };
            let (width, height) = if is_turned(orientation) { (height, width) } else { (width, height) };
            Ok(Self { kind, width, height, peak_bytes: samples + working })
        })
    }
}

/// Decodes a file: RGB, oriented as its EXIF data says, transparent pixels on white.
/// `declared` is the media type of the request, if it has one.
///
/// # Errors
/// Returns an error if the file is beyond a limit, of a kind that is not read or was not declared,
/// an animation, incomplete, or damaged. A decoder's panic is an error too.
pub fn decode(file: &[u8], declared: Option<&str>, limits: &Limits) -> Result<Pixels> {
    let kind = checked_kind(file, declared, limits)?;
    guarded(kind, || {
        let (decoder, orientation) = open(file, kind, limits)?;
        let (width, height) = decoder.dimensions();
        let (colour, mut samples) = (decoder.color_type(), vec![0; decoder.total_bytes() as usize]);
        decoder.read_image_boxed(&mut samples).map_err(|error| refused(kind, &error))?;
        let channels = usize::from(colour.channel_count());
        let samples = match usize::from(colour.bytes_per_pixel()) / channels {
            1 => samples,
            2 => narrowed(samples),
            bytes => return Err(Error::Decoder { kind, what: format!("samples of {bytes} bytes") }),
        };
        let image = RgbImage::from_raw(width, height, rgb(samples, channels)).expect("three bytes a pixel");
        let image = oriented(image, orientation);
        Ok(Pixels { width: image.width(), height: image.height(), rgb: image.into_raw() })
    })
}

/// Runs the decoder of a file of some kind; its panic is an error.
pub(crate) fn guarded<T>(kind: Kind, work: impl FnOnce() -> Result<T>) -> Result<T> {
    // The work owns or only reads what it uses: a panic leaves nothing half done.
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| Err(Error::Panic { kind, what: message(&*panic) }))
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    quoted(text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message"))
}

/// The kind of a file that is short enough and declared rightly.
fn checked_kind(file: &[u8], declared: Option<&str>, limits: &Limits) -> Result<Kind> {
    limits.check_encoded(file.len())?;
    let kind = Kind::of(file)?;
    kind.check_declared(declared)?;
    Ok(kind)
}

/// The decoder of a file whose header keeps the limits, and the file's orientation.
fn open<'a>(file: &'a [u8], kind: Kind, limits: &Limits) -> Result<(Box<dyn ImageDecoder + 'a>, Orientation)> {
    let own = |error: ImageError| refused(kind, &error);
    let bytes = Cursor::new(file);
    let (mut decoder, animated): (Box<dyn ImageDecoder + 'a>, bool) = match kind {
        Kind::Png => {
            // The decoder reserves rows before it tells the size.
            png_size(file).map_or(Ok(()), |(width, height)| limits.check_size(width, height))?;
            let decoder = PngDecoder::with_limits(bytes, limits.of_decoders()).map_err(own)?;
            let animated = decoder.is_apng().map_err(own)?;
            (Box::new(decoder), animated)
        }
        Kind::Jpeg => {
            check_jpeg_end(file)?;
            (Box::new(JpegDecoder::new(bytes).map_err(own)?), false)
        }
        Kind::Webp => {
            check_webp(file)?;
            let decoder = WebPDecoder::new(bytes).map_err(own)?;
            let animated = decoder.has_animation();
            (Box::new(decoder), animated)
        }
    };
    let (width, height) = decoder.dimensions();
    limits.check_size(width, height)?;
    limits.check_memory(decoder.total_bytes())?;
    decoder.set_limits(limits.of_decoders()).map_err(own)?;
    if animated {
        return Err(Error::Animated { kind });
    }
    let orientation = decoder.orientation().map_err(own)?;
    Ok((decoder, orientation))
}

/// A picture turned and mirrored as its file asks for.
fn oriented(mut image: RgbImage, orientation: Orientation) -> RgbImage {
    image = match orientation {
        Orientation::Rotate90 | Orientation::Rotate90FlipH => rotate90(&image),
        Orientation::Rotate270 | Orientation::Rotate270FlipH => rotate270(&image),
        _ => image,
    };
    match orientation {
        Orientation::Rotate180 => rotate180_in_place(&mut image),
        Orientation::FlipVertical => flip_vertical_in_place(&mut image),
        Orientation::FlipHorizontal | Orientation::Rotate90FlipH | Orientation::Rotate270FlipH => {
            flip_horizontal_in_place(&mut image);
        }
        Orientation::NoTransforms | Orientation::Rotate90 | Orientation::Rotate270 => {}
    }
    image
}

/// Whether an orientation swaps width and height.
fn is_turned(orientation: Orientation) -> bool {
    use Orientation::{Rotate90, Rotate90FlipH, Rotate270, Rotate270FlipH};
    matches!(orientation, Rotate90 | Rotate270 | Rotate90FlipH | Rotate270FlipH)
}

fn refused(kind: Kind, error: &ImageError) -> Error {
    // Messages of decoders are a line each; some quote what they have read.
    let what = error.to_string().escape_debug().take(200).collect();
    Error::Decoder { kind, what }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_the_pictures_error() {
        let failed = |what: &str| Err::<(), _>(Error::Panic { kind: Kind::Png, what: what.to_owned() });
        assert_eq!(guarded(Kind::Png, || panic!("{} of 4", 3)), failed("3 of 4"));
        assert_eq!(guarded(Kind::Png, || panic!("plain")), failed("plain"));
        assert_eq!(guarded(Kind::Png, || std::panic::panic_any(7)), failed("no message"));
        assert_eq!(guarded(Kind::Png, || Ok(7)), Ok(7));
    }
}
