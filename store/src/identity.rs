//! Identity of a stored chunk: the properties that determine its numbers, and their shape.

use tributary_protocol::ChunkKey;

/// The type of a stored chunk's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Numbers {
    /// 32 bits.
    F32,
    /// Brain floating point, 16 bits.
    Bf16,
    /// 16 bits, with more digits and less range.
    F16,
    /// 8 bits: a head is its numbers in E4M3 and a byte of scale, all counted as numbers.
    EightBits,
}

impl Numbers {
    /// Bytes of one number.
    pub fn bytes(self) -> usize {
        match self {
            Numbers::F32 => 4,
            Numbers::Bf16 | Numbers::F16 => 2,
            Numbers::EightBits => 1,
        }
    }

    /// The name that a file has for it.
    pub(crate) fn dtype(self) -> safetensors::Dtype {
        match self {
            Numbers::F32 => safetensors::Dtype::F32,
            Numbers::Bf16 => safetensors::Dtype::BF16,
            Numbers::F16 => safetensors::Dtype::F16,
            Numbers::EightBits => safetensors::Dtype::U8,
        }
    }
}

/// The properties that shape a chunk's keys and values. A file of other properties is of no use,
/// under any name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The chunk's key, which names its file.
    pub key: ChunkKey,
    /// The hash of the model's config and weights.
    pub model: [u8; 32],
    /// Token ids before the chunk, which it has seen.
    pub prefix: Vec<u32>,
    /// Distinction of chunks that a method keeps in another form; empty for plain chunks.
    pub extra: Vec<u8>,
    /// The chunk's token ids; none for the prefix itself.
    pub ids: Vec<u32>,
}

/// Number and type of a chunk's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Layers.
    pub layers: usize,
    /// Rows in each layer: a chunk's, those that are kept of it, or the prefix's.
    pub rows: usize,
    /// KV heads.
    pub kv_heads: usize,
    /// Numbers of a head.
    pub head_dim: usize,
    /// Their type.
    pub numbers: Numbers,
    /// Whether every KV head has its own rows of the chunk; each layer then holds their numbers.
    pub with_places: bool,
}

impl Shape {
    /// Bytes of a layer's keys; its values have as many.
    pub fn tensor_bytes(&self) -> usize {
        self.rows * self.kv_heads * self.head_dim * self.numbers.bytes()
    }

    /// Bytes of the numbers of a layer's rows in the chunk, `[kv_heads, rows]` u32; none where its
    /// rows are those of the chunk.
    pub fn place_bytes(&self) -> usize {
        if self.with_places { 4 * self.kv_heads * self.rows } else { 0 }
    }

    /// Bytes of a layer: the numbers of its rows where it has them, keys and values.
    pub fn layer_bytes(&self) -> usize {
        self.place_bytes() + 2 * self.tensor_bytes()
    }

    /// Bytes of all layers.
    pub fn bytes(&self) -> u64 {
        self.layers as u64 * self.layer_bytes() as u64
    }
}
