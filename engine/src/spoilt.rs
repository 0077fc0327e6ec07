//! A GPU that a failed kernel has poisoned. After an illegal address, a failed launch or a similar
//! failure CUDA answers every call of the process with that failure until the process ends:
//! starting ranks anew in it is of no use.

use candle_core::Device;
use tributary_kernels::cuda;

use crate::error::{Error, one_line};

/// A failure, with an explanation if it has poisoned one of these devices.
pub fn explained<'a>(error: Error, devices: impl IntoIterator<Item = &'a Device>) -> Error {
    if matches!(error, Error::Spoilt { .. }) {
        return error;
    }
    spoilt(&error, devices).unwrap_or(error)
}

/// A failure without an explanation yet, with one if it has poisoned one of these devices.
pub fn spoilt<'a>(
    cause: &(dyn std::error::Error + 'static),
    devices: impl IntoIterator<Item = &'a Device>,
) -> Option<Error> {
    keep_if_spoilt(devices).then(|| Error::Spoilt { cause: one_line(cause) })
}

/// Whether one of these devices takes no more work from this process. If so, none of them is ever
/// closed; this function leaks them once, because libraries of a poisoned device would panic when
/// its last owner is dropped.
fn keep_if_spoilt<'a>(devices: impl IntoIterator<Item = &'a Device>) -> bool {
    let devices: Vec<&Device> = devices.into_iter().collect();
    let spoilt = any_spoilt(devices.iter().copied());
    if spoilt {
        for device in devices {
            let _: &Device = Box::leak(Box::new(device.clone()));
        }
    }
    spoilt
}

/// Whether one of these devices takes no more work from this process.
pub fn any_spoilt<'a>(devices: impl IntoIterator<Item = &'a Device>) -> bool {
    devices.into_iter().any(is_spoilt)
}

fn is_spoilt(device: &Device) -> bool {
    // The first answer may be an earlier call's failure, kept until the next call.
    device.is_cuda() && cuda::memory(device).is_err() && cuda::memory(device).is_err()
}
