//! How the process was started, for reports.

use tributary_coordinator::Environment;

use crate::args::{IntakeArgs, KernelChoice, Load, ModelArgs, RunArgs, TemplateChoice};
use crate::device::Place;

/// What of the options a report names. `templated` says whether the model's chat template is used.
pub fn environment(
    model: &ModelArgs,
    intake: &IntakeArgs,
    run: &RunArgs,
    backend: String,
    place: &Place,
    templated: bool,
) -> Environment {
    let template = match (intake.template, templated) {
        (TemplateChoice::None, _) => "none",
        _ if intake.synthetic.is_some() => "none",
        (TemplateChoice::Auto, true) => "auto: the model's",
        (TemplateChoice::Auto, false) => "auto: the model has none",
    };
    Environment {
        model: model.model.display().to_string(),
        load_format: match model.load_format {
            Load::Safetensors => "safetensors".to_owned(),
            Load::Dummy => format!("dummy, seed {}", run.seed),
        },
        dtype: model.dtype().name().to_owned(),
        kernels: match model.kernels {
            KernelChoice::Auto => "auto".to_owned(),
            KernelChoice::Plain => "plain".to_owned(),
        },
        device: place.label(),
        device_budget_bytes: place.gpu.as_ref().map(|gpu| gpu.budget_bytes),
        backend,
        threads: run.group.threads,
        chunking: intake.synthetic.map_or_else(|| intake.chunk.to_string(), |shape| format!("synthetic {shape}")),
        prefix: intake.prefix.to_string(),
        template: template.to_owned(),
    }
}
