//! The seal of a chunk's file: a hash of everything that its header says, keyed where the store has
//! a secret.

use std::collections::BTreeMap;

use blake3::{Hash, Hasher};
use safetensors::tensor::TensorInfo;

/// Shared secret of all who may write trusted chunks. It is never printed.
#[derive(Clone)]
pub struct Secret([u8; 32]);

impl Secret {
    /// The secret of a text.
    pub fn new(text: &[u8]) -> Self {
        Self(blake3::derive_key("tributary 2026-11-23 secret of a chunk store", text))
    }

    /// The secret that chunks' keys are made with.
    pub fn of_keys(&self) -> [u8; 32] {
        blake3::derive_key("tributary 2026-11-23 keys of stored chunks", &self.0)
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

/// The seal of a header: of its metadata, but for the seal itself, and of the places of all
/// tensors, in their order.
pub fn seal(metadata: &BTreeMap<String, String>, tensors: &[(String, TensorInfo)], secret: Option<&Secret>) -> Hash {
    let mut hasher = match secret {
        Some(Secret(key)) => Hasher::new_keyed(key),
        None => Hasher::new_derive_key("tributary 2026-11-23 seal of a stored chunk"),
    };
    // Lengths first, so that no two headers are one sequence of bytes.
    let mut field = |bytes: &[u8]| {
        hasher.update(&(bytes.len() as u64).to_le_bytes());
        hasher.update(bytes);
    };
    for (name, value) in metadata {
        field(name.as_bytes());
        field(value.as_bytes());
    }
    for (name, TensorInfo { dtype, shape, data_offsets }) in tensors {
        field(name.as_bytes());
        field(dtype.to_string().as_bytes());
        let (begin, end) = data_offsets;
        let numbers = shape.iter().chain([begin, end]).flat_map(|number| (*number as u64).to_le_bytes());
        field(&numbers.collect::<Vec<u8>>());
    }
    hasher.finalize()
}
