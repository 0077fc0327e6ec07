//! Calibration of `trace` for a model: how sharply it reads another document where one refers to
//! it, and where none does.

use tributary_coordinator::TraceCalibration;
use tributary_coordinator::report::TraceRow;
use tributary_engine::Engine;
use tributary_methods::{SHARPEST, TraceHeads};

use crate::error::{Error, Result};
use crate::evaluation::{Evaluation, Request};
use crate::suite::Suite;

/// Least α of a calibration: every reading from here on is reported.
pub const LEAST_ALPHA: f32 = 0.01;

/// Asks every request of the evaluation, which has one method, trace with [`LEAST_ALPHA`], and
/// finds the α between the readings of requests whose documents refer to each other and of those
/// whose documents do not. `tell` gets the progress, in words and from 0 to 1.
///
/// # Errors
/// Returns an error if the suite does not say which of its tasks have references or has one kind
/// only, if the readings overlap, or if a request fails.
pub fn calibrate(
    evaluation: &Evaluation,
    suite: &dyn Suite,
    mut engine: Engine<'_>,
    tell: &dyn Fn(String, f64),
) -> Result<TraceCalibration> {
    let name = &evaluation.design.suite;
    let kinds: Vec<Option<bool>> = evaluation.requests.iter().map(|request| suite.refers(&request.cell.task)).collect();
    if !(kinds.contains(&Some(true)) && kinds.contains(&Some(false))) {
        let wanted = "it takes tasks in which documents refer to each other and tasks in which none does: pairs has both, hops too";
        return Err(Error::usage(format!("--calibrate-trace --suite {name}: {wanted}")));
    }
    let (mut referring, mut apart) = (Vec::new(), Vec::new());
    for (number, (request, kind)) in evaluation.requests.iter().zip(kinds).enumerate() {
        let Some(refers) = kind else { continue };
        tell(
            format!("request {} of {}", number + 1, evaluation.requests.len()),
            number as f64 / evaluation.requests.len() as f64,
        );
        let (any, behind) = sharpest(&mut engine, evaluation, request)?;
        // A reading of a document before its own moves nothing: only the others could do harm where
        // there is no reference.
        if refers { referring.push(any) } else { apart.push(behind) }
    }
    engine.end()?;
    let most = |readings: &[f32]| readings.iter().copied().fold(0.0, f32::max);
    let found = [most(&referring), most(&apart)];
    let options = evaluation.arms.first().map(|arm| &arm.run_config.settings.options);
    let heads = TraceHeads::from(options.and_then(|options| options.get::<f32>(&SHARPEST)));
    TraceCalibration::new(name, evaluation.design.seed, heads, referring, apart).ok_or_else(|| {
        let [refers, apart] = found;
        Error::usage(format!(
            "--calibrate-trace: no α tells references from chance: requests with one read it at up to {refers:.3}, requests without read up to \
             {apart:.3}, and the two overlap; the model does not read references sharply, or not in this suite's language"
        ))
    })
}

/// The sharpest reading of any other document, and of those after its own.
fn sharpest(engine: &mut Engine<'_>, evaluation: &Evaluation, request: &Request) -> Result<(f32, f32)> {
    let arm = evaluation.arms.first().ok_or(tributary_engine::Error::Bug("a calibration without a method"))?;
    let mut run_config = arm.run_config.clone();
    run_config.settings.max_tokens = 1;
    engine.start(&run_config)?;
    let answered = engine.answer(&request.question, &run_config)?;
    let trace = answered.report.trace.as_ref();
    if trace.is_some_and(|trace| trace.left_out) {
        return Err(Error::usage(format!("{}: a free probe does not fit into the model's positions", request.cell)));
    }
    let found = |of: fn(&TraceRow) -> Option<f32>| trace.and_then(of).unwrap_or(0.0);
    Ok((found(|trace| trace.sharpest), found(|trace| trace.sharpest_behind)))
}
