//! Pictures in requests: from the bytes of a file to resized RGB bytes and the name of their
//! content. The steps are a `data:` URL ([`data_url`]), the file's header ([`Header`]), its pixels
//! ([`decode`]), the size that a model reads ([`Rules::fitted`]), resizing ([`resized`]) and
//! identity ([`Picture`]). [`patch_rows`] then makes the rows that a vision tower begins with.
//!
//! This crate knows no model, no tensor and no other crate of the workspace. It fetches nothing,
//! opens no file, and does not colour-manage: profiles and gamma are ignored. Still PNG, JPEG and
//! WebP pictures are read. Pictures with several frames are refused, since an answer about the
//! first frame alone would look like an answer about all of them.
//!
//! Every number that a file states is compared with [`Limits`] before memory is reserved for it. A
//! panic in a decoder becomes [`Error::Panic`] of that picture; the process's panic hook still
//! prints it. A caller bounds the number of pictures that are decoded at once, by
//! [`Header::peak_bytes`].

#![forbid(unsafe_code)]

mod container;
mod data_url;
mod decode;
mod error;
mod kind;
mod limits;
mod noise;
mod patches;
mod picture;
mod pixels;
mod png;
mod recognise;
mod resize;
mod rules;

pub use data_url::{Encoded, data_url};
pub use decode::{Header, decode};
pub use error::{Error, Result};
pub use kind::Kind;
pub use limits::Limits;
pub use noise::noise;
pub use patches::{PatchRows, patch_rows};
pub use picture::Picture;
pub use pixels::Pixels;
pub use png::png;
pub use resize::resized;
pub use rules::{MAX_ASPECT, Rules};
