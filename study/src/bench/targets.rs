//! The points of a sweep: every combination that the design names, checked before anything is
//! loaded.

use std::sync::Arc;

use crate::schema::{Cache, Design, Point, Prediction};
use tributary_coordinator::PictureFile;
use tributary_engine::{Drawn, Engine, Question, RunConfig, Synthetic, one_line};
use tributary_planner::cost::Selected;
use tributary_planner::forecast::Profile;
use tributary_planner::{Planned, RequestSettings};
use tributary_protocol::{Method, Returns, Sampling};

use super::predict;
use super::reuse::{primer, reuse};
use crate::error::{Error, Result};
use crate::method_spec::MethodSpec;

/// Run of a point.
pub struct Target {
    /// The request.
    pub question: Question,
    /// The method's settings on its ranks.
    pub run_config: RunConfig,
    /// The state of the cache.
    pub cache: Cache,
}

/// Values from which the points are made.
pub struct Sweep<'a> {
    /// The design.
    pub design: &'a Design,
    /// Its methods.
    pub methods: &'a [MethodSpec],
    /// The least time a collective may take.
    pub timeout_ms: u64,
    /// The machine that predictions are for.
    pub profile: Option<&'a Profile>,
}

/// The points of a sweep, in the order of its design, with the run of each. Points that come to the
/// same appear once.
///
/// # Errors
/// Returns the name of an impossible point: too many tokens, too little memory with both numbers,
/// or an option out of range.
pub fn targets(sweep: &Sweep<'_>, engine: &mut Engine<'_>) -> Result<(Vec<Point>, Vec<Target>)> {
    let Sweep { design, methods, timeout_ms, profile } = *sweep;
    if design.caches.iter().any(|&cache| cache != Cache::Cold) {
        engine.keep_chunks(&design.worlds);
    }
    if let (Some(cache), None) = (design.caches.iter().find(|cache| cache.is_stored()), engine.store()) {
        return Err(Error::usage(format!("--caches {cache}: there is no store; name its folder with --chunk-store")));
    }
    // A profile of another machine predicts its times, but does not show the best choice here.
    if let Some(profile) = profile.filter(|profile| profile.measured_here) {
        engine.plan_by(profile.clone());
    }
    let files = drawn(design)?;
    let (mut points, mut targets): (Vec<Point>, Vec<Target>) = (Vec::new(), Vec::new());
    for &tokens in &design.lengths {
        let limit = engine.folder().config.max_positions;
        // The prefix is one token, and one is generated.
        let needed = tokens.saturating_add(design.query_tokens).saturating_add(2);
        if needed > limit {
            return Err(Error::usage(format!("--lengths {tokens}: {needed} positions, the model has {limit}")));
        }
        check_shares(design, methods, (tokens, files.len()))?;
        for &world in &design.worlds {
            for (spec, ratio, cache) in variants(design, methods) {
                let settings = settings(spec.method, ratio, world, design.seed, timeout_ms);
                let run_config = run_config_for(spec, RunConfig { settings, threads: design.threads }, cache)?;
                let shape = Synthetic {
                    chunks: tokens / design.chunk_tokens,
                    chunk_tokens: design.chunk_tokens,
                    query_tokens: design.query_tokens,
                };
                let question = question(shape, design.seed, &files);
                let planned = match cache {
                    Cache::Cold => engine.check(&question, &run_config),
                    _ => engine.check_after(&question, &run_config, &primer(&run_config)),
                };
                let planned = planned.map_err(|error| impossible(spec, tokens, world, error.into()))?;
                // The state in the point's name holds, independent of the chunk caches' content
                // when it runs.
                let mut run_config = run_config;
                run_config.settings.exchange = run_config.settings.exchange.or(Some(planned.plan.exchange));
                let model_shape = engine.folder().shape();
                let selected = if design.has_random_weights() {
                    Selected::of_random_weights(&planned.plan, &model_shape)
                } else {
                    Selected::expected(&planned.plan, &model_shape)
                };
                let predicted = predict::predict((&planned, &selected), &model_shape, profile, cache);
                let shares_cores = engine.shares_cores(&run_config);
                let point = Point { predicted, shares_cores, ..point(&planned, spec, tokens, cache) };
                if points.iter().all(|other| other.id != point.id) {
                    points.push(point);
                    targets.push(Target { question, run_config, cache });
                }
            }
        }
    }
    Ok((points, targets))
}

/// The pictures of every request, drawn from the seed.
fn drawn(design: &Design) -> Result<Vec<Arc<PictureFile>>> {
    match design.images.as_str() {
        "" => Ok(Vec::new()),
        images => Ok(images.parse::<Drawn>().map_err(Error::usage)?.files(design.seed)?),
    }
}

fn question(shape: Synthetic, seed: u64, files: &[Arc<PictureFile>]) -> Question {
    if files.is_empty() { Question::Random(shape, seed) } else { Question::Drawn(shape, seed, files.to_vec()) }
}

/// A share of the chunks in the cache must come to some of them, and not to all.
fn check_shares(design: &Design, methods: &[MethodSpec], (tokens, pictures): (usize, usize)) -> Result<()> {
    if methods.iter().all(|spec| !spec.method.reuses()) {
        return Ok(());
    }
    let chunks = tokens / design.chunk_tokens + pictures;
    for cache in &design.caches {
        let Cache::Partial(share) = *cache else { continue };
        let warm = (share * chunks as f64 + 1e-9).floor() as usize;
        if warm == 0 || warm == chunks {
            // Rounded up, so that it covers a whole chunk.
            let least = (1e4 / chunks as f64).ceil() / 1e4;
            let instead = match chunks {
                1 => "a single chunk is cold or warm".to_owned(),
                _ => format!("{least} is one of them"),
            };
            return Err(Error::usage(format!(
                "--caches {share}: of --lengths {tokens} in {chunks} chunks that is {warm} chunks; {instead}"
            )));
        }
    }
    Ok(())
}

/// Methods with the ratios and states of the cache that make a difference to them: exact ones have
/// no ratio, and only some of them reuse a prefix.
fn variants<'a>(design: &Design, methods: &'a [MethodSpec]) -> Vec<(&'a MethodSpec, Option<f64>, Cache)> {
    let ratios: Vec<Option<f64>> = match design.ratios.is_empty() {
        true => vec![None],
        false => design.ratios.iter().copied().map(Some).collect(),
    };
    let mut found = Vec::new();
    for spec in methods {
        let ratios = if spec.method.selects() { &ratios[..] } else { &[None] };
        let caches = if spec.method.reuses() { &design.caches[..] } else { &[Cache::Cold] };
        let caches = ratios.iter().flat_map(|&ratio| caches.iter().map(move |&cache| (ratio, cache)));
        found.extend(caches.map(|(ratio, cache)| (spec, ratio, cache)));
    }
    found
}

fn settings(method: &'static Method, ratio: Option<f64>, world: usize, seed: u64, timeout_ms: u64) -> RequestSettings {
    RequestSettings {
        method,
        ratio,
        world,
        max_tokens: 1,
        sampling: Sampling { seed, ..Sampling::default() },
        timeout_ms,
        returns: Returns { logits: true, ..Returns::default() },
        keep_chunks: false,
        ..RequestSettings::default()
    }
}

/// Configuration of a point's run: the method's own options, and the state of the cache.
fn run_config_for(spec: &MethodSpec, run_config: RunConfig, cache: Cache) -> Result<RunConfig> {
    if let Some((option, flag)) = [("world", "--worlds"), ("threads", "--threads")].iter().find(|(o, _)| spec.has(o)) {
        return Err(Error::usage(format!("--methods {spec}: {option} belongs to {flag} in a study")));
    }
    Ok(reuse(spec.apply(run_config), cache))
}

/// An impossible point is bad input, for any reason.
fn impossible(spec: &MethodSpec, tokens: usize, world: usize, error: Error) -> Error {
    match error.exit_code() {
        64 | 71 => Error::usage(format!("{spec} of {tokens} tokens on {world} ranks: {}", one_line(&error))),
        _ => error,
    }
}

fn point(planned: &Planned, spec: &MethodSpec, tokens: usize, cache: Cache) -> Point {
    let (exact, selects) = (planned.plan.method.is_exact(), planned.plan.method.selects());
    let ratio = selects.then_some(planned.ratio);
    let exchange = (selects && planned.world > 1).then(|| planned.plan.exchange.name().to_owned());
    let mut id = format!("{spec} tokens={tokens} world={}", planned.world);
    if let Some(ratio) = ratio {
        id += &format!(" ratio={ratio} exchange={}", exchange.as_deref().unwrap_or("none"));
    }
    if planned.plan.method.reuses() {
        id += &format!(" cache={cache}");
    }
    Point {
        id,
        method: spec.to_string(),
        exact,
        context_tokens: tokens,
        world: planned.world,
        ratio,
        exchange,
        cache,
        shares_cores: false,
        samples: Vec::new(),
        failures: Vec::new(),
        summary: None,
        predicted: Prediction::default(),
        accuracy: None,
    }
}
