//! Environment of the process, for reports.

use tributary_coordinator::Environment;
use tributary_kernels::Kernels;
use tributary_model::LoadFormat;

use crate::config::{Config, KvDtype, TemplateUse};
use crate::device::RankDevice;
use crate::error::{Error, Result};
use crate::model::ModelFolder;

/// The part of the configuration that a report names.
///
/// # Errors
/// Returns an error if a file of the auxiliary model cannot be read.
pub fn environment(
    config: &Config,
    backend: String,
    rank_device: &RankDevice,
    folder: &ModelFolder,
) -> Result<Environment> {
    let templated = folder.template.is_some();
    let Config { model, intake, group } = config;
    let template = match (intake.template, templated) {
        (TemplateUse::None, _) => "none",
        _ if intake.synthetic.is_some() => "none",
        (TemplateUse::Auto, true) => "auto: the model's",
        (TemplateUse::Auto, false) => "auto: the model has none",
    };
    let beside = |model: &Option<Box<ModelFolder>>| {
        let named =
            |beside: &ModelFolder| Ok::<_, Error>((beside.given.display().to_string(), hex(&beside.hash().get()?)));
        Ok::<_, Error>(model.as_deref().map(named).transpose()?.unzip())
    };
    let (auxiliary_model, auxiliary_hash) = beside(&folder.auxiliary)?;
    let (draft_model, draft_hash) = beside(&folder.draft_model)?;
    Ok(Environment {
        model: model.folder.display().to_string(),
        auxiliary_model,
        auxiliary_hash,
        draft_model,
        draft_hash,
        adapters: folder.adapters.names(),
        load_format: match model.load_format {
            LoadFormat::Safetensors => "safetensors".to_owned(),
            LoadFormat::Dummy { seed } => format!("dummy, seed {seed}"),
        },
        dtype: model.dtype.name().to_owned(),
        kv_dtype: (model.kv_dtype == KvDtype::Fp8).then(|| "fp8".to_owned()),
        kernels: match model.kernels {
            Kernels::Auto => "auto".to_owned(),
            Kernels::Plain => "plain".to_owned(),
        },
        device: rank_device.label(),
        device_budget_bytes: rank_device.gpu.as_ref().map(|gpu| gpu.budget_bytes),
        backend,
        threads: group.threads,
        chunking: intake.synthetic.map_or_else(|| intake.chunking.to_string(), |shape| format!("synthetic {shape}")),
        image_tiles: (!intake.tiling.is_whole()).then_some(intake.tiling.tiles.count()),
        tile_order: (!intake.tiling.is_whole()).then_some(intake.tiling.order.name()),
        prefix: intake.prefix.to_string(),
        chunk_prefix: intake.chunk_prefix.to_string(),
        template: template.to_owned(),
    })
}

fn hex(hash: &[u8]) -> String {
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}
