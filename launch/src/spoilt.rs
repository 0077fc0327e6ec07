//! A GPU that a failed kernel has spoilt. After an illegal address, a failed launch and their like CUDA answers every call of the
//! process with that failure until the process ends: to start ranks anew in it is of no use.

use std::fmt;

use candle_core::Device;
use tributary_kernels::cuda;

use crate::failure::one_line;

/// A failure after which this process can use a GPU no more.
#[derive(Debug)]
pub struct Spoilt {
    cause: String,
}

impl fmt::Display for Spoilt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; the GPU takes no more work from this process: start it again", self.cause)
    }
}

impl std::error::Error for Spoilt {}

/// A failure, and what it means if it has spoilt one of these devices. Those are then never closed: that is done here, once,
/// because libraries of a spoilt device would panic when its last owner went.
pub fn judged<'a>(error: anyhow::Error, devices: impl IntoIterator<Item = &'a Device>) -> anyhow::Error {
    let devices: Vec<&Device> = devices.into_iter().collect();
    if error.is::<Spoilt>() || !any_spoilt(devices.iter().copied()) {
        return error;
    }
    for device in devices {
        let _: &Device = Box::leak(Box::new(device.clone()));
    }
    Spoilt { cause: one_line(&error) }.into()
}

/// Whether one of these devices takes no more work from this process.
pub fn any_spoilt<'a>(devices: impl IntoIterator<Item = &'a Device>) -> bool {
    devices.into_iter().any(is_spoilt)
}

fn is_spoilt(device: &Device) -> bool {
    // The first answer may be an earlier call's failure, kept until somebody asks.
    device.is_cuda() && cuda::memory(device).is_err() && cuda::memory(device).is_err()
}
