//! The compiled kernels that this library carries: all of a device's are loaded when it opens, and
//! found by name.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use candle_core::CudaDevice;
use cudarc::driver::{CudaContext, CudaFunction, DriverError, sys};
use cudarc::nvrtc::Ptx;

use super::attribute::attribute;
use super::failure;
use crate::error::{Error, Result};

/// A file of `kernels/cu`, compiled: 80 or 90, the names of its kernels, machine code (see
/// `kernels/build.rs`).
type Cubin = (u32, &'static [&'static str], &'static [u8]);

const CUBINS: &[Cubin] = include!(concat!(env!("OUT_DIR"), "/cubins.rs"));

/// The kernels of a device by name.
type Functions = HashMap<&'static str, CudaFunction>;

/// The loaded kernels by the device's number. They stay for the life of the process, as the
/// device's context does: modules belong to it, which all tensors of the device share, not to one
/// model or rank. Locked to look and to add only.
static LOADED: Mutex<Vec<(usize, Arc<Functions>)>> = Mutex::new(Vec::new());

static LOADS: AtomicUsize = AtomicUsize::new(0);

/// Number of times that this process has given the code of a file of kernels to a driver.
pub fn loads() -> usize {
    LOADS.load(Ordering::Relaxed)
}

/// Which code a device of this compute capability runs. Machine code runs on its own generation,
/// and sm_90a on 9.0 alone.
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

/// The kernel `name` of `kernels/cu`, ready to be launched on a device. Loads all kernels first
/// where the device was not opened by [`super::device`], the first time.
///
/// # Errors
/// Returns an error if there is no such kernel, or if the driver refuses the code.
pub fn function(device: &CudaDevice, name: &str) -> Result<CudaFunction> {
    let absent = || failure::of(DriverError(sys::CUresult::CUDA_ERROR_NOT_FOUND));
    load(device)?.get(name).cloned().ok_or_else(absent)
}

/// Every kernel of a device, ready to be launched; a kernel that is loaded stays loaded.
///
/// While the driver loads code it may wait for running kernels. A kernel of NCCL waits for other
/// ranks, which may be threads of this process: so no lock is held meanwhile. Two threads that load
/// at the same time both use the first one's result.
///
/// # Errors
/// Returns an error if the driver refuses the code.
pub fn load(device: &CudaDevice) -> Result<Arc<Functions>> {
    let ordinal = device.cuda_stream().context().ordinal();
    if let Some(functions) = stored(&LOADED.lock().unwrap_or_else(PoisonError::into_inner), ordinal) {
        return Ok(functions);
    }
    let functions = Arc::new(load_all(device)?);
    let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(first) = stored(&loaded, ordinal) {
        std::mem::forget(functions); // to unload may wait as well, and under this lock
        return Ok(first);
    }
    loaded.push((ordinal, functions.clone()));
    Ok(functions)
}

fn stored(loaded: &[(usize, Arc<Functions>)], ordinal: usize) -> Option<Arc<Functions>> {
    loaded.iter().find(|(of, _)| *of == ordinal).map(|(_, functions)| functions.clone())
}

fn load_all(device: &CudaDevice) -> Result<Functions> {
    let (major, minor) = super::capability(device)?;
    let Some(target) = target((major, minor)) else {
        return Err(Error::NoDevice(format!("no kernels for compute capability {major}.{minor}")));
    };
    let context = device.cuda_stream().context().clone();
    let block_bytes =
        attribute(device, sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?;
    let mut functions = Functions::new();
    for (_, names, code) in CUBINS.iter().filter(|(of, _, _)| *of == target) {
        load_file(&context, names, code, block_bytes, &mut functions).map_err(failure::of)?;
    }
    Ok(functions)
}

/// Loads one file's kernels. A block of each may have all of the shared memory that a block can
/// have, `block_bytes`.
fn load_file(
    context: &Arc<CudaContext>,
    names: &[&'static str],
    code: &[u8],
    block_bytes: usize,
    functions: &mut Functions,
) -> std::result::Result<(), DriverError> {
    use sys::CUfunction_attribute::{
        CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES,
    };
    LOADS.fetch_add(1, Ordering::Relaxed);
    let module = context.load_module(Ptx::from_binary(code.to_vec()))?;
    for name in names {
        let function = module.load_function(name)?;
        // The driver may put off the work until a kernel is first launched
        // (CUDA_MODULE_LOADING=LAZY, which is its default).
        // SAFETY: the handle is that of a kernel of a module that is loaded; the function holds it.
        unsafe { sys::cuFuncLoad(function.cu_function()) }.result()?;
        let of_its_own = function.get_attribute(CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?;
        let rest = i32::try_from(block_bytes).unwrap_or(i32::MAX).saturating_sub(of_its_own);
        function.set_attribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, rest)?;
        assert!(functions.insert(name, function).is_none(), "two kernels are called {name}");
    }
    Ok(())
}
