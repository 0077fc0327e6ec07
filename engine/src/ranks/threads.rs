//! Ranks as threads of this process: groups of as many as requests ask for, side by side, each
//! started when it is needed.

use std::collections::BTreeMap;
use std::sync::Arc;

use tributary_comm::{CoordinatorLink, local};
use tributary_planner::{GroupShape, Started, StoreInventory};
use tributary_protocol::KeySpace;
use tributary_store::Store;

use super::backend::{Backend, Neighbours, ProcessFailure, Standing, Start};
use super::group::Group;
use super::pulses::Pulses;
use super::seat::Seat;
use super::words::refuse;
use crate::beside::Beside;
use crate::carrier::Carrier;
use crate::error::{Error, Result};
use crate::machine::{LOCAL_BYTES_PER_S, available_bytes};

/// Groups of threads.
pub struct Threads {
    /// Default number of ranks of a group.
    world: usize,
    groups: BTreeMap<GroupShape, Group>,
    /// Key space of the chunks that all groups keep, once one has started.
    space: Option<KeySpace>,
    /// Whether a stuck rank was abandoned.
    left_behind: bool,
    pulses: Pulses,
}

impl Threads {
    /// Ranks that have not started yet.
    pub fn new(world: usize) -> Self {
        Self { world, groups: BTreeMap::new(), space: None, left_behind: false, pulses: Pulses::default() }
    }
}

impl Backend for Threads {
    fn standing(&self) -> Standing {
        Standing { world: self.world, process: None }
    }

    fn label(&self) -> String {
        "local".to_owned()
    }

    fn medium(&self) -> &'static str {
        "threads of one process"
    }

    fn origin(&self) -> String {
        format!("none: {} ranks are threads of this process", self.world)
    }

    fn check(&self, _: &str, _: GroupShape, _: usize) -> Result<()> {
        Ok(())
    }

    /// Threads share a GPU with its weights, or have one each.
    fn neighbours(&self, gpus: Option<usize>, carrier: Carrier, world: usize) -> Neighbours {
        let (ranks_here, weight_copies) = match gpus {
            Some(gpus) if carrier.is_nccl() => (world.div_ceil(gpus.max(1)), world.div_ceil(gpus.max(1))),
            _ => (world, 1),
        };
        Neighbours { ranks_here, weight_copies, link_bytes_per_s: LOCAL_BYTES_PER_S }
    }

    fn free_bytes(&self) -> Option<u64> {
        available_bytes()
    }

    fn shares_cores(&self, group: GroupShape, cores: usize) -> bool {
        group.world * group.threads > cores
    }

    fn start(&mut self, start: Start<'_>) -> Result<Option<Started>> {
        let Start { models, auxiliary, folder, settings, identity, keeps_chunks, store, .. } = start;
        let group = GroupShape { world: settings.world, threads: settings.threads };
        if self.groups.contains_key(&group) {
            return Ok(None);
        }
        let space = match &self.space {
            Some(space) => space,
            None => self.space.insert(identity.key_space(keeps_chunks)?),
        };
        let models = &models[..settings.carrier.weight_copies(group.world)];
        let GroupShape { world, threads } = group;
        let beside = Beside::new(auxiliary, folder, models)?;
        let running = Group::start((models, beside), space, settings, store.clone())
            .map_err(|cause| Error::Exhausted { world, threads, cause })?;
        // The messages' part of the GPU's budget is known now.
        let message_bytes = running.message_bytes();
        let lookout = running.lookout();
        self.pulses.of(move || lookout.pulses());
        self.groups.insert(group, running);
        let chunk_cache_bytes = settings.chunk_cache_bytes;
        // They all read it.
        let of = |store: Arc<Store>| StoreInventory { ranks: (0..world).collect(), chunks: store.keys() };
        let inventory = store.into_iter().map(of).collect();
        Ok(Some(Started { space: space.clone(), chunk_cache_bytes, message_bytes, inventory, narrowest: None }))
    }

    fn link(&self, group: GroupShape) -> Option<&CoordinatorLink> {
        self.groups.get(&group).map(Group::link)
    }

    fn lost(&mut self, group: GroupShape, seen: tributary_coordinator::Error) -> Error {
        let error = match self.groups.remove(&group).map(Group::end) {
            Some(Err(cause)) => cause.into(),
            _ => seen.into(),
        };
        self.left_behind |=
            matches!(error, Error::Worker(tributary_worker::Error::Comm(tributary_comm::Error::Stalled { .. })));
        error
    }

    fn pulses(&self) -> Pulses {
        self.pulses.clone()
    }

    /// Not where one of them is still at work.
    fn can_start_anew(&self) -> bool {
        !self.left_behind
    }

    fn end(&mut self) -> Result<()> {
        for group in std::mem::take(&mut self.groups).into_values() {
            group.end()?;
        }
        Ok(())
    }

    fn let_go(&mut self) {
        self.groups.clear();
    }

    fn seats(&mut self, world: usize) -> Result<Vec<Seat>> {
        Ok(local::seats(world).into_iter().map(Seat::of_thread).collect())
    }

    fn fail(&self, failure: &ProcessFailure) -> ! {
        refuse(&failure.line, failure.exit_code)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tributary_comm::nccl;

    use super::super::backend::RankProcess;
    use super::*;

    #[test]
    fn threads_share_a_gpu_or_have_one_each() {
        let threads = Threads::new(3);
        let nccl = Carrier::Nccl(nccl::NcclSettings {
            start_timeout: Duration::from_secs(1),
            allow_shared_gpu: false,
            message_multiprocessors: 4,
            unequal_gathers: nccl::UnequalGathers::ByHosts,
        });
        let found = |gpus, carrier, world| {
            let Neighbours { ranks_here, weight_copies, .. } = threads.neighbours(gpus, carrier, world);
            (ranks_here, weight_copies)
        };
        assert_eq!(found(None, Carrier::Own, 3), (3, 1));
        assert_eq!(found(Some(1), Carrier::Own, 3), (3, 1));
        assert_eq!(found(Some(3), nccl, 3), (1, 1));
        assert_eq!(found(Some(2), nccl, 3), (2, 2));
    }

    #[test]
    fn they_stand_all_in_this_process() {
        let standing = Threads::new(3).standing();
        assert_eq!((standing.ranks(5), standing.here(5), standing.in_process(5)), (5, 5, 5));
        assert!(standing.leads());
        let process = RankProcess { rank: 2, local_rank: 1, local_size: 2, sharing: 2 };
        let standing = Standing { world: 4, process: Some(process) };
        assert_eq!((standing.ranks(5), standing.here(5), standing.in_process(5)), (4, 2, 1));
        assert!(!standing.leads());
    }
}
