//! A method as studies and comparisons take it: a name, and what differs from what holds for all.

use std::fmt;
use std::str::FromStr;

use tributary_coordinator::eviction_named;
use tributary_engine::RunConfig;
use tributary_protocol::{Choice, Descriptor, Exchange, Importance, OrderFor, Packets};

use crate::error::{Error, Result};

/// `NAME[:OPTION[=VALUE]]..`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MethodSpec {
    /// The method.
    pub method: &'static Descriptor,
    options: Vec<(String, Option<String>)>,
}

/// The options that a method may name.
const OPTIONS: &str = "ratio, score, layers, layout, reorder, importance, order-for, packets, first, exchange, heads, rows, drift-of, \
    drift-layers, alpha, sharpest, keep-order, block, anchor, passing, ape-temperature, ape-scale, samkv-variant, \
    samkv-blocks, samkv-theta, keep-per-chunk, evict, keep, window, world, threads";

impl MethodSpec {
    /// A method with the command's options.
    pub fn bare(method: &'static Descriptor) -> Self {
        Self { method, options: Vec::new() }
    }

    /// Whether it names an option.
    pub fn has(&self, option: &str) -> bool {
        self.options.iter().any(|(name, _)| name == option)
    }

    /// The command's configuration with this method, and its own options in the place of the command's. Reordering is dropped for methods that do not
    /// ask the query, and an order for the selection alone for those that move nothing, unless the method itself names them.
    ///
    /// # Errors
    /// An unknown option, a value that cannot be.
    pub fn apply(&self, mut run_config: RunConfig, importance: Importance) -> Result<RunConfig> {
        run_config.settings.method = self.method;
        if !self.method.takes(Choice::Reorder) {
            run_config.settings.reorder = None;
        }
        // In a comparison each method says for itself whether its chunks stand between an adapter's rows.
        run_config.settings.packets = Packets::Off;
        run_config.settings = run_config.settings.without_idle_compression();
        let order_for = run_config.settings.order_for;
        run_config.settings.order_for = OrderFor::All;
        let mut run_config = self.with_options(run_config, importance)?;
        // The command's own choice is for the methods that it makes a difference to.
        if !self.has("order-for") {
            run_config.settings.order_for = order_for;
            run_config.settings = run_config.settings.without_idle_order();
        }
        Ok(run_config)
    }

    /// The configuration with this method's own options in the place of others.
    fn with_options(&self, mut run_config: RunConfig, importance: Importance) -> Result<RunConfig> {
        for (option, value) in &self.options {
            let wrong = |why: &str| Error::usage(format!("--methods {self}: {option}: {why}"));
            let text = || value.as_deref().ok_or_else(|| wrong("needs a value"));
            let number = || text()?.parse::<usize>().map_err(|_| wrong("needs a number"));
            let real = || text()?.parse::<f32>().map_err(|_| wrong("needs a number"));
            let bare = || if value.is_none() { Ok(()) } else { Err(wrong("takes no value")) };
            let settings = &mut run_config.settings;
            match option.as_str() {
                "ratio" => settings.ratio = Some(text()?.parse().map_err(|_| wrong("needs a number"))?),
                "score" => settings.score = text()?.parse().map_err(|why: String| wrong(&why))?,
                "layers" => settings.score_layers = Some(layers(text()?).map_err(|why| wrong(&why))?),
                "layout" => settings.layout = text()?.parse().map_err(|why: String| wrong(&why))?,
                "reorder" => {
                    bare()?;
                    settings.reorder = settings.reorder.or(Some(importance));
                }
                "importance" => settings.reorder = Some(text()?.parse().map_err(|why: String| wrong(&why))?),
                "order-for" => settings.order_for = text()?.parse().map_err(|why: String| wrong(&why))?,
                "packets" => settings.packets = bare().map(|()| Packets::On)?,
                "first" => settings.include_first_chunk = bare().map(|()| true)?,
                "exchange" => settings.exchange = exchange(text()?).map_err(|why| wrong(&why))?,
                "heads" => settings.heads_per_gather = Some(number()?),
                "rows" => settings.per_chunk = Some(number()?),
                "drift-of" => settings.drift.of = text()?.parse().map_err(|why: String| wrong(&why))?,
                "drift-layers" => settings.drift.layers = number()?,
                "alpha" => settings.trace_alpha = Some(text()?.parse().map_err(|_| wrong("needs a number"))?),
                "block" => settings.block_tokens = Some(number()?),
                "anchor" => settings.passing.anchor_tokens = Some(number()?),
                "passing" => settings.passing.passing_tokens = Some(number()?),
                "sharpest" => {
                    let heads = format!("sharpest:{}", text()?).parse().map_err(|why: String| wrong(&why))?;
                    settings.trace_heads = Some(heads);
                }
                "keep-order" => {
                    bare()?;
                    settings.keep_order = true;
                }
                "samkv-variant" => settings.samkv.variant = text()?.parse().map_err(|why: String| wrong(&why))?,
                "samkv-blocks" => settings.samkv.blocks = number()?,
                "samkv-theta" => settings.samkv.theta = real()?,
                "ape-temperature" => settings.ape.temperature = real()?,
                "ape-scale" => settings.ape.scale = real()?,
                "keep-per-chunk" => {
                    settings.keep_per_chunk = Some(text()?.parse().map_err(|why: String| wrong(&why))?);
                }
                "evict" => settings.eviction.method = Some(eviction_named(text()?).map_err(|why| wrong(&why))?),
                "keep" => settings.eviction.keep = Some(text()?.parse().map_err(|why: String| wrong(&why))?),
                "window" => settings.eviction.window = Some(number()?),
                "world" => settings.world = number()?,
                "threads" => run_config.threads = number()?,
                _ => return Err(wrong(&format!("unknown option; known are {OPTIONS}"))),
            }
        }
        Ok(run_config)
    }
}

impl FromStr for MethodSpec {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let mut parts = text.split(':');
        let name = parts.next().unwrap_or_default();
        let unknown = || format!("unknown method `{name}`; known are {}", Descriptor::names().join(", "));
        let method = Descriptor::find(name).ok_or_else(unknown)?;
        let option = |part: &str| match part.split_once('=') {
            Some((option, value)) => (option.to_owned(), Some(value.to_owned())),
            None => (part.to_owned(), None),
        };
        Ok(Self { method, options: parts.map(option).collect() })
    }
}

impl fmt::Display for MethodSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.method.name)?;
        for (option, value) in &self.options {
            match value {
                Some(value) => write!(f, ":{option}={value}")?,
                None => write!(f, ":{option}")?,
            }
        }
        Ok(())
    }
}

/// `FIRST..END`.
pub fn layers(text: &str) -> std::result::Result<(usize, usize), String> {
    let parts = text.split_once("..").and_then(|(first, end)| Some((first.parse().ok()?, end.parse().ok()?)));
    parts.ok_or_else(|| format!("`{text}` is not FIRST..END, such as 22..26"))
}

/// An exchange's name, or `auto`.
pub fn exchange(text: &str) -> std::result::Result<Option<Exchange>, String> {
    match text {
        "auto" => Ok(None),
        name => name.parse().map(Some).map_err(|error| format!("{error}, auto")),
    }
}

#[cfg(test)]
mod tests {
    use tributary_coordinator::RequestSettings;

    use super::*;

    fn run_config() -> RunConfig {
        let settings = RequestSettings { reorder: Some(Importance::Mass), ..RequestSettings::default() };
        RunConfig { settings, threads: 1 }
    }

    #[test]
    fn options_stand_in_for_the_commands() {
        let spec: MethodSpec =
            "infoflow:ratio=0.05:layers=1..4:importance=selected:world=3:threads=2:first".parse().unwrap();
        let run_config = spec.apply(run_config(), Importance::Mass).unwrap();
        assert_eq!(run_config.settings.ratio, Some(0.05));
        assert_eq!(run_config.settings.score_layers, Some((1, 4)));
        assert_eq!(run_config.settings.reorder, Some(Importance::Selected));
        assert_eq!(
            (run_config.settings.world, run_config.threads, run_config.settings.include_first_chunk),
            (3, 2, true)
        );
        assert_eq!(spec.to_string().parse(), Ok(spec));
    }

    #[test]
    fn reordering_is_dropped_where_nobody_asks_the_query() {
        let reorder = |spec: &str| {
            spec.parse::<MethodSpec>().unwrap().apply(run_config(), Importance::Mass).unwrap().settings.reorder
        };
        assert_eq!(reorder("epic"), None);
        assert_eq!(reorder("relay:importance=selected:reorder"), Some(Importance::Selected), "in either order");
        assert_eq!(reorder("relay"), Some(Importance::Mass));
        assert_eq!(reorder("epic:reorder"), Some(Importance::Mass), "the planner refuses it, by name");
    }

    #[test]
    fn an_order_for_the_selection_alone_is_dropped_where_nothing_moves() {
        let settings = RequestSettings { order_for: OrderFor::Selection, ..RequestSettings::default() };
        let base = RunConfig { settings, ..run_config() };
        let found = |spec: &str| {
            let applied = spec.parse::<MethodSpec>().unwrap().apply(base.clone(), Importance::Mass);
            applied.unwrap().settings.order_for
        };
        let [all, selection] = [OrderFor::All, OrderFor::Selection];
        let cases = [("epic", all), ("relay", all), ("relay:reorder", selection), ("trace", selection)];
        for (spec, expected) in
            [&cases[..], &[("trace:keep-order", all), ("relay:order-for=selection", selection)]].concat()
        {
            assert_eq!(found(spec), expected, "{spec}");
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        assert!("fully".parse::<MethodSpec>().unwrap_err().contains("known are full, ring"));
        let specs = [
            "infoflow:ratio",
            "infoflow:ratio=x",
            "infoflow:colour=red",
            "ring:world=-1",
            "infoflow:score=max",
            "infoflow:reorder=no",
            "infoflow:first=no",
        ];
        for spec in specs {
            assert!(spec.parse::<MethodSpec>().unwrap().apply(run_config(), Importance::Mass).is_err(), "{spec}");
        }
    }
}
