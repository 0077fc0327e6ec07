//! Pictures in `data:` URLs. No other URL is followed, so that a request cannot make the service
//! connect to an address or open a file.

use base64::engine::general_purpose::STANDARD;
use base64::{DecodeError, Engine};

use crate::error::{Error, Result, quoted};
use crate::limits::Limits;

/// The longest media type, in bytes.
const MEDIA_TYPE_BYTES: usize = 127;

/// The file in a `data:` URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Encoded {
    /// The declared media type, without its parameters; none where the URL has none.
    pub declared: Option<String>,
    /// Bytes of the file.
    pub file: Vec<u8>,
}

/// Reads `data:TYPE;base64,LETTERS`. The letters are standard base64, padded, without white space.
/// The file's length is known from the text, and compared with the limit before it is decoded.
///
/// # Errors
/// Returns an error if the text is another URL or no URL, has no base64, has a letter outside of
/// the alphabet, is not padded, or is too long.
pub fn data_url(url: &str, limits: &Limits) -> Result<Encoded> {
    const SCHEME: &str = "data:";
    let scheme = url.get(..SCHEME.len()).filter(|scheme| scheme.eq_ignore_ascii_case(SCHEME));
    let rest = &url[scheme.ok_or(Error::NotFetched)?.len()..];
    let malformed = || Error::DataUrl { begins: quoted(&url[..url.find(',').unwrap_or(url.len())]) };
    let (head, letters) = rest.split_once(',').ok_or_else(malformed)?;
    let (media, form) = head.rsplit_once(';').ok_or_else(malformed)?;
    let declared = media.split(';').next().unwrap_or_default();
    if !form.eq_ignore_ascii_case("base64") || declared.len() > MEDIA_TYPE_BYTES {
        return Err(malformed());
    }
    let declared = (!declared.is_empty()).then(|| declared.to_owned());
    Ok(Encoded { declared, file: decoded(letters.as_bytes(), limits)? })
}

/// The bytes of base64.
fn decoded(letters: &[u8], limits: &Limits) -> Result<Vec<u8>> {
    let end = Error::Base64End { letters: letters.len() };
    let padding = letters.iter().rev().take(2).take_while(|letter| **letter == b'=').count();
    limits.check_encoded((letters.len() / 4 * 3).saturating_sub(padding))?;
    STANDARD.decode(letters).map_err(|error| match error {
        DecodeError::InvalidByte(place, byte) if byte != b'=' => Error::Base64Letter { byte, place },
        _ => end,
    })
}
