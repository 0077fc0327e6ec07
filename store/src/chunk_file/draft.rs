//! A chunk's file before it is written: its layers come one by one, into the memory from which all
//! of it is written.

use std::collections::BTreeMap;

use safetensors::tensor::Metadata;

use super::{LENGTH_BYTES, LayerBytes, Place, places, said};
use crate::identity::{Identity, Shape};
use crate::seal::{Secret, seal};

/// A file whose layers are still coming.
#[derive(Debug)]
pub struct Draft<'a> {
    shape: &'a Shape,
    said: BTreeMap<String, String>,
    tensors: Vec<Place>,
    /// Room for the header, then the ids and the layers that have come.
    bytes: Vec<u8>,
    header_bytes: usize,
    hashes: Vec<blake3::Hash>,
}

impl<'a> Draft<'a> {
    /// One without layers, in this memory, whose content does not matter.
    pub fn new(identity: &Identity, shape: &'a Shape, mut bytes: Vec<u8>) -> Self {
        let (said, tensors) = (said(identity), places(identity, shape));
        // Hashes have a fixed length.
        let nothing = blake3::Hash::from_bytes([0; 32]);
        let header_bytes = header(said.clone(), &tensors, &vec![nothing; shape.layers], nothing).len();
        let data = 4 * identity.ids.len() + usize::try_from(shape.bytes()).expect("what lies in memory");
        bytes.clear();
        bytes.reserve_exact(LENGTH_BYTES + header_bytes + data);
        bytes.resize(LENGTH_BYTES + header_bytes, b' ');
        identity.ids.iter().for_each(|id| bytes.extend(id.to_le_bytes()));
        Self { shape, said, tensors, bytes, header_bytes, hashes: Vec::with_capacity(shape.layers) }
    }

    /// The next layer: `append` adds the numbers of its rows where the shape says that they are
    /// there, its keys, then its values.
    ///
    /// # Errors
    /// Fails as `append` does.
    ///
    /// # Panics
    /// If the layer has another length than the shape says: only a bug can do that.
    pub fn layer<E>(&mut self, append: impl FnOnce(&mut Vec<u8>) -> Result<(), E>) -> Result<(), E> {
        let begin = self.bytes.len();
        append(&mut self.bytes)?;
        let layer = &self.bytes[begin..];
        assert_eq!(layer.len(), self.shape.layer_bytes(), "bytes of a layer that is stored");
        // Its parts have lengths that the header says.
        self.hashes.push(blake3::hash(layer));
        Ok(())
    }

    /// The bytes of the file.
    ///
    /// # Panics
    /// If layers are missing: only a bug can do that.
    pub fn finish(self, secret: Option<&Secret>) -> Vec<u8> {
        let Self { shape, said, tensors, mut bytes, header_bytes, hashes } = self;
        assert_eq!(hashes.len(), shape.layers, "layers of a chunk that is stored");
        let metadata = with_hashes(said.clone(), &hashes);
        let header = header(said, &tensors, &hashes, seal(&metadata, &tensors, secret));
        assert_eq!(header.len(), header_bytes, "bytes of a header, whatever its hashes are");
        bytes[..LENGTH_BYTES].copy_from_slice(&(header_bytes as u64).to_le_bytes());
        bytes[LENGTH_BYTES..][..header_bytes].copy_from_slice(&header);
        bytes
    }
}

fn with_hashes(mut said: BTreeMap<String, String>, hashes: &[blake3::Hash]) -> BTreeMap<String, String> {
    let hashes: Vec<String> = hashes.iter().map(|hash| hash.to_hex().to_string()).collect();
    said.insert("layers".to_owned(), hashes.join(" "));
    said
}

/// The header, padded such that tensors are aligned for every type of number. The order of its
/// parts is fixed, so that a chunk has the same bytes wherever it is written.
fn header(said: BTreeMap<String, String>, tensors: &[Place], hashes: &[blake3::Hash], seal: blake3::Hash) -> Vec<u8> {
    let mut metadata = with_hashes(said, hashes);
    metadata.insert("seal".to_owned(), seal.to_hex().to_string());
    let places = Metadata::new(None, tensors.to_vec()).expect("consecutive tensors");
    let places = serde_json::to_value(&places).expect("texts and numbers");
    let mut header = serde_json::Map::from_iter([("__metadata__".to_owned(), serde_json::json!(metadata))]);
    header.extend(places.as_object().expect("tensors by name").clone());
    let mut header = serde_json::to_vec(&header).expect("texts and numbers");
    header.resize(header.len().next_multiple_of(LENGTH_BYTES), b' ');
    header
}

/// The bytes of a chunk's file, of all its layers at once.
///
/// # Panics
/// If layers are missing or of another length than the shape says: only a bug can do that.
pub fn encode(identity: &Identity, shape: &Shape, layers: &[LayerBytes<'_>], secret: Option<&Secret>) -> Vec<u8> {
    let mut draft = Draft::new(identity, shape, Vec::new());
    for layer in layers {
        assert_eq!(layer.keys.len(), layer.values.len(), "bytes of a layer that is stored");
        let Ok(()) = draft.layer(|bytes| {
            layer.append(bytes);
            Ok::<(), std::convert::Infallible>(())
        });
    }
    draft.finish(secret)
}
