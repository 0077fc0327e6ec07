//! Options of a load: one table, which the command line declares unchanged, and the meaning of
//! their words.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use tributary_system::token_count;

use crate::error::{Error, Result};
use crate::trace::{self, Trace};

/// An option as a command line declares it.
#[derive(Debug, Clone, Copy)]
pub struct Declared {
    /// Its long name, without dashes.
    pub name: &'static str,
    /// The name of its value; absent: it is a switch.
    pub value: Option<&'static str>,
    /// Its value where none is given.
    pub default: Option<&'static str>,
    /// One sentence, with the unit.
    pub help: &'static str,
}

const fn option(name: &'static str, value: &'static str, default: &'static str, help: &'static str) -> Declared {
    let default = if default.is_empty() { None } else { Some(default) };
    Declared { name, value: Some(value), default, help }
}

const fn switch(name: &'static str, help: &'static str) -> Declared {
    Declared { name, value: None, default: None, help }
}

/// Every option, in the order in which a help shows them.
pub const OPTIONS: [Declared; 31] = [
    option("url", "URL", "http://127.0.0.1:8080", "URL of the server, over http; for https name a proxy"),
    option("model", "NAME", "", "Name of the model at the server [default: the first of /v1/models]"),
    option("api-key-file", "FILE", "", "File with the server's API key as its only word"),
    option("rate", "R,..", "", "Open loop: requests a second, as a Poisson process; several rates run in turn"),
    option(
        "clients",
        "N",
        "",
        "Closed loop: number of clients, each of which sends its next request when the last one is over [default: 1]",
    ),
    option(
        "duration",
        "SECONDS",
        "",
        "Seconds during which requests are sent [default: 30; 120 with --find-saturation]",
    ),
    option("requests", "N", "", "Maximum number of requests at each rate"),
    switch(
        "find-saturation",
        "Find the saturation rate: double --rate (from 1 if not set) until the queue grows, then narrow it to 5 %",
    ),
    option("seed", "N", "0", "Seed of arrivals, texts and choices of documents"),
    option(
        "form",
        "documents|prompt",
        "documents",
        "Form of a request: documents beside the messages, or all in one plain prompt",
    ),
    option(
        "documents-per-request",
        "N",
        "4.7",
        "Mean number of documents in a request; the default is that of the trace RAGPulse",
    ),
    option(
        "document-tokens",
        "N",
        "267",
        "Approximate number of tokens in a document; the default is that of the trace RAGPulse",
    ),
    option(
        "query-tokens",
        "N",
        "16",
        "Approximate number of tokens in the question; every request has a different one",
    ),
    option("corpus", "N", "64", "Size of the document corpus"),
    option(
        "zipf",
        "S",
        "0.8",
        "Exponent of Zipf's law, by which a request draws its documents; 0: uniform; the default is that of the trace RAGPulse",
    ),
    switch("fresh", "Send only new documents, even to a server that has had this load before: everything is cold"),
    switch("warm-up", "Send every document of the corpus once before the measurement"),
    option("max-tokens", "N", "32", "Maximum number of generated tokens"),
    option(
        "trace",
        "PATH",
        "",
        "Replay a trace: RAGPulse's folder, or a file in the format of Mooncake, Bailian or docs/load.md",
    ),
    option("speed", "N", "1", "Divide the times of --trace by this number"),
    option("window", "FROM..TO", "", "Part of --trace, in seconds from its first request [default: all]"),
    option("scale", "S", "1", "Multiply every length in --trace by this number"),
    option("export", "FILE", "", "Write --trace as a trace of Mooncake's format, and send nothing"),
    switch("count-reuse", "Count the tokens of --trace that caches of unlimited size would find, and send nothing"),
    option(
        "cache-tokens",
        "N,..",
        "",
        "With --count-reuse: also count for LRU caches of documents with room for N tokens",
    ),
    option(
        "words",
        "FILE",
        "",
        "File with the vocabulary of the texts, words separated by space [default: common English words]",
    ),
    option("max-in-flight", "N", "1024", "Maximum in-flight requests; further ones are counted, not sent"),
    option("timeout", "SECONDS", "300", "Seconds after which a request is given up"),
    switch("json", "Print everything as one JSON object"),
    option("csv", "FILE", "", "File for every request with all its times"),
    option(
        "plot",
        "FILE.svg",
        "",
        "File for a chart of the time to first token: over time and its distribution, or against the rate",
    ),
];

/// In which form a request carries its documents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// In `documents`, beside the messages.
    Documents,
    /// All in one message.
    Prompt,
}

/// When requests are sent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Pace {
    /// Open loop: this number of requests a second, as planned, independent of earlier ones.
    Open(f64),
    /// Open loop at the times of a trace, divided by this number.
    Replay(f64),
    /// Closed loop: this number of clients, each of which waits for its answer.
    Closed(usize),
}

impl Pace {
    /// Divisor of a trace's times.
    pub fn speed(self) -> Option<f64> {
        match self {
            Pace::Replay(speed) => Some(speed),
            _ => None,
        }
    }
}

/// Options of a load.
#[derive(Debug, Clone)]
pub struct Options {
    /// The server.
    pub url: String,
    /// The model's name there.
    pub model: Option<String>,
    /// File with the key.
    pub api_key_file: Option<PathBuf>,
    /// The windows, one after another.
    pub paces: Vec<Pace>,
    /// Whether the saturation is to be found, from the first of them on.
    pub find_saturation: bool,
    /// Time for which each window sends requests; absent: until the number of requests is reached.
    pub duration: Option<Duration>,
    /// Requests of a window at most.
    pub requests: Option<usize>,
    /// Seed of every draw.
    pub seed: u64,
    /// Form of documents in requests.
    pub form: Form,
    /// Mean number of documents of a request, which has one of the two nearest whole numbers.
    pub documents_per_request: f64,
    /// Tokens of a document, about.
    pub document_tokens: usize,
    /// Tokens of a question, about.
    pub query_tokens: usize,
    /// Size of the document corpus.
    pub corpus: usize,
    /// Exponent of Zipf's law.
    pub zipf: f64,
    /// Whether every document is new.
    pub fresh: bool,
    /// Whether every document is sent once beforehand.
    pub warm_up: bool,
    /// Tokens to generate at most.
    pub max_tokens: usize,
    /// The trace whose requests are sent, if one is named.
    pub trace: Option<PathBuf>,
    /// Time window of the trace, in seconds from its first request.
    pub window: Range<f64>,
    /// Factor of all lengths in the trace.
    pub scale: f64,
    /// File for the trace in another format.
    pub export: Option<PathBuf>,
    /// Whether reuse in the trace is counted.
    pub counts_reuse: bool,
    /// Sizes in tokens of caches for which it is counted too.
    pub cache_tokens: Vec<u64>,
    /// File with the vocabulary.
    pub words: Option<PathBuf>,
    /// Maximum in-flight requests.
    pub max_in_flight: usize,
    /// Longest time of one request.
    pub timeout: Duration,
    /// Whether the result is printed as an object.
    pub json: bool,
    /// File for the table of requests.
    pub csv: Option<PathBuf>,
    /// File for the chart.
    pub plot: Option<PathBuf>,
}

/// The part of a trace that is replayed, and its pace.
#[derive(Debug, Clone, PartialEq)]
pub struct Replay {
    /// The trace's file or folder.
    pub path: PathBuf,
    /// Time window of it, in seconds from its first request.
    pub window: Range<f64>,
    /// Maximum number of requests.
    pub requests: Option<usize>,
    /// Factor of all lengths.
    pub scale: f64,
    /// Divisor of all times.
    pub speed: f64,
}

impl Replay {
    /// Names of the options that it has of [`OPTIONS`].
    pub const NAMES: [&'static str; 5] = ["trace", "speed", "window", "scale", "requests"];

    /// Reads its options from their words, as [`Options::read`] does; none without a trace.
    ///
    /// # Errors
    /// Returns an error if a word is no value of its option, or if an option is given that is only
    /// for a trace.
    pub fn read(given: &dyn Fn(&str) -> Option<String>) -> Result<Option<Self>> {
        let given = Given(given);
        let Some(path) = given.optional("trace")? else {
            return match Self::NAMES.iter().find(|name| given.is_set(name)) {
                Some(name) => Err(Error::usage(format!("--{name}: only with --trace"))),
                None => Ok(None),
            };
        };
        Ok(Some(Self {
            path,
            window: given.window()?,
            requests: given.requests()?,
            scale: positive("scale", given.optional("scale")?.unwrap_or(1.0))?,
            speed: given.speed()?.unwrap_or(1.0),
        }))
    }

    /// Reads the trace.
    ///
    /// # Errors
    /// Returns an error if it cannot be read, or if nothing of it is left.
    pub fn trace(&self) -> Result<Trace> {
        part_of(&self.path, &self.window, self.requests, self.scale)
    }
}

/// A part of a trace.
fn part_of(path: &Path, window: &Range<f64>, requests: Option<usize>, scale: f64) -> Result<Trace> {
    let trace = trace::read(path)?.part(window, requests, scale);
    match trace.requests.is_empty() {
        true => Err(Error::usage(format!("--window: no request of {} is in it", path.display()))),
        false => Ok(trace),
    }
}

/// The words of the options, as they were given.
struct Given<'a>(&'a dyn Fn(&str) -> Option<String>);

impl Options {
    /// The requests of the trace that are sent, if one is named.
    ///
    /// # Errors
    /// Returns an error if it cannot be read, or if nothing of it is left.
    pub fn trace(&self) -> Result<Option<Trace>> {
        let Self { trace, window, requests, scale, .. } = self;
        trace.as_ref().map(|path| part_of(path, window, *requests, *scale)).transpose()
    }

    /// Reads the options from their words: `given` has the value of an option by its name, its
    /// default where it has one, and anything at all for a switch that is set.
    ///
    /// # Errors
    /// Returns an error if a word is no value of the option, or if options contradict each other.
    pub fn read(given: &dyn Fn(&str) -> Option<String>) -> Result<Self> {
        let given = Given(given);
        let find_saturation = given.is_set("find-saturation");
        let requests = given.requests()?;
        let usual = match (find_saturation, requests) {
            (true, _) => Some(120.0),
            (false, None) if !given.is_set("trace") => Some(30.0),
            (false, _) => None,
        };
        let duration = given.optional("duration")?.or(usual).map(|value| seconds("duration", value)).transpose()?;
        let options = Self {
            url: given.must("url")?,
            model: given.optional("model")?,
            api_key_file: given.optional("api-key-file")?,
            paces: given.paces()?,
            find_saturation,
            duration,
            requests,
            seed: given.must("seed")?,
            form: given.form()?,
            documents_per_request: given.mean("documents-per-request")?,
            document_tokens: given.count("document-tokens")?,
            query_tokens: given.count("query-tokens")?,
            corpus: given.count("corpus")?,
            zipf: given.must("zipf")?,
            fresh: given.is_set("fresh"),
            warm_up: given.is_set("warm-up"),
            max_tokens: given.count("max-tokens")?,
            trace: given.optional("trace")?,
            window: given.window()?,
            scale: positive("scale", given.must("scale")?)?,
            export: given.optional("export")?,
            counts_reuse: given.is_set("count-reuse"),
            cache_tokens: given.cache_tokens()?,
            words: given.optional("words")?,
            max_in_flight: given.count("max-in-flight")?,
            timeout: seconds("timeout", given.must("timeout")?)?,
            json: given.is_set("json"),
            csv: given.optional("csv")?,
            plot: given.optional("plot")?,
        };
        options.check()?;
        Ok(options)
    }

    /// Checks that options do not contradict each other.
    fn check(&self) -> Result<()> {
        if !(0.0..=100.0).contains(&self.zipf) {
            return Err(Error::usage(format!("--zipf {}: an exponent is 0 to 100", self.zipf)));
        }
        if !self.fresh && self.documents_per_request > self.corpus as f64 {
            let (wanted, there) = (self.documents_per_request, self.corpus);
            let line =
                format!("--documents-per-request {wanted}: there are {there} documents; raise --corpus, or --fresh");
            return Err(Error::usage(line));
        }
        if self.fresh && self.warm_up {
            return Err(Error::usage("--warm-up: with --fresh no document comes twice"));
        }
        if self.find_saturation && !matches!(self.paces[..], [Pace::Open(_)]) {
            return Err(Error::usage("--find-saturation: one --rate to begin with, and no --clients"));
        }
        let of_trace = [
            ("export", self.export.is_some()),
            ("count-reuse", self.counts_reuse),
            ("window", self.window != (0.0..f64::INFINITY)),
            ("scale", self.scale != 1.0),
        ];
        if !self.counts_reuse && !self.cache_tokens.is_empty() {
            return Err(Error::usage("--cache-tokens: only with --count-reuse"));
        }
        if let (None, Some((name, _))) = (&self.trace, of_trace.iter().find(|(_, is_given)| *is_given)) {
            return Err(Error::usage(format!("--{name}: only with --trace")));
        }
        let of_corpus = [("fresh", self.fresh), ("warm-up", self.warm_up), ("find-saturation", self.find_saturation)];
        if let (Some(_), Some((name, _))) = (&self.trace, of_corpus.iter().find(|(_, is_given)| *is_given)) {
            return Err(Error::usage(format!("--{name}: not with --trace, which says what is sent and when")));
        }
        if self.find_saturation && self.requests.is_some() {
            return Err(Error::usage("--find-saturation: a queue is looked at over --duration, not over --requests"));
        }
        Ok(())
    }
}

impl Given<'_> {
    fn is_set(&self, name: &str) -> bool {
        (self.0)(name).is_some()
    }

    /// The value of an option, if it is given.
    fn optional<T: FromStr>(&self, name: &str) -> Result<Option<T>> {
        (self.0)(name).map(|text| parsed(name, &text)).transpose()
    }

    /// The value of an option that has a default.
    fn must<T: FromStr>(&self, name: &str) -> Result<T> {
        let value = self.optional(name)?;
        value.ok_or_else(|| Error::usage(format!("--{name}: it needs a value")))
    }

    fn count(&self, name: &str) -> Result<usize> {
        at_least_one(name, self.must(name)?)
    }

    fn mean(&self, name: &str) -> Result<f64> {
        let mean = self.must(name)?;
        if (1.0..=1e6).contains(&mean) {
            return Ok(mean);
        }
        Err(Error::usage(format!("--{name} {mean}: must be 1 to 1000000")))
    }

    fn form(&self) -> Result<Form> {
        match self.must::<String>("form")?.as_str() {
            "documents" => Ok(Form::Documents),
            "prompt" => Ok(Form::Prompt),
            other => Err(Error::usage(format!("--form {other}: it is documents or prompt"))),
        }
    }

    /// A part of a trace.
    fn window(&self) -> Result<Range<f64>> {
        let Some(text) = (self.0)("window") else { return Ok(0.0..f64::INFINITY) };
        let ends = text.split_once("..").and_then(|(from, to)| Some((from.parse().ok()?, to.parse().ok()?)));
        match ends.filter(|(from, to): &(f64, f64)| *from >= 0.0 && from < to) {
            Some((from, to)) => Ok(from..to),
            None => Err(Error::usage(format!("--window {text}: it is FROM..TO, in seconds, such as 0..3600"))),
        }
    }

    /// Sizes of caches, such as 50000,400k.
    fn cache_tokens(&self) -> Result<Vec<u64>> {
        let Some(text) = (self.0)("cache-tokens") else { return Ok(Vec::new()) };
        let size = |size: &str| match token_count::parse(size) {
            Ok(tokens) if tokens > 0 => Ok(tokens as u64),
            _ => Err(Error::usage(format!("--cache-tokens {text}: sizes are numbers of tokens, such as 50000,400k"))),
        };
        text.split(',').map(size).collect()
    }

    fn requests(&self) -> Result<Option<usize>> {
        self.optional("requests")?.map(|count| at_least_one("requests", count)).transpose()
    }

    /// A divisor of times, such as 10 or 10x.
    fn speed(&self) -> Result<Option<f64>> {
        let speed = |text: String| positive("speed", parsed("speed", text.trim_end_matches('x'))?);
        (self.0)("speed").map(speed).transpose()
    }

    fn paces(&self) -> Result<Vec<Pace>> {
        let speed = self.speed()?.unwrap_or(1.0);
        if self.is_set("trace") && !self.is_set("clients") {
            return match self.is_set("rate") {
                true => Err(Error::usage(
                    "--rate: not with --trace, which says when requests are sent; --speed changes that",
                )),
                false => Ok(vec![Pace::Replay(speed)]),
            };
        }
        if speed != 1.0 {
            return Err(Error::usage("--speed: only with --trace, without --clients"));
        }
        match (self.optional::<String>("rate")?, self.optional("clients")?) {
            (Some(_), Some::<usize>(_)) => {
                Err(Error::usage("--rate and --clients: a loop is open or closed, not both"))
            }
            (Some(rates), None) => {
                rates.split(',').map(|rate| Ok(Pace::Open(positive("rate", parsed("rate", rate)?)?))).collect()
            }
            (None, Some(clients)) => Ok(vec![Pace::Closed(at_least_one("clients", clients)?)]),
            (None, None) if self.is_set("find-saturation") => Ok(vec![Pace::Open(1.0)]),
            (None, None) => Ok(vec![Pace::Closed(1)]),
        }
    }
}

fn parsed<T: FromStr>(name: &str, text: &str) -> Result<T> {
    text.trim().parse().map_err(|_| Error::usage(format!("--{name} {text}: that is no number of its kind")))
}

fn at_least_one(name: &str, count: usize) -> Result<usize> {
    // More than a million of anything is a slip of the finger, and would be memory.
    if (1..=1_000_000).contains(&count) {
        return Ok(count);
    }
    Err(Error::usage(format!("--{name} {count}: must be 1 to 1000000")))
}

fn positive(name: &str, value: f64) -> Result<f64> {
    if (1e-6..=1e6).contains(&value) {
        return Ok(value);
    }
    Err(Error::usage(format!("--{name} {value}: must be above 0, and at most 1000000")))
}

fn seconds(name: &str, value: f64) -> Result<Duration> {
    positive(name, value).map(Duration::from_secs_f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Options from words, `NAME=VALUE` or a switch.
    fn read(words: &[&str]) -> std::result::Result<Options, String> {
        let given = |name: &str| {
            let declared = OPTIONS.iter().find(|option| option.name == name).expect("it is declared");
            let typed = words.iter().find_map(|word| match word.split_once('=') {
                Some((left, value)) => (left == name).then(|| value.to_owned()),
                None => (*word == name).then(String::new),
            });
            typed.or(declared.default.map(str::to_owned))
        };
        Options::read(&given).map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_not_said_is_usual() {
        let options = read(&[]).unwrap();
        assert_eq!((options.paces, options.duration), (vec![Pace::Closed(1)], Some(Duration::from_secs(30))));
        assert_eq!((options.document_tokens, options.corpus, options.max_tokens), (267, 64, 32));
        assert_eq!((options.documents_per_request, options.zipf), (4.7, 0.8), "as in RAGPulse");
        assert_eq!((options.form, options.max_in_flight), (Form::Documents, 1024));
        let found = read(&["find-saturation"]).unwrap();
        assert_eq!((found.paces, found.duration), (vec![Pace::Open(1.0)], Some(Duration::from_secs(120))));
        let counted = read(&["requests=5", "rate=1,2.5"]).unwrap();
        assert_eq!((counted.paces, counted.duration), (vec![Pace::Open(1.0), Pace::Open(2.5)], None));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let refused: [(&[&str], &str); 24] = [
            (&["rate=1", "clients=2"], "--rate and --clients"),
            (&["rate=0"], "--rate 0"),
            (&["rate=1,x"], "--rate x"),
            (&["rate=NaN"], "--rate NaN"),
            (&["clients=0"], "--clients 0"),
            (&["duration=-1"], "--duration -1"),
            (&["form=xml"], "--form xml"),
            (&["corpus=4"], "--documents-per-request 4.7: there are 4 documents"),
            (&["documents-per-request=0.5"], "--documents-per-request 0.5: must be 1 to 1000000"),
            (&["documents-per-request=NaN"], "--documents-per-request NaN"),
            (&["zipf=-1"], "--zipf -1"),
            (&["fresh", "warm-up"], "--warm-up"),
            (&["find-saturation", "clients=2"], "--find-saturation"),
            (&["find-saturation", "requests=2"], "--find-saturation"),
            (&["max-tokens=no"], "--max-tokens no"),
            (&["scale=0.5"], "--scale: only with --trace"),
            (&["speed=10x"], "--speed: only with --trace"),
            (&["trace=t", "cache-tokens=4"], "--cache-tokens: only with --count-reuse"),
            (&["trace=t", "count-reuse", "cache-tokens=4,0"], "--cache-tokens 4,0: sizes are numbers"),
            (&["trace=t", "count-reuse", "cache-tokens="], "--cache-tokens : sizes are numbers"),
            (&["trace=t", "rate=1"], "--rate: not with --trace"),
            (&["trace=t", "fresh"], "--fresh: not with --trace"),
            (&["trace=t", "window=5..2"], "--window 5..2"),
            (&["trace=t", "speed=0"], "--speed 0"),
        ];
        for (words, begin) in refused {
            let error = read(words).map(|_| ()).expect_err(begin);
            assert!(error.starts_with(begin), "{words:?}: {error}");
        }
        assert!(read(&["corpus=4", "fresh"]).is_ok());
        let replay = read(&["trace=t", "speed=10x", "window=5..60.5"]).expect("a replay");
        assert_eq!((replay.paces, replay.duration, replay.window), (vec![Pace::Replay(10.0)], None, 5.0..60.5));
        let words =
            |name: &str| (name == "trace").then(|| "t".to_owned()).or((name == "speed").then(|| "10x".to_owned()));
        let part = Replay::read(&words).expect("a replay").expect("with a trace");
        assert_eq!((part.speed, part.scale, part.window, part.requests), (10.0, 1.0, 0.0..f64::INFINITY, None));
        let alone = |name: &str| (name == "scale").then(|| "2".to_owned());
        assert_eq!(Replay::read(&alone).unwrap_err().to_string(), "--scale: only with --trace");
        let counted = read(&["trace=t", "count-reuse", "cache-tokens=50000,100k"]).expect("sizes");
        assert_eq!(counted.cache_tokens, [50_000, 102_400]);
        let in_turn = read(&["trace=t", "clients=2"]).expect("the trace's requests by two clients");
        assert_eq!((in_turn.paces, in_turn.duration), (vec![Pace::Closed(2)], None));
    }
}
