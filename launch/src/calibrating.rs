//! Calibrations of `tributary quality`: α of trace and a method's scoring layers, which are written
//! beside the model.

use std::path::Path;

use tributary_coordinator::{CalibratedLayers, LayerCalibration, TraceCalibration};
use tributary_engine::Engine;
use tributary_quality::answers::Answers;
use tributary_quality::{Evaluation, LayerTrial, Suite, calibrate};
use tributary_study::method_spec::MethodSpec;

use crate::failure::usage;
use crate::progress::Progress;
use crate::stdout::print;

/// Measures α, and writes it beside the model.
pub fn trace(evaluation: &Evaluation, suite: &dyn Suite, engine: Engine<'_>) -> anyhow::Result<()> {
    let folder = engine.folder().path.clone();
    let progress = Progress::start("loading the weights");
    let found = calibrate(evaluation, suite, engine, &|what, _| progress.now(what));
    drop(progress);
    let found = found?;
    found.write(&folder).map_err(|error| usage(format!("{}: {error}", folder.display())))?;
    let path = TraceCalibration::path(&folder);
    let range = |readings: &[f32]| match (readings.first(), readings.last()) {
        (Some(least), Some(most)) => format!("{least:.3} to {most:.3} in {} requests", readings.len()),
        _ => "none".to_owned(),
    };
    print(&format!(
        "alpha {:.3}\nsharpest readings where a document refers to another: {}\nsharpest readings where none does: {}\n# written to {}\n",
        found.alpha,
        range(&found.referring),
        range(&found.apart),
        path.display()
    ))
}

/// Tells how a method answers with other layers, and writes those that are shown to be better
/// beside the model.
pub fn layers(spec: &MethodSpec, evaluation: &Evaluation, answers: &Answers, folder: &Path) -> anyhow::Result<()> {
    let Some(trial) = LayerTrial::new(evaluation, answers) else { return Ok(()) };
    print(&format!("\n{}", trial.render()))?;
    let Some(best) = trial.best() else { return Ok(()) };
    let (design, own) = (&evaluation.design, &best.layers);
    let found = CalibratedLayers {
        first: own.start,
        end: own.end,
        method: trial.method.clone(),
        suite: design.suite.clone(),
        seed: design.seed,
        requests: trial.requests,
        score: best.score.mean,
        usual_score: trial.usual.mean,
        holm_p: best.holm_p,
    };
    let mut file = LayerCalibration::from_folder(folder, usize::MAX)?;
    file.methods.insert(spec.method.name.to_owned(), found);
    file.write(folder).map_err(|error| usage(format!("{}: {error}", folder.display())))?;
    print(&format!("# written to {}\n", LayerCalibration::path(folder).display()))
}
