//! A method as comparisons take it: its spec, and optionally its own ranks and threads.

use std::fmt;
use std::str::FromStr;

use tributary_engine::RunConfig;
use tributary_methods::{MethodSpec as Spec, spec_parts};
use tributary_protocol::{Method, Packets};

/// `NAME[:KEY[=VALUE]]..`, where `world=N` and `threads=N` may be among the options.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MethodSpec {
    /// The method.
    pub method: &'static Method,
    spec: Spec,
    world: Option<usize>,
    threads: Option<usize>,
}

impl MethodSpec {
    /// A method with the command's options.
    pub fn bare(method: &'static Method) -> Self {
        Self { method, spec: Spec::bare(method), world: None, threads: None }
    }

    /// Whether it names an option.
    pub fn has(&self, key: &str) -> bool {
        match key {
            "world" => self.world.is_some(),
            "threads" => self.threads.is_some(),
            key => self.spec.options.iter().any(|(option, _)| option.key == key),
        }
    }

    /// The command's configuration with this method, and its own options in place of the command's.
    /// In a comparison each method decides whether its chunks are between an adapter's rows.
    #[must_use]
    pub fn apply(&self, mut run_config: RunConfig) -> RunConfig {
        run_config.settings.packets = Packets::Off;
        let mut settings = run_config.settings.apply(&self.spec);
        settings.world = self.world.unwrap_or(settings.world);
        RunConfig { settings, threads: self.threads.unwrap_or(run_config.threads) }
    }
}

impl FromStr for MethodSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (mut world, mut threads, mut rest) = (None, None, Vec::new());
        for part in spec_parts(text)? {
            let place = match part.split_once('=') {
                Some(("world", count)) => (&mut world, count),
                Some(("threads", count)) => (&mut threads, count),
                _ => {
                    rest.push(part);
                    continue;
                }
            };
            let count = place.1.parse().map_err(|_| format!("{part}: needs a whole number"))?;
            if place.0.replace(count).is_some() {
                return Err(format!("{part}: is given twice"));
            }
        }
        let spec: Spec = rest.join(":").parse()?;
        Ok(Self { method: spec.method, spec, world, threads })
    }
}

impl fmt::Display for MethodSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.spec)?;
        self.world.iter().try_for_each(|world| write!(f, ":world={world}"))?;
        self.threads.iter().try_for_each(|threads| write!(f, ":threads={threads}"))
    }
}

#[cfg(test)]
mod tests {
    use tributary_planner::RequestSettings;
    use tributary_protocol::{Claim, METHODS};

    use super::*;

    #[test]
    fn every_method_has_samples_that_are_specs_of_it() {
        for method in METHODS {
            assert_eq!(method.samples.first(), Some(&method.name), "the bare name comes first");
            let exact = match method.claim {
                Claim::Exact => None,
                Claim::Approximate { exact_with, .. } => exact_with.map(|options| format!("{}{options}", method.name)),
            };
            for sample in method.samples.iter().map(|&sample| sample.to_owned()).chain(exact) {
                let spec: MethodSpec = sample.parse().expect("a spec");
                assert_eq!(spec.to_string(), sample);
                let bare = RunConfig { settings: RequestSettings::default(), threads: 1 };
                let settings = spec.apply(bare).settings;
                let made = settings
                    .method(tributary_methods::ModelFacts::new(8, 4))
                    .expect("a method of a model of 8 layers and 4 KV heads");
                assert_eq!(made.0.method, method, "{sample}");
            }
        }
    }

    #[test]
    fn ranks_and_threads_of_its_own_stand_among_the_options() {
        let spec: MethodSpec = "relay:threads=2:evict=[snapkv:window=4]:world=3:keep=16".parse().expect("a spec");
        assert_eq!(spec.to_string(), "relay:evict=[snapkv:window=4]:keep=16:world=3:threads=2");
        assert!(spec.has("world") && spec.has("keep") && !spec.has("ratio"));
        let run_config = spec.apply(RunConfig { settings: RequestSettings::default(), threads: 1 });
        assert_eq!((run_config.settings.world, run_config.threads), (3, 2));
        for text in ["ring:world=-1", "ring:world=2:world=3", "relay:ratio"] {
            assert!(text.parse::<MethodSpec>().is_err(), "{text}");
        }
    }
}
