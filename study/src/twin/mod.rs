//! The twin of a service: a trace is replayed in simulated time through the service's own planner,
//! scheduler and directory, with the ranks' cache policy. The clock is the planner's forecast. It
//! computes no token and sends nothing.

mod caches;
mod fit;
mod group;
mod limit;
mod prompt;
mod range;
mod render;
mod replay;
mod report;
mod service;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::time::Instant;

use rayon::prelude::*;
use tributary_coordinator::ChunkPrefix;
use tributary_coordinator::scheduler::Limits;
use tributary_load::Trace;
use tributary_methods::MethodSpec;
use tributary_planner::forecast::{Profile, UnderLoad};
use tributary_planner::{ModelShape, RequestSettings};
use tributary_system::file::write_whole;

use self::fit::Fit;
use self::limit::Edge;
use self::prompt::Reading;
use self::range::Range;
use self::replay::{Replayed, replay};
use self::service::Service;
use crate::error::{Error, Result};

pub use self::fit::Measured;
pub use self::render::render;
pub use self::report::Report;

/// Question of a replay.
#[derive(Debug, Clone)]
pub struct Question {
    /// The model, as asked for.
    pub model: String,
    /// Its shape.
    pub shape: ModelShape,
    /// The machine of each group.
    pub profile: Profile,
    /// File or folder of the trace.
    pub path: String,
    /// Its requests.
    pub trace: Trace,
    /// Divisor of their times.
    pub speed: f64,
    /// The methods.
    pub methods: Vec<MethodSpec>,
    /// Share of the context to recompute by methods that name none; a method's own where absent.
    pub ratio: Option<f64>,
    /// Numbers of GPUs, a row each; all ranks of the profile where empty.
    pub gpus: Vec<usize>,
    /// Number of ranks of a group; those of the profile, or all GPUs if these are fewer.
    pub world: Option<usize>,
    /// Tokens with which every prompt begins, before the trace's.
    pub head_tokens: usize,
    /// The tokens that chunks are prefilled after.
    pub chunk_prefix: ChunkPrefix,
    /// Limits of running and waiting requests of a group.
    pub limits: Limits,
    /// Maximum bytes of chunks of each rank.
    pub chunk_cache_bytes: Option<u64>,
    /// Bytes of each group's store.
    pub store_bytes: Option<u64>,
    /// Metrics of a service that has answered this replay: its times are taken for the profile's.
    pub measured: Option<Measured>,
    /// Seconds within which 95 % of the requests shall have their first token.
    pub slo_s: Option<f64>,
}

/// One method on one number of GPUs.
struct Cell {
    service: Service,
    method: String,
    groups: usize,
    replayed: Replayed,
    range: Option<Range>,
    edge: Option<Edge>,
}

/// Answer of a replay.
pub struct Answer {
    /// With the profile fitted to a service, if there was one to fit it to.
    question: Question,
    fit: Option<Fit>,
    cells: Vec<Cell>,
    /// Seconds that one replay of each cell took, all together.
    wall_s: f64,
}

impl Answer {
    /// Replays the trace by each method on each number of GPUs. Measured times of a service are of
    /// one method on one number of GPUs: the profile is fitted to them first.
    ///
    /// # Errors
    /// Returns an error if groups of these ranks cannot be made, if a method's settings cannot be,
    /// or if the measured times are not of this replay.
    pub fn new(mut question: Question) -> Result<Self> {
        let fit = question.fit()?;
        question.profile.under_load = fit.map(|fit| fit.under_load).or(question.profile.under_load);
        let services = question.services()?;
        let cells = services.into_par_iter().with_max_len(1).map(|service| cell(&question, service));
        let cells = cells.collect::<Result<Vec<(Cell, f64)>>>()?;
        let wall_s = cells.iter().map(|(_, wall_s)| wall_s).sum();
        Ok(Self { question, fit, cells: cells.into_iter().map(|(cell, _)| cell).collect(), wall_s })
    }

    /// Writes the profile that was fitted to a service, with the source of the fit.
    ///
    /// # Errors
    /// Returns an error if the file is there already, or cannot be written.
    pub fn save_profile(&self, file: &Path) -> Result<()> {
        let Question { path, speed, trace, profile, .. } = &self.question;
        let source = format!(
            "fitted to the metrics of a service that answered {} requests of {path}, {speed} times as fast",
            trace.requests.len()
        );
        let mut profile = profile.clone();
        profile.sources.insert("under_load".to_owned(), source);
        if file.exists() {
            return Err(Error::usage(format!("--save-profile {}: it is there already", file.display())));
        }
        write_whole(file, profile.to_toml().as_bytes()).map_err(Error::file("cannot write", file))
    }

    /// Times as fast as real time, all cells together.
    fn factor(&self) -> f64 {
        self.cells.iter().map(|cell| cell.replayed.seconds).sum::<f64>() / self.wall_s.max(1e-9)
    }

    /// Notes for a reader of the numbers.
    fn notes(&self) -> Vec<String> {
        let Question { profile, store_bytes, .. } = &self.question;
        let mut notes = vec![
            match &self.fit {
                None => format!(
                    "every time is predicted from counted work and the profile {}; none was measured",
                    profile.label()
                ),
                Some(_) => format!(
                    "every time is predicted from counted work and the profile {}, fitted to the measured times of a service",
                    profile.label()
                ),
            },
            format!(
                "a time may be off by {:.0} % at the least: the ranges are of replays in which all are so much shorter and longer",
                100.0 * profile.spread().whole()
            ),
            "a request goes to the group with the fewest in flight; caches begin empty; texts are as long as in the trace, answers too"
                .to_owned(),
            "the interval of p99 counts requests as independent: those of one burst are not".to_owned(),
        ];
        if let Some(UnderLoad { prefill, decode }) = profile.under_load {
            notes.push(format!(
                "the profile is fitted to a service under load: prefills take {prefill:.3} times and steps {decode:.3} times what its rates say"
            ));
        }
        if store_bytes.is_some() {
            notes.push("each group has a store of its own".to_owned());
        }
        notes
    }
}

/// A method's service, and its number of groups.
type Asked = (String, Service, usize);

impl Question {
    /// The fit of the only service to the measured one, if one was.
    fn fit(&self) -> Result<Option<Fit>> {
        let Some(measured) = &self.measured else { return Ok(None) };
        let [(_, service, groups)] = <[Asked; 1]>::try_from(self.services()?)
            .map_err(|_| Error::usage("--measured: the metrics are of one service: one of --methods and of --gpus"))?;
        fit::fit(&service, &self.trace.requests, (groups, self.speed), measured).map(Some)
    }

    /// The services of each method on each number of GPUs.
    fn services(&self) -> Result<Vec<Asked>> {
        if self.store_bytes.is_some() && self.profile.store.is_none() {
            let name = &self.profile.name;
            return Err(Error::usage(format!(
                "--chunk-store-size: profile {name} has no rates of a store; `bench --calibrate --chunk-store DIR` measures them"
            )));
        }
        let usual = [self.profile.ranks];
        let gpus = if self.gpus.is_empty() { &usual[..] } else { &self.gpus[..] };
        let mut services: Vec<Asked> = Vec::new();
        for spec in &self.methods {
            let method = spec.to_string();
            if services.iter().any(|(other, ..)| *other == method) {
                return Err(Error::usage(format!("--methods: {method} is given twice")));
            }
            for &gpus in gpus {
                let world = self.world.unwrap_or(self.profile.ranks.min(gpus));
                services.push((method.clone(), self.service(spec, world)?, groups(gpus, world)?));
            }
        }
        Ok(services)
    }

    fn service(&self, spec: &MethodSpec, world: usize) -> Result<Service> {
        let (ranks, name) = (self.profile.ranks, &self.profile.name);
        if world > ranks {
            return Err(Error::usage(format!("--world {world}: profile {name} has {ranks} ranks")));
        }
        // As the service has them: what requests leave is kept and reused.
        let usual = RequestSettings { ratio: self.ratio, world, reuse: 1.0, ..RequestSettings::default() };
        let mut settings = RequestSettings { reuses_query: true, keep_chunks: true, ..usual }.set(spec);
        settings.eviction.at_most = true;
        settings.check().map_err(tributary_engine::Error::from)?;
        Ok(Service {
            shape: self.shape,
            profile: self.profile.clone(),
            world,
            reading: Reading { settings, head_tokens: self.head_tokens, chunk_prefix: self.chunk_prefix },
            limits: self.limits,
            chunk_cache_bytes: self.chunk_cache_bytes,
            store_bytes: self.store_bytes,
        })
    }
}

/// Number of groups of `world` ranks on a number of GPUs.
fn groups(gpus: usize, world: usize) -> Result<usize> {
    if gpus == 0 || world == 0 || !gpus.is_multiple_of(world) {
        return Err(Error::usage(format!("--gpus {gpus}: a multiple of the {world} ranks of a group (--world)")));
    }
    Ok(gpus / world)
}

/// A replay with its ranges and its edge, and the seconds that the replay took.
fn cell(question: &Question, (method, service, groups): Asked) -> Result<(Cell, f64)> {
    let (requests, pace) = (&question.trace.requests, (groups, question.speed));
    let began = Instant::now();
    let replayed = replay(&service, requests, pace)?;
    let wall_s = began.elapsed().as_secs_f64();
    let range = range::range(&service, requests, pace)?;
    let edge = limit::edge(&service, requests, pace, question.slo_s, &replayed)?;
    Ok((Cell { service, method, groups, replayed, range, edge }, wall_s))
}
