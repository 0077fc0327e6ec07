//! Pictures of a request: their files as they came, the rules of a model that reads them, and the
//! pictures that both give.
//!
//! A file's header is read with the request, so that its size is known and its limits are checked
//! before any pixel is decoded. Pixels are decoded where a request becomes tokens, one picture
//! after the other.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tributary_pictures::{Encoded, Header, Limits, Picture, Rules, data_url};

use crate::error::{Error, PlanError, Result};

/// Maximum number of pictures in a request.
pub const PICTURES: usize = 256;

/// Rules of a model that reads pictures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PictureRules {
    /// Patches of a picture and limits of its resized pixels.
    pub rules: Rules,
    /// Ids of the tokens that stand for pictures.
    pub marks: PictureMarks,
    /// Limits of files, which a user may have lowered.
    pub limits: Limits,
}

/// Ids of the tokens that stand for a picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PictureMarks {
    /// A row of a picture.
    pub row: u32,
    /// Before its first row.
    pub start: u32,
    /// After its last row.
    pub end: u32,
}

impl PictureMarks {
    /// All of them.
    pub fn all(&self) -> [u32; 3] {
        [self.row, self.start, self.end]
    }
}

/// Requested detail of a picture.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Detail {
    /// The model's own limits.
    #[default]
    Full,
    /// At most 256 tokens.
    Low,
}

impl Detail {
    /// The detail that a request names, `auto` where it names none.
    ///
    /// # Errors
    /// Returns a sentence with the known names if `name` is another.
    pub fn named(name: Option<&str>) -> std::result::Result<Self, String> {
        match name {
            None | Some("auto" | "high") => Ok(Self::Full),
            Some("low") => Ok(Self::Low),
            Some(other) => Err(format!(
                "`detail` of a picture is `{}`; it is auto, high or low",
                other.chars().take(64).collect::<String>().escape_debug()
            )),
        }
    }
}

/// Time that a request's pictures took to be decoded and resized. Two requests that differ in it
/// alone are equal.
#[derive(Debug, Clone, Copy, Default)]
pub struct ReadingTime(pub Duration);

impl PartialEq for ReadingTime {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

/// A picture's file, whose header has been read and keeps the limits.
pub struct PictureFile {
    /// The name of the picture in messages, such as `document 2`.
    name: String,
    encoded: Encoded,
    detail: Detail,
    limits: Limits,
    header: Header,
    /// The picture by the rules that it was first read with.
    read: OnceLock<(Rules, Arc<Picture>)>,
}

/// The name of a picture in messages: that of the document or message that it is in, where it is
/// the only one of `count`; else with its number.
pub fn picture_name(whole: &str, number: usize, count: usize) -> String {
    if count == 1 { whole.to_owned() } else { format!("picture {number} of {whole}") }
}

impl PictureFile {
    /// A file. `name` is for messages.
    ///
    /// # Errors
    /// Returns [`Error::Picture`] if the file is beyond a limit, of a kind that is not read or was
    /// not declared, an animation, incomplete, or damaged in its header.
    pub fn new(name: impl Into<String>, encoded: Encoded, detail: Detail) -> Result<Self> {
        let (name, limits) = (name.into(), Limits::default());
        match Header::read(&encoded.file, encoded.declared.as_deref(), &limits) {
            Ok(header) => Ok(Self { name, encoded, detail, limits, header, read: OnceLock::new() }),
            Err(cause) => Err(Error::Picture { name, cause }),
        }
    }

    /// The file in a `data:` URL.
    ///
    /// # Errors
    /// Returns [`Error::Picture`] for another URL, for base64 that is damaged, and as
    /// [`new`](Self::new) does.
    pub fn from_url(name: impl Into<String>, url: &str, detail: Detail) -> Result<Self> {
        let name = name.into();
        match data_url(url, &Limits::default()) {
            Ok(encoded) => Self::new(name, encoded, detail),
            Err(cause) => Err(Error::Picture { name, cause }),
        }
    }

    /// A user's own file.
    ///
    /// # Errors
    /// Returns [`PlanError::Unreadable`], and the errors of [`new`](Self::new).
    pub fn from_path(name: impl Into<String>, path: &Path, detail: Detail) -> Result<Self> {
        let most = Limits::default().encoded_bytes as u64;
        let unreadable = |cause| PlanError::Unreadable { path: path.into(), cause };
        let mut file = Vec::new();
        File::open(path).and_then(|opened| opened.take(most + 1).read_to_end(&mut file)).map_err(unreadable)?;
        Self::new(name, Encoded { declared: None, file }, detail)
    }

    /// The same file, not decoded yet.
    #[must_use]
    pub fn undecoded(&self) -> Self {
        let (name, encoded) = (self.name.clone(), self.encoded.clone());
        Self { name, encoded, detail: self.detail, limits: self.limits, header: self.header, read: OnceLock::new() }
    }

    /// Bytes that decoding takes at most, besides the file.
    pub fn peak_bytes(&self) -> u64 {
        self.header.peak_bytes
    }

    /// Rows of the picture by a model's rules, without its two marks. They follow from the file's
    /// header.
    ///
    /// # Errors
    /// Returns [`Error::Picture`] if the file is beyond a limit of the rules, or if one side is too
    /// many times the other.
    pub fn rows(&self, rules: &PictureRules) -> Result<usize> {
        let Header { width, height, .. } = self.header;
        let places = rules.limits.check_size(width, height).and_then(|()| self.rules(rules).places(width, height));
        match places {
            Ok((lines, columns)) => Ok(lines as usize * columns as usize),
            Err(cause) => Err(self.refused(cause)),
        }
    }

    /// Bytes of its pixels once it is resized by a model's rules.
    ///
    /// # Errors
    /// As [`rows`](Self::rows).
    pub fn pixel_bytes(&self, rules: &PictureRules) -> Result<u64> {
        const COLOURS: u64 = 3;
        Ok(self.rows(rules)? as u64 * u64::from(rules.rules.factor()).pow(2) * COLOURS)
    }

    /// The picture, decoded and resized by a model's rules. Further calls with the same rules
    /// decode nothing.
    ///
    /// # Errors
    /// Returns [`Error::Picture`] if it is beyond a limit of the rules, cannot be decoded, or has a
    /// shape that no model reads.
    pub fn read(&self, rules: &PictureRules) -> Result<Arc<Picture>> {
        self.rows(rules)?;
        let rules = self.rules(rules);
        if let Some((_, picture)) = self.read.get().filter(|(used, _)| *used == rules) {
            return Ok(Arc::clone(picture));
        }
        let Encoded { declared, file } = &self.encoded;
        let picture = Picture::read(file, declared.as_deref(), &rules, &self.limits, None);
        let picture = Arc::new(picture.map_err(|cause| self.refused(cause))?);
        // Another thread may have been first, with the same picture.
        let _ = self.read.set((rules, Arc::clone(&picture)));
        Ok(picture)
    }

    fn rules(&self, rules: &PictureRules) -> Rules {
        match self.detail {
            Detail::Full => rules.rules,
            Detail::Low => rules.rules.low(),
        }
    }

    fn refused(&self, cause: tributary_pictures::Error) -> Error {
        Error::Picture { name: self.name.clone(), cause }
    }
}

impl PartialEq for PictureFile {
    /// By contents; the names in messages do not count.
    fn eq(&self, other: &Self) -> bool {
        self.detail == other.detail && self.encoded == other.encoded
    }
}

impl fmt::Debug for PictureFile {
    /// Without the bytes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, detail, header, .. } = self;
        f.debug_struct("PictureFile")
            .field("name", name)
            .field("detail", detail)
            .field("header", header)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn golden(name: &str) -> Vec<u8> {
        std::fs::read(format!("{}/../tests/golden/vlm/{name}.png", env!("CARGO_MANIFEST_DIR"))).expect("a picture")
    }

    fn rules() -> PictureRules {
        let rules = Rules::new(16, 2, 4096, 65536).expect("rules");
        PictureRules { rules, marks: PictureMarks { row: 3, start: 1, end: 2 }, limits: Limits::default() }
    }

    fn file(file: Vec<u8>) -> Result<PictureFile> {
        PictureFile::new("document 3", Encoded { declared: None, file }, Detail::Full)
    }

    #[test]
    fn a_picture_is_decoded_once_for_the_same_rules() {
        let (file, rules) = (file(golden("c")).expect("a header"), rules());
        let first = file.read(&rules).expect("a picture");
        assert!(Arc::ptr_eq(&first, &file.read(&rules).expect("again")));
        let anew = file.undecoded().read(&rules).expect("anew");
        assert!(!Arc::ptr_eq(&first, &anew) && first == anew);
        assert_eq!((first.rows, first.columns, file.rows(&rules).expect("rows")), (6, 9, 54));
        let other = PictureRules { rules: Rules::new(16, 2, 4096, 32768).expect("rules"), ..rules };
        let smaller = file.read(&other).expect("other rules");
        assert_eq!(smaller.tokens(), file.rows(&other).expect("rows"));
        assert!(smaller.tokens() < 54 && smaller.hash != first.hash);
        assert!(file.peak_bytes() >= 640 * 480 * 3);
    }

    /// A flipped bit anywhere gives a picture or one line, and what a header promises stays within
    /// the limits.
    #[test]
    fn damaged_files_are_refused_in_one_line() {
        let (whole, rules) = (golden("d"), rules());
        let mut refused = 0;
        for place in 0..whole.len() {
            for bit in 0..8 {
                let mut bytes = whole.clone();
                bytes[place] ^= 1 << bit;
                match file(bytes).and_then(|file| Ok((file.rows(&rules)?, file.read(&rules)?))) {
                    Ok((rows, picture)) => assert_eq!(rows, picture.tokens(), "byte {place}, bit {bit}"),
                    Err(error) => {
                        let told = error.to_string();
                        assert!(told.starts_with("document 3: ") && !told.contains('\n'), "{told}");
                        assert_eq!(error.exit_code(), 64);
                        refused += 1;
                    }
                }
            }
        }
        assert!(refused > 4 * whole.len(), "{refused} of {}", 8 * whole.len());
    }

    #[test]
    fn a_header_beyond_the_limits_is_refused_with_both_numbers() {
        let mut bomb = golden("d");
        for (place, side) in [(16, 50_000u32), (20, 50_000)] {
            bomb[place..place + 4].copy_from_slice(&side.to_be_bytes());
        }
        let error = file(bomb).expect_err("a bomb").to_string();
        assert_eq!(error, "document 3: the picture has 50000 x 50000 pixels, a side has 1 to 32768");
        let long = "A".repeat(28 << 20);
        let error = PictureFile::from_url("document 1", &format!("data:;base64,{long}"), Detail::Full);
        let error = error.expect_err("long").to_string();
        assert_eq!(error, "document 1: the picture's file has 22020096 bytes, at most 20971520 are read");
    }

    #[test]
    fn a_lower_limit_of_pixels_is_checked_before_a_pixel_is_decoded() {
        let (file, rules) = (file(golden("c")).expect("a header"), rules());
        let lower = |pixels| PictureRules { limits: Limits { pixels, ..Limits::default() }, ..rules };
        assert!(file.rows(&lower(640 * 480)).is_ok());
        let told = "document 3: the picture has 640 x 480 = 307200 pixels, at most 307199 are read";
        let errors = [file.rows(&lower(307_199)).map(|_| ()), file.read(&lower(307_199)).map(|_| ())];
        for error in errors {
            let error = error.expect_err("refused");
            assert_eq!((error.to_string().as_str(), error.exit_code()), (told, 64));
        }
        assert!(file.read.get().is_none(), "nothing was decoded");
    }

    #[test]
    fn details_have_names() {
        assert_eq!(
            [None, Some("auto"), Some("high"), Some("low")].map(Detail::named).map(std::result::Result::ok),
            [Some(Detail::Full), Some(Detail::Full), Some(Detail::Full), Some(Detail::Low)]
        );
        assert!(Detail::named(Some("LOW\n")).expect_err("unknown").contains("auto, high or low"));
    }
}
