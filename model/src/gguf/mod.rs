//! Models in GGUF files, described as a Hugging Face folder is: config and tokenizer come from the
//! file's metadata, tensors have the names that a folder gives them.

mod described;
mod facts;
mod file;
mod names;
mod pre_tokenizer;
mod tensors;
#[cfg(test)]
mod tests;
mod tokenizer;

pub use described::{FILE, described, is_gguf};
pub(crate) use file::{Gguf, Place, Stored, parts};
pub(crate) use tensors::{OfGguf, Read};
