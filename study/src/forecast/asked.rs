//! Subject of a forecast, from words: a model's shape, and the methods at their hit rates.

use std::path::Path;

use tributary_engine::{Drawn, Dtype, folder_of, shape_of};
use tributary_methods::MethodSpec;
use tributary_model::{Config, LoadFormat, gguf, packed_bytes};
use tributary_planner::MemoryOf;
use tributary_planner::forecast::Profile;
use tributary_planner::outlook::{PictureGrids, Scenario};
use tributary_planner::{ModelShape, RequestSettings, pictures};

use crate::error::{Error, Result};

/// The shape that `option` names: by its name, or from a folder's config or a GGUF file. Packed
/// weights are counted with the room to unpack them where ranks of `machines` are GPUs.
///
/// # Errors
/// Returns an error if both are missing, or if a config cannot be read.
pub fn shape(option: &str, model: &str, dtype: Dtype, machines: &[Profile]) -> Result<ModelShape> {
    let dtype_bytes = dtype.tensor().size_in_bytes();
    let on_gpu = machines.iter().any(|machine| machine.rank.memory_of == MemoryOf::Device);
    if let Some(mut shape) = ModelShape::named_in(model, dtype_bytes) {
        let is_packed = shape.weight_bytes < shape.all_parameters() * dtype_bytes as u64;
        if let Some(experts) = shape.experts.filter(|_| is_packed && on_gpu) {
            shape.weight_bytes += (experts.matrix_numbers(shape.hidden) * dtype_bytes) as u64;
        }
        return Ok(shape);
    }
    let given = Path::new(model);
    if !gguf::is_gguf(given) && !given.join("config.json").exists() {
        let known = ModelShape::names().join(", ");
        let what = "neither a folder with a config.json nor a .gguf file nor one of";
        return Err(Error::usage(format!("{option} {model}: {what} {known}")));
    }
    let folder = folder_of(given.to_owned())?;
    let config = Config::read(&folder)?;
    let shape = shape_of(&config, dtype_bytes);
    // A folder may have no weights here: its config says how they would be packed.
    let format = match gguf::is_gguf(given) || has_weights(&folder) {
        true => LoadFormat::Safetensors,
        false => LoadFormat::Dummy { seed: 0 },
    };
    let packed = packed_bytes(&folder, &config, format, dtype.tensor(), on_gpu)?;
    Ok(ModelShape { weight_bytes: packed.unwrap_or(shape.weight_bytes), ..shape })
}

/// Whether a folder has files of weights.
fn has_weights(folder: &Path) -> bool {
    let is_weights = |file: &Path| file.extension().is_some_and(|kind| kind == "safetensors");
    std::fs::read_dir(folder).is_ok_and(|files| files.flatten().any(|file| is_weights(&file.path())))
}

/// Machines by their names or from files, with the ranks of a measured profile if one is named.
///
/// # Errors
/// Fails as [`Profile::find`] and [`Profile::with_rank_of`] do.
pub fn machines(names: &[String], rank_rates: Option<&Path>) -> Result<Vec<Profile>> {
    let machine = |name: &String| -> Result<Profile> {
        let profile = Profile::find(name)?;
        Ok(match rank_rates {
            Some(measured) => profile.with_rank_of(&Profile::from_file(measured)?)?,
            None => profile,
        })
    };
    names.iter().map(machine).collect()
}

/// Methods and the request that they are asked about, but for its length.
#[derive(Debug, Clone, Copy)]
pub struct Asked<'a> {
    /// The methods. The exchange of one that names none is the faster one.
    pub methods: &'a [MethodSpec],
    /// Share of the context to recompute by methods that name none; a method's own where absent.
    pub ratio: Option<f64>,
    /// Number of ranks.
    pub world: usize,
    /// Tokens of a chunk; one chunk a rank where absent.
    pub chunk_tokens: Option<usize>,
    /// Tokens before the context.
    pub prefix_tokens: usize,
    /// Number of those, the last ones, that chunks are prefilled without.
    pub lead_tokens: usize,
    /// Tokens of the query.
    pub query_tokens: usize,
    /// Tokens that are generated.
    pub max_tokens: usize,
    /// Shares of the chunks that come from the chunk cache.
    pub hit_rates: &'a [f64],
    /// Pictures after the tokens of the context.
    pub pictures: PictureGrids,
    /// The model that reads the context for methods that need one.
    pub auxiliary: Option<ModelShape>,
}

/// The grids of pictures of one size on a model's tower.
///
/// # Errors
/// Returns an error if the model has no tower, or reads no pictures of this shape.
pub fn grids(images: Option<&Drawn>, model: &str, shape: &ModelShape) -> Result<PictureGrids> {
    let Some(drawn) = images else { return Ok(PictureGrids::default()) };
    let Some(tower) = &shape.vision else {
        return Err(Error::usage(format!("--images {drawn}: model {model} reads no pictures")));
    };
    let (lines, columns) = drawn.grid(tower)?;
    Ok(PictureGrids { count: drawn.count, lines, columns })
}

/// The methods that read pictures, and the names of the others.
pub fn reading_pictures(methods: Vec<MethodSpec>, shape: &ModelShape) -> (Vec<MethodSpec>, Vec<String>) {
    let reads = |spec: &MethodSpec| pictures::check_method(&RequestSettings::default().set(spec), shape).is_ok();
    let (reading, others): (Vec<_>, Vec<_>) = methods.into_iter().partition(reads);
    (reading, others.iter().map(MethodSpec::to_string).collect())
}

impl Asked<'_> {
    /// Every method at every hit rate; methods that do not use the chunk cache have 0.
    ///
    /// # Errors
    /// Returns an error if a method is repeated.
    pub fn scenarios(&self) -> Result<Vec<Scenario>> {
        let mut scenarios = Vec::new();
        for spec in self.methods {
            let method = spec.to_string();
            if scenarios.iter().any(|scenario: &Scenario| scenario.method == method) {
                return Err(Error::usage(format!("--methods: {method} is given twice")));
            }
            let (ratio, world, max_tokens) = (self.ratio, self.world, self.max_tokens);
            let settings = RequestSettings { ratio, world, max_tokens, ..RequestSettings::default() }.set(spec);
            let hit_rates = if settings.method.reuses() { self.hit_rates } else { &[0.0] };
            scenarios.extend(hit_rates.iter().map(|&hit_rate| Scenario {
                method: method.clone(),
                settings: settings.clone(),
                chunk_tokens: self.chunk_tokens,
                prefix_tokens: self.prefix_tokens,
                lead_tokens: self.lead_tokens,
                query_tokens: self.query_tokens,
                hit_rate,
                pictures: self.pictures,
                auxiliary: self.auxiliary,
            }));
        }
        Ok(scenarios)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of weights of a recorded model on a machine of hosts or of devices.
    fn weight_bytes(model: &Path, memory_of: MemoryOf) -> u64 {
        let mut machines = machines(&["h100x4".to_owned()], None).expect("a machine");
        machines[0].rank.memory_of = memory_of;
        shape("--model", &model.display().to_string(), Dtype::Bf16, &machines).expect("a shape").weight_bytes
    }

    #[test]
    fn experts_of_gpt_oss_are_packed_as_published() {
        let model = Path::new("gpt-oss-120b");
        let (host, device) = (weight_bytes(model, MemoryOf::Host), weight_bytes(model, MemoryOf::Device));
        assert_eq!(device - host, 2 * 128 * 2880 * 2880, "a matrix of all experts of a layer, unpacked");
        assert!((65_000_000_000..65_500_000_000).contains(&host), "{host}");
    }

    #[test]
    fn packed_weights_are_counted_packed_and_on_a_device_with_room_to_unpack_them() {
        let recorded = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/packed");
        let only_config = tempfile::tempdir().expect("a folder");
        for (name, least, most) in [("awq", 0.3, 0.9), ("compressed-int8", 0.5, 0.9), ("qwen2/model.gguf", 0.2, 0.9)] {
            let model = recorded.join(name);
            let (host, device) = (weight_bytes(&model, MemoryOf::Host), weight_bytes(&model, MemoryOf::Device));
            let config = Config::read(&folder_of(model.clone()).expect("a folder")).expect("a config");
            let share = host as f64 / (2 * config.parameters()) as f64;
            assert!((least..most).contains(&share), "{name}: {host} bytes of {} numbers", config.parameters());
            let room = 2 * config.hidden * config.vocab.max(config.intermediate);
            assert_eq!(device, host + room as u64, "{name}: the largest matrix, unpacked");
            if model.is_dir() {
                std::fs::copy(model.join("config.json"), only_config.path().join("config.json")).expect("copied");
                let by_config = weight_bytes(only_config.path(), MemoryOf::Host);
                assert!(by_config.abs_diff(host) < host / 4, "{name}: {by_config} bytes by its config, {host} found");
                let unpacked = weight_bytes(only_config.path(), MemoryOf::Device) - by_config;
                assert_eq!(unpacked, device - host, "{name}");
            }
        }
    }
}
