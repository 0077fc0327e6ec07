//! The options of a study, and the design that they make.

use std::path::PathBuf;

use clap::Args;
use tributary_engine::{DeviceKind, Drawn, Dtype, KvDtype};
use tributary_kernels::Kernels;
use tributary_protocol::{Command, Method};
use tributary_study::method_spec::MethodSpec;
use tributary_study::scalar::{CacheState, Ratio, Tokens};
use tributary_study::schema::{Cache, Design};

use crate::args::Load;
use crate::failure::usage;
use crate::help;
use crate::named::{DEVICES, DTYPES, KERNELS, KV_DTYPES, Named, name_of, one_of, usual_dtype, value_of};
use crate::values::{List, list};

/// Tokens of a chunk, and of the query, where nothing else is asked for.
pub const CHUNK_TOKENS: usize = 512;
pub const QUERY_TOKENS: usize = 32;

/// The refusal of a study without a model.
pub const NO_MODEL: &str = "no model: give --model DIR, or `model` in a --config FILE.toml";

/// The most runs of a point, of each kind: a week of the fastest there are.
const MAX_RUNS: usize = 1_000_000;

/// The sweep. An option that was not given is absent, so that --resume can take all of them from
/// its report.
#[derive(Debug, Clone, Default, PartialEq, Args)]
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
    pub adapters: Option<Vec<PathBuf>>,
    /// Source of the weights; `dummy` draws them from --seed [default: safetensors]
    #[arg(long, value_enum)]
    pub load_format: Option<Load>,
    /// Device that ranks compute on [default: cpu]
    #[arg(long, value_parser = one_of(&DEVICES))]
    pub device: Option<DeviceKind>,
    /// Type of weights and KV cache [default: f32, on a GPU bf16]
    #[arg(long, value_parser = one_of(&DTYPES))]
    pub dtype: Option<Dtype>,
    /// Type of keys and values in caches and messages [default: auto, that of --dtype]
    #[arg(long, value_parser = one_of(&KV_DTYPES))]
    pub kv_dtype: Option<KvDtype>,
    /// Compute kernels [default: auto]
    #[arg(long, value_parser = one_of(&KERNELS))]
    pub kernels: Option<Kernels>,
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
    /// Random pictures after the text of each context, a chunk each: NUMBERxWIDTHxHEIGHT in pixels,
    /// such as 4x640x480 [default: none]
    #[arg(long, value_name = "NxWxH")]
    pub images: Option<Drawn>,
    /// Numbers of ranks, such as 1,2,4; under a launcher only its number [default: 1, or the
    /// launcher's]
    #[arg(long, value_name = "N,..", value_delimiter = ',', visible_alias = "world-size")]
    pub worlds: Option<Vec<usize>>,
    #[arg(long, help = help::bench_methods(), value_name = "METHOD", num_args = 1.., value_parser = list::<MethodSpec>)]
    pub methods: Option<Vec<List<MethodSpec>>>,
    /// Shares of the context to recompute, such as 0.05,0.15 [default: each method's own]
    #[arg(long, value_name = "R,..", value_delimiter = ',', visible_alias = "ratio")]
    pub ratios: Option<Vec<Ratio>>,
    /// States of the chunk cache before a run: cold, warm, the share of warm chunks (such as 0.5),
    /// disk (chunks in --chunk-store), disk-dropped (the same, with no file in the page cache)
    /// [default: cold]
    #[arg(long, value_name = "STATE,..", value_delimiter = ',')]
    pub caches: Option<Vec<CacheState>>,
    /// Warm-up runs of each point [default: 2]
    #[arg(long, value_name = "N")]
    pub warmups: Option<usize>,
    /// Measured runs of each point [default: 5], or rounds of --calibrate [default: 15, fewer if
    /// they would take longer than 80 s]
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
    /// The choices that a design was made of.
    ///
    /// # Errors
    /// Returns an error if this program does not know a method, or a word in it.
    pub fn of(design: &Design) -> Result<Self, String> {
        let dummy_seed = design.load_format.strip_prefix("dummy, seed ");
        Ok(Self {
            model: Some(design.model.clone().into()),
            aux_model: design.auxiliary_model.clone().map(Into::into),
            draft_model: design.draft_model.clone().map(Into::into),
            adapters: (!design.adapters.is_empty()).then(|| design.adapters.iter().map(Into::into).collect()),
            load_format: Some(if dummy_seed.is_some() { Load::Dummy } else { Load::Safetensors }),
            // A report from before there were devices names none.
            device: known(&DEVICES, &design.device)?,
            dtype: known(&DTYPES, &design.dtype)?,
            kv_dtype: known(&KV_DTYPES, &design.kv_dtype)?,
            kernels: Some(known(&KERNELS, &design.kernels)?.unwrap_or_default()),
            threads: Some(design.threads),
            lengths: Some(design.lengths.iter().copied().map(Tokens).collect()),
            chunk_tokens: Some(Tokens(design.chunk_tokens)),
            query_tokens: Some(Tokens(design.query_tokens)),
            images: Some(design.images.as_str()).filter(|images| !images.is_empty()).map(str::parse).transpose()?,
            worlds: Some(design.worlds.clone()),
            methods: Some(design.methods.iter().map(|method| list(method)).collect::<Result<_, _>>()?),
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
            return Err(usage(NO_MODEL));
        };
        let methods = self.methods.map_or_else(default_methods, |lists| List::all(&lists));
        let seed = self.seed.unwrap_or(0);
        let device = self.device.unwrap_or(DeviceKind::Cpu);
        let dtype = self.dtype.unwrap_or(usual_dtype(device));
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
            device: name_of(&DEVICES, &device),
            dtype: name_of(&DTYPES, &dtype),
            kv_dtype: self
                .kv_dtype
                .filter(|kv| *kv != KvDtype::Auto)
                .map_or_else(String::new, |kv| name_of(&KV_DTYPES, &kv)),
            kernels: name_of(&KERNELS, &self.kernels.unwrap_or_default()),
            threads: self.threads.unwrap_or(1),
            chunk_tokens: self.chunk_tokens.map_or(CHUNK_TOKENS, |tokens| tokens.0),
            query_tokens: self.query_tokens.map_or(QUERY_TOKENS, |tokens| tokens.0),
            lengths: self.lengths.map_or(vec![4096], |all| all.iter().map(|tokens| tokens.0).collect()),
            images: self.images.map_or_else(String::new, |images| images.to_string()),
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

/// The value of a name; none for no name, as in reports of programs that had no such choice.
fn known<T: Copy>(all: &[Named<T>], name: &str) -> Result<Option<T>, String> {
    match value_of(all, name) {
        None if !name.is_empty() => Err(format!("this program does not know `{name}`")),
        value => Ok(value),
    }
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

/// The methods of a study that names none.
fn default_methods() -> Vec<MethodSpec> {
    Method::defaults_of(Command::Bench).into_iter().map(MethodSpec::bare).collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        choices: Choices,
    }

    fn parse(options: &str) -> Choices {
        let words = std::iter::once("bench").chain(options.split_whitespace());
        Line::try_parse_from(words).unwrap_or_else(|error| panic!("{error}")).choices
    }

    #[test]
    fn options_become_a_design() {
        let options = "--model m --load-format dummy --lengths 512,1k --worlds 1,2 --ratios 0.15,1 --methods \
                       full,none:keep-per-chunk=[50%:tova] infoflow:exchange=pass-q --caches cold,0.5,warm --repeats 7";
        let (design, methods) = parse(options).design(None).unwrap();
        assert_eq!((design.lengths.as_slice(), design.worlds.as_slice()), (&[512, 1024][..], &[1, 2][..]));
        assert_eq!((design.repeats, design.warmups, design.chunk_tokens), (7, 2, 512));
        assert_eq!((design.load_format.as_str(), design.dtype.as_str()), ("dummy, seed 0", "f32"));
        assert_eq!(design.caches, [Cache::Cold, Cache::Partial(0.5), Cache::Warm]);
        let methods: Vec<String> = methods.iter().map(MethodSpec::to_string).collect();
        assert_eq!(methods, ["full", "none:keep-per-chunk=[50%:tova]", "infoflow:exchange=pass-q"]);
    }

    #[test]
    fn a_design_gives_its_choices_back() {
        let options = "--model m --load-format dummy --seed 4 --device cpu --dtype bf16 --kernels plain --threads 2 \
                       --lengths 96 --chunk-tokens 32 --query-tokens 5 --images 2x64x48 --worlds 3 --methods relay:reorder --ratios \
                       0.5 --caches 0.25 --warmups 0 --repeats 1";
        let choices = parse(options);
        let (design, _) = choices.clone().design(None).unwrap();
        assert_eq!(Choices::of(&design), Ok(choices));
    }

    #[test]
    fn impossible_designs_are_refused() {
        let refusal = |options: &str, started| parse(options).design(started).unwrap_err().to_string();
        assert!(refusal("--seed 1", None).starts_with("no model"));
        assert!(refusal("--model m --lengths 1000", None).contains("multiple of --chunk-tokens 512"));
        assert!(refusal("--model m --worlds 1,2", Some(2)).contains("2 processes were started"));
        assert!(refusal("--model m --repeats 0", None).starts_with("--repeats 0"));
        let (design, _) = parse("--model m").design(Some(2)).unwrap();
        assert_eq!(design.worlds, [2], "what was started");
    }
}
