//! The part of a process that is not rank 0.

use std::time::Duration;

use tributary_coordinator::{Machine, check_weights};

use crate::args::{IntakeArgs, ModelArgs, RunArgs};
use crate::carrier::Carrier;
use crate::device::Place;
use crate::group::GroupSettings;
use crate::machine::{check_threads, chunk_cache_bytes, machine};
use crate::model::ModelFolder;
use crate::ranks::{Identity, Ranks, Room};
use crate::spoilt::judged;

/// Loads the model and serves until rank 0 ends the group.
///
/// # Errors
/// The model's; the failure that ended the group.
pub fn follow(model: &ModelArgs, intake: &IntakeArgs, run: &RunArgs, ranks: &mut Ranks) -> anyhow::Result<()> {
    fail::fail_point!("launch::load");
    let place = Place::open(model, &run.group, ranks)?;
    let carrier = Carrier::choose(&run.group, ranks, &place, ranks.world())?;
    let folder = ModelFolder::open_for_worker(model, intake, run.seed)?;
    let world = ranks.world();
    let identity = Identity::new(&folder, model, &run.group, world);
    let timeout = Duration::from_secs(run.group.collective_timeout);
    check_threads(1, run.group.threads)?;
    let machine = machine(ranks, &place, carrier, world, run.group.threads);
    let chunk_cache_bytes = chunk_cache_bytes(&run.group, &machine, folder.shape().weight_bytes, 1);
    let (threads, kernels) = (run.group.threads, model.kernels.into());
    let settings = GroupSettings { world, threads, kernels, timeout, chunk_cache_bytes, carrier };
    let Ranks::Process(process) = ranks else { unreachable!("only processes follow") };
    check_weights(&folder.shape(), &Machine { of_rank: Some(process.facts.rank), ..machine })?;
    // Of the ranks that share a host's memory one tells it; a GPU is a rank's own.
    let speaks = place.gpu.is_some() || process.facts.local_rank == 0;
    let room = speaks.then(|| Room::of(&machine));
    let outcome = folder.load(&place).and_then(|model| process.serve(&model, settings, identity, room)?.end());
    outcome.map_err(|error| judged(error, [&place.device]))
}
