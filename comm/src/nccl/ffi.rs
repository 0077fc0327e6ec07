//! The calls into NCCL. Raw memory of a device is in `memory.rs`.
//!
//! NCCL's communicators are nonblocking here: a call may return before its work is done, and
//! [`Handle::progress`] shows when it is. Until then only [`Handle::abort`] may follow on that
//! communicator.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use candle_core::CudaDevice;
use candle_core::cuda_backend::cudarc::driver::{CudaContext, CudaStream};
use cudarc::driver::sys as driver;
use cudarc::nccl::sys::{self, ncclResult_t as Code};
use tributary_system::process;

use super::failure::{self, Ask, cuda};
use super::memory::free_bytes;
use crate::{Error, Result};

/// Bytes of an id that names a group of ranks.
pub const ID_BYTES: usize = 128;

/// The version of the bindings' configuration: 2.28.
const CONFIG_VERSION: c_uint = 22_800;

/// The mark that NCCL puts at the start of a configuration, and the number for "not set" (`nccl.h`,
/// 2.28: `NCCL_CONFIG_INITIALIZER`, `NCCL_CONFIG_UNDEF_INT`).
const CONFIG_MAGIC: c_uint = 0xcafe_beef;
const UNDEFINED: c_int = c_int::MIN;

/// The variable by which NCCL lets several ranks share a GPU, from 2.30 on.
pub const SHARED_GPU_VARIABLE: &str = "NCCL_MULTI_RANK_GPU_ENABLE";

/// Whether a call has done its work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    Done,
    Underway,
}

/// One message of a call, in device memory.
#[derive(Debug, Clone, Copy)]
pub enum Message {
    Send {
        address: u64,
        bytes: usize,
        peer: usize,
    },
    Receive {
        address: u64,
        bytes: usize,
        peer: usize,
    },
    /// The bytes that rank `root` has at its `address`, to the others' address.
    Broadcast {
        address: u64,
        bytes: usize,
        root: usize,
    },
    /// The same number of bytes from every rank, this one included, one after the other at `to`.
    Gather {
        from: u64,
        to: u64,
        bytes: usize,
    },
}

/// Version of the NCCL that this program runs with, as NCCL counts: 23007 is 2.30.7.
pub fn version() -> Result<i32> {
    let mut version = 0;
    // SAFETY: NCCL writes one number to the place it is given.
    check("ncclGetVersion", unsafe { sys::ncclGetVersion(&mut version) }, ptr::null_mut())?;
    Ok(version)
}

/// A new id for a group.
pub fn unique_id() -> Result<[u8; ID_BYTES]> {
    let mut id = sys::ncclUniqueId { internal: [0; ID_BYTES] };
    // SAFETY: NCCL fills the id that it is given.
    check("ncclGetUniqueId", unsafe { sys::ncclGetUniqueId(&mut id) }, ptr::null_mut())?;
    Ok(id.internal.map(|byte| byte as u8))
}

/// Sets a variable of this process's environment, unless it has that value.
///
/// # Errors
/// Returns an error if the process has more than one thread: another thread might read the
/// environment meanwhile.
pub fn set_variable(name: &str, value: &str) -> Result<()> {
    if std::env::var(name).is_ok_and(|set| set == value) {
        return Ok(());
    }
    let threads = process::thread_count();
    if threads != 1 {
        return Err(Error::Start(format!("{name} cannot be set with {threads} threads: set it before the start")));
    }
    // SAFETY: this is the process's only thread, so no other thread reads the environment at the
    // same time.
    unsafe { std::env::set_var(name, value) };
    Ok(())
}

/// Takes from a device's tensors the events that would order streams against each other: the
/// backend does that by its own events, and computation has one stream.
pub fn without_events(device: &CudaDevice) {
    // SAFETY: all computation goes to the device's one stream, in whose order its tensors are made
    // and freed. The backend's second stream waits for that one before a call's messages. No tensor
    // of a call is freed before that one waits for the call's end.
    unsafe { device.disable_event_tracking() };
}

/// The address of a GPU on its host's bus.
pub fn bus_id(context: &CudaContext) -> Result<String> {
    let mut text = [0 as c_char; 32];
    // SAFETY: the driver writes at most the given number of bytes, with a zero at the end.
    let outcome = unsafe { driver::cuDeviceGetPCIBusId(text.as_mut_ptr(), text.len() as c_int, context.cu_device()) };
    outcome.result().map_err(cuda)?;
    // SAFETY: the driver has ended the text with a zero.
    let text = unsafe { CStr::from_ptr(text.as_ptr()) };
    Ok(text.to_string_lossy().into_owned())
}

/// The most urgent priority that a stream of this device can have.
pub fn most_urgent(context: &CudaContext) -> Result<i32> {
    context.bind_to_thread().map_err(cuda)?;
    let (mut least, mut most) = (0, 0);
    // SAFETY: the driver writes two numbers to the places it is given; the thread has a context.
    unsafe { driver::cuCtxGetStreamPriorityRange(&mut least, &mut most) }.result().map_err(cuda)?;
    Ok(most)
}

/// Maximum number of blocks of a message's kernel where attention keeps its multiprocessors
/// (Hopper) and leaves `left_alone` of them free. Further blocks, and the message with them, would
/// wait until attention ends. None: attention leaves none, or keeps none.
pub fn most_blocks(context: &CudaContext, left_alone: usize) -> Result<Option<c_int>> {
    let major = driver::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR;
    let keeps = context.attribute(major).map_err(cuda)? >= 9;
    Ok(c_int::try_from(left_alone).ok().filter(|&count| keeps && count > 0))
}

/// A rank's NCCL communicator. Calls from several threads come one after the other.
pub struct Handle {
    /// NCCL's address of it, until it has been ended.
    communicator: Mutex<Option<usize>>,
}

impl Handle {
    /// Starts to connect this rank with the others that have the same id. The stream's context must
    /// be the thread's. `most_blocks`: maximum number of blocks of a message's kernel, each of
    /// which takes a multiprocessor; NCCL chooses where it is absent.
    pub fn connect(id: &[u8; ID_BYTES], world: usize, rank: usize, most_blocks: Option<c_int>) -> Result<Self> {
        let id = sys::ncclUniqueId { internal: id.map(|byte| byte as c_char) };
        let mut config = config(most_blocks);
        let mut communicator = ptr::null_mut();
        // SAFETY: NCCL copies the configuration and the id, and writes the communicator's address
        // to the place it is given.
        let code =
            unsafe { sys::ncclCommInitRankConfig(&mut communicator, world as c_int, id, rank as c_int, &mut config) };
        check("ncclCommInitRankConfig", code, communicator)?;
        Ok(Self { communicator: Mutex::new(Some(communicator.expose_provenance())) })
    }

    /// Whether the last call has done its work.
    ///
    /// # Errors
    /// Returns an error if a call has failed since the last one, here or on another rank.
    pub fn progress(&self) -> Result<Progress> {
        progress_of(&self.lock(), Ask::Driver(free_bytes))
    }

    /// The same, unless another thread is in a call. It does not call the driver, which a waiting
    /// thread may hold.
    pub fn try_progress(&self) -> Option<Result<Progress>> {
        self.communicator.try_lock().ok().map(|open| progress_of(&open, Ask::Nobody))
    }

    /// Puts messages on a stream, as one group.
    pub fn submit(&self, messages: &[Message], stream: &CudaStream) -> Result<Progress> {
        let open = self.lock();
        let communicator = address(&open)?;
        let stream = stream.cu_stream().cast::<sys::CUstream_st>();
        // SAFETY: a group is the calling thread's; it is closed below on every way out.
        check("ncclGroupStart", unsafe { sys::ncclGroupStart() }, communicator)?;
        let put = messages.iter().try_for_each(|message| put(*message, communicator, stream));
        // SAFETY: the group was opened above.
        let ended = check("ncclGroupEnd", unsafe { sys::ncclGroupEnd() }, communicator);
        put.and(ended)
    }

    /// Ends the communicator in any state: work on the device that waits for other ranks ends too,
    /// and its data is of no use.
    pub fn abort(&self) {
        let Some(address) = self.lock().take() else { return };
        // SAFETY: the address was NCCL's and has just been taken out: no other code uses it any
        // more. The result does not matter: the group is dead.
        unsafe { sys::ncclCommAbort(ptr::with_exposed_provenance_mut(address)) };
    }

    /// Begins an orderly end of the communicator: calls in flight are completed.
    pub fn finalize(&self) -> Result<Progress> {
        let open = self.lock();
        let communicator = address(&open)?;
        // SAFETY: the communicator has not been ended, as the lock shows.
        check("ncclCommFinalize", unsafe { sys::ncclCommFinalize(communicator) }, communicator)
    }

    /// Frees the communicator when [`finalize`](Self::finalize) has done its work.
    pub fn destroy(&self) {
        let Some(address) = self.lock().take() else { return };
        // SAFETY: as in `abort`.
        unsafe { sys::ncclCommDestroy(ptr::with_exposed_provenance_mut(address)) };
    }

    fn lock(&self) -> MutexGuard<'_, Option<usize>> {
        self.communicator.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether the last call has done its work.
fn progress_of(open: &Option<usize>, ask: Ask) -> Result<Progress> {
    let communicator = address(open)?;
    let mut state = Code::ncclSuccess;
    // SAFETY: the communicator has not been ended: the code that ends it takes its address out
    // under the lock that `open` is from.
    let code = unsafe { sys::ncclCommGetAsyncError(communicator, &mut state) };
    outcome_of("ncclCommGetAsyncError", code, communicator, ask)?;
    outcome_of("a collective", state, communicator, ask)
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.abort();
    }
}

fn address(open: &Option<usize>) -> Result<sys::ncclComm_t> {
    let ended = || Error::Nccl { call: "a call", cause: "the communicator has been ended".to_owned(), exit_code: 69 };
    Ok(ptr::with_exposed_provenance_mut(open.ok_or_else(ended)?))
}

/// A nonblocking configuration with at most `most_blocks` blocks a kernel; NCCL chooses everything
/// else.
fn config(most_blocks: Option<c_int>) -> sys::ncclConfig_t {
    sys::ncclConfig_t {
        size: size_of::<sys::ncclConfig_t>(),
        magic: CONFIG_MAGIC,
        version: CONFIG_VERSION,
        blocking: 0,
        cgaClusterSize: UNDEFINED,
        minCTAs: UNDEFINED,
        maxCTAs: most_blocks.unwrap_or(UNDEFINED),
        netName: ptr::null(),
        splitShare: UNDEFINED,
        trafficClass: UNDEFINED,
        commName: ptr::null(),
        collnetEnable: UNDEFINED,
        CTAPolicy: UNDEFINED,
        shrinkShare: UNDEFINED,
        nvlsCTAs: UNDEFINED,
        nChannelsPerNetPeer: UNDEFINED,
        nvlinkCentricSched: UNDEFINED,
    }
}

fn put(message: Message, communicator: sys::ncclComm_t, stream: sys::cudaStream_t) -> Result<()> {
    let byte = sys::ncclDataType_t::ncclUint8;
    let place = |address: u64| address as usize as *mut c_void;
    // SAFETY: the addresses are of device memory of at least that many bytes, which the caller
    // keeps until the stream has passed this message; the communicator has not been ended, the
    // stream lives.
    let (call, code) = unsafe {
        match message {
            Message::Send { address, bytes, peer } => {
                ("ncclSend", sys::ncclSend(place(address), bytes, byte, peer as c_int, communicator, stream))
            }
            Message::Receive { address, bytes, peer } => {
                ("ncclRecv", sys::ncclRecv(place(address), bytes, byte, peer as c_int, communicator, stream))
            }
            Message::Broadcast { address, bytes, root } => {
                // The root's bytes stay where they are: nothing is copied where both addresses are
                // one.
                let (from, to) = (place(address), place(address));
                ("ncclBroadcast", sys::ncclBroadcast(from, to, bytes, byte, root as c_int, communicator, stream))
            }
            Message::Gather { from, to, bytes } => {
                ("ncclAllGather", sys::ncclAllGather(place(from), place(to), bytes, byte, communicator, stream))
            }
        }
    };
    check(call, code, communicator).map(drop)
}

fn check(call: &'static str, code: Code, communicator: sys::ncclComm_t) -> Result<Progress> {
    outcome_of(call, code, communicator, Ask::Driver(free_bytes))
}

fn outcome_of(call: &'static str, code: Code, communicator: sys::ncclComm_t, ask: Ask) -> Result<Progress> {
    match code {
        Code::ncclSuccess => return Ok(Progress::Done),
        Code::ncclInProgress => return Ok(Progress::Underway),
        _ => {}
    }
    // SAFETY: NCCL answers every code with a text that it never frees.
    let text = unsafe { CStr::from_ptr(sys::ncclGetErrorString(code)) }.to_string_lossy();
    // SAFETY: NCCL takes no communicator too; the text is its own, and is copied at once.
    let more = unsafe { sys::ncclGetLastError(communicator) };
    let more = if more.is_null() {
        String::new()
    } else {
        // SAFETY: not null, and ended with a zero by NCCL.
        unsafe { CStr::from_ptr(more) }.to_string_lossy().trim().replace('\n', " ")
    };
    let cause = if more.is_empty() { text.into_owned() } else { format!("{text}: {more}") };
    let (exit_code, advice) = failure::classify(code, &more, ask);
    Err(Error::Nccl { call, cause: format!("{cause}{advice}"), exit_code })
}
