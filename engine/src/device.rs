//! Device of this process's ranks: the cores of the host, or an NVIDIA GPU, which is opened before
//! anything is read or loaded, with a budget of its memory.

use candle_core::Device;
use tributary_kernels::cuda;

use crate::config::{DeviceKind, ModelConfig};
use crate::error::{Error, Result};

/// The device of this process's ranks. Ranks that are threads share it and its stream: tensors that
/// one hands to another are in order.
#[derive(Debug, Clone)]
pub struct RankDevice {
    /// The device.
    pub device: Device,
    /// Facts of the device where it is a GPU.
    pub gpu: Option<Gpu>,
}

/// A GPU as ranks use it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    /// Its name.
    pub name: String,
    /// Number of GPUs that this process sees.
    pub count: usize,
    /// Memory that weights, chunk caches, requests and NCCL's buffers of this process may take
    /// together.
    pub budget_bytes: u64,
}

impl RankDevice {
    /// Finds and opens the requested device. The device is that of this process's number on its
    /// host, or the only one; its memory is divided among the processes that share it.
    ///
    /// # Errors
    /// Returns a configuration error if the build has no CUDA, if there is no device, or if this
    /// host has fewer devices than ranks. Returns a memory error if the budget exceeds the free
    /// memory.
    pub fn open(model: &ModelConfig, allow_shared_gpu: bool, local_rank: usize, sharing: usize) -> Result<Self> {
        assert!(sharing > 0, "a process shares its device with itself at least");
        if model.device == DeviceKind::Cpu {
            return Ok(Self::cpu());
        }
        let refused = |error: tributary_kernels::Error| Error::configuration(format!("--device cuda: {error}"));
        let count = cuda::count().map_err(refused)?;
        let ordinal = ordinal(local_rank, count, allow_shared_gpu)?;
        let name = cuda::identity(ordinal).map_err(refused)?.name;
        let device = cuda::device(ordinal).map_err(refused)?;
        let free_bytes = cuda::memory(&device).map_err(refused)?.free_bytes;
        let budget_bytes = budget(model.device_memory_bytes, free_bytes)? / sharing as u64;
        Ok(Self { device, gpu: Some(Gpu { name, count, budget_bytes }) })
    }

    /// The device of a rank that is a thread with its own device, or at least its own stream.
    ///
    /// # Errors
    /// Returns an error if the CUDA driver fails.
    pub fn of_thread(model: &ModelConfig, rank: usize) -> Result<Self> {
        let refused = |error: tributary_kernels::Error| Error::configuration(format!("--device cuda: {error}"));
        if model.device == DeviceKind::Cpu {
            return Ok(Self::cpu());
        }
        let ordinal = rank % cuda::count().map_err(refused)?.max(1);
        Ok(Self { device: cuda::device(ordinal).map_err(refused)?, gpu: None })
    }

    /// The host's cores.
    pub fn cpu() -> Self {
        Self { device: Device::Cpu, gpu: None }
    }

    /// As reports name it.
    pub fn label(&self) -> String {
        match &self.gpu {
            None => "cpu".to_owned(),
            Some(gpu) => format!("cuda ({})", gpu.name),
        }
    }
}

/// Number of the device, of `count`, that this process's ranks use.
fn ordinal(local_rank: usize, count: usize, allow_shared_gpu: bool) -> Result<usize> {
    match count {
        0 => Err(Error::configuration("--device cuda: the driver finds no device; is CUDA_VISIBLE_DEVICES empty?")),
        1 => Ok(0),
        _ if local_rank < count => Ok(local_rank),
        _ if allow_shared_gpu => Ok(local_rank % count),
        _ => Err(Error::configuration(format!(
            "--device cuda: {count} devices on this host, and this is its rank number {}; start one rank a device, or \
             pass --allow-shared-gpu for a test that is not timed",
            local_rank + 1
        ))),
    }
}

/// A number for the GPU of the rank of this number on its host, where ranks may share one: the same
/// for the same GPU, for every numbering of visible GPUs. 0 where there is none.
pub fn gpu_number(local_rank: usize) -> u64 {
    let identity = match cuda::count() {
        Ok(count) if count > 0 => cuda::identity(local_rank % count),
        _ => return 0,
    };
    // A hash, since two GPUs may differ anywhere in the name.
    let hash =
        |uuid: String| blake3::hash(uuid.as_bytes()).as_bytes().first_chunk().map(|first| u64::from_le_bytes(*first));
    identity.ok().and_then(|identity| hash(identity.uuid)).unwrap_or(0)
}

/// The requested bytes, or nine tenths of the free ones: the rest is for the driver and libraries
/// other than NCCL.
fn budget(asked: Option<u64>, free_bytes: u64) -> Result<u64> {
    match asked {
        None => Ok(free_bytes / 10 * 9),
        Some(needed_bytes) if needed_bytes > free_bytes => Err(Error::DeviceMemory { needed_bytes, free_bytes }),
        Some(bytes) => Ok(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_what_was_asked_for_or_most_of_what_is_free() {
        assert_eq!(budget(None, 1000).unwrap(), 900);
        assert_eq!(budget(Some(1000), 1000).unwrap(), 1000);
        let error = budget(Some(3 << 30), 2 << 30).unwrap_err();
        assert_eq!(error.exit_code(), 71);
        assert_eq!(error.to_string(), "--device-memory 3.0 GiB: 2.0 GiB are free on the device");
    }

    #[test]
    fn a_process_uses_the_device_of_its_number() {
        assert_eq!(ordinal(0, 1, false).unwrap(), 0);
        assert_eq!(ordinal(2, 1, false).unwrap(), 0, "it is shown its own only");
        assert_eq!(ordinal(0, 4, false).unwrap(), 0);
        assert_eq!(ordinal(3, 4, false).unwrap(), 3);
        assert_eq!(ordinal(4, 3, true).unwrap(), 1);
        assert_eq!(ordinal(4, 3, false).unwrap_err().exit_code(), 78);
        assert_eq!(ordinal(0, 0, false).unwrap_err().exit_code(), 78);
    }
}
