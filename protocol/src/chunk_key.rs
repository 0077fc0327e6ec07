//! Names of chunks' keys and values: a hash of everything that determines them.
//! Coordinator and workers compute it from the plan independently, so no plan can claim wrong
//! content for a chunk.

use std::fmt;
use std::str::FromStr;

use blake3::Hasher;

/// Changes with the layout of cached data.
const DOMAIN: &str = "tributary chunk cache 1: keys before RoPE, values, [tokens, kv_heads, head_dim]";

/// 256 bits that name a chunk's keys and values; never shortened.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub struct ChunkKey([u8; 32]);

/// Properties that all chunks of a group share: the model and the type of its numbers.
#[derive(Clone, PartialEq, Eq)]
pub struct KeySpace {
    model: [u8; 32],
    dtype: String,
    /// Secret of keyed hashes; without it anyone can compute keys.
    secret: Option<[u8; 32]>,
}

impl ChunkKey {
    /// Its bytes.
    pub fn bytes(&self) -> [u8; 32] {
        self.0
    }
}

impl KeySpace {
    /// The key space of a model that computes in `dtype`; `model` is the hash of its config and
    /// weights.
    pub fn new(model: [u8; 32], dtype: impl Into<String>) -> Self {
        Self { model, dtype: dtype.into(), secret: None }
    }

    /// The same with keyed hashes. Without the secret, keys cannot be computed or traced to their
    /// chunks.
    #[must_use]
    pub fn keyed(self, secret: [u8; 32]) -> Self {
        Self { secret: Some(secret), ..self }
    }

    /// Hash of the model's config and weights.
    pub fn model(&self) -> [u8; 32] {
        self.model
    }

    /// The key of a chunk after a prefix. `extra` distinguishes chunks that a method caches in
    /// another form; it is empty for plain chunks.
    pub fn chunk(&self, prefix: &[u32], ids: &[u32], extra: &[u8]) -> ChunkKey {
        let mut hasher = match &self.secret {
            None => Hasher::new_derive_key(DOMAIN),
            Some(secret) => {
                let mut hasher = Hasher::new_keyed(secret);
                hasher.update(DOMAIN.as_bytes());
                hasher
            }
        };
        hasher.update(&self.model);
        // Lengths first, so that no two lists of fields are one sequence of bytes.
        for field in [self.dtype.as_bytes(), extra] {
            hasher.update(&(field.len() as u64).to_le_bytes());
            hasher.update(field);
        }
        for ids in [prefix, ids] {
            hasher.update(&(ids.len() as u64).to_le_bytes());
            ids.iter().for_each(|id| {
                hasher.update(&id.to_le_bytes());
            });
        }
        ChunkKey(*hasher.finalize().as_bytes())
    }

    /// The key of the prefix itself: a chunk without tokens.
    pub fn prefix(&self, prefix: &[u32]) -> ChunkKey {
        self.chunk(prefix, &[], &[])
    }
}

impl fmt::Debug for KeySpace {
    /// Without the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_keyed = self.secret.is_some();
        f.debug_struct("KeySpace").field("dtype", &self.dtype).field("is_keyed", &is_keyed).finish_non_exhaustive()
    }
}

impl fmt::Display for ChunkKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A text that is not a chunk's key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a chunk's key has 64 hexadecimal digits, in lower case")]
pub struct NoKey;

impl FromStr for ChunkKey {
    type Err = NoKey;

    fn from_str(text: &str) -> Result<Self, NoKey> {
        let digit = |byte: u8| match byte {
            b'0'..=b'9' => Ok(byte - b'0'),
            b'a'..=b'f' => Ok(byte - b'a' + 10),
            _ => Err(NoKey),
        };
        let pairs = text.as_bytes().as_chunks().0;
        let bytes = pairs.iter().map(|&[high, low]| Ok(digit(high)? << 4 | digit(low)?));
        let bytes = bytes.collect::<Result<Vec<u8>, NoKey>>()?;
        if text.len() != 2 * bytes.len() {
            return Err(NoKey);
        }
        bytes.try_into().map(Self).map_err(|_| NoKey)
    }
}

impl fmt::Debug for ChunkKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ChunkKey({self})")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn everything_that_shapes_a_chunk_shapes_its_key() {
        let space = KeySpace::new([1; 32], "f32");
        let keys = [
            space.chunk(&[1, 2], &[3, 4], &[]),
            space.chunk(&[1], &[2, 3, 4], &[]),
            space.chunk(&[1, 2, 3], &[4], &[]),
            space.chunk(&[1, 2], &[4, 3], &[]),
            space.chunk(&[1, 2], &[3, 4], &[0]),
            space.chunk(&[], &[1, 2, 3, 4], &[]),
            space.prefix(&[1, 2]),
            space.prefix(&[]),
            KeySpace::new([2; 32], "f32").chunk(&[1, 2], &[3, 4], &[]),
            KeySpace::new([1; 32], "bf16").chunk(&[1, 2], &[3, 4], &[]),
            KeySpace::new([1; 32], "f32").keyed([0; 32]).chunk(&[1, 2], &[3, 4], &[]),
            KeySpace::new([1; 32], "f32").keyed([9; 32]).chunk(&[1, 2], &[3, 4], &[]),
        ];
        assert_eq!(keys.iter().collect::<BTreeSet<_>>().len(), keys.len());
        assert_eq!(keys[0], KeySpace::new([1; 32], "f32").chunk(&[1, 2], &[3, 4], &[]));
        let name = keys[0].to_string();
        assert_eq!((name.len(), name.parse()), (64, Ok(keys[0])));
        for wrong in
            ["", "0", &name[1..], &name.to_uppercase(), &name.replacen(&name[..1], "g", 1), &format!("{name}0")]
        {
            assert_eq!(wrong.parse::<ChunkKey>(), Err(NoKey), "{wrong}");
        }
    }
}
