//! Description of a chunk's file by itself, for people who look after a store. It is compared with
//! nothing.

use std::path::Path;

use serde::Serialize;
use tributary_protocol::ChunkKey;

use super::source::Source;
use super::{PLACE, Sealed, hashes};
use crate::damage::Damage;
use crate::folder::open_file;
use crate::seal::Secret;

/// A stored chunk, as its file says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Description {
    /// Its key.
    pub key: String,
    /// The hash of the model's config and weights.
    pub model: String,
    /// The hash of the token ids before it.
    pub prefix: String,
    /// Distinction of chunks that are kept in another form, in hexadecimal; a prefix has the number
    /// of its rank.
    pub extra: String,
    /// Its tokens; none for a prefix.
    pub tokens: usize,
    /// Rows in each layer.
    pub rows: usize,
    /// Layers.
    pub layers: usize,
    /// KV heads.
    pub kv_heads: usize,
    /// Numbers of a head.
    pub head_dim: usize,
    /// Type of its numbers.
    pub dtype: String,
    /// Bytes of the file.
    pub bytes: u64,
}

impl Description {
    /// Reads a file's description, if its seal is right.
    ///
    /// # Errors
    /// Returns what is wrong with the header.
    pub fn read(path: &Path, secret: Option<&Secret>) -> Result<Self, Damage> {
        let source = Source::File(open_file(path)?);
        Self::of(&Sealed::read(&source, secret)?, source.bytes()?)
    }

    /// Reads all of the file of a key, and checks that it is that chunk's and unchanged.
    ///
    /// # Errors
    /// Returns what is wrong with it.
    pub fn verify(path: &Path, key: &ChunkKey, secret: Option<&Secret>) -> Result<Self, Damage> {
        let source = Source::File(open_file(path)?);
        let sealed = Sealed::read(&source, secret)?;
        let this = Self::of(&sealed, source.bytes()?)?;
        if this.key != key.to_string() {
            return Err(Damage::Incompatible("chunk"));
        }
        let mut ids = vec![0; 4 * this.tokens];
        source.read_exact_at(&mut ids, sealed.data)?;
        if sealed.metadata.get("ids").map(String::as_str) != Some(blake3::hash(&ids).to_hex().as_str()) {
            return Err(Damage::corrupt("its token ids are not what was sealed"));
        }
        let layer_bytes = (this.bytes - sealed.data - ids.len() as u64) / this.layers as u64;
        let mut bytes = vec![0; layer_bytes as usize];
        for (layer, hash) in hashes(&sealed.metadata, this.layers)?.into_iter().enumerate() {
            source.read_exact_at(&mut bytes, sealed.data + ids.len() as u64 + layer as u64 * layer_bytes)?;
            if blake3::hash(&bytes) != hash {
                return Err(Damage::corrupt(format!("layer {layer} is not what was written")));
            }
        }
        Ok(this)
    }

    fn of(Sealed { metadata, tensors, .. }: &Sealed, bytes: u64) -> Result<Self, Damage> {
        let said = |name: &str| metadata.get(name).cloned().unwrap_or_default();
        let numbers: Vec<_> = tensors.iter().skip(1).filter(|(name, _)| !name.ends_with(PLACE)).collect();
        let (Some((_, ids)), Some((_, layer))) = (tensors.first(), numbers.first()) else {
            return Err(Damage::corrupt("it has no layers"));
        };
        let (&[tokens], &[rows, kv_heads, head_dim]) = (&ids.shape[..], &layer.shape[..]) else {
            return Err(Damage::corrupt("its tensors have other shapes than a chunk's"));
        };
        Ok(Self {
            key: said("key"),
            model: said("model"),
            prefix: said("prefix"),
            extra: said("extra"),
            tokens,
            rows,
            layers: numbers.len() / 2,
            kv_heads,
            head_dim,
            dtype: layer.dtype.to_string(),
            bytes,
        })
    }
}
