//! The stand-in for the NCCL backend in builds without it: every entry point returns an error that
//! says how to build it.

mod settings;

use candle_core::Device;

pub use self::settings::{NcclSettings, UnequalGathers};
use crate::group::{Endpoint, Member};
use crate::{Communicator, Error, Result};

/// Name and version of the NCCL library.
///
/// # Errors
/// Always returns [`Error::NotBuilt`].
pub fn library_version() -> Result<String> {
    Err(not_built())
}

/// Lets NCCL connect several ranks of one GPU.
///
/// # Errors
/// Always returns [`Error::NotBuilt`].
pub fn allow_shared_gpu() -> Result<()> {
    Err(not_built())
}

/// A communicator of the same ranks whose tensors go over NCCL.
///
/// # Errors
/// Always returns [`Error::NotBuilt`]. The group is dead after it.
pub fn start<E: Endpoint + 'static>(control: Member<E>, _: &Device, _: NcclSettings) -> Result<Box<dyn Communicator>> {
    Err(control.endpoint().kill(not_built()))
}

fn not_built() -> Error {
    Error::NotBuilt { backend: "nccl" }
}
