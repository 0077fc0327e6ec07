//! Choices of a study, on the command line or in a study file; both have the same names.

use std::path::{Path, PathBuf};

use clap::Args;
use serde::Deserialize;
use tributary_protocol::{Command, Method};
use tributary_study::method_spec::MethodSpec;
use tributary_study::scalar::{CacheState, Ratio, Tokens};
use tributary_study::schema::{Cache, Design};

use crate::args::{DeviceChoice, Dtype, KernelChoice, Load};
use crate::failure::usage;
use crate::help;

/// Tokens of a chunk, and of the query, where nothing else is asked for.
pub const CHUNK_TOKENS: usize = 512;
pub const QUERY_TOKENS: usize = 32;

/// The most runs of a point, of each kind: a week of the fastest there are.
const MAX_RUNS: usize = 1_000_000;

/// The sweep. In a study file the same keys, with `_` in the place of `-`.
#[derive(Debug, Clone, Default, PartialEq, Args, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[command(next_help_heading = "Study")]
pub struct Choices {
    /// Hugging Face folder: config.json and safetensors weights; no tokenizer is needed
    #[arg(long, value_name = "DIR")]
    pub model: Option<PathBuf>,
    #[arg(long, help = help::aux_model(), value_name = "DIR")]
    pub aux_model: Option<PathBuf>,
    #[arg(long, help = help::draft_model(), value_name = "DIR")]
    pub draft_model: Option<PathBuf>,
    #[arg(long = "adapter", help = help::adapter(), value_name = "DIR")]
    #[serde(rename = "adapter")]
    pub adapters: Option<Vec<PathBuf>>,
    /// Source of the weights; `dummy` draws them from --seed [default: safetensors]
    #[arg(long, value_enum)]
    pub load_format: Option<Load>,
    /// Device that ranks compute on [default: cpu]
    #[arg(long, value_enum)]
    pub device: Option<DeviceChoice>,
    /// Type of weights and KV cache [default: f32, on a GPU bf16]
    #[arg(long, value_enum)]
    pub dtype: Option<Dtype>,
    /// Compute kernels [default: auto]
    #[arg(long, value_enum)]
    pub kernels: Option<KernelChoice>,
    /// Compute threads of each rank [default: 1]
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Context lengths in tokens, such as 4096,8k,1m; multiples of --chunk-tokens [default: 4k]
    #[arg(long, value_name = "TOKENS,..", value_delimiter = ',')]
    pub lengths: Option<Vec<Tokens>>,
    /// Tokens of each chunk [default: 512]
    #[arg(long, value_name = "TOKENS")]
    pub chunk_tokens: Option<Tokens>,
    /// Tokens of the query [default: 32]
    #[arg(long, value_name = "TOKENS")]
    pub query_tokens: Option<Tokens>,
    /// Numbers of ranks, such as 1,2,4; under a launcher only its number [default: 1, or the launcher's]
    #[arg(long, value_name = "N,..", value_delimiter = ',', visible_alias = "world-size")]
    pub worlds: Option<Vec<usize>>,
    #[arg(long, help = help::bench_methods(), value_name = "METHOD", num_args = 1.., value_delimiter = ',')]
    pub methods: Option<Vec<MethodSpec>>,
    /// Shares of the context to recompute, such as 0.05,0.15 [default: each method's own]
    #[arg(long, value_name = "R,..", value_delimiter = ',', visible_alias = "ratio")]
    pub ratios: Option<Vec<Ratio>>,
    /// States of the chunk cache, such as cold,0.5,warm: cold, warm, a share of the chunks, disk (from
    /// --chunk-store), disk-dropped (the same after dropping its files from the page cache) [default: cold]
    #[arg(long, value_name = "STATE,..", value_delimiter = ',')]
    pub caches: Option<Vec<CacheState>>,
    /// Warm-up runs of each point [default: 2]
    #[arg(long, value_name = "N")]
    pub warmups: Option<usize>,
    /// Measured runs of each point [default: 5], or rounds of --calibrate [default: 15, fewer if they would take
    /// longer than 80 s]
    #[arg(long, value_name = "N")]
    pub repeats: Option<usize>,
    /// Seed of weights, tokens and the order of runs [default: 0]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Machine profile to predict times: a name, or a file of --calibrate [default: none]
    #[arg(long, value_name = "NAME|FILE.toml")]
    pub profile: Option<String>,
}

impl Choices {
    /// These, and `others` where these leave something open.
    #[must_use]
    pub fn or(self, others: Self) -> Self {
        Self {
            model: self.model.or(others.model),
            aux_model: self.aux_model.or(others.aux_model),
            draft_model: self.draft_model.or(others.draft_model),
            adapters: self.adapters.or(others.adapters),
            load_format: self.load_format.or(others.load_format),
            device: self.device.or(others.device),
            dtype: self.dtype.or(others.dtype),
            kernels: self.kernels.or(others.kernels),
            threads: self.threads.or(others.threads),
            lengths: self.lengths.or(others.lengths),
            chunk_tokens: self.chunk_tokens.or(others.chunk_tokens),
            query_tokens: self.query_tokens.or(others.query_tokens),
            worlds: self.worlds.or(others.worlds),
            methods: self.methods.or(others.methods),
            ratios: self.ratios.or(others.ratios),
            caches: self.caches.or(others.caches),
            warmups: self.warmups.or(others.warmups),
            repeats: self.repeats.or(others.repeats),
            seed: self.seed.or(others.seed),
            profile: self.profile.or(others.profile),
        }
    }

    /// The choices that a design was made of.
    ///
    /// # Errors
    /// Returns an error if this program does not know a method, or a word in it.
    pub fn of(design: &Design) -> Result<Self, String> {
        let known = |text: &str| clap::ValueEnum::from_str(text, true);
        let dummy_seed = design.load_format.strip_prefix("dummy, seed ");
        Ok(Self {
            model: Some(design.model.clone().into()),
            aux_model: design.auxiliary_model.clone().map(Into::into),
            draft_model: design.draft_model.clone().map(Into::into),
            adapters: (!design.adapters.is_empty()).then(|| design.adapters.iter().map(Into::into).collect()),
            load_format: Some(if dummy_seed.is_some() { Load::Dummy } else { Load::Safetensors }),
            // A report from before there were devices names none.
            device: if design.device.is_empty() {
                None
            } else {
                Some(clap::ValueEnum::from_str(&design.device, true)?)
            },
            dtype: Some(clap::ValueEnum::from_str(&design.dtype, true)?),
            kernels: Some(if design.kernels.is_empty() { KernelChoice::Auto } else { known(&design.kernels)? }),
            threads: Some(design.threads),
            lengths: Some(design.lengths.iter().copied().map(Tokens).collect()),
            chunk_tokens: Some(Tokens(design.chunk_tokens)),
            query_tokens: Some(Tokens(design.query_tokens)),
            worlds: Some(design.worlds.clone()),
            methods: Some(design.methods.iter().map(|method| method.parse()).collect::<Result<_, _>>()?),
            ratios: Some(design.ratios.iter().copied().map(Ratio).collect()),
            caches: Some(design.caches.iter().copied().map(CacheState).collect()),
            warmups: Some(design.warmups),
            repeats: Some(design.repeats),
            seed: Some(design.seed),
            profile: None,
        })
    }

    /// The design and its methods. `started` is the number of ranks where they are processes.
    ///
    /// # Errors
    /// Returns the name of the impossible value.
    pub fn design(self, started: Option<usize>) -> anyhow::Result<(Design, Vec<MethodSpec>)> {
        let Some(model) = self.model else {
            return Err(usage("no model: give --model DIR, or `model` in a --study FILE.toml"));
        };
        let methods = self.methods.unwrap_or_else(default_methods);
        let seed = self.seed.unwrap_or(0);
        let device = self.device.unwrap_or(DeviceChoice::Cpu);
        let dtype = self.dtype.unwrap_or(device.dtype());
        let caches: Vec<Cache> = self.caches.map_or(vec![Cache::Cold], |all| all.iter().map(|state| state.0).collect());
        let design = Design {
            model: model.display().to_string(),
            auxiliary_model: self.aux_model.map(|folder| folder.display().to_string()),
            draft_model: self.draft_model.map(|folder| folder.display().to_string()),
            adapters: self.adapters.iter().flatten().map(|folder| folder.display().to_string()).collect(),
            load_format: match self.load_format.unwrap_or(Load::Safetensors) {
                Load::Safetensors => "safetensors".to_owned(),
                Load::Dummy => format!("dummy, seed {seed}"),
            },
            device: word(&device),
            dtype: word(&dtype),
            kernels: word(&self.kernels.unwrap_or(KernelChoice::Auto)),
            threads: self.threads.unwrap_or(1),
            chunk_tokens: self.chunk_tokens.map_or(CHUNK_TOKENS, |tokens| tokens.0),
            query_tokens: self.query_tokens.map_or(QUERY_TOKENS, |tokens| tokens.0),
            lengths: self.lengths.map_or(vec![4096], |all| all.iter().map(|tokens| tokens.0).collect()),
            worlds: worlds(self.worlds, started)?,
            methods: methods.iter().map(MethodSpec::to_string).collect(),
            ratios: self.ratios.unwrap_or_default().iter().map(|ratio| ratio.0).collect(),
            caches,
            warmups: self.warmups.unwrap_or(2),
            repeats: self.repeats.unwrap_or(5),
            seed,
        };
        check(&design)?;
        Ok((design, methods))
    }
}

/// A choice as text.
fn word(choice: &impl clap::ValueEnum) -> String {
    choice.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// The numbers of ranks: only threads can be made as a study likes.
fn worlds(asked: Option<Vec<usize>>, started: Option<usize>) -> anyhow::Result<Vec<usize>> {
    match (asked, started) {
        (None, started) => Ok(vec![started.unwrap_or(1)]),
        (Some(asked), Some(started)) if asked.iter().any(|&world| world != started) => Err(usage(format!(
            "--worlds {}: {started} processes were started; a study under a launcher has that world only",
            asked.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
        ))),
        (Some(asked), _) => Ok(asked),
    }
}

fn check(design: &Design) -> anyhow::Result<()> {
    let empty = [
        ("lengths", design.lengths.is_empty()),
        ("worlds", design.worlds.is_empty()),
        ("methods", design.methods.is_empty()),
        ("caches", design.caches.is_empty()),
    ];
    if let Some((name, _)) = empty.into_iter().find(|(_, is_empty)| *is_empty) {
        return Err(usage(format!("--{name}: name at least one")));
    }
    for (option, runs) in [("--warmups", design.warmups), ("--repeats", design.repeats)] {
        if runs > MAX_RUNS {
            return Err(usage(format!("{option} {runs}: at most {MAX_RUNS} runs of a point")));
        }
    }
    if design.repeats == 0 {
        return Err(usage("--repeats 0: must be at least 1, and 5 for numbers that others should trust"));
    }
    if design.worlds.contains(&0) {
        return Err(usage("--worlds 0: must be at least 1"));
    }
    if design.threads == 0 {
        return Err(usage("--threads 0: must be at least 1"));
    }
    let chunk = design.chunk_tokens;
    match design.lengths.iter().find(|&length| !length.is_multiple_of(chunk)) {
        Some(length) => Err(usage(format!("--lengths {length}: must be a multiple of --chunk-tokens {chunk}"))),
        None => Ok(()),
    }
}

/// Reads a study file.
///
/// # Errors
/// Returns line and key if the file cannot be read, is no TOML, has an unknown key or an impossible
/// value.
pub fn read(path: &Path) -> anyhow::Result<Choices> {
    let shown = path.display();
    let text = std::fs::read_to_string(path)
        .map_err(|error| usage(format!("--study {shown}: {error}; name a readable TOML file")))?;
    toml::from_str(&text).map_err(|error| usage(format!("--study {shown}, {}", place(&text, &error))))
}

/// Line, key and cause of an error in TOML.
fn place(text: &str, error: &toml::de::Error) -> String {
    let cause = error.message().lines().map(str::trim).collect::<Vec<_>>().join("; ");
    let Some(span) = error.span() else { return cause };
    let before = text.get(..span.start.min(text.len())).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let key = text.lines().take(line).filter_map(key_of).last();
    match key {
        Some(key) => format!("line {line}, key `{key}`: {cause}"),
        None => format!("line {line}: {cause}"),
    }
}

/// The key that a line of TOML begins with, if it begins with one.
fn key_of(line: &str) -> Option<&str> {
    let key = line.split('=').next().filter(|key| key.len() < line.len())?.trim();
    let is_word = |letter: char| letter.is_alphanumeric() || "_-.\"".contains(letter);
    (!key.is_empty() && key.chars().all(is_word)).then_some(key)
}

/// The methods of a study that names none.
fn default_methods() -> Vec<MethodSpec> {
    Method::defaults_of(Command::Bench).into_iter().map(MethodSpec::bare).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Choices, String> {
        toml::from_str(text).map_err(|error| place(text, &error))
    }

    #[test]
    fn a_study_file_is_read() {
        let text = "model = \"m\"\nload_format = \"dummy\"\nlengths = [512, \"1k\"]\nworlds = [1, 2]\nratios = [0.15, 1]\n\
                    methods = [\"full\", \"infoflow:exchange=pass-q\"]\ncaches = [\"cold\", 0.5, \"warm\"]\nrepeats = 7\n";
        let (design, methods) = parse(text).unwrap().design(None).unwrap();
        assert_eq!((design.lengths, design.worlds, design.ratios), (vec![512, 1024], vec![1, 2], vec![0.15, 1.0]));
        assert_eq!(design.caches, [Cache::Cold, Cache::Partial(0.5), Cache::Warm]);
        assert_eq!((design.repeats, design.warmups, design.threads, design.chunk_tokens), (7, 2, 1, 512));
        assert_eq!((design.load_format.as_str(), design.dtype.as_str()), ("dummy, seed 0", "f32"));
        assert_eq!(methods.len(), 2);
    }

    #[test]
    fn errors_name_line_and_key() {
        let table = [
            ("model = \"m\"\ncolour = 3\n", "line 2, key `colour`: unknown field `colour`, expected one of `model`"),
            ("model = \"m\"\n\nrepeats = \"x\"\n", "line 3, key `repeats`: invalid type"),
            ("lengths = [\n 512,\n \"8q\",\n]\n", "line 3, key `lengths`: `8q` is no number of tokens"),
            ("methods = [\"fully\"]\n", "line 1, key `methods`: unknown method `fully`"),
            ("ratios = [0.1, 2]\n", "line 1, key `ratios`: `2` is no ratio"),
            ("model = \"m\nseed = 1\n", "line 1, key `model`: "),
        ];
        for (text, wanted) in table {
            let said = parse(text).unwrap_err();
            assert!(said.starts_with(wanted), "{text}: {said}");
            assert_eq!(said.lines().count(), 1, "{said}");
        }
    }

    #[test]
    fn flags_stand_before_the_file() {
        let flags = Choices { repeats: Some(9), ..Choices::default() };
        let merged = flags.or(parse("repeats = 7\nseed = 3\n").unwrap());
        assert_eq!((merged.repeats, merged.seed), (Some(9), Some(3)));
    }

    #[test]
    fn a_design_gives_its_choices_back() {
        let text = "model = \"m\"\nload_format = \"dummy\"\nseed = 4\ndevice = \"cpu\"\ndtype = \"bf16\"\n\
                    kernels = \"plain\"\nthreads = 2\nlengths = [96]\nchunk_tokens = 32\nquery_tokens = 5\nworlds = [3]\nmethods = [\"relay:reorder\"]\n\
                    ratios = [0.5]\ncaches = [0.25]\nwarmups = 0\nrepeats = 1\n";
        let choices = parse(text).unwrap();
        let (design, _) = choices.clone().design(None).unwrap();
        assert_eq!(Choices::of(&design), Ok(choices));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let refusal = |text: &str, started| parse(text).unwrap().design(started).unwrap_err().to_string();
        assert!(refusal("seed = 1\n", None).starts_with("no model"));
        assert!(refusal("model = \"m\"\nlengths = [1000]\n", None).contains("multiple of --chunk-tokens 512"));
        assert!(refusal("model = \"m\"\nworlds = [1, 2]\n", Some(2)).contains("2 processes were started"));
        assert!(refusal("model = \"m\"\nworlds = []\n", None).starts_with("--worlds"));
        assert!(refusal("model = \"m\"\nrepeats = 0\n", None).starts_with("--repeats 0"));
        let (design, _) = parse("model = \"m\"\n").unwrap().design(Some(2)).unwrap();
        assert_eq!(design.worlds, [2], "what was started");
    }
}
