//! The part of a process that is not rank 0.

use tributary_planner::{GroupShape, Machine, check_weights, chunk_cache_bytes};

use crate::auxiliary::AuxiliaryModel;
use crate::chunk_store::ChunkStoreConfig;
use crate::config::Config;
use crate::error::Result;
use crate::machine::check_threads;
use crate::model::ModelFolder;
use crate::ranks::{GroupSettings, Identity, Ranks, Start};
use crate::spoilt::explained;

/// Loads the model and serves until rank 0 ends the group.
///
/// # Errors
/// Returns an error if the model fails. Returns the failure that ended the group.
pub fn follow(config: &Config, ranks: &mut Ranks) -> Result<()> {
    fail::fail_point!("engine::load");
    let Config { model, intake, group } = config;
    let rank_device = ranks.open_device(model, group)?;
    let (world, threads) = (ranks.world(), group.threads);
    let carrier = ranks.carrier(group, &rank_device, world)?;
    let folder = ModelFolder::open_for_worker(model, intake)?;
    let identity = Identity::new(&folder, model, group, world)?;
    let store = group.chunk_store.as_ref().map(ChunkStoreConfig::open).transpose()?;
    check_threads(1, threads)?;
    let machine = ranks.machine(&rank_device, carrier, GroupShape { world, threads });
    let chunk_cache_bytes = chunk_cache_bytes(group.chunk_cache_bytes, &machine, folder.shape().weight_bytes, 1);
    let (kernels, timeout) = (model.kernels, group.collective_timeout);
    let settings = GroupSettings { world, threads, kernels, timeout, chunk_cache_bytes, carrier };
    check_weights(&folder.shape(), &Machine { of_rank: ranks.rank(), ..machine })?;
    let serve = || {
        let models = [folder.load(&rank_device)?];
        let auxiliary = AuxiliaryModel::all(&folder, false)?;
        let start = Start {
            models: &models,
            auxiliary,
            folder: &folder,
            settings,
            identity,
            keeps_chunks: true,
            machine,
            store,
        };
        ranks.backend_mut().start(start)?;
        ranks.backend_mut().end()
    };
    serve().map_err(|error| explained(error, [&rank_device.device]))
}
