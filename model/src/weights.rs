//! Weights from a Hugging Face folder: one `model.safetensors`, or shards with an index. Files are
//! mapped, and checked before use.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use candle_core::safetensors::MmapedSafetensors;
use candle_core::{DType, Device, Tensor, Var};
use safetensors::tensor::TensorView;

use tributary_kernels::{Packed, Weight};

use super::config::read;
use super::{dummy, dummy_packed};
use crate::error::{Error, Result};
use crate::gguf::{self, Gguf, OfGguf, Read};
use crate::quantised::{self, Quantisation, Quantised, Tensors};

/// Maximum size of a safetensors header, in bytes.
const HEADER_LIMIT_BYTES: u64 = 16 << 20;

/// Dtypes in which weights may be stored. A quantised tensor is meaningless without its scales.
const FLOATS: [DType; 4] = [DType::F32, DType::F16, DType::BF16, DType::F64];

/// The beginning of the names of a vision tower's tensors.
pub(super) const TOWER: &str = "visual.";

/// The weight files of a model folder, in the order of their names: one, or else the shards of an
/// index.
///
/// # Errors
/// Returns an error if an index cannot be read, or if a single file is beside an index with all its
/// shards.
pub fn weight_files(folder: &Path) -> Result<BTreeSet<PathBuf>> {
    if let Some(file) = gguf_file(folder) {
        // By their names: what they say of themselves is read when the weights are.
        return Ok(gguf::parts(&file).into_iter().filter(|part| part.exists()).collect());
    }
    let (single, index) = (folder.join("model.safetensors"), folder.join("model.safetensors.index.json"));
    if !index.exists() {
        return Ok(BTreeSet::from([single]));
    }
    let shards = || Ok(shard_names(&index)?.into_iter().map(|name| folder.join(name)).collect::<BTreeSet<_>>());
    if !single.exists() {
        return shards();
    }
    // As in transformers, the single file comes first. An index with all its shards suggests that
    // the single file is another model's.
    match shards() {
        Ok(shards) if !shards.contains(&single) && shards.iter().all(|shard| shard.exists()) => {
            let what = format!("it is beside {} with all its shards; remove one of them", index.display());
            Err(Error::Weights { path: single, what })
        }
        _ => Ok(BTreeSet::from([single])),
    }
}

/// A folder's GGUF file, where a link leads, if its weights are in one and in no other.
pub(super) fn gguf_file(folder: &Path) -> Option<PathBuf> {
    let path = folder.join(gguf::FILE);
    let others = ["model.safetensors", "model.safetensors.index.json"].iter().any(|name| folder.join(name).exists());
    (path.exists() && !others).then(|| std::fs::canonicalize(&path).unwrap_or(path))
}

/// A model's tensors, created one by one on a device.
pub(super) struct Weights {
    source: WeightSource,
    /// The dtype of matrices.
    pub dtype: DType,
    /// The device of the tensors.
    pub device: Device,
    /// Variables created so far, by name, if the weights are to be learned.
    learned: Option<RefCell<BTreeMap<String, Var>>>,
    /// The form of quantised ones.
    quantisation: Option<Quantisation>,
}

/// The source of tensors.
enum WeightSource {
    /// Mapped files.
    Files {
        folder: PathBuf,
        files: HashMap<PathBuf, MmapedSafetensors>,
        /// The file of each tensor, and its name there, by its name in a model of text alone.
        index: HashMap<String, (PathBuf, String)>,
        /// Names of a vision tower's tensors that were asked for.
        tower_read: RefCell<BTreeSet<String>>,
    },
    /// A GGUF file.
    Gguf(OfGguf),
    /// Random numbers from this seed.
    Dummy(u64),
}

impl Weights {
    /// Opens a model folder's weight files.
    ///
    /// # Errors
    /// Returns an error if a weight file is missing, unreadable or truncated, or if an index names
    /// a missing file.
    pub fn open(folder: &Path, dtype: DType, device: &Device) -> Result<Self> {
        if let Some(path) = gguf_file(folder) {
            let source = WeightSource::Gguf(OfGguf::new(Gguf::open(&path)?));
            return Ok(Self { source, dtype, device: device.clone(), learned: None, quantisation: None });
        }
        let (mut files, mut index) = (HashMap::new(), HashMap::new());
        for path in weight_files(folder)? {
            let file = map(&path)?;
            for (name, _) in file.tensors() {
                index.insert(name.clone(), (path.clone(), name));
            }
            files.insert(path, file);
        }
        let source = WeightSource::Files { folder: folder.to_owned(), files, index, tower_read: RefCell::default() };
        Ok(Self { source, dtype, device: device.clone(), learned: None, quantisation: None })
    }

    /// The tensors of the text part of a model of text and pictures, under the names of a model of
    /// text alone, and those of Qwen's towers under `visual.`.
    ///
    /// # Errors
    /// Returns an error if two tensors have one name there.
    pub fn of_text_part(self) -> Result<Self> {
        let WeightSource::Files { folder, files, index, tower_read } = self.source else { return Ok(self) };
        let mut renamed: HashMap<String, (PathBuf, String)> = HashMap::new();
        for (name, (path, _)) in index {
            let short = text_name(&name);
            if let Some((_, other)) = renamed.insert(short.clone(), (path.clone(), name.clone())) {
                let (one, other) = if name < other { (name, other) } else { (other, name) };
                let what = format!("tensors `{one}` and `{other}` are both `{short}` of its text part");
                return Err(Error::Weights { path, what });
            }
        }
        Ok(Self { source: WeightSource::Files { folder, files, index: renamed, tower_read }, ..self })
    }

    /// The same, with matrices in a quantised form.
    pub fn quantised_as(self, quantisation: Option<Quantisation>) -> Self {
        Self { quantisation, ..self }
    }

    /// Each tensor of a folder's files: its name, type and shape.
    pub fn each_stored(&self, mut visit: impl FnMut(&str, safetensors::Dtype, &[usize])) {
        let WeightSource::Files { files, .. } = &self.source else { return };
        for (name, view) in files.values().flat_map(|file| file.tensors()) {
            visit(&name, view.dtype(), view.shape());
        }
    }

    /// Whether matrices may be packed.
    pub fn may_be_packed(&self) -> bool {
        self.quantisation.is_some() || matches!(self.source, WeightSource::Gguf(_))
    }

    /// Rejects tensors of a GGUF file that none of a model of `layers` layers was made of: what
    /// they stand for would be left out.
    ///
    /// # Errors
    /// Returns an error that names the first such tensor.
    pub fn check_all_read(&self, layers: usize) -> Result<()> {
        match &self.source {
            WeightSource::Gguf(gguf) => gguf.check_all_read(layers),
            _ => Ok(()),
        }
    }

    /// Rejects tensors of a vision tower that none of its parts was made of: their numbers would be
    /// left out.
    ///
    /// # Errors
    /// Returns an error that names the first such tensor.
    pub fn check_tower_read(&self) -> Result<()> {
        let WeightSource::Files { index, tower_read, .. } = &self.source else { return Ok(()) };
        let read = tower_read.borrow();
        let left = index.iter().filter(|(name, _)| name.starts_with(TOWER) && !read.contains(*name));
        match left.min_by_key(|(name, _)| *name) {
            None => Ok(()),
            Some((_, (path, stored))) => {
                let what = format!("tensor `{stored}` is of no part of the tower that config.json describes");
                Err(Error::Weights { path: path.clone(), what })
            }
        }
    }

    /// The dtype of rows and of all that is computed from them: f32 on a CPU (f64 with weights in
    /// f64), the weights' on a device.
    pub fn activations(&self) -> DType {
        match self.device.is_cpu() {
            true if self.dtype == DType::F64 => DType::F64,
            true => DType::F32,
            false => self.dtype,
        }
    }

    /// Whether these are random numbers.
    pub fn are_drawn(&self) -> bool {
        matches!(self.source, WeightSource::Dummy(_))
    }

    /// Whether files have a tensor of that name; drawn weights have none that is not asked for.
    pub fn has(&self, name: &str) -> bool {
        match &self.source {
            WeightSource::Files { index, .. } => index.contains_key(name),
            WeightSource::Gguf(gguf) => gguf.has(name),
            WeightSource::Dummy(_) => false,
        }
    }

    /// Random numbers from a seed.
    pub fn dummy(seed: u64, dtype: DType, device: &Device) -> Self {
        Self { source: WeightSource::Dummy(seed), dtype, device: device.clone(), learned: None, quantisation: None }
    }

    /// The same tensors as variables, all of them in the model's dtype.
    pub fn into_variables(self) -> Self {
        Self { learned: Some(RefCell::default()), ..self }
    }

    /// The variables that were created, by name.
    pub fn into_learned(self) -> BTreeMap<String, Var> {
        self.learned.map(RefCell::into_inner).unwrap_or_default()
    }

    /// The tensor of that name and shape, in the model's dtype.
    ///
    /// # Errors
    /// Returns an error if the tensor is missing, has another shape, or does not hold plain floats.
    pub fn get(&self, name: &str, shape: &[usize]) -> Result<Tensor> {
        self.get_in(name, shape, self.dtype)
    }

    /// The matrix of that name and shape, packed if it is stored so.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn matrix(&self, name: &str, shape: [usize; 2]) -> Result<Weight> {
        if let WeightSource::Gguf(gguf) = &self.source {
            return match gguf.read(name, &shape)? {
                Some(Read::Packed(packed)) => self.placed(packed),
                Some(Read::Plain(tensor)) => Ok(tensor.to_dtype(self.dtype)?.to_device(&self.device)?.into()),
                None => Err(gguf.lacks(name, &shape)),
            };
        }
        if let Some(packed) = self.drawn_packed(name, shape)? {
            return self.placed(packed);
        }
        if let Some(quantised) = self.quantised(name, shape)? {
            return match quantised.packed()? {
                Some(packed) => self.placed(packed),
                None => Ok(quantised.plain(self.dtype)?.to_device(&self.device)?.into()),
            };
        }
        self.get(name, &shape).map(Weight::Plain)
    }

    /// The tensor of that name and shape in f32: norms and biases are f32 with any dtype of the
    /// model.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn get_f32(&self, name: &str, shape: &[usize]) -> Result<Tensor> {
        self.get_in(name, shape, DType::F32)
    }

    /// The numbers of a tensor of bytes.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn bytes(&self, name: &str, shape: &[usize]) -> Result<Vec<u8>> {
        let (path, view) = self.stored(name, shape)?;
        match view.dtype() {
            safetensors::Dtype::U8 => Ok(view.data().to_vec()),
            other => {
                let what = format!("tensor `{name}` is {other:?}; expected U8");
                Err(Error::Weights { path: path.to_owned(), what })
            }
        }
    }

    /// The random matrix of that name and shape on the host, if it is drawn packed.
    ///
    /// # Errors
    /// Returns an error if the kernels refuse its blocks.
    pub fn drawn_packed(&self, name: &str, shape: [usize; 2]) -> Result<Option<Packed>> {
        let (WeightSource::Dummy(seed), Some(form)) = (&self.source, self.quantisation) else { return Ok(None) };
        let packing = form.of_dummy(name, shape[1]);
        packing.map(|packing| dummy_packed::matrix(*seed, name, shape, packing)).transpose()
    }

    /// A packed matrix where it is used.
    fn placed(&self, packed: Packed) -> Result<Weight> {
        let packed = packed.multiplied_in_bf16(self.dtype == DType::BF16);
        Ok(Weight::Packed(packed.to_device(&self.device)?))
    }

    /// The quantised matrix of that name, if it is one.
    fn quantised(&self, name: &str, shape: [usize; 2]) -> Result<Option<Quantised>> {
        let (Some(form), WeightSource::Files { folder, .. }) = (self.quantisation, &self.source) else {
            return Ok(None);
        };
        let found = quantised::matrix(self, name.strip_suffix(".weight").unwrap_or(name), shape, form);
        found.map_err(|what| Error::Weights { path: folder.clone(), what })
    }

    fn get_in(&self, name: &str, shape: &[usize], dtype: DType) -> Result<Tensor> {
        let Some(learned) = &self.learned else { return self.get_as(name, shape, dtype, &self.device) };
        let var = Var::from_tensor(&self.get_as(name, shape, self.dtype, &self.device)?)?;
        let tensor = var.as_tensor().clone();
        learned.borrow_mut().insert(name.to_owned(), var);
        Ok(tensor)
    }

    /// The tensor of that name and shape in its file.
    fn stored(&self, name: &str, shape: &[usize]) -> Result<(&Path, TensorView<'_>)> {
        let missing = |folder: &Path| {
            let (folder, name) = (folder.to_owned(), name.to_owned());
            Error::MissingTensor { folder, name, expected: shape.to_vec() }
        };
        let WeightSource::Files { folder, files, index, tower_read } = &self.source else {
            return Err(missing(Path::new("")));
        };
        if name.starts_with(TOWER) {
            tower_read.borrow_mut().insert(name.to_owned());
        }
        let (path, stored_name) = index.get(name).ok_or_else(|| missing(folder))?;
        let view = files[path].get(stored_name);
        let view = view.map_err(|error| Error::Weights { path: path.clone(), what: error.to_string() })?;
        if view.shape() != shape {
            let (folder, name, found) = (folder.clone(), name.to_owned(), view.shape().to_vec());
            return Err(Error::WrongShape { folder, name, expected: shape.to_vec(), found });
        }
        Ok((path, view))
    }

    fn get_as(&self, name: &str, shape: &[usize], dtype: DType, device: &Device) -> Result<Tensor> {
        let (files, index) = match &self.source {
            WeightSource::Dummy(seed) => return dummy::tensor(*seed, name, shape, dtype, device),
            WeightSource::Gguf(gguf) => {
                let read = gguf.read(name, shape)?.ok_or_else(|| gguf.lacks(name, shape))?;
                return Ok(read.plain(dtype)?.to_device(device)?);
            }
            WeightSource::Files { files, index, .. } => (files, index),
        };
        let (path, view) = self.stored(name, shape)?;
        let bad = |what: String| Error::Weights { path: path.to_owned(), what };
        let stored = DType::try_from(view.dtype()).ok().filter(|stored| FLOATS.contains(stored));
        let Some(stored) = stored else {
            let what = format!("tensor `{name}` is {:?}; expected F32, F16, BF16 or F64", view.dtype());
            let why = if self.quantisation.is_none() { " (the config states no quantization_config)" } else { "" };
            return Err(bad(format!("{what}{why}")));
        };
        let (file, stored_name) = (&files[path], &index[name].1);
        if stored == dtype {
            // From the mapped file directly to its device.
            let tensor = file.load(stored_name, device);
            // On a device memory may be short; on the host only the file can be at fault.
            return tensor.map_err(|error| if device.is_cpu() { bad(error.to_string()) } else { error.into() });
        }
        // Another dtype is converted on the host, so that the device holds no second copy.
        let tensor = file.load(stored_name, &Device::Cpu).map_err(|error| bad(error.to_string()))?;
        Ok(tensor.to_dtype(dtype)?.to_device(device)?)
    }
}

impl Tensors for Weights {
    fn find(&self, name: &str) -> Option<TensorView<'_>> {
        let WeightSource::Files { files, index, .. } = &self.source else { return None };
        let (path, stored_name) = index.get(name)?;
        files[path].get(stored_name).ok()
    }
}

/// A tensor's name in a model of text alone, if it is of the text part of one of text and pictures:
/// transformers 4 writes `language_model.model.*` and `language_model.lm_head.*`, transformers 5
/// `model.language_model.*`. Qwen's towers are `visual.*` or `model.visual.*`.
fn text_name(name: &str) -> String {
    if name.starts_with("model.visual.") {
        return name.replacen("model.", "", 1);
    }
    match name.strip_prefix("model.language_model.") {
        Some(rest) => format!("model.{rest}"),
        None => name.strip_prefix("language_model.").unwrap_or(name).to_owned(),
    }
}

/// The file names of an index, each checked to be a plain name.
fn shard_names(path: &Path) -> Result<BTreeSet<String>> {
    let bad = |what: String| Error::Weights { path: path.to_owned(), what };
    let index: serde_json::Value = serde_json::from_str(&read(path)?).map_err(|error| bad(error.to_string()))?;
    let map = index["weight_map"].as_object().ok_or_else(|| bad("no `weight_map`".to_owned()))?;
    let name_of = |(tensor, name): (&String, &serde_json::Value)| match name.as_str() {
        Some(name) if name != ".." && !name.contains(['/', '\\']) => Ok(name.to_owned()),
        Some(name) => Err(bad(format!("`{name}` is not a file name"))),
        None => Err(bad(format!("`{tensor}` has no file name"))),
    };
    map.iter().map(name_of).collect()
}

fn map(path: &Path) -> Result<MmapedSafetensors> {
    let file_error = |error: std::io::Error| Error::File { path: path.to_owned(), cause: error.to_string() };
    let mut file = tributary_system::file::open_regular(path).map_err(file_error)?;
    check_header(path, &mut file)?;
    // SAFETY: the mapping is read while the model loads and dropped after. Weight files are
    // expected to stay unchanged in these seconds; a file that is truncated meanwhile ends the
    // process and corrupts nothing.
    let mapped = unsafe { MmapedSafetensors::new(path) };
    mapped.map_err(|error| {
        let what = format!("not a whole safetensors file: {error}");
        Error::Weights { path: path.to_owned(), what }
    })
}

/// Rejects a header that is longer than the file or than the limit, before anything is allocated
/// for it.
fn check_header(path: &Path, file: &mut std::fs::File) -> Result<()> {
    use std::io::Read;
    let file_error = |error: std::io::Error| Error::File { path: path.to_owned(), cause: error.to_string() };
    let file_bytes = file.metadata().map_err(file_error)?.len();
    let mut length = [0; 8];
    let bad = |what: String| Err(Error::Weights { path: path.to_owned(), what });
    if let Err(error) = file.read_exact(&mut length) {
        return match error.kind() {
            std::io::ErrorKind::UnexpectedEof => bad(format!("truncated: {file_bytes} bytes, a header needs 8")),
            _ => Err(file_error(error)),
        };
    }
    let header_bytes = u64::from_le_bytes(length);
    let mut begin = length.to_vec();
    file.take(64).read_to_end(&mut begin).map_err(file_error)?;
    if tributary_system::file::is_lfs_pointer(&begin) {
        return bad(tributary_system::file::LFS_POINTER.to_owned());
    }
    if header_bytes > HEADER_LIMIT_BYTES || header_bytes.saturating_add(8) > file_bytes {
        let limit = HEADER_LIMIT_BYTES.min(file_bytes - 8); // eight bytes were read
        return bad(format!("header of {header_bytes} bytes; the maximum is {limit}: truncated or not safetensors"));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
