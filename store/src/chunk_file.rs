//! One chunk's file: safetensors with keys before RoPE and values of every layer, in the order of
//! their use, after a header with the chunk's identity. In a compressed chunk, the numbers of each
//! layer's rows precede its keys.

use std::collections::BTreeMap;
use std::path::Path;

use bytes::Bytes;
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};

use crate::damage::Damage;
use crate::folder::open_file;
use crate::identity::{Identity, Shape};
use crate::seal::{Secret, seal};

mod description;
mod draft;
mod source;

pub use description::Description;
pub use draft::{Draft, encode};
use source::Source;

/// Ending of the names of tensors that hold the numbers of a layer's rows instead of keys or
/// values.
const PLACE: &str = ".place";

/// Name and version of the layout.
const FORMAT: &str = "tributary.chunk/1";

/// Message for a file whose seal is wrong: its header was changed, or sealed with another secret.
pub const NOT_SEALED: &str = "its header is not what was sealed";

/// The longest header that is read. One of 1000 layers has 300 kB.
const MOST_HEADER_BYTES: u64 = 16 << 20;

/// Bytes that are read at once: they are hashed while they are still in the core's own cache.
const BLOCK_BYTES: usize = 256 << 10;

/// Bytes of a file before its header: the header's length.
const LENGTH_BYTES: usize = 8;

/// The bytes of a layer, little-endian: keys and values `[rows, kv_heads, head_dim]`.
#[derive(Debug, Clone, Copy)]
pub struct LayerBytes<'a> {
    /// The numbers of its rows in the chunk, `[kv_heads, rows]` u32, where the shape says that they
    /// are there; none else.
    pub places: &'a [u8],
    /// Keys before RoPE.
    pub keys: &'a [u8],
    /// Values.
    pub values: &'a [u8],
}

impl LayerBytes<'_> {
    /// Appends them in the form that a file has.
    fn append(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(self.places);
        bytes.extend_from_slice(self.keys);
        bytes.extend_from_slice(self.values);
    }
}

/// A tensor's name and its place.
type Place = (String, TensorInfo);

fn is_same((name, info): &Place, (other_name, other): &Place) -> bool {
    let TensorInfo { dtype, shape, data_offsets } = info;
    name == other_name && *dtype == other.dtype && *shape == other.shape && *data_offsets == other.data_offsets
}

fn bytes_of(ids: &[u32]) -> Vec<u8> {
    ids.iter().flat_map(|id| id.to_le_bytes()).collect()
}

/// Fields of a header that hold an identity.
fn said(identity: &Identity) -> BTreeMap<String, String> {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let said = [
        ("format", FORMAT.to_owned()),
        ("key", identity.key.to_string()),
        ("model", hex(&identity.model)),
        ("prefix", blake3::hash(&bytes_of(&identity.prefix)).to_hex().to_string()),
        ("extra", hex(&identity.extra)),
        ("ids", blake3::hash(&bytes_of(&identity.ids)).to_hex().to_string()),
    ];
    said.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Places of a chunk's tensors after the header: its ids, then the layers, keys before values.
fn places(identity: &Identity, shape: &Shape) -> Vec<Place> {
    let mut end = 0;
    let mut place = |name: String, dtype, shape: Vec<usize>, bytes: usize| {
        let begin = end;
        end += bytes;
        (name, TensorInfo { dtype, shape, data_offsets: (begin, end) })
    };
    let ids = place("ids".to_owned(), Dtype::U32, vec![identity.ids.len()], 4 * identity.ids.len());
    let of_layer = vec![shape.rows, shape.kv_heads, shape.head_dim];
    let mut all = vec![ids];
    for layer in 0..shape.layers {
        if shape.with_places {
            let name = format!("layer.{layer:05}.place");
            all.push(place(name, Dtype::U32, vec![shape.kv_heads, shape.rows], shape.place_bytes()));
        }
        for which in ["key", "value"] {
            let name = format!("layer.{layer:05}.{which}");
            all.push(place(name, shape.numbers.dtype(), of_layer.clone(), shape.tensor_bytes()));
        }
    }
    all
}

/// A chunk's file with the expected header. Its layers are read, in any order and by several
/// threads, and verified. It is on a disk or in memory.
#[derive(Debug)]
pub struct ChunkFile {
    source: Source,
    shape: Shape,
    /// Offset of the first layer.
    first: u64,
    hashes: Vec<blake3::Hash>,
}

impl ChunkFile {
    /// Opens a file and compares its header with the expected one.
    ///
    /// # Errors
    /// Returns the reason why the file is of no use.
    pub fn open(path: &Path, identity: &Identity, shape: &Shape, secret: Option<&Secret>) -> Result<Self, Damage> {
        Self::of(Source::File(open_file(path)?), identity, shape, secret)
    }

    /// A file in memory, checked as by [`ChunkFile::open`].
    ///
    /// # Errors
    /// Returns the reason why the file is of no use.
    pub fn of_bytes(bytes: Bytes, identity: &Identity, shape: &Shape, secret: Option<&Secret>) -> Result<Self, Damage> {
        Self::of(Source::Memory(bytes), identity, shape, secret)
    }

    fn of(source: Source, identity: &Identity, shape: &Shape, secret: Option<&Secret>) -> Result<Self, Damage> {
        let Sealed { metadata, tensors, data } = Sealed::read(&source, secret)?;
        let expected = said(identity);
        for (name, what) in [("key", "chunk"), ("model", "model"), ("prefix", "prefix"), ("extra", "method")] {
            if metadata.get(name) != expected.get(name) {
                return Err(Damage::Incompatible(what));
            }
        }
        let is_number = |(name, _): &&Place| !name.ends_with(PLACE);
        if tensors.iter().skip(1).filter(is_number).any(|(_, info)| info.dtype != shape.numbers.dtype()) {
            return Err(Damage::Incompatible("type of numbers"));
        }
        let (expected, same) = (places(identity, shape), |(one, other): (&Place, &Place)| is_same(one, other));
        if tensors.len() != expected.len() || !tensors.iter().zip(&expected).all(same) {
            return Err(Damage::Incompatible("shape"));
        }
        let mut ids = vec![0; 4 * identity.ids.len()];
        source.read_exact_at(&mut ids, data)?;
        if !ids.chunks_exact(4).eq(identity.ids.iter().map(|id| id.to_le_bytes())) {
            return Err(Damage::corrupt("its token ids are not what was sealed"));
        }
        let hashes = hashes(&metadata, shape.layers)?;
        Ok(Self { source, shape: *shape, first: data + ids.len() as u64, hashes })
    }

    /// Reads a layer into these buffers, and verifies it.
    ///
    /// # Errors
    /// Returns an error if the layer differs from what was written, or cannot be read.
    ///
    /// # Panics
    /// If there is no such layer, or a buffer is of another length: only a bug can do that.
    pub fn read_layer(&self, layer: usize, keys: &mut [u8], values: &mut [u8]) -> Result<(), Damage> {
        self.read_parts(layer, [&mut [], keys, values])
    }

    /// As [`read_layer`](Self::read_layer), with the numbers of the layer's rows, which are there
    /// where the shape says so, before keys and values.
    ///
    /// # Errors
    /// Fails as [`read_layer`](Self::read_layer) does.
    ///
    /// # Panics
    /// As [`read_layer`](Self::read_layer).
    pub fn read_parts(&self, layer: usize, parts: [&mut [u8]; 3]) -> Result<(), Damage> {
        let (shape, lengths) = (&self.shape, parts.each_ref().map(|part| part.len()));
        assert_eq!(lengths, [shape.place_bytes(), shape.tensor_bytes(), shape.tensor_bytes()], "bytes of a layer");
        let (mut place, mut hasher) = (self.first + (layer * shape.layer_bytes()) as u64, blake3::Hasher::new());
        for block in parts.into_iter().flat_map(|part| part.chunks_mut(BLOCK_BYTES)) {
            self.source.read_exact_at(block, place)?;
            hasher.update(block);
            place += block.len() as u64;
        }
        if hasher.finalize() == self.hashes[layer] {
            return Ok(());
        }
        Err(Damage::corrupt(format!("layer {layer} is not what was written")))
    }
}

/// Hashes of `layers` layers.
fn hashes(metadata: &BTreeMap<String, String>, layers: usize) -> Result<Vec<blake3::Hash>, Damage> {
    let hashes = metadata.get("layers").map_or("", String::as_str).split(' ').map(blake3::Hash::from_hex);
    let hashes: Option<Vec<_>> = hashes.collect::<Result<_, _>>().ok();
    hashes.filter(|hashes| hashes.len() == layers).ok_or_else(|| Damage::corrupt("a layer has no hash"))
}

/// Content of a file's header, as it was sealed.
struct Sealed {
    /// Without the seal itself.
    metadata: BTreeMap<String, String>,
    tensors: Vec<Place>,
    /// Offset of the first tensor.
    data: u64,
}

impl Sealed {
    fn read(source: &Source, secret: Option<&Secret>) -> Result<Self, Damage> {
        let (header, data) = header(source)?;
        let metadata = header.metadata().clone().unwrap_or_default();
        let mut metadata: BTreeMap<String, String> = metadata.into_iter().collect();
        if metadata.get("format").is_none_or(|format| format != FORMAT) {
            return Err(Damage::Incompatible("format"));
        }
        let tensors = in_order(&header);
        let found = metadata.remove("seal").unwrap_or_default();
        let of_case = |hash: &blake3::Hash| *hash.to_hex() == *found;
        if blake3::Hash::from_hex(&found).ok().filter(of_case) != Some(seal(&metadata, &tensors, secret)) {
            return Err(Damage::corrupt(NOT_SEALED));
        }
        Ok(Self { metadata, tensors, data })
    }
}

/// The header of a file, and where its tensors begin.
fn header(source: &Source) -> Result<(Metadata, u64), Damage> {
    let mut length = [0; LENGTH_BYTES];
    source.read_exact_at(&mut length, 0)?;
    let (length, of_file) = (u64::from_le_bytes(length), source.bytes()?);
    if length > MOST_HEADER_BYTES || length > of_file {
        return Err(Damage::corrupt(format!("its header would have {length} bytes")));
    }
    let mut header = vec![0; length as usize];
    source.read_exact_at(&mut header, LENGTH_BYTES as u64)?;
    let header: Metadata = serde_json::from_slice(&header)
        .map_err(|error| Damage::corrupt(format!("its header cannot be read: {error}")))?;
    let data = LENGTH_BYTES as u64 + length;
    let whole = data + header.data_len() as u64;
    if whole != of_file {
        return Err(Damage::corrupt(format!("it has {of_file} bytes and says {whole}")));
    }
    Ok((header, data))
}

/// The tensors of a header, in their order after it.
fn in_order(header: &Metadata) -> Vec<Place> {
    let named = header.offset_keys().into_iter();
    named.filter_map(|name| header.info(&name).cloned().map(|info| (name, info))).collect()
}

#[cfg(test)]
mod tests;
