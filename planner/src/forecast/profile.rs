//! Machine profiles: speed of a rank's computation and of the links between ranks. From a file, or
//! one of the shipped ones.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tributary_system::file::{utf8, without_mark};

use super::curve::Curve;
use super::spread::Spread;
use crate::machine::MemoryOf;
use crate::{Error, Result};

/// The shipped profiles: name and text.
const SHIPPED: [(&str, &str); 9] = [
    ("h100x4", include_str!("../../profiles/h100x4.toml")),
    ("h100x4-paper", include_str!("../../profiles/h100x4-paper.toml")),
    ("h100x8", include_str!("../../profiles/h100x8.toml")),
    ("h100x8-paper", include_str!("../../profiles/h100x8-paper.toml")),
    ("h100x8x2", include_str!("../../profiles/h100x8x2.toml")),
    ("h100x8x2-paper", include_str!("../../profiles/h100x8x2-paper.toml")),
    ("h200x4", include_str!("../../profiles/h200x4.toml")),
    ("h200x8", include_str!("../../profiles/h200x8.toml")),
    ("h200x8x2", include_str!("../../profiles/h200x8x2.toml")),
];

/// Rates of a machine. All ranks are alike.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Its name.
    pub name: String,
    /// The machine in words.
    pub description: String,
    /// Whether the numbers were measured on the machine at hand. Those of shipped profiles were
    /// not.
    pub measured_here: bool,
    /// Whether one rank was measured and the links were not: times on several ranks are projected.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub projected: bool,
    /// Number of ranks.
    pub ranks: usize,
    /// Ranks that share a host; the last host may have fewer.
    pub ranks_per_host: usize,
    /// Whether transfers between ranks overlap with computation.
    pub transfers_overlap: bool,
    /// Rates of one rank while all ranks of its host work.
    pub rank: RankRates,
    /// Rates of one rank that works alone, if they were measured: a group of one rank.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alone: Option<RankRates>,
    /// Link between ranks of one host.
    pub inside: Link,
    /// Link between ranks of different hosts; required with more than one host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub between: Option<Link>,
    /// Rates of chunks from a host's store, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<StoreRates>,
    /// What a service under load takes, if the profile was fitted to one; only replays of traces
    /// read it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub under_load: Option<UnderLoad>,
    /// Relative uncertainty of its rates; a fifth where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spread: Option<Spread>,
    /// Source of each number, by its name.
    #[serde(default)]
    pub sources: BTreeMap<String, String>,
}

/// Rates of one rank.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RankRates {
    /// FLOPs a second in matrix products of many rows.
    pub gemm_flops_per_s: f64,
    /// FLOPs a second in products by their rows, `[[rows, flops_per_s], ..]`, with the weights
    /// read. Where absent, weights are read first, and products then have the rate of many rows.
    #[serde(default, skip_serializing_if = "Curve::is_empty")]
    pub gemm_by_rows: Curve,
    /// FLOPs a second in attention of many rows.
    pub attention_flops_per_s: f64,
    /// FLOPs a second in attention by the mean number of keys that a row sees,
    /// `[[keys, flops_per_s], ..]`. Where absent, the rate of many rows.
    #[serde(default, skip_serializing_if = "Curve::is_empty")]
    pub attention_by_keys: Curve,
    /// FLOPs a second in attention of a few rows (the query's) to many keys.
    pub probe_flops_per_s: f64,
    /// Bytes a second that it reads from its memory: few rows cannot be faster than the weights
    /// arrive.
    pub memory_bytes_per_s: f64,
    /// Bytes a second that norms, rotations, activations and sums read and write; where absent, the
    /// memory's rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elementwise_bytes_per_s: Option<f64>,
    /// Bytes a second that merging partial results reads and writes; where absent, the memory's
    /// rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub merge_bytes_per_s: Option<f64>,
    /// Bytes of its memory, or of its share of a common one.
    pub memory_bytes: u64,
    /// Owner of that memory: requests take different amounts on host and device.
    #[serde(default)]
    pub memory_of: MemoryOf,
    /// Seconds of a host for a layer of any pass: concurrent with a device, additional to the
    /// layer's arithmetic on a host.
    pub layer_s: f64,
    /// Seconds of a request in addition to its passes: tokens, plan, sampling, the way back.
    pub request_s: f64,
}

/// Times in a service under load, as multiples of what the rates say: its clients, their texts and
/// other programs take their part of the machine too.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UnderLoad {
    /// Prefills.
    pub prefill: f64,
    /// Steps of decoding.
    pub decode: f64,
}

impl Default for UnderLoad {
    /// As the rates say.
    fn default() -> Self {
        Self { prefill: 1.0, decode: 1.0 }
    }
}

/// Rates of chunks from the store of a host: read and verified, all its ranks together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StoreRates {
    /// Bytes a second of files in the system's page cache.
    pub cached_bytes_per_s: f64,
    /// Bytes a second of files from the disk.
    pub bytes_per_s: f64,
}

impl StoreRates {
    /// The same without files in the system's page cache.
    #[must_use]
    pub fn from_disk(self) -> Self {
        Self { cached_bytes_per_s: self.bytes_per_s, ..self }
    }
}

/// Rates of a link between ranks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// Seconds of a collective without payload.
    pub latency_s: f64,
    /// Bytes a second that a rank receives, while all receive.
    pub bytes_per_s: f64,
    /// Bytes a second by the bytes that a rank receives in a group of messages,
    /// `[[bytes, bytes_per_s], ..]`, without the latency.
    #[serde(default, skip_serializing_if = "Curve::is_empty")]
    pub by_bytes: Curve,
}

impl Link {
    /// Bytes a second of groups of messages in which a rank receives `bytes` bytes.
    pub fn rate(&self, bytes: f64) -> f64 {
        self.by_bytes.at(bytes).unwrap_or(self.bytes_per_s)
    }
}

impl Profile {
    /// Names of the shipped profiles.
    pub fn names() -> Vec<&'static str> {
        SHIPPED.iter().map(|(name, _)| *name).collect()
    }

    /// A shipped profile.
    ///
    /// # Errors
    /// Returns [`Error::UnknownProfile`], with the known names, if there is none of that name.
    pub fn by_name(name: &str) -> Result<Self> {
        let Some((_, text)) = SHIPPED.iter().find(|(shipped, _)| *shipped == name) else {
            return Err(Error::UnknownProfile { name: name.into(), known: Self::names().join(", ") });
        };
        Self::parse(text, Path::new(name))
    }

    /// A profile from a TOML file.
    ///
    /// # Errors
    /// Returns [`Error::Unreadable`], [`Error::Toml`], or [`Error::Setting`] for an invalid number.
    pub fn from_file(path: &Path) -> Result<Self> {
        Self::parse(&read(path)?, path)
    }

    /// A profile by its name, or by its path if the text looks like one (it ends in `.toml` or has
    /// a slash).
    ///
    /// # Errors
    /// Returns the errors of [`by_name`](Self::by_name) and [`from_file`](Self::from_file).
    pub fn find(name_or_path: &str) -> Result<Self> {
        match name_or_path.ends_with(".toml") || name_or_path.contains('/') {
            true => Self::from_file(Path::new(name_or_path)),
            false => Self::by_name(name_or_path),
        }
    }

    /// The profile as a TOML file's text.
    pub fn to_toml(&self) -> String {
        toml::to_string_pretty(self).expect("numbers, texts and tables have a form in TOML")
    }

    /// Sources of its numbers, in a few words for display beside every prediction.
    pub fn label(&self) -> String {
        let origin = match (self.projected, self.measured_here) {
            (true, _) => "projected: one rank measured, its links not",
            (false, true) => "measured here",
            (false, false) => "not measured here",
        };
        format!("{} ({origin})", self.name)
    }

    /// This machine with ranks as fast as those of a measured profile: one rank's numbers,
    /// projected over these links.
    ///
    /// # Errors
    /// Returns [`Error::Setting`] if the other profile was not measured.
    pub fn with_rank_of(self, measured: &Profile) -> Result<Self> {
        if !measured.measured_here {
            let wanted = "must be a profile that `tributary bench --calibrate` has measured".to_owned();
            return Err(Error::Setting { name: "rank-rates", found: measured.name.clone(), wanted });
        }
        let mut sources = self.sources;
        let of_rank = |(name, source): (&String, &String)| {
            (!name.contains('.')).then(|| (name.clone(), format!("{}: {source}", measured.name)))
        };
        sources.extend(measured.sources.iter().filter_map(of_rank));
        Ok(Self {
            name: format!("{}, ranks of {}", self.name, measured.name),
            description: format!("{}; every rank as measured: {}", self.description, measured.description),
            measured_here: false,
            projected: true,
            rank: measured.rank.clone(),
            alone: measured.alone.clone(),
            // These links were not measured with these ranks.
            spread: None,
            under_load: None,
            sources,
            ..self
        })
    }

    /// Names of its numbers that are assumptions, by their sources.
    pub fn assumed_numbers(&self) -> Vec<&str> {
        let is_assumed = |(_, source): &(&String, &String)| source.starts_with("assum");
        self.sources.iter().filter(is_assumed).map(|(name, _)| name.as_str()).collect()
    }

    /// Rates of a rank while `working` ranks of its host work.
    pub fn rank_of(&self, working: usize) -> &RankRates {
        self.alone.as_ref().filter(|_| working <= 1).unwrap_or(&self.rank)
    }

    /// Hosts that `world` ranks take.
    pub fn hosts(&self, world: usize) -> usize {
        world.div_ceil(self.ranks_per_host)
    }

    fn parse(text: &str, path: &Path) -> Result<Self> {
        let profile: Self = toml::from_str(text).map_err(|error| toml_error(&error, text, path))?;
        profile.checked()
    }

    /// Its numbers that must be above 0, with their names.
    fn positive_numbers(&self) -> Vec<(&'static str, f64)> {
        let mut numbers = Vec::new();
        for rank in std::iter::once(&self.rank).chain(&self.alone) {
            numbers.extend([
                ("gemm_flops_per_s", rank.gemm_flops_per_s),
                ("attention_flops_per_s", rank.attention_flops_per_s),
                ("probe_flops_per_s", rank.probe_flops_per_s),
                ("memory_bytes_per_s", rank.memory_bytes_per_s),
            ]);
            numbers.extend(rank.elementwise_bytes_per_s.map(|rate| ("elementwise_bytes_per_s", rate)));
            numbers.extend(rank.merge_bytes_per_s.map(|rate| ("merge_bytes_per_s", rate)));
        }
        let links = std::iter::once(&self.inside).chain(&self.between);
        numbers.extend(links.map(|link| ("bytes_per_s", link.bytes_per_s)));
        if let Some(store) = &self.store {
            numbers.extend([("[store]", store.cached_bytes_per_s), ("[store]", store.bytes_per_s)]);
        }
        if let Some(load) = &self.under_load {
            numbers.extend([("[under_load]", load.prefill), ("[under_load]", load.decode)]);
        }
        numbers
    }

    fn checked(self) -> Result<Self> {
        let bad = |what: &str, found: String, wanted: &str| {
            let wanted = format!("{what} {wanted}");
            Err(Error::Setting { name: "profile", found: format!("{}: {found}", self.name), wanted })
        };
        for (what, count) in [("ranks", self.ranks), ("ranks_per_host", self.ranks_per_host)] {
            if count == 0 {
                return bad(what, "0".into(), "must be at least 1");
            }
        }
        let links = std::iter::once(&self.inside).chain(&self.between);
        let ranks = || std::iter::once(&self.rank).chain(&self.alone);
        for (what, rate) in self.positive_numbers() {
            if !(rate > 0.0 && rate.is_finite()) {
                return bad(what, rate.to_string(), "must be above 0");
            }
        }
        let curves = ranks()
            .flat_map(|rank| [("gemm_by_rows", &rank.gemm_by_rows), ("attention_by_keys", &rank.attention_by_keys)])
            .chain(links.clone().map(|link| ("by_bytes", &link.by_bytes)));
        for (what, curve) in curves {
            if !curve.is_sound() {
                return bad(what, format!("{:?}", curve.0), "must be pairs of sizes that ascend and rates above 0");
            }
        }
        for (what, spread) in self.spread.iter().flat_map(Spread::named) {
            if !(0.0..1.0).contains(&spread) {
                return bad(&format!("[spread] {what}"), spread.to_string(), "must be a share from 0 to below 1");
            }
        }
        let times = ranks().flat_map(|rank| [("layer_s", rank.layer_s), ("request_s", rank.request_s)]);
        for (what, time) in times.chain(links.map(|link| ("latency_s", link.latency_s))) {
            if !(time >= 0.0 && time.is_finite()) {
                return bad(what, time.to_string(), "must be 0 or more");
            }
        }
        if self.ranks > self.ranks_per_host && self.between.is_none() {
            let found = format!("{} ranks, {} a host", self.ranks, self.ranks_per_host);
            return bad("[between]", found, "must say how fast hosts reach each other");
        }
        Ok(self)
    }
}

/// Bytes of a profile at most.
const MOST_BYTES: u64 = 64 << 20;

/// The text of a user's own file, or pipe, without a byte order mark.
fn read(path: &Path) -> Result<String> {
    let unreadable = |cause| Error::Unreadable { path: path.into(), cause };
    let mut bytes = Vec::new();
    File::open(path).and_then(|file| file.take(MOST_BYTES + 1).read_to_end(&mut bytes)).map_err(unreadable)?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err(Error::TooLong { path: path.into(), line: None, most_bytes: MOST_BYTES });
    }
    utf8(bytes).map(without_mark).map_err(unreadable)
}

/// A parser's complaint with its line.
fn toml_error(error: &toml::de::Error, text: &str, path: &Path) -> Error {
    let at = error.span().map_or(0, |span| span.start);
    let before = &text[..at.min(text.len())];
    let line = before.matches('\n').count() + 1;
    let column = before.len() - before.rfind('\n').map_or(0, |end| end + 1) + 1;
    let cause = error.message().replace('\n', " ");
    Error::Toml { path: path.into(), line, column, cause }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shipped_profile_is_sound_says_its_sources_and_survives_its_file() {
        for name in Profile::names() {
            let profile = Profile::by_name(name).unwrap();
            assert_eq!(profile.name, name);
            assert!(!profile.measured_here, "{name} was measured on no machine of its user");
            assert!(profile.label().contains("not measured here"));
            let numbers = ["gemm_flops_per_s", "attention_flops_per_s", "probe_flops_per_s", "memory_bytes_per_s"];
            let more = ["memory_bytes", "layer_s", "request_s", "inside.latency_s", "inside.bytes_per_s"];
            for number in numbers.into_iter().chain(more) {
                assert!(profile.sources.get(number).is_some_and(|source| source.len() > 20), "{name}: {number}");
            }
            if profile.between.is_some() {
                assert!(profile.sources.contains_key("between.latency_s"), "{name}");
                assert!(profile.sources.contains_key("between.bytes_per_s"), "{name}");
            }
            assert_eq!(Profile::parse(&profile.to_toml(), Path::new(name)).unwrap(), profile);
        }
    }

    #[test]
    fn a_measured_rank_is_projected_over_shipped_links_and_labelled_so() {
        let shipped = Profile::by_name("h200x4").unwrap();
        let mut measured = Profile::by_name("h100x4").unwrap();
        let refusal = shipped.clone().with_rank_of(&measured).unwrap_err();
        assert!(refusal.to_string().contains("--calibrate"), "{refusal}");
        (measured.measured_here, measured.name) = (true, "one".into());
        let projected = shipped.clone().with_rank_of(&measured).unwrap();
        assert_eq!(projected.label(), "h200x4, ranks of one (projected: one rank measured, its links not)");
        assert_eq!((&projected.rank, &projected.inside), (&measured.rank, &shipped.inside));
        assert!(projected.sources["gemm_flops_per_s"].starts_with("one: "));
        assert_eq!(projected.sources["inside.bytes_per_s"], shipped.sources["inside.bytes_per_s"]);
    }

    #[test]
    fn what_is_wrong_is_said_with_its_place() {
        let error = Profile::by_name("h900").unwrap_err();
        assert_eq!(error.exit_code(), 64);
        for name in Profile::names() {
            assert!(error.to_string().contains(name), "{error}");
        }
        let good = Profile::by_name("h100x8x2").unwrap().to_toml();
        let parse = |text: &str| Profile::parse(text, Path::new("mine.toml")).unwrap_err().to_string();
        let unknown = parse(&good.replace("layer_s", "layer_seconds"));
        assert!(unknown.starts_with("mine.toml, line ") && unknown.contains("layer_seconds"), "{unknown}");
        let text = good.replace("ranks = 16", "ranks = \"many\"");
        let line = text.lines().position(|line| line.contains("many")).unwrap() + 1;
        assert!(parse(&text).starts_with(&format!("mine.toml, line {line}, ")), "{}", parse(&text));
        assert!(parse(&good.replace("ranks = 16", "ranks = 0")).contains("ranks must be at least 1"));
        let without = good.split("[between]").next().unwrap();
        assert!(parse(without).contains("[between] must say"), "{}", parse(without));
        let mut slow = Profile::by_name("h100x4").unwrap();
        slow.rank.gemm_flops_per_s = 0.0;
        assert!(slow.checked().unwrap_err().to_string().contains("gemm_flops_per_s must be above 0"));
        let load = UnderLoad { prefill: 1.1, decode: 0.0 };
        let fitted = Profile { under_load: Some(load), ..Profile::by_name("h100x4").unwrap() };
        assert!(fitted.checked().unwrap_err().to_string().contains("[under_load] must be above 0"));
    }
}
