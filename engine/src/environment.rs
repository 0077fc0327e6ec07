//! How the process was started, for reports.

use tributary_coordinator::Environment;
use tributary_kernels::Kernels;
use tributary_worker::LoadFormat;

use crate::config::{Config, TemplateUse};
use crate::device::RankDevice;

/// What of the configuration a report names. `templated` says whether the model's chat template is used.
pub fn environment(config: &Config, backend: String, rank_device: &RankDevice, templated: bool) -> Environment {
    let Config { model, intake, group } = config;
    let template = match (intake.template, templated) {
        (TemplateUse::None, _) => "none",
        _ if intake.synthetic.is_some() => "none",
        (TemplateUse::Auto, true) => "auto: the model's",
        (TemplateUse::Auto, false) => "auto: the model has none",
    };
    Environment {
        model: model.folder.display().to_string(),
        load_format: match model.load_format {
            LoadFormat::Safetensors => "safetensors".to_owned(),
            LoadFormat::Dummy { seed } => format!("dummy, seed {seed}"),
        },
        dtype: model.dtype.name().to_owned(),
        kernels: match model.kernels {
            Kernels::Auto => "auto".to_owned(),
            Kernels::Plain => "plain".to_owned(),
        },
        device: rank_device.label(),
        device_budget_bytes: rank_device.gpu.as_ref().map(|gpu| gpu.budget_bytes),
        backend,
        threads: group.threads,
        chunking: intake.synthetic.map_or_else(|| intake.chunking.to_string(), |shape| format!("synthetic {shape}")),
        prefix: intake.prefix.to_string(),
        template: template.to_owned(),
    }
}
