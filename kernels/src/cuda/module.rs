//! The compiled kernels that this library carries: found by name, loaded once a device.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use candle_core::CudaDevice;
use cudarc::driver::{CudaFunction, CudaModule};
use cudarc::nvrtc::Ptx;

use super::failure;
use crate::error::{Error, Result};

/// (file in `kernels/cu`, 80 or 90, machine code): see `kernels/build.rs`.
const CUBINS: &[(&str, u32, &[u8])] = include!(concat!(env!("OUT_DIR"), "/cubins.rs"));

/// Modules by device and file, functions by device and name. For the life of the process, as the device's context is: a
/// module belongs to the context, which all tensors of the device share, not to one model or rank.
static LOADED: Mutex<Option<Loaded>> = Mutex::new(None);

#[derive(Default)]
struct Loaded {
    modules: HashMap<(usize, &'static str), Arc<CudaModule>>,
    functions: HashMap<(usize, String), CudaFunction>,
}

/// Which code a device of this compute capability runs. Machine code runs on its own generation, and sm_90a on 9.0 alone.
fn target(capability: (u32, u32)) -> Option<u32> {
    match capability {
        (8, _) => Some(80),
        (9, 0) => Some(90),
        _ => None,
    }
}

/// Whether the kernels run on devices of this compute capability.
pub fn runs_on(capability: (u32, u32)) -> bool {
    target(capability).is_some()
}

/// The kernel `name` of `kernels/cu/<file>.cu`, ready to be launched on a device.
///
/// # Errors
/// The driver refuses the code.
pub fn function(device: &CudaDevice, file: &'static str, name: &str) -> Result<CudaFunction> {
    let context = device.cuda_stream().context().clone();
    let ordinal = context.ordinal();
    let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    let Loaded { modules, functions } = loaded.get_or_insert_default();
    if let Some(function) = functions.get(&(ordinal, name.to_owned())) {
        return Ok(function.clone());
    }
    let module = match modules.get(&(ordinal, file)) {
        Some(module) => module,
        None => {
            let (major, minor) = super::capability(device)?;
            let target = target((major, minor));
            let code = CUBINS.iter().find(|(of, for_target, _)| *of == file && Some(*for_target) == target);
            let Some((_, _, code)) = code else {
                return Err(Error::NoDevice(format!("no kernels for compute capability {major}.{minor}")));
            };
            let module = context.load_module(Ptx::from_binary(code.to_vec())).map_err(failure::of)?;
            modules.entry((ordinal, file)).or_insert(module)
        }
    };
    let function = module.load_function(name).map_err(failure::of)?;
    functions.insert((ordinal, name.to_owned()), function.clone());
    Ok(function)
}
