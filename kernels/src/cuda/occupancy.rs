//! Number of blocks of threads that a device runs at a time, and of multiprocessors that attention
//! leaves to others.

use std::cell::Cell;

use candle_core::CudaDevice;
use cudarc::driver::sys::CUdevice_attribute;

use super::attribute::attribute;
use crate::error::Result;

thread_local! {
    static LEFT: Cell<usize> = const { Cell::new(0) };
}

/// From now on, attention over many rows that this thread gives to a Hopper takes `count`
/// multiprocessors fewer than the device has, but at least one. Gives the count from before, which
/// is 0 at first.
///
/// Attention's blocks keep their multiprocessors until their work is done: a kernel on another
/// stream (NCCL's, for a message) waits for them unless some multiprocessors are left to it. Each
/// thread has its own count, as each rank is a thread.
pub fn leave_multiprocessors(count: usize) -> usize {
    LEFT.replace(count)
}

/// Number of multiprocessors of a device.
///
/// # Errors
/// Returns an error if the driver refuses.
pub fn multiprocessors(device: &CudaDevice) -> Result<usize> {
    attribute(device, CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
}

/// Number of multiprocessors that blocks which keep them may take.
///
/// # Errors
/// Returns an error if the driver refuses.
pub fn multiprocessors_to_keep(device: &CudaDevice) -> Result<usize> {
    Ok(multiprocessors(device)?.saturating_sub(LEFT.get()).max(1))
}

/// Blocks of attention that run at a time on one multiprocessor, where `most_by_registers` of them
/// fit its registers and each has `shared_bytes` bytes of shared memory.
///
/// # Errors
/// Returns an error if the driver refuses.
pub fn resident_blocks(device: &CudaDevice, shared_bytes: usize, most_by_registers: usize) -> Result<usize> {
    let has = attribute(device, CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR)?;
    let reserved = attribute(device, CUdevice_attribute::CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK)?;
    Ok(blocks_of_one(has, shared_bytes + reserved, most_by_registers))
}

/// Blocks that run at a time on one multiprocessor with `has` bytes of shared memory; each block
/// takes `takes` of them.
fn blocks_of_one(has: usize, takes: usize, most_by_registers: usize) -> usize {
    (has / takes).clamp(1, most_by_registers)
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::{blocks_of_one, leave_multiprocessors, multiprocessors, multiprocessors_to_keep};

    const KIB: usize = 1024;

    /// Blocks of `attend` with heads of 128 (80.5 KiB, and 1 KiB reserved) and of 64 (40.5 KiB).
    #[test]
    fn shared_memory_says_how_many_blocks_fit_a_multiprocessor() {
        // Kilobytes of a multiprocessor: NVIDIA's table of compute capabilities 8.0, 8.6 and 8.9,
        // and 9.0.
        for (has, wide, narrow) in [(164, 2, 2), (100, 1, 2), (228, 2, 2)] {
            assert_eq!(blocks_of_one(has * KIB, 82_432 + KIB, 2), wide, "heads of 128, {has} KiB");
            assert_eq!(blocks_of_one(has * KIB, 41_472 + KIB, 2), narrow, "heads of 64, {has} KiB");
        }
        assert_eq!(blocks_of_one(0, KIB, 2), 1, "an unknown size: one block runs in any case");
    }

    #[test]
    fn attention_takes_the_multiprocessors_that_are_left_to_it() {
        let Device::Cuda(device) = crate::cuda::device(0).expect("a GPU, or an emulated one") else {
            unreachable!("a GPU was asked for")
        };
        let all = multiprocessors(&device).expect("it says so");
        let kept = |left: usize| {
            leave_multiprocessors(left);
            multiprocessors_to_keep(&device).expect("it says so")
        };
        assert_eq!([1, all - 1, all, usize::MAX, 0].map(kept), [all - 1, 1, 1, 1, all]);
    }

    #[test]
    fn a_thread_leaves_what_it_was_told_to() {
        assert_eq!(leave_multiprocessors(5), 0);
        let other = std::thread::spawn(|| leave_multiprocessors(7)).join();
        assert_eq!(other.expect("it ends"), 0);
        assert_eq!(leave_multiprocessors(0), 5);
    }
}
