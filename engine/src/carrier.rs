//! Carriers of tensors between ranks: the ranks' own way (threads hand them over, MPI sends them),
//! or NCCL in addition, from GPU to GPU. Processes with GPUs always take NCCL: a missing feature
//! never makes tensors go through the host.

use std::sync::Arc;

use candle_core::Device;
use tributary_comm::{Communicator, local, mpi, nccl};
use tributary_model::Model;

use crate::config::{GroupConfig, ModelConfig, Transport};
use crate::device::RankDevice;
use crate::error::{Error, Result};
use crate::model::ModelFolder;

/// Carrier of tensors.
#[derive(Debug, Clone, Copy)]
pub enum Carrier {
    /// The ranks' own way, which carries all else too.
    Own,
    /// NCCL, with a separate GPU or at least a separate stream for every rank.
    Nccl(nccl::NcclSettings),
}

/// Inputs of the choice.
#[derive(Debug, Clone, Copy)]
struct Ask {
    transport: Transport,
    /// Whether ranks are processes.
    processes: bool,
    world: usize,
    /// Number of GPUs that this process sees; none computes on the host.
    gpus: Option<usize>,
    allow_shared_gpu: bool,
    built: bool,
}

impl Carrier {
    /// For `world` ranks at a place, which are `processes` or threads of one.
    ///
    /// # Errors
    /// Returns an error if ranks would share a GPU, if the build has no NCCL, or if NCCL has no
    /// GPUs.
    pub(crate) fn choose(group: &GroupConfig, processes: bool, rank_device: &RankDevice, world: usize) -> Result<Self> {
        let ask = Ask {
            transport: group.transport,
            processes,
            world,
            gpus: rank_device.gpu.as_ref().map(|gpu| gpu.count),
            allow_shared_gpu: group.allow_shared_gpu,
            built: nccl::library_version().is_ok(),
        };
        Ok(if takes_nccl(ask)? { Self::Nccl(group.nccl()) } else { Self::Own })
    }

    /// Whether it is NCCL.
    pub fn is_nccl(&self) -> bool {
        matches!(self, Self::Nccl(_))
    }

    /// Name of it in reports, with the way of all other messages.
    pub fn label(&self, own: String) -> String {
        match (self, nccl::library_version()) {
            (Self::Nccl(_), Ok(version)) => format!("{version}, {own}"),
            _ => own,
        }
    }

    /// Number of copies of the weights among this process's ranks.
    pub fn weight_copies(&self, world: usize) -> usize {
        match self {
            Self::Own => 1,
            Self::Nccl(_) => world,
        }
    }

    /// The communicator of a rank that is a thread and computes on `device`.
    ///
    /// # Errors
    /// Returns an error if NCCL cannot connect the ranks.
    pub fn on_thread(&self, seat: local::Seat, device: &Device) -> tributary_comm::Result<Box<dyn Communicator>> {
        match self {
            Self::Own => Ok(Box::new(seat.take())),
            Self::Nccl(settings) => nccl::start(seat.take(), device, *settings),
        }
    }

    /// The communicator of a rank that is a process and computes on `device`. The others have been
    /// found by `control`.
    ///
    /// # Errors
    /// Returns an error if NCCL cannot connect the ranks.
    pub fn on_process(&self, control: mpi::Mpi, device: &Device) -> tributary_comm::Result<Box<dyn Communicator>> {
        match self {
            Self::Own => Ok(Box::new(control.receiving_on(device.clone()))),
            Self::Nccl(settings) => nccl::start(control, device, *settings),
        }
    }

    /// Loads the missing models of `world` ranks of this process: one for all, or one a rank on its
    /// own device.
    ///
    /// # Errors
    /// Returns an error if the weights cannot be read, or if a device fails.
    pub fn load(
        &self,
        folder: &ModelFolder,
        rank_device: &RankDevice,
        config: &ModelConfig,
        world: usize,
        models: &mut Vec<Arc<dyn Model>>,
    ) -> Result<()> {
        while models.len() < self.weight_copies(world) {
            let model = match models.len() {
                0 => folder.load(rank_device)?,
                rank => folder.load(&RankDevice::of_thread(config, rank)?)?,
            };
            models.push(model);
        }
        Ok(())
    }
}

/// Whether NCCL carries the tensors.
fn takes_nccl(ask: Ask) -> Result<bool> {
    let Some(gpus) = ask.gpus else {
        return match ask.transport {
            Transport::Nccl => Err(Error::usage("--backend nccl carries tensors between GPUs: add --device cuda")),
            _ => Ok(false),
        };
    };
    let asked = ask.transport == Transport::Nccl;
    if ask.world == 1 && !asked {
        return Ok(false);
    }
    let not_built = |instead: &str| {
        Error::configuration(format!(
            "{} ranks on GPUs need NCCL, and this program was built without it: build with `--features nccl`{instead}",
            ask.world
        ))
    };
    if ask.processes {
        return if ask.built { Ok(true) } else { Err(not_built("")) };
    }
    let shared = ask.world > if ask.transport == Transport::Local { 1 } else { gpus };
    if shared && !ask.allow_shared_gpu {
        return Err(Error::configuration(format!(
            "{} ranks as threads would share {}: start as many ranks as GPUs, or pass --allow-shared-gpu for a test that is \
             not timed",
            ask.world,
            if ask.transport == Transport::Local || gpus == 1 { "one GPU".to_owned() } else { format!("{gpus} GPUs") },
        )));
    }
    match (ask.transport, ask.built) {
        (Transport::Local, _) => Ok(false),
        (Transport::Nccl, _) if shared => Err(Error::configuration(format!(
            "{} ranks as threads would share a GPU over NCCL, which it does not support: start them as processes, with \
             mpirun, or pass --backend local",
            ask.world
        ))),
        (Transport::Nccl, true) => Ok(true),
        (Transport::Nccl, false) => Err(not_built("")),
        // Threads that share a GPU hand tensors over in the order of its stream.
        _ if shared => Ok(false),
        (_, true) => Ok(true),
        (_, false) => Err(not_built(", or pass --backend local --allow-shared-gpu for all on one GPU")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const THREADS: Ask = Ask {
        transport: Transport::Auto,
        processes: false,
        world: 2,
        gpus: Some(2),
        allow_shared_gpu: false,
        built: true,
    };

    fn chosen(ask: Ask) -> std::result::Result<bool, (u8, String)> {
        takes_nccl(ask).map_err(|error| (error.exit_code(), error.to_string()))
    }

    #[test]
    fn several_ranks_on_gpus_take_nccl() {
        assert_eq!(chosen(THREADS), Ok(true));
        assert_eq!(chosen(Ask { processes: true, gpus: Some(1), ..THREADS }), Ok(true));
        assert_eq!(chosen(Ask { processes: true, gpus: Some(1), transport: Transport::Mpi, ..THREADS }), Ok(true));
        assert_eq!(chosen(Ask { world: 1, ..THREADS }), Ok(false));
        assert_eq!(chosen(Ask { world: 1, transport: Transport::Nccl, ..THREADS }), Ok(true));
        assert_eq!(chosen(Ask { gpus: None, built: false, ..THREADS }), Ok(false));
    }

    #[test]
    fn ranks_that_share_a_gpu_must_be_allowed_to() {
        let share = Ask { allow_shared_gpu: true, ..THREADS };
        assert_eq!(chosen(Ask { gpus: Some(1), ..share }), Ok(false));
        let (code, said) = chosen(Ask { gpus: Some(1), transport: Transport::Nccl, ..share }).expect_err("two threads");
        assert!(code == 78 && said.contains("2 ranks as threads would share a GPU over NCCL"), "{said}");
        assert_eq!(chosen(Ask { transport: Transport::Local, ..share }), Ok(false));
        let refusals = [
            (
                Ask { gpus: Some(1), ..THREADS },
                78,
                "2 ranks as threads would share one GPU: start as many ranks as GPUs",
            ),
            (Ask { transport: Transport::Local, ..THREADS }, 78, "2 ranks as threads would share one GPU"),
            (Ask { world: 3, ..THREADS }, 78, "3 ranks as threads would share 2 GPUs"),
            (Ask { built: false, ..THREADS }, 78, "build with `--features nccl`"),
            (Ask { built: false, processes: true, ..THREADS }, 78, "build with `--features nccl`"),
            (Ask { gpus: None, transport: Transport::Nccl, ..THREADS }, 64, "add --device cuda"),
        ];
        for (ask, code, text) in refusals {
            let (found, said) = chosen(ask).expect_err(text);
            assert_eq!(found, code, "{said}");
            assert!(said.contains(text), "{said}");
        }
    }
}
