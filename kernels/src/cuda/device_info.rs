//! The identity and memory of a GPU in plain numbers and names, the same in builds with CUDA and
//! without.

/// The identity of a GPU, the same for every process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The maker's name for it.
    pub name: String,
    /// Its 128-bit name, which no other GPU has, as `GPU-` and 32 hexadecimal digits in groups.
    pub uuid: String,
    /// PCI address on the host, as `0000:1b:00.0`.
    pub bus_id: String,
    /// Compute capability: the generation of its instructions, as 9.0.
    pub capability: (u32, u32),
    /// Its memory in bytes.
    pub memory_bytes: u64,
    /// The newest CUDA that the driver knows, as 13.0.
    pub driver: (u32, u32),
}

/// Bytes of a device's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// Bytes that this process can still have: those that no process has, and those that its own
    /// pool holds unused.
    pub free_bytes: u64,
    /// Bytes of all its memory.
    pub total_bytes: u64,
}

/// The pool that a device's tensors come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pool {
    /// Bytes in tensors now.
    pub used_bytes: u64,
    /// The most that were in tensors at once, since the process began.
    pub used_high_bytes: u64,
    /// Bytes that the pool has taken from the device.
    pub reserved_bytes: u64,
}
