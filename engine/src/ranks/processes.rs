//! Ranks as processes of this job: one group, with this process as one rank. It starts once, and
//! ends with its processes.

use tributary_comm::CoordinatorLink;
use tributary_planner::{FreeMemory, GroupShape, Started};
use tributary_system::processor;

use super::audience::Audience;
use super::backend::{Backend, Neighbours, ProcessFailure, RankProcess, Standing, Start};
use super::process::{Agreed, Process, Serving};
use super::pulses::Pulses;
use super::seat::Seat;
use crate::beside::Beside;
use crate::carrier::Carrier;
use crate::error::{Error, Result};
use crate::machine::NETWORK_BYTES_PER_S;

/// The group, as its rank in this process has it.
pub struct Processes {
    process: Process,
    serving: Option<Serving>,
}

impl Processes {
    /// The others are found.
    pub fn new(process: Process) -> Self {
        Self { process, serving: None }
    }
}

impl Backend for Processes {
    fn standing(&self) -> Standing {
        let facts = &self.process.facts;
        assert!(facts.rank < facts.size, "rank {} of {}", facts.rank, facts.size);
        assert!(facts.local_rank < facts.local_size, "rank {} of {} on its host", facts.local_rank, facts.local_size);
        assert!(facts.local_size <= facts.size, "{} ranks on the host of {}", facts.local_size, facts.size);
        let process = RankProcess {
            rank: facts.rank,
            local_rank: facts.local_rank,
            local_size: facts.local_size,
            sharing: facts.sharing,
        };
        Standing { world: facts.size, process: Some(process) }
    }

    fn label(&self) -> String {
        let facts = &self.process.facts;
        let library = facts.library.split(',').next().unwrap_or_default();
        let mut hosts: Vec<_> = facts.peers.iter().map(|peer| (&peer.host, &peer.system)).collect();
        hosts.sort_unstable();
        hosts.dedup();
        match hosts.len() {
            1 => format!("mpi ({library})"),
            count => format!("mpi ({library}), {count} hosts"),
        }
    }

    fn medium(&self) -> &'static str {
        "MPI"
    }

    fn origin(&self) -> String {
        let Process { launcher, facts, .. } = &self.process;
        format!("{}, {} ranks; {}", launcher.name, facts.size, facts.library)
    }

    /// Processes are as many as were started; only threads can be made as a method likes.
    fn check(&self, method: &str, group: GroupShape, threads_started: usize) -> Result<()> {
        let size = self.process.facts.size;
        if (group.world, group.threads) == (size, threads_started) {
            return Ok(());
        }
        let GroupShape { world, threads } = group;
        Err(Error::usage(format!(
            "{method}: world {world} with {threads} threads a rank, but {size} processes of {threads_started} threads were \
             started"
        )))
    }

    /// Each process has its own GPU, or its share of one, with the weights.
    fn neighbours(&self, gpus: Option<usize>, _: Carrier, _: usize) -> Neighbours {
        let here = if gpus.is_some() { 1 } else { self.process.facts.local_size };
        Neighbours { ranks_here: here, weight_copies: here, link_bytes_per_s: NETWORK_BYTES_PER_S }
    }

    fn free_bytes(&self) -> Option<u64> {
        self.process.available_bytes
    }

    fn shares_cores(&self, group: GroupShape, cores: usize) -> bool {
        let host = processor::online_cores().unwrap_or(cores);
        group.threads > cores || self.process.facts.local_size * group.threads > host
    }

    fn start(&mut self, start: Start<'_>) -> Result<Option<Started>> {
        if self.serving.is_some() {
            return Ok(None);
        }
        let Start { models, auxiliary, folder, settings, identity, machine, store, .. } = start;
        // One of the ranks that share a host's memory reports it; a GPU belongs to one rank.
        let is_on_gpu = !models[0].device().is_cpu();
        let speaks = self.process.leads() || is_on_gpu || self.process.facts.local_rank == 0;
        let free_memory = speaks.then(|| FreeMemory::of(&machine));
        let beside = Beside::new(auxiliary, folder, models)?;
        let serving = self.process.serve((&models[0], beside), settings, identity, (free_memory, store))?;
        let Some(agreed) = serving.ready() else {
            serving.end()?;
            return Ok(None);
        };
        self.serving = Some(serving);
        let chunk_cache_bytes = settings.chunk_cache_bytes;
        // The messages' memory is already subtracted from the narrowest one.
        let Agreed { space, narrowest, inventory } = agreed;
        Ok(Some(Started { space, chunk_cache_bytes, message_bytes: 0, inventory, narrowest }))
    }

    fn link(&self, _: GroupShape) -> Option<&CoordinatorLink> {
        self.serving.as_ref()?.link()
    }

    fn lost(&mut self, _: GroupShape, seen: tributary_coordinator::Error) -> Error {
        let end = match seen {
            tributary_coordinator::Error::Failed { .. } => Serving::failed,
            _ => Serving::end,
        };
        match self.serving.take().map(end) {
            Some(Err(cause)) => cause,
            _ => seen.into(),
        }
    }

    fn drains(&self) {
        self.process.drains();
    }

    fn audience(&self) -> Audience {
        self.process.audience()
    }

    fn pulses(&self) -> Pulses {
        self.process.pulses()
    }

    fn can_start_anew(&self) -> bool {
        false
    }

    fn end(&mut self) -> Result<()> {
        self.serving.take().map_or(Ok(()), Serving::end)
    }

    fn let_go(&mut self) {
        self.serving = None;
    }

    fn seats(&mut self, _: usize) -> Result<Vec<Seat>> {
        Ok(vec![self.process.seat()?])
    }

    fn fail(&self, failure: &ProcessFailure) -> ! {
        self.process.fail(failure)
    }
}
