//! A request from its intake to its answer: chunks, plan, dispatch, report. Works with token ids
//! and times; handles no tensor, and reaches the workers only through [`tributary_protocol`].

#![forbid(unsafe_code)]

mod auxiliary;
mod calibration_file;
mod chunk_prefix;
mod chunking;
pub mod conductor;
mod conversation;
pub mod date;
#[cfg(test)]
mod demo;
pub mod dispatch;
mod document_form;
mod error;
mod free_text;
pub mod harmony;
mod intake;
mod jinja;
mod layer_calibration;
mod page;
mod picture;
mod query_words;
pub mod report;
mod request;
pub mod scheduler;
mod sentences;
mod template;
mod tiling;
mod tokenize;
mod trace_calibration;

pub use auxiliary::{AuxiliaryReader, DRAFT_OPTION, Readers};
pub use chunk_prefix::{ChunkPrefix, Head, pieces as lead_pieces};
pub use chunking::{Chunking, Cut, CutBy, Join};
pub use conversation::{ChatOptions, Ending, Message, OWN_NAMES, TemplateValues};
pub use dispatch::{Answer, Clock};
pub use error::{Error, Result};
pub use free_text::{Cutting, text_chunks};
pub use intake::{
    Intake, Prefix, Prepared, TEXT_CHUNK_TOKENS, prepare, prepare_documents, prepare_ids, prepare_led, prepare_text,
    prepare_turns,
};
pub use layer_calibration::{CalibratedLayers, LayerCalibration};
pub use picture::{Detail, PICTURES, PictureFile, PictureMarks, PictureRules, ReadingTime, picture_name};
pub use report::{Environment, Report, Said, report};
pub use request::{Document, DocumentPart, PlacedPicture, Request};
pub use template::{OwnedPart, Placed, PromptPart, Talk, Template, Written};
pub use tiling::{ImageTiles, Tiling};
pub use tokenize::{Piece, TextStream, Tokenizer};
pub use trace_calibration::TraceCalibration;
