//! Load on a server that speaks OpenAI's interface: requests of documents and a question, sent at
//! planned times, with their measured times.
//!
//! It does not depend on the engine: it measures the client's view, of Tributary or of any other
//! server. Arrivals, texts and the documents of each request follow from a seed. It does not judge
//! answers.

#![forbid(unsafe_code)]

mod client;
mod draws;
mod error;
mod events;
mod growth;
mod http;
mod options;
mod plot;
mod report;
mod requests;
mod sample;
mod search;
mod text;
mod trace;
mod window;
mod words;

use std::path::Path;

pub use error::{Error, Result};
pub use growth::Growth;
pub use options::{Declared, Form, OPTIONS, Options, Pace, Replay};
pub use report::{Interval, Percentiles, Report, Saturation, Shape, WindowReport};
pub use search::{Found, search};
pub use text::{json, text};
pub use trace::{Part, Trace, TraceRequest};

use client::Client;
use http::Address;
use requests::{COMPLETIONS, Requests};
use tributary_system::file::{parent, write_whole};
use window::{Plan, Window};

/// Runs a load and writes the requested files. `tell` gets a line at the end of every window.
///
/// # Errors
/// Returns an error if the run cannot begin or its result cannot be kept. Failures of requests are
/// in the report.
pub fn run(options: &Options, tell: &mut dyn FnMut(&str)) -> Result<Report> {
    writable(options.csv.iter().chain(&options.plot).map(|path| path.as_path()))?;
    let key = options.api_key_file.as_deref().map(key).transpose()?;
    let address = Address::find(&options.url, key.as_deref())?;
    let requests = Requests::new(options, &address)?;
    if options.warm_up {
        for body in requests.warming() {
            requests::ask(&address, COMPLETIONS, Some(&body), options.timeout)?;
        }
    }
    let client = Client { address, timeout: options.timeout };
    let mut load = Load { options, client, requests, windows: Vec::new(), reports: Vec::new(), tell };
    let saturation = match (options.find_saturation, options.paces.first()) {
        (true, Some(&Pace::Open(first))) => Some(Saturation::new(search(first, |rate| load.grows(rate))?)),
        _ => {
            options.paces.iter().try_for_each(|&pace| load.window(pace))?;
            None
        }
    };
    let report = Report {
        schema: report::SCHEMA,
        url: options.url.clone(),
        model: load.requests.model().to_owned(),
        requests: Shape::new(options, &load.requests),
        windows: load.reports,
        saturation,
    };
    if let Some(path) = &options.csv {
        write(path, &text::csv(&load.windows))?;
    }
    if let Some(path) = &options.plot {
        write(path, &plot::plot(&report, &load.windows))?;
    }
    Ok(report)
}

/// Does what needs no server: writes a trace in another format, or counts what caches would find in
/// it. Returns lines for the user, or nothing if requests are to be sent.
///
/// # Errors
/// Returns an error if the trace cannot be read or the file cannot be written.
pub fn offline(options: &Options) -> Result<Option<String>> {
    if options.export.is_none() && !options.counts_reuse {
        return Ok(None);
    }
    let Some(trace) = options.trace()? else { return Ok(None) };
    let mut lines = String::new();
    if let Some(path) = &options.export {
        write(path, &trace::mooncake(&trace))?;
        lines += &format!("{} requests written to {}\n", trace.requests.len(), path.display());
    }
    if options.counts_reuse {
        lines += &trace::reuse(&trace, &options.cache_tokens).text(&trace);
    }
    Ok(Some(lines))
}

/// A load on its way.
struct Load<'a> {
    options: &'a Options,
    client: Client,
    requests: Requests,
    windows: Vec<(Pace, Window)>,
    reports: Vec<WindowReport>,
    tell: &'a mut dyn FnMut(&str),
}

impl Load<'_> {
    /// Runs a window at a pace, after the others.
    fn window(&mut self, pace: Pace) -> Result<()> {
        let first_number = self.windows.iter().map(|(_, window)| window.samples.len() as u64).sum();
        let Options { duration, max_in_flight, seed, .. } = *self.options;
        let requests = self.requests.trace().map(|trace| trace.requests.len()).or(self.options.requests);
        let plan = Plan { pace, duration, requests, max_in_flight, seed, first_number };
        let window = window::run(&self.client, &self.requests, &plan)?;
        let report = WindowReport::new(pace, &window);
        (self.tell)(&text::line(&report));
        self.windows.push((pace, window));
        self.reports.push(report);
        Ok(())
    }

    /// Whether the queue grows at a rate.
    fn grows(&mut self, rate: f64) -> Result<bool> {
        self.window(Pace::Open(rate))?;
        let growth = self.reports.last().and_then(|report| report.growth);
        Ok(growth.is_some_and(|growth| growth.grows))
    }
}

/// The key in a file.
fn key(path: &Path) -> Result<String> {
    let text = std::fs::read_to_string(path).map_err(Error::read(path))?;
    Ok(text.trim().to_owned())
}

/// Checks before the load, not after it, that there are folders for the results.
fn writable<'a>(paths: impl Iterator<Item = &'a Path>) -> Result<()> {
    for path in paths {
        std::fs::metadata(parent(path)).map_err(|cause| Error::Write { path: path.to_owned(), cause })?;
    }
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<()> {
    write_whole(path, text.as_bytes()).map_err(|cause| Error::Write { path: path.to_owned(), cause })
}
