//! A GGUF file: its metadata, and where its tensors are. (ggml, `docs/gguf.md`, versions 2 and 3.)
//! Nothing in it is trusted: lengths are checked against the file before memory is taken for them.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use candle_core::DType;
use serde_json::{Map, Value};
use tributary_kernels::Packing;

use crate::error::{Error, Result};

/// Maximum bytes of a text, and of a key or a tensor's name.
const MOST_TEXT_BYTES: u64 = 16 << 20;
const MOST_KEY_BYTES: u64 = 1 << 16;

/// Maximum numbers of values, entries of lists among them; of tensors; and of files of one model.
const MOST_ENTRIES: u64 = 1 << 23;
const MOST_TENSORS: u64 = 1 << 20;
const MOST_FILES: u64 = 1 << 12;

/// Maximum number of a tensor's dimensions.
const MOST_DIMS: u32 = 4;

/// The alignment of tensors where a file states none.
const ALIGNMENT: u64 = 32;

/// How a tensor's numbers are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stored {
    /// Plain floats.
    Plain(DType),
    /// Packed ones.
    Packed(Packing),
}

/// Where a tensor is.
#[derive(Debug, Clone)]
pub struct Place {
    /// Its dimensions, the outermost first.
    pub shape: Vec<usize>,
    /// How it is stored.
    pub stored: Stored,
    file: usize,
    from: u64,
    bytes: usize,
}

impl Place {
    /// Its length in the file.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

/// A GGUF file, or the files of a model that is split.
pub struct Gguf {
    /// Keys and values of the first file.
    pub metadata: Map<String, Value>,
    /// Its tensors by their names.
    pub tensors: BTreeMap<String, Place>,
    files: Vec<(PathBuf, File)>,
}

impl Gguf {
    /// Reads what a file says of itself, and its further parts if it is split.
    ///
    /// # Errors
    /// Returns an error if a file is missing, is no GGUF of a known version, is damaged, or has
    /// tensors of a type that is not supported.
    pub fn open(path: &Path) -> Result<Self> {
        let Header { metadata, tensors, .. } = Header::read(path)?;
        let mut all = Self { metadata, tensors: BTreeMap::new(), files: Vec::new() };
        all.take(path, tensors)?;
        let count = all.number("split.count").unwrap_or(1);
        if all.number("split.no").unwrap_or(0) != 0 {
            return Err(damaged(path, format!("a later part of a model in {count} files: name the first one")));
        }
        if count > MOST_FILES {
            return Err(damaged(path, format!("a model in {count} files; at most {MOST_FILES}")));
        }
        if count > 1 {
            let parts = parts(path);
            if parts.len() as u64 != count {
                let end = format!("-{:05}-of-{count:05}.gguf", 1);
                return Err(damaged(path, format!("a model in {count} files; the first one's name ends in `{end}`")));
            }
            for part in &parts[1..] {
                let Header { tensors, .. } = Header::read(part)?;
                all.take(part, tensors)?;
            }
        }
        Ok(all)
    }

    /// The files, in their order.
    #[cfg(test)]
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(|(path, _)| path.as_path())
    }

    /// The first file.
    pub fn first(&self) -> &Path {
        &self.files[0].0
    }

    /// A whole number of the metadata.
    pub fn number(&self, key: &str) -> Option<u64> {
        self.metadata.get(key)?.as_u64()
    }

    /// A text of the metadata.
    pub fn text(&self, key: &str) -> Option<&str> {
        self.metadata.get(key)?.as_str()
    }

    /// `count` bytes of a tensor, from byte `from` of it on.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read.
    pub fn bytes(&self, place: &Place, from: usize, count: usize) -> Result<Vec<u8>> {
        assert!(from + count <= place.bytes, "bytes {from} to {} of {}", from + count, place.bytes);
        let (path, file) = &self.files[place.file];
        let mut bytes = vec![0; count];
        let read = file.read_exact_at(&mut bytes, place.from + from as u64);
        read.map_err(|error| Error::File { path: path.clone(), cause: error.to_string() })?;
        Ok(bytes)
    }

    /// The file that holds a tensor.
    pub fn path_of(&self, place: &Place) -> &Path {
        &self.files[place.file].0
    }

    fn take(&mut self, path: &Path, tensors: Vec<(String, Place)>) -> Result<()> {
        let file = tributary_system::file::open_regular(path).map_err(|error| unread(path, &error))?;
        let number = self.files.len();
        self.files.push((path.to_owned(), file));
        for (name, place) in tensors {
            if self.tensors.insert(name.clone(), Place { file: number, ..place }).is_some() {
                return Err(damaged(path, format!("tensor `{}` is there twice", name.escape_debug())));
            }
        }
        Ok(())
    }
}

/// The files of a model, as the name of the first one tells; it alone where it tells of no others.
pub(crate) fn parts(first: &Path) -> Vec<PathBuf> {
    let name = first.file_name().unwrap_or_default().to_string_lossy();
    let of_several = name.rsplit_once("-00001-of-").and_then(|(stem, rest)| {
        let count: u64 = rest.strip_suffix(".gguf")?.parse().ok().filter(|count| (1..=MOST_FILES).contains(count))?;
        let part = |number: u64| first.with_file_name(format!("{stem}-{number:05}-of-{count:05}.gguf"));
        Some((1..=count).map(part).collect())
    });
    of_several.unwrap_or_else(|| vec![first.to_owned()])
}

fn unread(path: &Path, error: &std::io::Error) -> Error {
    Error::File { path: path.to_owned(), cause: error.to_string() }
}

fn damaged(path: &Path, what: impl Into<String>) -> Error {
    Error::Weights { path: path.to_owned(), what: what.into() }
}

/// What a file says of itself.
struct Header {
    metadata: Map<String, Value>,
    tensors: Vec<(String, Place)>,
}

impl Header {
    fn read(path: &Path) -> Result<Self> {
        let file = tributary_system::file::open_regular(path).map_err(|error| unread(path, &error))?;
        let bytes = file.metadata().map_err(|error| unread(path, &error))?.len();
        let mut reader = Reader { from: BufReader::new(file), at: 0, bytes, entries: 0, path };
        let header = reader.header();
        header.map_err(|what| damaged(path, what))
    }
}

/// What is read, or the damage in words.
type Parsed<T> = std::result::Result<T, String>;

/// Reads a header front to back.
struct Reader<'a> {
    from: BufReader<File>,
    at: u64,
    bytes: u64,
    entries: u64,
    path: &'a Path,
}

impl Reader<'_> {
    fn header(&mut self) -> Parsed<Header> {
        let magic = self.array::<4>()?;
        if &magic != b"GGUF" {
            return Err(self.no_gguf(&magic));
        }
        match self.u32()? {
            2 | 3 => {}
            version if version & 0xffff == 0 => return Err("a GGUF file for big-endian machines".to_owned()),
            version => return Err(format!("GGUF version {version}; 2 and 3 are supported")),
        }
        let (tensors, keys) = (self.u64()?, self.u64()?);
        // A tensor takes 24 bytes and its name at least, a key 13.
        if tensors > MOST_TENSORS || keys > MOST_ENTRIES || (24 * tensors).saturating_add(13 * keys) > self.bytes {
            return Err(format!("{tensors} tensors and {keys} keys in {} bytes: truncated or damaged", self.bytes));
        }
        let mut metadata = Map::new();
        for _ in 0..keys {
            let key = self.text(MOST_KEY_BYTES)?;
            let kind = self.u32()?;
            let value = self.value(kind).map_err(|what| format!("{}: {what}", key.escape_debug()))?;
            if metadata.insert(key.clone(), value).is_some() {
                return Err(format!("key `{}` is there twice", key.escape_debug()));
            }
        }
        let alignment = metadata.get("general.alignment").map_or(Some(ALIGNMENT), Value::as_u64);
        let Some(alignment) = alignment.filter(|alignment| alignment.is_power_of_two() && *alignment <= 1 << 20) else {
            return Err(format!("general.alignment {}: must be a power of two", metadata["general.alignment"]));
        };
        let mut places = (0..tensors).map(|_| self.tensor(alignment)).collect::<Parsed<Vec<_>>>()?;
        let begin = self.at.next_multiple_of(alignment);
        for (_, place) in &mut places {
            place.from = place.from.saturating_add(begin);
        }
        self.check(&places)?;
        Ok(Header { metadata, tensors: places })
    }

    /// Tensors are within the file and apart from each other.
    fn check(&self, places: &[(String, Place)]) -> Parsed<()> {
        let mut all: Vec<_> = places.iter().map(|(name, place)| (place.from, place.bytes as u64, name)).collect();
        all.sort_unstable();
        if let Some((from, length, name)) =
            all.iter().find(|(from, length, _)| from.saturating_add(*length) > self.bytes)
        {
            let (name, end) = (name.escape_debug(), from.saturating_add(*length));
            return Err(format!("tensor `{name}` ends at byte {end} of {}: truncated", self.bytes));
        }
        match all.windows(2).find(|pair| pair[0].0 + pair[0].1 > pair[1].0) {
            None => Ok(()),
            Some(pair) => {
                let (one, other) = (pair[0].2.escape_debug(), pair[1].2.escape_debug());
                Err(format!("tensors `{one}` and `{other}` overlap"))
            }
        }
    }

    fn tensor(&mut self, alignment: u64) -> Parsed<(String, Place)> {
        let name = self.text(MOST_KEY_BYTES)?;
        let shown = name.escape_debug();
        let dims = self.u32()?;
        if dims == 0 || dims > MOST_DIMS {
            return Err(format!("tensor `{shown}` has {dims} dimensions; from 1 to {MOST_DIMS} are possible"));
        }
        let mut shape = (0..dims).map(|_| Ok(self.u64()? as usize)).collect::<Parsed<Vec<usize>>>()?;
        shape.reverse();
        let kind = self.u32()?;
        let from = self.u64()?;
        let stored = stored(kind).ok_or_else(|| format!("tensor `{shown}` is {}; {SUPPORTED}", named(kind)))?;
        let (numbers, block) = match stored {
            Stored::Plain(dtype) => (1, dtype.size_in_bytes()),
            Stored::Packed(packing) => (packing.numbers(), packing.bytes()),
        };
        let width = shape[shape.len() - 1];
        if !width.is_multiple_of(numbers) {
            return Err(format!("tensor `{shown}`: rows of {width} numbers are not whole blocks of {numbers}"));
        }
        let count = shape.iter().try_fold(1usize, |count, &dim| count.checked_mul(dim));
        let bytes =
            count.and_then(|count| (count / numbers).checked_mul(block)).filter(|&bytes| bytes as u64 <= self.bytes);
        let Some(bytes) = bytes else {
            return Err(format!(
                "tensor `{shown}` of shape {shape:?} in a file of {} bytes: truncated or damaged",
                self.bytes
            ));
        };
        if !from.is_multiple_of(alignment) {
            return Err(format!("tensor `{shown}` begins at {from}: no multiple of {alignment}"));
        }
        Ok((name, Place { shape, stored, file: 0, from, bytes }))
    }

    fn value(&mut self, kind: u32) -> Parsed<Value> {
        self.entries += 1;
        if self.entries > MOST_ENTRIES {
            return Err(format!("more than {MOST_ENTRIES} entries"));
        }
        Ok(match kind {
            0 => self.array::<1>()?[0].into(),
            1 => i8::from_le_bytes(self.array()?).into(),
            2 => u16::from_le_bytes(self.array()?).into(),
            3 => i16::from_le_bytes(self.array()?).into(),
            4 => self.u32()?.into(),
            5 => i32::from_le_bytes(self.array()?).into(),
            6 => shortest(f32::from_le_bytes(self.array()?)),
            7 => match self.array::<1>()?[0] {
                byte @ (0 | 1) => Value::Bool(byte == 1),
                byte => return Err(format!("{byte} is neither false nor true")),
            },
            8 => Value::String(self.text(MOST_TEXT_BYTES)?),
            9 => self.list()?,
            10 => self.u64()?.into(),
            11 => i64::from_le_bytes(self.array()?).into(),
            12 => f64::from_le_bytes(self.array()?).into(),
            other => return Err(format!("a value of type {other}, which is not known")),
        })
    }

    fn list(&mut self) -> Parsed<Value> {
        let (kind, count) = (self.u32()?, self.u64()?);
        if kind == 9 {
            return Err("a list of lists".to_owned());
        }
        let least = match kind {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            _ => 8,
        };
        if count.saturating_mul(least) > self.bytes - self.at {
            return Err(format!(
                "a list of {count} values with {} bytes left: truncated or damaged",
                self.bytes - self.at
            ));
        }
        Ok(Value::Array((0..count).map(|_| self.value(kind)).collect::<Parsed<_>>()?))
    }

    fn text(&mut self, most: u64) -> Parsed<String> {
        let length = self.u64()?;
        if length > most || length > self.bytes - self.at {
            let left = self.bytes - self.at;
            return Err(format!("a text of {length} bytes with {left} left; at most {most}: truncated or damaged"));
        }
        let mut bytes = vec![0; length as usize];
        self.fill(&mut bytes)?;
        String::from_utf8(bytes).map_err(|_| "a text that is not UTF-8".to_owned())
    }

    fn u32(&mut self) -> Parsed<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Parsed<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn array<const N: usize>(&mut self) -> Parsed<[u8; N]> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Parsed<()> {
        let read = self.from.read_exact(bytes);
        self.at += bytes.len() as u64;
        read.map_err(|error| match error.kind() {
            std::io::ErrorKind::UnexpectedEof => format!("truncated: it ends after {} bytes", self.bytes),
            _ => error.to_string(),
        })
    }

    /// Why a file that begins otherwise is none.
    fn no_gguf(&self, magic: &[u8]) -> String {
        let begin = std::fs::File::open(self.path).and_then(|file| {
            let mut begin = Vec::new();
            file.take(64).read_to_end(&mut begin)?;
            Ok(begin)
        });
        match begin {
            Ok(begin) if tributary_system::file::is_lfs_pointer(&begin) => {
                tributary_system::file::LFS_POINTER.to_owned()
            }
            _ => format!("no GGUF file: it begins with `{}`", magic.escape_ascii()),
        }
    }
}

/// A float with the fewest digits that give it back: 1e-6 is written so in a config, not as what
/// f32 makes of it.
fn shortest(value: f32) -> Value {
    format!("{value:e}").parse::<f64>().map_or(Value::Null, Into::into)
}

/// What types of tensors are supported, in words.
const SUPPORTED: &str = "F32, F16, BF16, Q4_0 to Q8_0, Q2_K to Q6_K, IQ4_NL, IQ4_XS and MXFP4 are supported";

fn stored(kind: u32) -> Option<Stored> {
    Some(match kind {
        0 => Stored::Plain(DType::F32),
        1 => Stored::Plain(DType::F16),
        28 => Stored::Plain(DType::F64),
        30 => Stored::Plain(DType::BF16),
        2 => Stored::Packed(Packing::Q4_0),
        3 => Stored::Packed(Packing::Q4_1),
        6 => Stored::Packed(Packing::Q5_0),
        7 => Stored::Packed(Packing::Q5_1),
        8 => Stored::Packed(Packing::Q8_0),
        10 => Stored::Packed(Packing::Q2K),
        11 => Stored::Packed(Packing::Q3K),
        12 => Stored::Packed(Packing::Q4K),
        13 => Stored::Packed(Packing::Q5K),
        14 => Stored::Packed(Packing::Q6K),
        20 => Stored::Packed(Packing::Iq4Nl),
        23 => Stored::Packed(Packing::Iq4Xs),
        39 => Stored::Packed(Packing::Mxfp4),
        _ => return None,
    })
}

/// The name of a type that is not supported.
fn named(kind: u32) -> String {
    let name = match kind {
        9 => "Q8_1",
        15 => "Q8_K",
        16 => "IQ2_XXS",
        17 => "IQ2_XS",
        18 => "IQ3_XXS",
        19 => "IQ1_S",
        21 => "IQ3_S",
        22 => "IQ2_S",
        24..=27 => "of whole numbers",
        29 => "IQ1_M",
        34 => "TQ1_0",
        35 => "TQ2_0",
        40 => "NVFP4",
        _ => return format!("of type {kind}"),
    };
    name.to_owned()
}
