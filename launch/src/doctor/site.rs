//! Place of the measured tensors: the host's memory, or a GPU a rank, with NCCL between them.

use candle_core::Device;
use serde::{Deserialize, Serialize};
use tributary_comm::nccl;
use tributary_engine::{Carrier, GroupConfig, Transport};
use tributary_kernels::{Error, cuda};

use crate::failure::configuration;

/// A rank's place for tensors, and their carrier.
#[derive(Debug, Clone)]
pub struct Site {
    /// The device.
    pub device: Device,
    /// Carrier of tensors.
    pub carrier: Carrier,
    /// The GPU, if it is one.
    pub gpu: Option<GpuInUse>,
}

/// The GPU that a rank measures with.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuInUse {
    /// The name that no other GPU has.
    pub uuid: String,
    /// Its free memory.
    pub free_bytes: u64,
    /// The library that carries tensors to other GPUs.
    pub library: String,
}

impl Site {
    /// The host's memory, and the ranks' own way between them.
    pub fn host() -> Self {
        Self { device: Device::Cpu, carrier: Carrier::Own, gpu: None }
    }

    /// The site that `--backend` asks for, for the rank number `local_rank` of its host; `alone`
    /// says whether it is the only rank of its process.
    ///
    /// # Errors
    /// Returns a configuration error if the build has no NCCL, if there is no GPU, or if this host
    /// has fewer GPUs than ranks.
    pub fn of(group: &GroupConfig, local_rank: usize, alone: bool) -> anyhow::Result<Self> {
        if group.transport != Transport::Nccl {
            return Ok(Self::host());
        }
        let refused = |error: Error| configuration(format!("--backend nccl: {error}"));
        let library = nccl::library_version().map_err(|error| configuration(format!("--backend nccl: {error}")))?;
        let count = cuda::count().map_err(refused)?;
        // A launcher may show each process its own GPU only; NCCL finds out whether two have the
        // same one.
        let is_own = alone && count == 1;
        let ordinal = if is_own { 0 } else { ordinal(local_rank, count, group.allow_shared_gpu)? };
        let uuid = cuda::identity(ordinal).map_err(refused)?.uuid;
        let device = cuda::device(ordinal).map_err(refused)?;
        let free_bytes = cuda::memory(&device).map_err(refused)?.free_bytes;
        Ok(Self { device, carrier: Carrier::Nccl(group.nccl()), gpu: Some(GpuInUse { uuid, free_bytes, library }) })
    }
}

/// The GPU of the rank of this number on its host.
fn ordinal(local_rank: usize, count: usize, allow_shared_gpu: bool) -> anyhow::Result<usize> {
    match count {
        0 => Err(configuration("--backend nccl: the driver finds no GPU; is CUDA_VISIBLE_DEVICES empty?")),
        _ if local_rank < count => Ok(local_rank),
        _ if allow_shared_gpu => Ok(local_rank % count),
        _ => Err(configuration(format!(
            "--backend nccl: rank number {} of this host finds {count} GPU{}; start one rank a GPU, or pass \
             --allow-shared-gpu for a test that is not timed",
            local_rank + 1,
            if count == 1 { "" } else { "s" }
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::exit_code;

    #[test]
    fn ranks_get_a_gpu_each_or_share_if_they_may() {
        assert_eq!(ordinal(1, 2, false).unwrap(), 1);
        assert_eq!(ordinal(3, 2, true).unwrap(), 1);
        for refusal in [ordinal(0, 0, true), ordinal(2, 2, false)] {
            assert_eq!(exit_code(&refusal.unwrap_err()), 78);
        }
    }
}
