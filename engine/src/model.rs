//! Contents of a model folder besides weights, and the planner's facts of it.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use candle_core::{DType, Device};
use tributary_coordinator::harmony::{CHANNEL, Marks, parted};
use tributary_coordinator::{ChunkPrefix, Head, Intake, PictureMarks, PictureRules, Prefix, Said, Template, Tokenizer};
use tributary_kernels::{Kernels, cuda};
use tributary_model::{
    Adapters, Config, LoadFormat, Model, TowerConfig, VisionConfig, fingerprint, gguf, in_eight_bits, load,
    packed_bytes,
};
use tributary_pictures::{Limits, Rules};
use tributary_planner::{ModelShape, VisionShape, WindowShape};

use crate::adapters::ModelAdapters;
use crate::config::{DeviceKind, IntakeConfig, KvDtype, ModelConfig, TemplateUse};
use crate::device::RankDevice;
use crate::error::{Error, Result};
use crate::tokenizer_trial;

/// A model folder, its weights not read yet.
pub struct ModelFolder {
    /// The folder; for a GGUF file that which describes it.
    pub path: PathBuf,
    /// The folder or file that was asked for.
    pub given: PathBuf,
    /// Its config.
    pub config: Config,
    /// Its tokenizer; none for synthetic requests.
    pub tokenizer: Option<Tokenizer>,
    /// Its chat template, if it has one and it is wanted.
    pub template: Option<Template>,
    /// The token that a text begins with, as its tokenizer says; without a tokenizer as its config
    /// does.
    pub bos: Option<u32>,
    /// The tokens with which every prompt begins, if chunks are prefilled after these alone.
    pub head: Option<Head>,
    /// Its rules for pictures, if it reads some.
    pub pictures: Option<PictureRules>,
    /// The small auxiliary model that reads for it, if there is one.
    pub auxiliary: Option<Box<ModelFolder>>,
    /// The small draft model that writes ahead of it, if there is one.
    pub draft_model: Option<Box<ModelFolder>>,
    /// Its adapters.
    pub adapters: ModelAdapters,
    dtype: DType,
    kv_in_eight_bits: bool,
    /// Bytes of packed weights.
    packed_bytes: Option<u64>,
    format: LoadFormat,
    hash: ModelHash,
}

/// The hash that names a model. It is made when it is first asked for, because that takes reading
/// all weights the first time, and then all who have a clone know it.
#[derive(Clone)]
pub struct ModelHash {
    folder: PathBuf,
    format: LoadFormat,
    made: Arc<Mutex<Option<[u8; 32]>>>,
}

impl ModelHash {
    fn of(folder: &Path, format: LoadFormat) -> Self {
        Self { folder: folder.to_owned(), format, made: Arc::default() }
    }

    /// The hash. Runs on the thread pool it is called in.
    ///
    /// # Errors
    /// Returns an error if a file of the model cannot be read.
    pub fn get(&self) -> Result<[u8; 32]> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(hash) = *made {
            return Ok(hash);
        }
        let cache = cache_folder(|name| std::env::var_os(name).map(PathBuf::from));
        Ok(*made.insert(fingerprint(&self.folder, self.format, cache.as_deref())?.hash))
    }
}

/// The user's folder for files that can be made again: `tributary` in $XDG_CACHE_HOME, or in
/// ~/.cache; none without a home.
fn cache_folder(variable: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    // Its specification wants relative paths ignored.
    let absolute = |name: &str| variable(name).filter(|path| path.is_absolute());
    let caches = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")));
    Some(caches?.join("tributary"))
}

/// Factor of the model's positions up to which a request is read: a refusal gives its excess
/// length, and documents that are prefilled ahead of use may be longer together than one prompt.
const READ_POSITIONS: usize = 16;

impl ModelFolder {
    /// The settings by which a request's text is read after a prefix.
    ///
    /// # Errors
    /// Returns an error if the folder was opened without its tokenizer.
    pub(crate) fn reading<'a>(&'a self, intake: &'a IntakeConfig, prefix: &'a Prefix) -> Result<Intake<'a>> {
        Ok(Intake {
            tokenizer: self.tokenizer()?,
            pictures: self.pictures.as_ref(),
            template: self.template.as_ref(),
            chunking: &intake.chunking,
            tiling: intake.tiling,
            join: &intake.join,
            kwargs: &intake.template_kwargs,
            prefix,
            head: self.head.as_ref(),
            bos: self.bos,
            most_tokens: self.config.max_positions.saturating_mul(READ_POSITIONS),
        })
    }

    /// Reads everything but the weights.
    ///
    /// # Errors
    /// Returns an error if a folder or file is missing or unreadable, or if the config cannot run
    /// here.
    pub fn open(wanted: &ModelConfig, intake: &IntakeConfig) -> Result<Self> {
        Self::open_for(wanted, intake, intake.synthetic.is_none())
    }

    /// As [`open`](Self::open), without the coordinator's parts.
    ///
    /// # Errors
    /// Fails as [`open`](Self::open) does.
    pub fn open_for_worker(wanted: &ModelConfig, intake: &IntakeConfig) -> Result<Self> {
        Self::open_for(wanted, intake, false)
    }

    fn open_for(wanted: &ModelConfig, intake: &IntakeConfig, text: bool) -> Result<Self> {
        let given = path_of(wanted);
        let path = folder_of(given.clone())?;
        let mut config = Config::read(&path)?;
        let template = match (text, intake.template) {
            (true, TemplateUse::Auto) => Template::from_folder(&path)?,
            _ => None,
        };
        // A template that no chat can use is known now, not when clients come.
        template.iter().try_for_each(Template::check)?;
        let tokenizer = if text { Some(tokenizer_trial::tokenizer(&path, template.as_ref())?) } else { None };
        let bos = tokenizer.as_ref().map_or(config.bos, Tokenizer::bos);
        check_tokens(tokenizer.as_ref(), &mut config)?;
        let head = match (&tokenizer, intake.chunk_prefix) {
            (Some(tokenizer), ChunkPrefix::Head { more }) => Some(head(intake, template.as_ref(), tokenizer, more)?),
            _ => None,
        };
        let pictures =
            config.vision.as_ref().map(|vision| picture_rules(vision, intake.max_image_pixels)).transpose()?;
        let dtype = wanted.dtype.tensor();
        let plain = wanted.kernels == Kernels::Plain;
        if wanted.device == DeviceKind::Cuda && !plain && !cuda::attends(config.head_dim, dtype) {
            let found = format!("heads of {} in {}", config.head_dim, wanted.dtype.name());
            let there =
                "there are some for 32, 64, 96, 128 and 256 in bf16 and f16; --kernels plain does without, slowly";
            return Err(Error::configuration(format!("--device cuda: no attention kernel for {found}: {there}")));
        }
        let format = wanted.load_format;
        let beside = |folder: &PathBuf| Self::open_for(&wanted.beside(folder), intake, false);
        let auxiliary = wanted.auxiliary.as_ref().map(beside).transpose()?.map(Box::new);
        let draft_model = wanted.draft_model.as_ref().map(beside).transpose()?.map(Box::new);
        let hash = ModelHash::of(&path, format);
        let adapters = ModelAdapters::open(&wanted.adapters, &config, || hash.get())?;
        let packed_bytes = packed_bytes(&path, &config, format, dtype, wanted.device == DeviceKind::Cuda)?;
        Ok(Self {
            path,
            given,
            config,
            tokenizer,
            template,
            bos,
            head,
            pictures,
            auxiliary,
            draft_model,
            adapters,
            dtype,
            kv_in_eight_bits: wanted.kv_dtype == KvDtype::Fp8,
            packed_bytes,
            format,
            hash,
        })
    }

    /// Reads or draws the weights, onto the device of a place.
    ///
    /// # Errors
    /// Returns an error if weights are missing, damaged or of the wrong shape.
    pub fn load(&self, rank_device: &RankDevice) -> Result<Arc<dyn Model>> {
        self.load_on(&rank_device.device)
    }

    /// The same onto a device.
    pub(crate) fn load_on(&self, device: &Device) -> Result<Arc<dyn Model>> {
        let model = load(&self.path, self.format, self.dtype, device)?;
        Ok(if self.kv_in_eight_bits { in_eight_bits(model) } else { model })
    }

    /// Its adapters on a device.
    ///
    /// # Errors
    /// Returns an error if an operation on the device fails.
    pub(crate) fn adapters_on(&self, device: &Device) -> Result<Adapters> {
        self.adapters.on(device, self.dtype)
    }

    /// Hash that names the model.
    pub fn hash(&self) -> &ModelHash {
        &self.hash
    }

    /// The planner's facts of the model.
    pub fn shape(&self) -> ModelShape {
        let shape = shape_of(&self.config, self.dtype.size_in_bytes());
        let weight_bytes = self.packed_bytes.unwrap_or(shape.weight_bytes);
        ModelShape { weight_bytes, kv_in_eight_bits: self.kv_in_eight_bits, ..shape }
    }

    /// The tokenizer.
    ///
    /// # Errors
    /// Returns an error if the folder was opened for random tokens, and so has no tokenizer.
    pub(crate) fn tokenizer(&self) -> Result<&Tokenizer> {
        self.tokenizer.as_ref().ok_or_else(|| Error::usage("text needs a tokenizer"))
    }

    /// The marks of channels, if the chat template writes one and the tokenizer has them.
    pub(crate) fn channels(&self) -> Option<Marks> {
        self.template.as_ref().filter(|template| template.contains(CHANNEL))?;
        let tokenizer = self.tokenizer.as_ref()?;
        Marks::with(|text| tokenizer.id_of(text)).ok()
    }

    /// The text of generated tokens after the end of a prompt: decoded, or their ids where there is
    /// no tokenizer. Where answers have channels, reasoning is apart, and headers are left out.
    ///
    /// # Errors
    /// Returns an error if the tokenizer fails.
    pub fn said(&self, prompt: &[u32], tokens: &[u32]) -> Result<Said> {
        let ids: Vec<u32> = tokens.iter().copied().filter(|token| !self.config.eos.contains(token)).collect();
        let Some(tokenizer) = &self.tokenizer else {
            let answer = ids.iter().map(u32::to_string).collect::<Vec<_>>().join(" ");
            return Ok(Said { reasoning: None, answer });
        };
        let answer = tokenizer.decode(&ids)?;
        match self.channels() {
            None => Ok(Said { reasoning: None, answer }),
            Some(marks) => {
                let text_of = |ids: &[u32]| tokenizer.decode(ids).unwrap_or_default();
                let (reasoning, answer) = parted(prompt, &ids, &marks, text_of);
                Ok(Said { reasoning: Some(reasoning).filter(|text| !text.is_empty()), answer })
            }
        }
    }
}

/// Rules of a model with a vision tower for the pictures of requests, of which a file has at most
/// `most_pixels` pixels.
fn picture_rules(vision: &VisionConfig, most_pixels: Option<u64>) -> Result<PictureRules> {
    let VisionConfig { patch, merge, marks, preprocessing, .. } = vision;
    let side = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    let (least, most) = (preprocessing.least_pixels, preprocessing.most_pixels);
    let rules = Rules::new(side(*patch), side(*merge), least, most);
    let marks = PictureMarks { row: marks.picture, start: marks.start, end: marks.end };
    let usual = Limits::default();
    let limits = Limits { pixels: most_pixels.unwrap_or(usual.pixels).min(usual.pixels), ..usual };
    Ok(PictureRules { rules: rules.map_err(|error| Error::usage(error.to_string()))?, marks, limits })
}

/// The tokens with which every prompt begins.
fn head(intake: &IntakeConfig, template: Option<&Template>, tokenizer: &Tokenizer, more: usize) -> Result<Head> {
    // Without a template a prompt begins with the prefix itself.
    let bos = tokenizer.bos().filter(|_| intake.prefix == Prefix::Bos);
    let head = Head::find(template, tokenizer, bos, &intake.template_kwargs, more)?;
    tracing::debug!(tokens = head.tokens(), more, "the head of all prompts");
    Ok(head)
}

/// Adds the tokenizer's end of an answer to the config's, and refuses tokens that the model has no
/// row for.
fn check_tokens(tokenizer: Option<&Tokenizer>, config: &mut Config) -> Result<()> {
    let Some(tokenizer) = tokenizer else { return Ok(()) };
    let known = |id: &u32| (*id as usize) < config.vocab;
    if let Some(id) = tokenizer.bos().filter(|id| !known(id)) {
        return Err(Error::usage(format!(
            "its tokenizer begins texts with id {id}, the model knows {} ids",
            config.vocab
        )));
    }
    if let Some(mark) = tokenizer.missing_mark() {
        return Err(Error::usage(format!(
            "its chat template writes {mark}, which is no token of its tokenizer: another \
             chat_template.jinja in the folder would be taken before it"
        )));
    }
    if let Some(mark) = tokenizer.written_beyond(config.vocab) {
        let vocab = config.vocab;
        return Err(Error::usage(format!("its chat template writes {mark}, which is no token of the model's {vocab}")));
    }
    config.eos.extend(tokenizer.eos().filter(known).filter(|id| !config.eos.contains(id)));
    Ok(())
}

/// The planner's facts of a config, with numbers of `dtype_bytes` bytes.
pub fn shape_of(config: &Config, dtype_bytes: usize) -> ModelShape {
    let vision = config.vision.as_ref().map(vision_shape);
    let tower = vision.as_ref().map_or(0, VisionShape::parameters);
    ModelShape {
        layers: config.layers,
        hidden: config.hidden,
        heads: config.heads,
        kv_heads: config.kv_heads,
        head_dim: config.head_dim,
        intermediate: config.intermediate,
        experts: config.experts.as_ref().map(|experts| experts.sizes),
        queries_grow: config.query_growth.is_some(),
        windows: config
            .windows
            .as_ref()
            .map(|windows| WindowShape { tokens: windows.tokens, layers: windows.layers() }),
        vocab: config.vocab,
        tied_embeddings: config.tied_embeddings,
        max_positions: config.max_positions,
        weight_bytes: ((config.parameters() + tower) * dtype_bytes) as u64,
        dtype_bytes,
        kv_in_eight_bits: false,
        vision,
    }
}

/// The planner's facts of a vision tower.
fn vision_shape(config: &VisionConfig) -> VisionShape {
    let (whole_layers, window_patches, mlp_matrices) = match &config.tower {
        TowerConfig::Qwen3 { .. } => (config.layers, 0, 2),
        TowerConfig::Qwen25 { window, sees_whole } => {
            let side = window * config.merge;
            (sees_whole.iter().filter(|whole| **whole).count(), side * side, 3)
        }
    };
    VisionShape {
        layers: config.layers,
        whole_layers,
        window_patches,
        hidden: config.hidden,
        intermediate: config.intermediate,
        mlp_matrices,
        patch: config.patch,
        merge: config.merge,
        frames: config.frames,
        levels: config.levels(),
        out: config.out,
        least_pixels: config.preprocessing.least_pixels,
        most_pixels: config.preprocessing.most_pixels,
    }
}

/// The folder asked for; a test can put another in its place.
fn path_of(wanted: &ModelConfig) -> PathBuf {
    fail::fail_point!("engine::folder", |path| path.unwrap_or_default().into());
    wanted.folder.clone()
}

/// The folder of a model: it itself, or that which describes a GGUF file.
///
/// # Errors
/// Returns an error if there is none, or if a GGUF file is damaged or not supported.
pub fn folder_of(path: PathBuf) -> Result<PathBuf> {
    let file = |cause: String| tributary_model::Error::File { path: path.clone(), cause };
    match std::fs::metadata(&path) {
        Ok(found) if found.is_dir() => Ok(path),
        Ok(_) if gguf::is_gguf(&path) => {
            let cache = cache_folder(|name| std::env::var_os(name).map(PathBuf::from));
            let cache = cache.ok_or_else(|| {
                Error::configuration(
                    "a GGUF file's config and tokenizer are kept in a cache: set HOME or XDG_CACHE_HOME",
                )
            })?;
            Ok(gguf::described(&path, &cache)?)
        }
        Ok(_) => Err(file(
            "it is a file; a model is a folder with config.json, weights and tokenizer.json, or a .gguf file"
                .to_owned(),
        ))?,
        Err(error) => Err(file(error.to_string()))?,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_for_pictures_come_from_the_config() {
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden");
        let of = |name: &str| {
            let config = Config::read(&golden.join(name)).expect("a config");
            config.vision.as_ref().map(|vision| picture_rules(vision, None).expect("rules"))
        };
        assert_eq!(of("qwen3"), None);
        let (marks, limits) = (PictureMarks { row: 261, start: 259, end: 260 }, Limits::default());
        let rules = Rules::new(16, 2, 4096, 65536).expect("rules");
        assert_eq!(of("qwen3vl-tiny"), Some(PictureRules { rules, marks, limits }));
        let rules = Rules::new(14, 2, 3136, 50176).expect("rules");
        assert_eq!(of("qwen25vl-tiny"), Some(PictureRules { rules, marks, limits }));
    }

    #[test]
    fn what_can_be_made_again_goes_into_the_users_cache() {
        let folder = |variables: &[(&str, &str)]| {
            let found = cache_folder(|name| {
                let variable = variables.iter().find(|(known, _)| *known == name);
                variable.map(|(_, value)| PathBuf::from(value))
            });
            found.map(|path| path.display().to_string())
        };
        assert_eq!(folder(&[("HOME", "/h")]).as_deref(), Some("/h/.cache/tributary"));
        assert_eq!(folder(&[("HOME", "/h"), ("XDG_CACHE_HOME", "/c")]).as_deref(), Some("/c/tributary"));
        assert_eq!(folder(&[("HOME", "/h"), ("XDG_CACHE_HOME", "c")]).as_deref(), Some("/h/.cache/tributary"));
        assert_eq!(folder(&[("XDG_CACHE_HOME", "")]), None);
        assert_eq!(folder(&[]), None);
    }
}
