//! Fits a twin to a service: how much longer prefills and steps take there than the profile says,
//! from the metrics of a service that has answered the same replay.

use std::path::Path;

use schemars::JsonSchema;
use serde::Serialize;
use tributary_load::TraceRequest;
use tributary_planner::forecast::UnderLoad;

use super::group::Usage;
use super::replay::{Replayed, replay};
use super::service::Service;
use crate::error::{Error, Result};

/// Replays that look for the factors at most.
const MOST_REPLAYS: usize = 16;

/// Shares by which predicted times may differ from measured ones: no more replays are made, and at
/// the end. Replays do not change evenly: a step more or less is a leap.
const CLOSE: f64 = 1e-3;
const CLOSE_ENOUGH: f64 = 0.02;

/// Requests that a service may have answered beside a replay, and one of a hundred:
/// `tributary load` asks two to count the tokens of its words.
const OTHERS: u64 = 2;

/// Largest factor between a service and its profile; its inverse is the smallest.
const MOST: f64 = 100.0;

/// Metrics of a service at the end of a replay, since its start.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    /// Number of answered requests.
    pub answered: u64,
    /// Seconds of prefills.
    pub prefill_s: f64,
    /// Seconds of a step of decoding, in the mean; 0 without one.
    pub step_s: f64,
}

impl Measured {
    /// Reads the text of `GET /metrics`.
    ///
    /// # Errors
    /// Returns an error with the file's name if a metric is missing.
    pub fn parse(text: &str, path: &Path) -> Result<Self> {
        let sum = |name: &str, label: &str| -> Result<f64> {
            let found: Vec<f64> = samples(text, name, label).collect();
            let of = if label.is_empty() { String::new() } else { format!("{{{label}}}") };
            let missing = || Error::usage(format!("--measured {}: no {name}{of}, as a service has", path.display()));
            if found.is_empty() { Err(missing()) } else { Ok(found.iter().sum()) }
        };
        let group_s = |label: &str| sum("tributary_group_seconds_total", label);
        let steps = sum("tributary_decode_step_duration_seconds_count", "")?;
        let decode_s = group_s(r#"work="decode""#)?;
        Ok(Self {
            answered: sum("tributary_requests_total", r#"outcome="answered""#)? as u64,
            prefill_s: group_s(r#"work="prefill""#)?,
            step_s: if steps > 0.0 { decode_s / steps } else { 0.0 },
        })
    }
}

/// The values of a metric's samples that have this label, or none.
fn samples<'a>(text: &'a str, name: &'a str, label: &'a str) -> impl Iterator<Item = f64> + 'a {
    text.lines().filter_map(move |line| {
        let rest = line.strip_prefix(name)?;
        let (labels, value) = match rest.strip_prefix('{') {
            Some(rest) => rest.split_once('}')?,
            None => ("", rest.strip_prefix(' ')?),
        };
        let has = labels.split(',').any(|found| found == label);
        value.split_whitespace().next()?.parse().ok().filter(|value: &f64| has && value.is_finite() && *value >= 0.0)
    })
}

/// Seconds, predicted from the profile's rates and measured by the service.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
pub struct Compared {
    /// By the profile that was given.
    pub predicted_s: f64,
    /// By the service.
    pub measured_s: f64,
}

/// A twin's fit to a service.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
pub struct Fit {
    /// All prefills.
    pub prefill: Compared,
    /// A step of decoding, in the mean.
    pub step: Compared,
    /// The profile's time of prefills and steps times these is the service's.
    pub under_load: UnderLoad,
}

/// Finds the factors with which prefills take as many seconds as the service's, and a step as many
/// in the mean. Steps are shared by more sequences where prefills and steps take longer, so that
/// the factors are found by replays. (The seconds of all steps would not tell: fewer of longer
/// steps may take as long.)
///
/// # Errors
/// Returns an error if the service has answered another number of requests, or if its times have
/// nothing to do with the profile's.
pub fn fit(
    service: &Service,
    requests: &[TraceRequest],
    (groups, speed): (usize, f64),
    measured: &Measured,
) -> Result<Fit> {
    let with = |under_load| {
        let mut service = service.clone();
        service.profile.under_load = Some(under_load);
        replay(&service, requests, (groups, speed)).map(|replayed| seconds(&replayed))
    };
    let first = replay(service, requests, (groups, speed))?;
    let answered = first.answered().count();
    if measured.answered.abs_diff(answered as u64) > OTHERS + answered as u64 / 100 {
        return Err(Error::usage(format!(
            "--measured: the service has answered {} requests, this replay answers {answered}: the metrics must be of a service that has answered this replay and hardly anything else",
            measured.answered
        )));
    }
    let wanted = [measured.prefill_s, measured.step_s];
    let given = seconds(&first);
    let mut factors = service.profile.under_load.unwrap_or_default();
    let (mut found, mut best) = (given, (f64::INFINITY, factors));
    for _ in 0..MOST_REPLAYS {
        let off = [0, 1].map(|index| if found[index] > 0.0 { wanted[index] / found[index] } else { 1.0 });
        let worst = off.iter().map(|off| (off - 1.0).abs()).fold(0.0, f64::max);
        if worst < best.0 {
            best = (worst, factors);
        }
        factors = UnderLoad { prefill: factors.prefill * off[0], decode: factors.decode * off[1] };
        let bounds = 1.0 / MOST..=MOST;
        if best.0 < CLOSE || !(bounds.contains(&factors.prefill) && bounds.contains(&factors.decode)) {
            break;
        }
        found = with(factors)?;
    }
    let compared = |index: usize| Compared { predicted_s: given[index], measured_s: wanted[index] };
    if best.0 < CLOSE_ENOUGH {
        return Ok(Fit { prefill: compared(0), step: compared(1), under_load: best.1 });
    }
    Err(Error::usage(format!(
        "--measured: {:.3} s of prefills and {:.1} ms a step, where the profile says {:.3} and {:.1}, and no factors were found that explain them: not this service, or not this replay",
        wanted[0],
        1e3 * wanted[1],
        given[0],
        1e3 * given[1]
    )))
}

/// The seconds of all groups in prefills, and of a step in the mean; 0 without one.
fn seconds(replayed: &Replayed) -> [f64; 2] {
    let sum = |of: fn(&Usage) -> f64| replayed.usage.iter().map(of).sum::<f64>();
    let steps = sum(|usage| usage.steps as f64);
    [sum(|usage| usage.prefill_s), if steps > 0.0 { sum(|usage| usage.decode_s) / steps } else { 0.0 }]
}
