//! Tensors between GPUs over NCCL, with a control communicator that carries everything else: bytes,
//! barriers, aborts, and first of all NCCL's own id.
//!
//! A call's messages go on a second stream. The start records an event on the computing stream and
//! makes the second stream wait for it. [`wait`](crate::Communicator::wait) makes the computing
//! stream wait for the call's end. The host waits for neither, so that a layer is enqueued while
//! others are computed and sent. Calls that are started together are one group of NCCL with one
//! end: in nonblocking mode each group costs a thread and polling. Every size is known before the
//! call; ranks do not compare their arguments, which would be a message a call. Ranks whose sizes
//! differ wait for each other until the deadline, and the error says that all have arrived.
//!
//! Because the host does not wait, two others look after the group:
//!
//! * A watchdog thread for each rank (`watchdog.rs`) reads the device's progress every few
//!   milliseconds; the device itself writes it to memory of the host (`device_counter.rs`). The
//!   thread ends the group, and then NCCL's communicator, when a call that the device has reached
//!   outlives its deadline, when NCCL reports an error, or when the group dies by another rank's
//!   word. That ends the device's wait, and the wait of a rank's thread in the driver. The tensors
//!   received then are of no use.
//! * Bytes are the only thing that leaves a rank for the outside (a selection, a token, a report).
//!   Before a call with bytes the rank's thread waits until its device has passed the last call
//!   that it has waited for. The group's death is noted before the device is released, so that no
//!   message leaves that depends on a failed call.
//!
//! A late rank is named: every rank's watching thread counts the calls that its device has reached.
//! The rank whose deadline passes asks the others for their progress over the control communicator.
//!
//! Several communicators of NCCL in one process work as long as ranks do not share a GPU. Two
//! processes may share one, for a test.

mod completion;
mod connect;
mod device_counter;
mod endpoint;
mod failure;
mod ffi;
mod gpu;
mod memory;
mod messages;
mod settings;
mod watchdog;

use candle_core::Device;
use tributary_protocol::Phase;

use self::completion::until_done;
use self::endpoint::NcclEndpoint;
use self::ffi::Handle;
use self::gpu::{Card, version_text};
use self::messages::Gathers;
pub use self::settings::{NcclSettings, UnequalGathers};
use crate::group::{Endpoint, Member};
use crate::{Communicator, Error, Result};

/// Name and version of the NCCL library that this program runs with.
///
/// # Errors
/// Returns an error if the library does not report its version.
pub fn library_version() -> Result<String> {
    Ok(format!("NCCL {}", version_text(ffi::version()?)))
}

/// Lets NCCL connect two ranks of one GPU, and CUDA load all code at the start. To be called before
/// the process starts its second thread, and before anything of NCCL and CUDA.
///
/// # Errors
/// Returns an error if the process has several threads.
pub fn allow_shared_gpu() -> Result<()> {
    ffi::set_variable(ffi::SHARED_GPU_VARIABLE, "1")?;
    // Code that is loaded later may wait for a message of this rank, which waits for the other one.
    ffi::set_variable("CUDA_MODULE_LOADING", "EAGER")
}

/// A communicator of the same ranks whose tensors go over NCCL; `device` is this rank's GPU. Every
/// rank calls it at the same place.
///
/// # Errors
/// Returns [`Error::Start`] if the device is no GPU or NCCL cannot connect the ranks,
/// [`Error::SharedGpu`] if two ranks have one GPU, [`Error::StartTimeout`] if connecting takes too
/// long, and the control communicator's errors. The group is dead after an error.
pub fn start<E: Endpoint + 'static>(
    mut control: Member<E>,
    device: &Device,
    settings: NcclSettings,
) -> Result<Box<dyn Communicator>> {
    control.set_deadline(Phase::Start, settings.start_timeout);
    let before = gpu::cuda_device(device).and_then(|card| Ok((card.clone(), memory::outside_the_pool_bytes(card)?)));
    let (card, before_bytes) = before.map_err(|error| control.endpoint().kill(error))?;
    let (handle, terms) = connect(&mut control, device, settings).map_err(|error| control.endpoint().kill(error))?;
    let rank = control.rank();
    let gathers = Gathers::of(settings.unequal_gathers, terms.several_hosts);
    ffi::without_events(&card);
    let mut endpoint = control.move_to(|inner, patience| {
        let multiprocessors = settings.message_multiprocessors;
        NcclEndpoint::new(inner, patience, card.clone(), (handle, gathers), multiprocessors)
    })?;
    let connected = connect::connect_all(&mut endpoint, &card).and_then(|()| memory::outside_the_pool_bytes(&card));
    let now_bytes = connected.map_err(|error| endpoint.endpoint().kill(error))?;
    // Ranks that share the card have taken it together.
    endpoint.endpoint_mut().message_bytes = now_bytes.saturating_sub(before_bytes) / terms.sharing[rank].max(1) as u64;
    Ok(Box::new(endpoint))
}

/// Terms of the group, which rank 0 sends to the others.
#[derive(serde::Serialize, serde::Deserialize)]
struct Terms {
    /// NCCL's name of the group.
    id: Vec<u8>,
    several_hosts: bool,
    /// For each rank, the number of ranks that have the same GPU.
    sharing: Vec<usize>,
}

/// Shows all ranks' cards to rank 0, gets the terms from it, and connects.
fn connect<E: Endpoint>(control: &mut Member<E>, device: &Device, settings: NcclSettings) -> Result<(Handle, Terms)> {
    let device = gpu::cuda_device(device)?;
    let (rank, world) = (control.rank(), control.size());
    let cards = control.gather_bytes(0, tributary_protocol::encode(&Card::of(device)?)?)?;
    let terms = if rank == 0 {
        let cards = cards.iter().map(|bytes| Ok(tributary_protocol::decode(bytes)?)).collect::<Result<Vec<Card>>>()?;
        gpu::check(&cards, settings.allow_shared_gpu)?;
        let (several_hosts, sharing) = (gpu::on_several_hosts(&cards), gpu::sharing(&cards));
        Some(tributary_protocol::encode(&Terms { id: ffi::unique_id()?.to_vec(), several_hosts, sharing })?)
    } else {
        None
    };
    let terms: Terms = tributary_protocol::decode(&control.broadcast_bytes(0, terms)?)?;
    assert_eq!(terms.sharing.len(), world, "ranks whose GPUs are counted");
    let length = terms.id.len();
    let id = terms.id.as_slice().try_into().map_err(|_| Error::Start(format!("an id of {length} bytes")))?;
    let stream = device.cuda_stream();
    stream.context().bind_to_thread().map_err(failure::cuda)?;
    let most_blocks = ffi::most_blocks(stream.context(), settings.message_multiprocessors)?;
    let handle = Handle::connect(id, world, rank, most_blocks)?;
    let limit = settings.start_timeout;
    let late = || Some(Error::StartTimeout(limit));
    until_done(&handle, &*control.endpoint().monitor(), limit, &late).inspect_err(|_| handle.abort())?;
    // NCCL has read its own files by now, and put their settings into the environment.
    if gpu::calls_block() {
        return Err(gpu::blocking(rank));
    }
    Ok((handle, terms))
}
